#include "report.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <unistd.h>

// Never destroyed: other threads may complain while the process ends.
static std::mutex& mutex = *new std::mutex;
static auto& complaints = *new std::set<std::string>;

void complain(const std::string& text) {
    std::lock_guard lock(mutex);
    if (!complaints.insert(text).second) return;
    fprintf(stderr, "simulated CUDA: %s\n", text.c_str());
    if (variable("SIM_ABORT", 0)) abort();
}

long variable(const char* name, long otherwise) {
    const char* value = getenv(name);
    return value ? strtol(value, nullptr, 0) : otherwise;
}

/// The exit code of a process that would have ended well.
constexpr int FAILED = 86;

__attribute__((destructor)) static void at_the_end() {
    drain();
    std::lock_guard lock(mutex);
    if (complaints.empty()) return;
    fprintf(stderr, "simulated CUDA: %zu complaints\n", complaints.size());
    fflush(nullptr);
    _exit(FAILED);
}
