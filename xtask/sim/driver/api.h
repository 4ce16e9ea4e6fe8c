// What the driver's functions have in common. Each is exported by its name in libcuda: those that cudarc, CubeCL and burn-fp8-cublaslt call.
#pragma once
#include <cuda.h>

#include "machine.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

/// The context that is current to this thread; null where there is none.
Context* current();

/// Why no call succeeds any more, or SUCCESS: what an illegal access on the device leaves behind.
CUresult broken();

/// The device runs into an illegal address: for a fault.
void break_all();

/// Counts what is alive of a kind, for `sim_count`.
void hold(const char* kind, int more);

/// The stream that a handle stands for: null is the default stream of the current context.
inline Stream* stream_of(CUstream handle) { return handle ? (Stream*)handle : current()->default_stream; }

/// Ends a function where there is no context to work in.
#define IN_CONTEXT                                                        \
    if (CUresult result = broken(); result != CUDA_SUCCESS) return result; \
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT
