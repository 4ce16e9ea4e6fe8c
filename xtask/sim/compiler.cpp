// NVRTC's functions: CUDA C++ is compiled by the host's g++ into a library, which stands for PTX.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <nvrtc.h>

#include "driver/faults.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

/// Set by `cargo xtask sim`: the folder of these sources, that of the libraries, and one for compiled kernels.
static std::string folder(const char* variable) {
    const char* value = getenv(variable);
    if (value) return value;
    fprintf(stderr, "simulated NVRTC: %s is not set: run `cargo xtask sim`\n", variable);
    abort();
}

struct Program {
    std::string source, log, module;
};

static std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

/// FNV-1a: names of files must be the same in the next process.
static uint64_t hash(const std::string& text) {
    uint64_t hash = 0xCBF29CE484222325;
    for (unsigned char byte : text) hash = (hash ^ byte) * 0x100000001B3;
    return hash;
}

EXPORT const char* nvrtcGetErrorString(nvrtcResult) { return "an error of the simulated compiler"; }

EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int, const char* const*, const char* const*) {
    *program = (nvrtcProgram) new Program{source, "", ""};
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    delete (Program*)*program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

/// What makes the kernels of a source known by their names.
static std::string exports(const std::string& source) {
    static const std::regex kernel(R"(__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(?:__cluster_dims__\([^)]*\)\s*)?(\w+)\s*\()");
    std::string text = "\nSIM_MODULE\n";
    for (std::sregex_iterator found(source.begin(), source.end(), kernel), end; found != end; ++found) {
        text += "SIM_KERNEL(" + (*found)[1].str() + ")\n";
    }
    return text;
}

/// The source with definitions of vectors, and declarations of variables, in the order of their texts: CubeCL writes both in another order in each process, and a kernel
/// that was compiled is found again by its text.
static std::string in_order(const std::string& source) {
    std::istringstream lines(source);
    std::vector<std::string> same;
    std::string line, text, last;
    auto flush = [&] {
        std::sort(same.begin(), same.end());
        for (const std::string& one : same) text += one;
        same.clear();
    };
    while (std::getline(lines, line)) {
        size_t name = line.find(' ');
        bool defines = line.rfind("struct __align__(", 0) == 0;
        bool declares = name != std::string::npos && line.compare(name, 7, " l_mut_") == 0 && line.find_first_not_of("0123456789", name + 7) == line.size() - 1 && line.back() == ';';
        std::string kind = defines ? "definition" : declares ? "declaration" : "";
        if (kind.empty() || kind != last) flush();
        last = kind;
        std::string whole = line + "\n";
        while (defines && line != "};" && std::getline(lines, line)) whole += line + "\n";
        if (kind.empty()) text += whole;
        else same.push_back(whole);
    }
    flush();
    return text;
}

/// Accesses to memory are instrumented, and come to the driver; so the library of -fsanitize=thread is not linked.
static const char COMPILER[] = "g++ -std=c++17 -w -O1 -fno-strict-aliasing -ffp-contract=off -fno-gnu-unique -fvisibility=hidden -fPIC"
                               " -fsanitize=thread --param tsan-instrument-func-entry-exit=0";

/// A name of 16 letters for what depends on a text.
static std::string name_of(const std::string& text) {
    char name[17];
    snprintf(name, sizeof name, "%016lx", hash(text));
    return name;
}

/// Makes a file under another name first: other threads and processes see it whole or not at all. False, with its log, where the command fails.
static bool make(const std::string& file, std::function<std::string(const std::string&)> command, std::string& log) {
    static std::atomic<int> count;
    std::string mine = file + "." + std::to_string(getpid()) + "." + std::to_string(count++);
    bool made = system((command(mine) + " 2> " + mine + ".log").c_str()) == 0;
    log = read(mine + ".log");
    unlink((mine + ".log").c_str());
    return made && rename(mine.c_str(), file.c_str()) == 0;
}

/// The prelude, compiled once for all kernels with these options. Empty, with its log, where that fails.
static std::string prelude(const std::string& options, std::string& log) {
    std::string home = folder("SIM_HOME"), source = read(home + "/prelude.h");
    std::string path = folder("SIM_CACHE") + "/prelude-" + name_of(options + source + read(home + "/kernel.h") + read(home + "/wmma.h")) + ".h", compiled = path + ".gch";
    if (access(compiled.c_str(), R_OK) == 0) return path;
    // As `make` does: another process may read it.
    std::string mine = path + "." + std::to_string(getpid());
    std::ofstream(mine) << source;
    rename(mine.c_str(), path.c_str());
    auto command = [&](const std::string& to) { return options + " -I " + home + " -x c++-header " + path + " -o " + to; };
    return make(compiled, command, log) ? path : "";
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char* const* given) {
    auto program = (Program*)handle;
    if (fault("compiler-fails")) {
        program->log = "refused on demand";
        return NVRTC_ERROR_COMPILATION;
    }
    std::string options = COMPILER;
    for (int i = 0; i < count; i++) {
        if (!strncmp(given[i], "--include-path=", 15)) options += std::string(" -I ") + (given[i] + 15);
    }
    std::string header = prelude(options, program->log);
    if (header.empty()) return NVRTC_ERROR_COMPILATION;
    // One thread runs all kernels, so that shared memory can be static; the memory that a launch sizes is declared, and the module has it.
    std::string source = std::regex_replace(in_order(program->source), std::regex(R"(extern\s+__shared__)"), "extern");
    source += exports(program->source);
    std::string library = folder("SIM_CACHE") + "/" + name_of(source + header) + ".so";
    program->module = "// simulated module " + library;
    if (access(library.c_str(), R_OK) == 0) return NVRTC_SUCCESS;
    // The source stays there, for whoever looks for a bug.
    auto command = [&](const std::string& to) {
        std::ofstream(to + ".cpp") << source;
        return "(" + options + " -include " + header + " -c " + to + ".cpp -o " + to + ".o && g++ -shared " + to + ".o -o " + to + " -L" +
               folder("SIM_LIBRARIES") + " -l:libcuda.so.1 && rm " + to + ".o && mv " + to + ".cpp " + library + ".cpp)";
    };
    return make(library, command, program->log) ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
    *size = ((Program*)program)->log.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
    strcpy(log, ((Program*)program)->log.c_str());
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
    *size = ((Program*)program)->module.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) {
    strcpy(ptx, ((Program*)program)->module.c_str());
    return NVRTC_SUCCESS;
}
