// Sums over K are those of tensor cores, what comes after them is in f32.
#include "product.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "sums.h"

static float load(const char* matrix, int type, int64_t index) {
    switch (type) {
    case CUDA_R_32F: return ((const float*)matrix)[index];
    case CUDA_R_16F: return __half2float(((const __half*)matrix)[index]);
    default: return __bfloat162float(((const __nv_bfloat16*)matrix)[index]);
    }
}

static const uint32_t CANONICAL_NAN = 0x7FFFFFFF;

static void store(char* matrix, int type, int64_t index, float value) {
    if (std::isnan(value)) {
        // That of a shorter type is its upper bytes.
        uint64_t bytes = size_of(type);
        uint32_t bits = CANONICAL_NAN >> (32 - 8 * bytes);
        memcpy(matrix + index * bytes, &bits, bytes);
        return;
    }
    switch (type) {
    case CUDA_R_32F: ((float*)matrix)[index] = value; break;
    case CUDA_R_16F: ((__half*)matrix)[index] = __float2half(value); break;
    case CUDA_R_16BF: ((__nv_bfloat16*)matrix)[index] = __float2bfloat16(value); break;
    case CUDA_R_8F_E4M3: matrix[index] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); break;
    default: matrix[index] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2); break;
    }
}

static void columns(std::vector<SimRange>& ranges, const void* start, const Matrix& matrix) {
    unsigned bytes = size_of(matrix.type);
    for (int batch = 0; batch < matrix.batch; batch++) {
        for (uint64_t column = 0; column < matrix.columns; column++) {
            const char* first = (const char*)start + (batch * matrix.stride + (int64_t)column * matrix.ld) * bytes;
            ranges.push_back({first, matrix.rows * bytes});
        }
    }
}

/// Elements along K that share a scale, where it is that of a block.
static uint64_t along(int mode) { return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ? 32 : 128; }

/// The bytes of the scales of an operand, of so many rows of the product.
static uint64_t scales_of(int mode, uint64_t rows, uint64_t k) {
    uint64_t blocks = (k + along(mode) - 1) / along(mode);
    switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return 4 * rows;
    // A byte each, in whole tiles of 128×4.
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: return (rows + 127) / 128 * ((blocks + 3) / 4) * 512;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return 4 * rows * blocks;
    // Its columns of blocks are padded to a multiple of 4.
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return 4 * ((rows + 127) / 128) * ((blocks + 3) / 4 * 4);
    default: return 4;
    }
}

void ranges(const Product& product, std::vector<SimRange>& reads, std::vector<SimRange>& writes) {
    const Problem& p = product.problem;
    auto scalar = [](std::vector<SimRange>& ranges, const void* pointer) {
        if (pointer) ranges.push_back({pointer, 4});
    };
    columns(reads, product.a, p.a);
    columns(reads, product.b, p.b);
    if (product.beta != 0) columns(reads, product.c, p.c);
    if (p.scale_a) reads.push_back({p.scale_a, scales_of(p.scale_mode_a, p.a.columns, p.k())});
    if (p.scale_b) reads.push_back({p.scale_b, scales_of(p.scale_mode_b, p.b.columns, p.k())});
    scalar(reads, p.scale_d);
    if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) {
        for (int batch = 0; batch < p.d.batch; batch++) {
            unsigned bytes = size_of(p.bias_type);
            reads.push_back({(const char*)p.bias + batch * p.bias_stride * bytes, p.d.rows * bytes});
            if (!p.bias_stride) break;
        }
    }
    columns(writes, product.d, p.d);
    scalar(writes, p.amax_d);
}

