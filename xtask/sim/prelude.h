// What NVRTC has built in, for the kernels that CubeCL writes, on a host.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "kernel.h"

// ---- qualifiers: all is host code; shared memory is static, as one thread runs all blocks one after the other ----

#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __shared__
#define __shared__ static
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __constant__
#define __constant__
#undef __forceinline__
#define __forceinline__ inline

// ---- where a thread is ----

extern Place sim_place;
extern const Services* sim_services;
extern unsigned char dynamic_shared_mem[];
#define threadIdx (sim_place.thread)
#define blockIdx (sim_place.block)
#define blockDim (sim_place.block_size)
#define gridDim (sim_place.grid)
#define warpSize 32

// ---- blocks and warps ----

static inline void __syncthreads() { sim_services->wait_for_block(); }
static inline void __syncwarp(unsigned mask = ~0u) { sim_services->exchange(mask, 0, nullptr); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline unsigned __activemask() { return sim_services->lanes_left(); }

template <class T> static inline uint64_t sim_bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle of at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> static inline T sim_value(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// The value that a lane has given; its own where the lane is outside of its part of the warp.
template <class T> static inline T sim_shuffle(unsigned mask, T value, int lane, int width) {
    uint64_t all[32];
    sim_services->exchange(mask, sim_bits(value), all);
    int own = sim_place.lane;
    bool inside = lane >= (own & ~(width - 1)) && lane <= (own | (width - 1));
    return inside ? sim_value<T>(all[lane]) : value;
}

#define SIM_LANE ((int)sim_place.lane)
template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return sim_shuffle(mask, value, (SIM_LANE & ~(width - 1)) | (lane & (width - 1)), width);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    return sim_shuffle(mask, value, SIM_LANE ^ bits, width);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return sim_shuffle(mask, value, SIM_LANE - (int)by, width);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return sim_shuffle(mask, value, SIM_LANE + (int)by, width);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned lanes = mask & sim_services->lanes_left(), ballot = 0;
    uint64_t all[32];
    sim_services->exchange(mask, predicate != 0, all);
    for (int lane = 0; lane < 32; lane++) {
        if (lanes >> lane & 1) ballot |= unsigned(all[lane] & 1) << lane;
    }
    return ballot;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) {
    unsigned lanes = mask & sim_services->lanes_left();
    return __ballot_sync(mask, predicate) == lanes;
}

// ---- atomics: threads of a kernel run one after the other, so that a load and a store are one step ----

template <class T> struct SimSame { typedef T type; };
#define SIM_ATOMIC(NAME, NEXT)                                                         \
    template <class T> static inline T NAME(T* place, typename SimSame<T>::type x) {   \
        T old = *place;                                                                \
        *place = T(NEXT);                                                              \
        return old;                                                                    \
    }
SIM_ATOMIC(atomicAdd, old + x)
SIM_ATOMIC(atomicSub, old - x)
SIM_ATOMIC(atomicMax, old > x ? old : x)
SIM_ATOMIC(atomicMin, old < x ? old : x)
SIM_ATOMIC(atomicAnd, old & x)
SIM_ATOMIC(atomicOr, old | x)
SIM_ATOMIC(atomicXor, old ^ x)
SIM_ATOMIC(atomicExch, x)
template <class T> static inline T atomicCAS(T* place, typename SimSame<T>::type expected, typename SimSame<T>::type x) {
    T old = *place;
    if (old == expected) *place = x;
    return old;
}

// ---- arithmetic ----

using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;

#define SIM_LARGER(T)                                                 \
    static inline T max(T a, T b) { return a > b ? a : b; }           \
    static inline T min(T a, T b) { return a < b ? a : b; }
SIM_LARGER(int)
SIM_LARGER(unsigned)
SIM_LARGER(long)
SIM_LARGER(unsigned long)
SIM_LARGER(long long)
SIM_LARGER(unsigned long long)
static inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
static inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
static inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
static inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
// As CUDA has it: of a number and NaN, the number.
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }

#define __expf expf
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __tanhf tanhf
#define __powf powf
#define __exp10f exp10f
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
static inline unsigned __float_as_uint(float x) { return sim_value<unsigned>(sim_bits(x)); }
static inline float __uint_as_float(unsigned x) { return sim_value<float>(x); }
static inline int __float_as_int(float x) { return sim_value<int>(sim_bits(x)); }
static inline float __int_as_float(int x) { return sim_value<float>((unsigned)x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline int __mulhi(int a, int b) { return (int64_t)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }

#include "wmma.h"

// ---- what a module gives the driver ----

template <auto KERNEL> struct SimKernel;
template <class... A, void (*KERNEL)(A...)> struct SimKernel<KERNEL> {
    static constexpr unsigned sizes[] = {(unsigned)sizeof(A)..., 0u};
    template <size_t... I> static void call(void** arguments, std::index_sequence<I...>) {
        KERNEL(*(std::remove_const_t<A>*)arguments[I]...);
    }
    static void run(void** arguments) { call(arguments, std::index_sequence_for<A...>{}); }
};

#define SIM_MODULE                                                                     \
    Place sim_place;                                                                   \
    const Services* sim_services;                                                      \
    alignas(1024) unsigned char dynamic_shared_mem[SIM_SHARED];                        \
    static const Module sim_the_module = {                                             \
        [](const Services* services) { sim_services = services; },                     \
        []() -> Place* { return &sim_place; },                                         \
        []() -> unsigned char* { return dynamic_shared_mem; },                         \
    };                                                                                 \
    extern "C" __attribute__((visibility("default"))) const Module* sim_module() { return &sim_the_module; }

#define SIM_KERNEL(NAME)                                                               \
    extern "C" __attribute__((visibility("default"))) const Kernel sim_kernel_##NAME = \
        {SimKernel<&NAME>::run, SimKernel<&NAME>::sizes, (int)(sizeof(SimKernel<&NAME>::sizes) / sizeof(unsigned)) - 1};
