// The driver's functions that cudarc, CubeCL and burn-fp8-cublaslt call, by their names in libcuda.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <cuda.h>

#include "device.h"
#include "enqueue.h"
#include "execute.h"
#include "report.h"

#undef cuDeviceTotalMem
#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- the device ----

EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *name = "CUDA_ERROR_UNKNOWN"; break;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    snprintf(name, length, "simulated device");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
    *bytes = variable("SIM_MEMORY_MB", 4096) << 20;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    // 89, 90 or 100.
    long capability = variable("SIM_CAPABILITY", 89);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SIM_SHARED; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7FFFFFFF; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}

// ---- contexts: the device has one ----

static char the_context;
static thread_local std::vector<CUcontext> contexts;

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    *context = (CUcontext)&the_context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (contexts.empty()) contexts.push_back(context);
    contexts.back() = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = contexts.empty() ? nullptr : contexts.back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    *device = 0;
    return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    contexts.push_back(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize() {
    device().wait(device().ends());
    return CUDA_SUCCESS;
}

// ---- streams and events ----

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    *stream = (CUstream)device().create_stream(!(flags & CU_STREAM_NON_BLOCKING));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    device().destroy_stream((Stream*)stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    device().wait(device().end_of(device().stream(stream)));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
    *event = (CUevent) new Event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    delete (Event*)event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ((Event*)event)->marks = device().end_of(device().stream(stream));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxRecordEvent(CUcontext, CUevent event) {
    // "If the specified context has a stream in the capture mode": the conflicting captures are invalidated.
    if (device().fail_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!variable("SIM_WITHOUT_RECORD", 0)) ((Event*)event)->marks = device().ends();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    device().wait(((Event*)event)->marks);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event) {
    return device().reached(((Event*)event)->marks) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    Marks marks[2] = {((Event*)start)->marks, ((Event*)end)->marks};
    if (marks[0].empty() || marks[1].empty()) return CUDA_ERROR_INVALID_HANDLE;
    if (!device().reached(marks[0]) || !device().reached(marks[1])) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(marks[1][0]->time - marks[0][0]->time).count();
    return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    device().enqueue(device().stream(stream), "a wait", [](const Accessor&) {}, ((Event*)event)->marks);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxWaitEvent(CUcontext, CUevent event) {
    if (device().fail_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!variable("SIM_WITHOUT_WAIT", 0)) device().wait_in_all(((Event*)event)->marks);
    return CUDA_SUCCESS;
}

// Captures, as far as they fail: nothing makes graphs.

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
    device().begin_capture(device().stream(stream));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    *graph = nullptr;
    bool is_graph = device().end_capture(device().stream(stream));
    return is_graph ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

// ---- memory ----

static CUresult allocate(CUdeviceptr* pointer, size_t bytes, CUstream stream, bool waits) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t address = device().memory.allocate(bytes);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    auto begin = [=](const Accessor&) { device().memory.begin(address, bytes); };
    auto mark = device().enqueue(device().stream(stream), "an allocation", begin);
    if (waits) device().wait({mark});
    *pointer = address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) { return allocate(pointer, bytes, nullptr, true); }

EXPORT CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) { return allocate(pointer, bytes, stream, false); }

static CUresult release(CUdeviceptr pointer, CUstream stream, bool waits) {
    size_t bytes = device().memory.bytes_of(pointer);
    if (!bytes) {
        complain("memory is freed that is not allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    device().memory.forget(pointer);
    auto end = [=](const Accessor& accessor) { device().memory.end(accessor, pointer, bytes); };
    auto mark = device().enqueue(device().stream(stream), "a free", end, waits ? device().ends() : Marks{});
    if (waits) device().wait({mark});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) { return release(pointer, nullptr, true); }

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return release(pointer, stream, false); }

/// Host memory that copies read and write when they run, not when they are enqueued.
static std::mutex pinned_mutex;
static std::map<uintptr_t, size_t> pinned;

static bool is_pinned(const void* pointer) {
    std::lock_guard lock(pinned_mutex);
    auto after = pinned.upper_bound((uintptr_t)pointer);
    return after != pinned.begin() && (uintptr_t)pointer - (--after)->first < after->second;
}

EXPORT CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
    *pointer = aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!*pointer) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard lock(pinned_mutex);
    pinned[(uintptr_t)*pointer] = bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void* pointer) {
    {
        std::lock_guard lock(pinned_mutex);
        pinned.erase((uintptr_t)pointer);
    }
    free(pointer);
    return CUDA_SUCCESS;
}

