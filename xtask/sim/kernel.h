// What the driver and the modules that the compiler makes have in common.
#pragma once
#include <cstdint>

struct Index {
    unsigned x, y, z;
};

/// Bytes of shared memory that a block can have.
constexpr unsigned SIM_SHARED = 99 << 10;

/// Where a thread of a kernel is.
struct Place {
    Index thread, block, block_size, grid;
    /// Its place in its warp.
    unsigned lane;
};

/// What the driver does for the threads of a kernel.
struct Services {
    /// Waits for all threads of the block.
    void (*wait_for_block)();
    /// Waits for the lanes of `mask` that are left, and hands out what each of them has given: `all` has room for 32; null where there are none to hand out.
    void (*exchange)(unsigned mask, uint64_t value, uint64_t* all);
    /// Hands out what each lane of the warp has given, until they all wait for each other again.
    const uint64_t* (*gather)(uint64_t value);
    /// The lanes of this warp whose threads have not ended.
    unsigned (*lanes_left)();
};

/// A kernel of a module.
struct Kernel {
    /// Runs one thread, from pointers to its arguments.
    void (*run)(void** arguments);
    /// Bytes of each argument, and how many there are.
    const unsigned* sizes;
    int count;
};

/// A module: `sim_module` returns it.
struct Module {
    void (*set_services)(const Services*);
    Place* (*place)();
    /// The memory that a launch sizes: SIM_SHARED bytes.
    unsigned char* (*shared_memory)();
};
