// Sums in f32 in the order of K, everything after them in f64: no claim about the order or the roundings of tensor cores.
#include "product.h"

#include <cmath>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

static float decode(uint8_t code, int type) {
    auto kind = type == CUDA_R_8F_E5M2 ? __NV_E5M2 : __NV_E4M3;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kind)));
}

static double load(const char* matrix, int type, int64_t index) {
    switch (type) {
    case CUDA_R_32F: return ((const float*)matrix)[index];
    case CUDA_R_16F: return __half2float(((const __half*)matrix)[index]);
    default: return __bfloat162float(((const __nv_bfloat16*)matrix)[index]);
    }
}

static void store(char* matrix, int type, int64_t index, float value) {
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

/// The factor of a block along K.
static float scale(const void* scales, int mode, uint64_t row, uint64_t rows, uint64_t block, uint64_t blocks) {
    if (!scales) return 1;
    auto factors = (const float*)scales;
    switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return factors[row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
        // "1D Block Scaling Factors Layout": the tile of the 128 rows and four blocks, then the place in it.
        uint64_t tile = row / 128 * ((blocks + 3) / 4) + block / 4, outer = row % 128, inner = block % 4;
        uint8_t byte = ((const uint8_t*)scales)[tile * 512 + outer % 32 * 16 + outer / 32 * 4 + inner];
        return byte == 255 ? NAN : ldexpf(1, byte - 127);
    }
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return factors[block * rows + row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return factors[row / 128 * ((blocks + 3) / 4 * 4) + block];
    default: return factors[0];
    }
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static double larger(double amax, double x) { return std::isnan(x) || std::isnan(amax) ? NAN : fmax(amax, fabs(x)); }

void multiply(const Product& product) {
    const Problem& p = product.problem;
    uint64_t m = p.d.rows, n = p.d.columns, k = p.k(), size = along(p.scale_mode_a), blocks = (k + size - 1) / size;
    float values_a[256], values_b[256];
    for (int code = 0; code < 256; code++) {
        values_a[code] = decode(code, p.a.type);
        values_b[code] = decode(code, p.b.type);
    }
    bool relu = p.epilogue & CUBLASLT_EPILOGUE_RELU, is_gelu = p.epilogue & CUBLASLT_EPILOGUE_GELU;
    auto scalar = [](const void* pointer) { return pointer ? *(const float*)pointer : 1.0f; };
    double amax = 0, scale_d = scalar(p.scale_d);
    bool fp8 = size_of(p.d.type) == 1;
    std::vector<float> left(m * k), right(k);
    for (int batch = 0; batch < p.d.batch; batch++) {
        for (uint64_t row = 0; row < m; row++) {
            auto codes = (const uint8_t*)product.a + batch * p.a.stride + (int64_t)row * p.a.ld;
            for (uint64_t l = 0; l < k; l++) left[row * k + l] = values_a[codes[l]];
        }
        for (uint64_t column = 0; column < n; column++) {
            auto codes = (const uint8_t*)product.b + batch * p.b.stride + (int64_t)column * p.b.ld;
            for (uint64_t l = 0; l < k; l++) right[l] = values_b[codes[l]];
            for (uint64_t row = 0; row < m; row++) {
                double x = 0;
                for (uint64_t block = 0; block < blocks; block++) {
                    float sum = 0;
                    for (uint64_t l = block * size; l < k && l < (block + 1) * size; l++) sum += left[row * k + l] * right[l];
                    x += (double)sum * scale(p.scale_a, p.scale_mode_a, row, m, block, blocks) * scale(p.scale_b, p.scale_mode_b, column, n, block, blocks);
                }
                x *= product.alpha;
                int64_t index = batch * p.d.stride + (int64_t)column * p.d.ld + (int64_t)row;
                if (product.beta != 0) {
                    x += product.beta * load(product.c, p.c.type, batch * p.c.stride + (int64_t)column * p.c.ld + (int64_t)row);
                }
                if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) x += load((const char*)p.bias, p.bias_type, batch * p.bias_stride + (int64_t)row);
                if (relu && x <= 0) x = 0;
                if (is_gelu) x = gelu(x);
                amax = larger(amax, x);
                store(product.d, p.d.type, index, (float)(fp8 ? x * scale_d : x));
            }
        }
    }
    if (p.amax_d) *(float*)p.amax_d = (float)amax;
}
