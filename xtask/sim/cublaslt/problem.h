// A product as its descriptors say it.
#pragma once
#include <cstdint>

#include "attributes.h"

struct Matrix {
    int type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int batch;
};

/// `D = scale_D · act(alpha · scale_A · scale_B · Aᵀ B + beta · C + bias)`, column by column.
struct Problem {
    Matrix a, b, c, d;
    bool transpose_a, transpose_b, fast;
    int compute_type, scale_type;
    uint32_t epilogue;
    const void *scale_a, *scale_b, *scale_c, *scale_d, *bias;
    int scale_mode_a, scale_mode_b, bias_type;
    int64_t bias_stride;
    void* amax_d;

    static Problem of(const Attributes& description, const Attributes& a, const Attributes& b, const Attributes& c, const Attributes& d);
    uint64_t k() const { return a.rows; }
};

/// Why NVIDIA's documentation refuses it; null where it does not. Device: 89, 90 or 100.
const char* refusal(const Problem& problem, long device);

/// Bytes of an element; 0 for other types.
unsigned size_of(int type);
