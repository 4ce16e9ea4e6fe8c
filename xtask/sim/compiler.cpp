// NVRTC's functions: CUDA C++ is compiled by the host's g++ into a library, which stands for PTX.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <nvrtc.h>

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

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char* const* options) {
    auto program = (Program*)handle;
    std::string home = folder("SIM_HOME"), libraries = folder("SIM_LIBRARIES"), cache = folder("SIM_CACHE");
    std::string source = program->source + exports(program->source), includes;
    for (int i = 0; i < count; i++) {
        if (!strncmp(options[i], "--include-path=", 15)) includes += std::string(" -I ") + (options[i] + 15);
    }
    // The accesses to memory are instrumented, and come to the driver; so the library of -fsanitize=thread is not linked.
    std::string command = "g++ -std=c++17 -w -O1 -fno-strict-aliasing -ffp-contract=off -fno-gnu-unique -fvisibility=hidden -fPIC"
                          " -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -include " + home + "/prelude.h" + includes;
    char name[17];
    snprintf(name, sizeof name, "%016lx", hash(source + command + read(home + "/prelude.h") + read(home + "/kernel.h")));
    std::string base = cache + "/" + name, library = base + ".so", mine = base + "." + std::to_string(getpid());
    program->module = "// simulated module " + library;
    if (access(library.c_str(), R_OK) == 0) return NVRTC_SUCCESS;
    std::ofstream(mine + ".cpp") << source;
    command += " -c " + mine + ".cpp -o " + mine + ".o 2> " + mine + ".log && g++ -shared " + mine + ".o -o " + mine + ".so -L" + libraries +
               " -l:libcuda.so.1 2>> " + mine + ".log";
    bool failed = system(command.c_str()) != 0;
    program->log = read(mine + ".log");
    if (!failed) rename((mine + ".so").c_str(), library.c_str());
    for (const char* ending : {".cpp", ".o", ".log"}) {
        if (!failed) unlink((mine + ending).c_str());
    }
    return failed ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
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
