// Device memory, host memory that the device can reach, and copies.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "api.h"
#include "faults.h"
#include "report.h"

/// Whether this allocation is the one that a fault lets fail.
static bool is_refused() {
    static std::atomic<long> count;
    long first = fault("out-of-memory");
    return ++count >= first && first > 0;
}

static CUresult allocate(CUdeviceptr* pointer, size_t bytes, CUstream stream, bool waits) {
    IN_CONTEXT;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t address = is_refused() ? 0 : machine().memory.allocate(stream_of(stream)->context->ordinal, bytes);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    auto begin = [=](const Accessor& accessor) { machine().memory.begin(accessor, address, bytes); };
    auto mark = machine().enqueue(stream_of(stream), "an allocation", begin);
    if (waits) machine().wait({mark});
    hold("allocations", 1);
    *pointer = address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) { return allocate(pointer, bytes, nullptr, true); }

EXPORT CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) { return allocate(pointer, bytes, stream, false); }

static CUresult release(CUdeviceptr pointer, CUstream stream, bool waits) {
    IN_CONTEXT;
    size_t bytes = machine().memory.bytes_of(pointer);
    if (!bytes) {
        complain("memory is freed that is not allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    machine().memory.forget(pointer);
    hold("allocations", -1);
    auto end = [=](const Accessor& accessor) { machine().memory.end(accessor, pointer, bytes); };
    auto mark = machine().enqueue(stream_of(stream), "a free", end, waits ? machine().ends(current()) : Marks{});
    if (waits) machine().wait({mark});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) { return release(pointer, nullptr, true); }

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return release(pointer, stream, false); }

/// Host memory that copies read and write when they run, not when they are enqueued.
// Never destroyed, like all that other threads may still use when the process ends.
static std::mutex& pinned_mutex = *new std::mutex;
static auto& pinned = *new std::map<uintptr_t, size_t>;

static bool is_pinned(const void* pointer) {
    std::lock_guard lock(pinned_mutex);
    auto after = pinned.upper_bound((uintptr_t)pointer);
    return after != pinned.begin() && (uintptr_t)pointer - (--after)->first < after->second;
}

EXPORT CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
    IN_CONTEXT;
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
    IN_CONTEXT;
    auto read = source(from, bytes);
    auto copy = [=](const Accessor& accessor) {
        machine().memory.write(accessor, (void*)to, bytes);
        memcpy((void*)to, read(), bytes);
    };
    auto mark = machine().enqueue(stream_of(stream), "a copy to the device", copy);
    if (waits) machine().wait({mark});
    return broken();
}

static CUresult to_host(void* to, CUdeviceptr from, size_t bytes, CUstream stream, bool waits) {
    IN_CONTEXT;
    auto copy = [=](const Accessor& accessor) {
        machine().memory.read(accessor, (void*)from, bytes);
        memcpy(to, (void*)from, bytes);
    };
    auto mark = machine().enqueue(stream_of(stream), "a copy to the host", copy);
    // Into pageable memory such a copy returns when it has been made.
    if (waits || !is_pinned(to)) machine().wait({mark});
    return broken();
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) { return to_device(to, from, bytes, nullptr, true); }
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) { return to_device(to, from, bytes, stream, false); }
EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return to_host(to, from, bytes, nullptr, true); }
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) { return to_host(to, from, bytes, stream, false); }

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    IN_CONTEXT;
    machine().enqueue(stream_of(stream), "a copy on the device", [=](const Accessor& accessor) {
        machine().memory.read(accessor, (void*)from, bytes);
        machine().memory.write(accessor, (void*)to, bytes);
        memmove((void*)to, (void*)from, bytes);
    });
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    IN_CONTEXT;
    machine().enqueue(stream_of(stream), "a fill", [=](const Accessor& accessor) {
        machine().memory.write(accessor, (void*)to, bytes);
        memset((void*)to, value, bytes);
    });
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) { return fill(to, value, bytes, nullptr); }
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) { return fill(to, value, bytes, stream); }

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* given, CUstream stream) {
    IN_CONTEXT;
    CUDA_MEMCPY2D copy = *given;
    bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
    size_t first = copy.srcY * copy.srcPitch + copy.srcXInBytes;
    size_t span = copy.Height ? (copy.Height - 1) * copy.srcPitch + copy.WidthInBytes : 0;
    std::function<const char*()> read = from_host ? source((const char*)copy.srcHost + first, span)
                                                  : [=] { return (const char*)copy.srcDevice + first; };
    char* to = (to_host ? (char*)copy.dstHost : (char*)copy.dstDevice) + copy.dstY * copy.dstPitch + copy.dstXInBytes;
    auto mark = machine().enqueue(stream_of(stream), "a copy of rows", [=](const Accessor& accessor) {
        for (size_t row = 0; row < copy.Height; row++) {
            const char* source = read() + row * copy.srcPitch;
            char* target = to + row * copy.dstPitch;
            if (!from_host) machine().memory.read(accessor, source, copy.WidthInBytes);
            if (!to_host) machine().memory.write(accessor, target, copy.WidthInBytes);
            memcpy(target, source, copy.WidthInBytes);
        }
    });
    if (to_host && !is_pinned(copy.dstHost)) machine().wait({mark});
    return broken();
}
