// What the simulated cuBLASLt asks of the driver.
#pragma once
#include <cstddef>

/// Bytes of device memory.
struct SimRange {
    const void* start;
    size_t bytes;
};

/// Enqueues `run(data)` on a stream. It reads and writes these ranges, which are checked first. 0 where nothing can be enqueued any more.
extern "C" int sim_enqueue(void* stream, const char* name, const SimRange* reads, size_t read_count, const SimRange* writes, size_t write_count,
                           void (*run)(void*), void* data);

/// Counts what is alive of a kind, and says how much that is.
extern "C" void sim_hold(const char* kind, int more);
extern "C" long sim_count(const char* kind);
