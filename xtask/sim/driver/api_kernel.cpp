// Kernels and products.
#include <atomic>
#include <cstring>

#include "api.h"
#include "enqueue.h"
#include "execute.h"
#include "faults.h"

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    IN_CONTEXT;
    if (fault("ptx-too-new")) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    *module = (CUmodule)load_module((const char*)image);
    return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    *function = (CUfunction)find_function((LoadedModule*)module, name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared, CUstream stream, void** given, void**) {
    IN_CONTEXT;
    auto function = (const Function*)handle;
    if (stream_of(stream)->context != current()) return CUDA_ERROR_INVALID_HANDLE;
    if (block_x * block_y * block_z > 1024 || shared > SIM_SHARED || !grid_x || !grid_y || !grid_z) return CUDA_ERROR_INVALID_VALUE;
    // Arguments are taken at the call.
    auto arguments = std::make_shared<std::vector<std::vector<uint64_t>>>();
    for (int i = 0; i < function->kernel->count; i++) {
        unsigned bytes = function->kernel->sizes[i];
        // Room for an alignment of 64 bytes.
        arguments->emplace_back((bytes + 7) / 8 + 8);
        memcpy(arguments->back().data(), given[i], bytes);
    }
    Launch launch{function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, arguments};
    machine().enqueue(stream_of(stream), "the kernel " + function->name, [=](const Accessor& accessor) { run(launch, machine().memory, accessor); });
    return CUDA_SUCCESS;
}

// ---- for the simulated cuBLASLt ----

EXPORT int sim_enqueue(void* handle, const char* name, const SimRange* reads, size_t read_count, const SimRange* writes, size_t write_count,
                       void (*run)(void*), void* data) {
    if (broken() || !current()) return 0;
    static std::atomic<long> count;
    bool breaks = ++count == fault("illegal-address");
    std::vector<SimRange> read(reads, reads + read_count), written(writes, writes + write_count);
    machine().enqueue(stream_of((CUstream)handle), name, [=](const Accessor& accessor) {
        if (breaks) return break_all();
        for (const SimRange& range : read) machine().memory.read(accessor, range.start, range.bytes);
        for (const SimRange& range : written) machine().memory.write(accessor, range.start, range.bytes);
        run(data);
    });
    return 1;
}
