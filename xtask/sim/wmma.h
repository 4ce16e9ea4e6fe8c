// Tensor-core matrices of CUDA C++, for the kernels that Burn multiplies with: a lane holds every 32nd element of a matrix, row by row.
//
// Sums are in f32 in the order of K: no claim about the order or the roundings of tensor cores.
#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}

template <class T> struct SimStored { typedef T type; };
template <> struct SimStored<precision::tf32> { typedef float type; };

template <class Use, int M, int N, int K> struct SimSize;
template <int M, int N, int K> struct SimSize<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct SimSize<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct SimSize<accumulator, M, N, K> { static constexpr int rows = M, columns = N; };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment : SimSize<Use, M, N, K> {
    typedef SimSize<Use, M, N, K> Size;
    static constexpr int num_elements = Size::rows * Size::columns / 32;
    typename SimStored<T>::type x[num_elements];
};

/// Calls `visit` with each element that this lane holds, its row and its column.
template <class F, class Visit> static inline void sim_each(F& fragment, Visit visit) {
    for (int i = 0; i < F::num_elements; i++) {
        int place = (int)sim_place.lane + 32 * i;
        visit(fragment.x[i], place / F::Size::columns, place % F::Size::columns);
    }
}

template <class F, class T> static inline void fill_fragment(F& fragment, T value) {
    sim_each(fragment, [&](auto& x, int, int) { x = value; });
}

template <class Use, int M, int N, int K, class T, class Layout, class P>
static inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const P* from, unsigned stride) {
    __syncwarp();
    constexpr bool by_rows = std::is_same<Layout, row_major>::value;
    sim_each(to, [&](auto& x, int row, int column) { x = from[by_rows ? row * stride + column : column * stride + row]; });
    __syncwarp();
}

template <int M, int N, int K, class T, class P>
static inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& to, const P* from, unsigned stride, layout_t layout) {
    __syncwarp();
    sim_each(to, [&](auto& x, int row, int column) { x = from[layout == mem_row_major ? row * stride + column : column * stride + row]; });
    __syncwarp();
}

template <int M, int N, int K, class T, class P>
static inline void store_matrix_sync(P* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride, layout_t layout) {
    // "The executing thread waits until all threads in the warp execute the same instruction": what they read before is not overwritten.
    __syncwarp();
    sim_each(from, [&](auto& x, int row, int column) { to[layout == mem_row_major ? row * stride + column : column * stride + row] = x; });
    __syncwarp();
}

/// Where a lane has its parts of two matrices.
struct SimPair {
    const void *a, *b;
};

template <int M, int N, int K, class D, class A, class LA, class B, class LB, class C>
__attribute__((no_sanitize("thread"))) static inline void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LA>& a,
                                                                   const fragment<matrix_b, M, N, K, B, LB>& b,
                                                                   const fragment<accumulator, M, N, K, C>& c) {
    SimPair own{&a, &b};
    const uint64_t* lanes = sim_services->gather((uint64_t)&own);
    auto element_a = [&](int place) { return (float)((decltype(&a))((const SimPair*)lanes[place % 32])->a)->x[place / 32]; };
    auto element_b = [&](int place) { return (float)((decltype(&b))((const SimPair*)lanes[place % 32])->b)->x[place / 32]; };
    int lane = (int)sim_place.lane;
    float column[K];
    for (int i = 0; i < fragment<accumulator, M, N, K, D>::num_elements; i++) {
        int place = lane + 32 * i;
        // Where N divides 32, all of a lane's elements are in one column.
        if (i == 0 || 32 % N) {
            for (int k = 0; k < K; k++) column[k] = element_b(k * N + place % N);
        }
        float sum = (float)c.x[i];
        for (int k = 0; k < K; k++) sum += element_a(place / N * K + k) * column[k];
        d.x[i] = (D)sum;
    }
    // Nobody changes a or b before all have read them.
    __syncwarp();
}

/// Rounded to 10 bits of mantissa, ties away from 0: `cvt.rna.tf32.f32`.
static inline float __float_to_tf32(float x) {
    if (!isfinite(x)) return x;
    return __uint_as_float((__float_as_uint(x) + 0x1000) & ~0x1FFFu);
}

} // namespace wmma
} // namespace nvcuda
