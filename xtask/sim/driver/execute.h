// Kernels: threads of a block are fibers of the thread that runs operations.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../kernel.h"
#include "memory.h"

struct LoadedModule {
    void* library;
    const Module* module;
};

struct Function {
    std::string name;
    const LoadedModule* module;
    const Kernel* kernel;
};

/// A module from what the simulated compiler gave; null where it is none.
LoadedModule* load_module(const char* image);

/// A kernel by its name; null where the module has none.
Function* find_function(const LoadedModule* module, const char* name);

/// A launch: the grid, the blocks, and copies of the arguments.
struct Launch {
    const Function* function;
    Index grid, block;
    /// Bytes of shared memory.
    unsigned shared;
    std::shared_ptr<std::vector<std::vector<uint64_t>>> arguments;
};

/// Runs all blocks, one after the other.
void run(const Launch& launch, Memory& memory, const Accessor& accessor);