/// The scale of a block of 128, or of all of K, in f32; 1 where the operands of the instruction have it.
static float scale_of(const void* scales, int mode, uint64_t row, uint64_t rows, uint64_t block, uint64_t blocks) {
    if (!scales) return 1;
    auto factors = (const float*)scales;
    switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return factors[row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: return 1;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return factors[block * rows + row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return factors[row / 128 * ((blocks + 3) / 4 * 4) + block];
    default: return factors[0];
    }
}

/// The scale of a block of 32. "1D Block Scaling Factors Layout": the tile of the 128 rows and four blocks, then the place in it.
static uint8_t byte_of(const uint8_t* scales, uint64_t row, uint64_t block, uint64_t blocks) {
    uint64_t tile = row / 128 * ((blocks + 3) / 4) + block / 4, outer = row % 128, inner = block % 4;
    return scales[tile * 512 + outer % 32 * 16 + outer / 32 * 4 + inner];
}

static float gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static float larger(float amax, float x) { return std::isnan(x) || std::isnan(amax) ? NAN : fmaxf(amax, fabsf(x)); }

/// After so many of K slow accumulation begins a new chain, on Ada and Hopper.
static const uint64_t CHAIN = 128;

/// Rows of A or columns of B. Scales of blocks of 32 are in the operands of the instruction.
static Rows rows_of(const char* codes, const Matrix& matrix, const void* scales, int mode, int batch) {
    Rows rows(matrix.type, matrix.columns, matrix.rows);
    for (uint64_t row = 0; row < matrix.columns; row++) {
        rows.set(row, (const uint8_t*)codes + batch * matrix.stride + (int64_t)row * matrix.ld);
        if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) continue;
        uint64_t blocks = (matrix.rows + 31) / 32;
        for (uint64_t block = 0; block < blocks; block++) rows.move(row, block, byte_of((const uint8_t*)scales, row, block, blocks));
    }
    return rows;
}

void multiply(const Product& product) {
    const Problem& p = product.problem;
    uint64_t m = p.d.rows, n = p.d.columns, k = p.k(), blocks = (k + CHAIN - 1) / CHAIN;
    Chain chain = chain_of(product.device);
    bool one_chain = p.fast || product.device >= 100;
    auto of_blocks = [](int mode) {
        return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    };
    bool scales_blocks = of_blocks(p.scale_mode_a) || of_blocks(p.scale_mode_b);
    bool relu = p.epilogue & CUBLASLT_EPILOGUE_RELU, is_gelu = p.epilogue & CUBLASLT_EPILOGUE_GELU;
    float amax = 0, scale_d = p.scale_d ? *(const float*)p.scale_d : 1;
    for (int batch = 0; batch < p.d.batch; batch++) {
        Rows left = rows_of(product.a, p.a, p.scale_a, p.scale_mode_a, batch), right = rows_of(product.b, p.b, p.scale_b, p.scale_mode_b, batch);
        for (uint64_t column = 0; column < n; column++) {
            Row b = right.at(column);
            for (uint64_t row = 0; row < m; row++) {
                Row a = left.at(row);
                auto scale = [&](uint64_t block) {
                    return scale_of(p.scale_a, p.scale_mode_a, row, m, block, blocks) * scale_of(p.scale_b, p.scale_mode_b, column, n, block, blocks);
                };
                float sum = 0;
                if (one_chain && !scales_blocks) sum = chain(a, b, 0, k);
                else for (uint64_t block = 0; block < blocks; block++) {
                    float part = chain(a, b, block * CHAIN, std::min(k, (block + 1) * CHAIN));
                    sum = scales_blocks ? fmaf(part, scale(block), sum) : sum + part;
                }
                float alpha = scales_blocks ? product.alpha : scale(0) * product.alpha;
                float c = 0;
                if (product.beta != 0) c = product.beta * load(product.c, p.c.type, batch * p.c.stride + (int64_t)column * p.c.ld + (int64_t)row);
                float y = fmaf(sum, alpha, c);
                if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) y += load((const char*)p.bias, p.bias_type, batch * p.bias_stride + (int64_t)row);
                if (relu && y <= 0) y = 0;
                if (is_gelu) y = gelu(y);
                amax = larger(amax, y);
                store(product.d, p.d.type, batch * p.d.stride + (int64_t)column * p.d.ld + (int64_t)row, size_of(p.d.type) == 1 ? y * scale_d : y);
            }
        }
    }
    if (p.amax_d) store((char*)p.amax_d, CUDA_R_32F, 0, amax);
}
