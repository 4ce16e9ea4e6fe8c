// Devices, contexts, errors, and what is counted.
#include <atomic>
#include <cstdio>

#include "../kernel.h"
#include "api.h"
#include "enqueue.h"
#include "faults.h"
#include "report.h"

#undef cuDeviceTotalMem

EXPORT CUresult cuInit(unsigned) { return fault("no-device") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

EXPORT CUresult cuDriverGetVersion(int* version) {
    long asked = fault("driver-version");
    *version = asked ? asked : 13000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
#define NAMED(ERROR) case ERROR: *name = #ERROR; break
    NAMED(CUDA_SUCCESS);
    NAMED(CUDA_ERROR_INVALID_VALUE);
    NAMED(CUDA_ERROR_OUT_OF_MEMORY);
    NAMED(CUDA_ERROR_NO_DEVICE);
    NAMED(CUDA_ERROR_INVALID_DEVICE);
    NAMED(CUDA_ERROR_INVALID_IMAGE);
    NAMED(CUDA_ERROR_INVALID_CONTEXT);
    NAMED(CUDA_ERROR_INVALID_HANDLE);
    NAMED(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    NAMED(CUDA_ERROR_NOT_FOUND);
    NAMED(CUDA_ERROR_NOT_READY);
    NAMED(CUDA_ERROR_ILLEGAL_ADDRESS);
    NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    NAMED(CUDA_ERROR_NOT_SUPPORTED);
    default: *name = "CUDA_ERROR_UNKNOWN"; break;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = machine().devices();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < machine().devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    snprintf(name, length, "simulated device %d", device);
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

// ---- contexts: a device has one ----

static thread_local std::vector<CUcontext> contexts;

Context* current() { return contexts.empty() ? nullptr : (Context*)contexts.back(); }

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    if (broken()) return broken();
    *context = (CUcontext)machine().context(device);
    hold("references to contexts", 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
    hold("references to contexts", -1);
    return CUDA_SUCCESS;
}

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
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->ordinal;
    return CUDA_SUCCESS;
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
    IN_CONTEXT;
    machine().wait(machine().ends(current()));
    return broken();
}

// ---- what is left behind ----

static std::atomic<bool> is_broken;

CUresult broken() { return is_broken ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS; }

void break_all() { is_broken = true; }

static std::mutex& counts_mutex = *new std::mutex;
static auto& counts = *new std::map<std::string, long>;

void hold(const char* kind, int more) {
    std::lock_guard lock(counts_mutex);
    counts[kind] += more;
}

EXPORT void sim_hold(const char* kind, int more) { hold(kind, more); }

EXPORT long sim_count(const char* kind) {
    std::lock_guard lock(counts_mutex);
    return counts[kind];
}