/// The bytes of a copy's source on the host: of pageable memory a copy, as the driver stages it.
static std::function<const char*()> source(const void* host, size_t bytes) {
    if (is_pinned(host)) return [=] { return (const char*)host; };
    auto staged = std::make_shared<std::vector<char>>((const char*)host, (const char*)host + bytes);
    return [=] { return staged->data(); };
}

static CUresult to_device(CUdeviceptr to, const void* from, size_t bytes, CUstream stream, bool waits) {
    auto read = source(from, bytes);
    auto copy = [=](const Accessor& accessor) {
        device().memory.write(accessor, (void*)to, bytes);
        memcpy((void*)to, read(), bytes);
    };
    auto mark = device().enqueue(device().stream(stream), "a copy to the device", copy);
    if (waits) device().wait({mark});
    return CUDA_SUCCESS;
}

static CUresult to_host(void* to, CUdeviceptr from, size_t bytes, CUstream stream, bool waits) {
    auto copy = [=](const Accessor& accessor) {
        device().memory.read(accessor, (void*)from, bytes);
        memcpy(to, (void*)from, bytes);
    };
    auto mark = device().enqueue(device().stream(stream), "a copy to the host", copy);
    // Into pageable memory such a copy returns when it has been made.
    if (waits || !is_pinned(to)) device().wait({mark});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) { return to_device(to, from, bytes, nullptr, true); }
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) { return to_device(to, from, bytes, stream, false); }
EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return to_host(to, from, bytes, nullptr, true); }
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) { return to_host(to, from, bytes, stream, false); }

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    device().enqueue(device().stream(stream), "a copy on the device", [=](const Accessor& accessor) {
        device().memory.read(accessor, (void*)from, bytes);
        device().memory.write(accessor, (void*)to, bytes);
        memmove((void*)to, (void*)from, bytes);
    });
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    device().enqueue(device().stream(stream), "a fill", [=](const Accessor& accessor) {
        device().memory.write(accessor, (void*)to, bytes);
        memset((void*)to, value, bytes);
    });
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) { return fill(to, value, bytes, nullptr); }
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) { return fill(to, value, bytes, stream); }

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* given, CUstream stream) {
    CUDA_MEMCPY2D copy = *given;
    bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
    size_t first = copy.srcY * copy.srcPitch + copy.srcXInBytes;
    size_t span = copy.Height ? (copy.Height - 1) * copy.srcPitch + copy.WidthInBytes : 0;
    std::function<const char*()> read = from_host ? source((const char*)copy.srcHost + first, span)
                                                  : [=] { return (const char*)copy.srcDevice + first; };
    char* to = (to_host ? (char*)copy.dstHost : (char*)copy.dstDevice) + copy.dstY * copy.dstPitch + copy.dstXInBytes;
    auto mark = device().enqueue(device().stream(stream), "a copy of rows", [=](const Accessor& accessor) {
        for (size_t row = 0; row < copy.Height; row++) {
            const char* source = read() + row * copy.srcPitch;
            char* target = to + row * copy.dstPitch;
            if (!from_host) device().memory.read(accessor, source, copy.WidthInBytes);
            if (!to_host) device().memory.write(accessor, target, copy.WidthInBytes);
            memcpy(target, source, copy.WidthInBytes);
        }
    });
    if (to_host && !is_pinned(copy.dstHost)) device().wait({mark});
    return CUDA_SUCCESS;
}

// ---- kernels ----

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
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
    auto function = (const Function*)handle;
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
    device().enqueue(device().stream(stream), "the kernel " + function->name, [=](const Accessor& accessor) { run(launch, device().memory, accessor); });
    return CUDA_SUCCESS;
}

// ---- for the simulated cuBLASLt ----

EXPORT void sim_enqueue(void* stream, const char* name, const SimRange* reads, size_t read_count, const SimRange* writes, size_t write_count,
                        void (*run)(void*), void* data) {
    std::vector<SimRange> read(reads, reads + read_count), written(writes, writes + write_count);
    device().enqueue(device().stream(stream), name, [=](const Accessor& accessor) {
        for (const SimRange& range : read) device().memory.read(accessor, range.start, range.bytes);
        for (const SimRange& range : written) device().memory.write(accessor, range.start, range.bytes);
        run(data);
    });
}
