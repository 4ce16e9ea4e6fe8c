// What the documentation of cuBLAS 13.0 allows of FP8 products, in its order:
// https://docs.nvidia.com/cuda/archive/13.0.0/cublas/index.html, section "cublasLtMatmul()", "To use FP8 kernels", and sections "Tensor Core Usage",
// "cublasLtEpilogue_t", "cublasLtMatmulDescAttributes_t" and "cublasLtMatmulMatrixScale_t". Written from these alone, not from burn-fp8-cublaslt.
#include <cublasLt.h>

#include "problem.h"

unsigned size_of(int type) {
    switch (type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return 1;
    default: return 0;
    }
}

static bool is_fp8(int type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

static Matrix matrix(const Attributes& layout) {
    return {
        (int)layout.get<uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE, 0),
        layout.get<uint64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS, 0),
        layout.get<uint64_t>(CUBLASLT_MATRIX_LAYOUT_COLS, 0),
        layout.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD, 0),
        layout.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0),
        layout.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1),
    };
}

Problem Problem::of(const Attributes& description, const Attributes& a, const Attributes& b, const Attributes& c, const Attributes& d) {
    auto pointer = [&](int attribute) { return description.get<void*>(attribute, nullptr); };
    Problem problem{};
    problem.a = matrix(a);
    problem.b = matrix(b);
    problem.c = matrix(c);
    problem.d = matrix(d);
    problem.transpose_a = description.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
    problem.transpose_b = description.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
    problem.fast = description.get<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0) == 1;
    problem.compute_type = description.get<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, -1);
    problem.scale_type = description.get<int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE, -1);
    problem.epilogue = description.get<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    problem.scale_a = pointer(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
    problem.scale_b = pointer(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
    problem.scale_c = pointer(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER);
    problem.scale_d = pointer(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER);
    problem.scale_mode_a = description.get<int32_t>(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
    problem.scale_mode_b = description.get<int32_t>(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
    problem.bias = pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    // "By default (or when the value is set to -1), the bias vector elements are the same type as the elements of the output matrix", with the
    // exceptions of the table of FP8 types.
    int implied = problem.d.type == CUDA_R_32F ? CUDA_R_16BF : is_fp8(problem.d.type) ? problem.c.type : problem.d.type;
    problem.bias_type = description.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1);
    if (problem.bias_type < 0) problem.bias_type = implied;
    problem.bias_stride = description.get<int64_t>(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 0);
    problem.amax_d = pointer(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
    return problem;
}

/// The table of types of FP8 products.
static const char* types(const Problem& p) {
    if (!is_fp8(p.a.type) || !is_fp8(p.b.type)) return "A and B are not FP8";
    bool same = p.a.type == CUDA_R_8F_E4M3 && p.b.type == CUDA_R_8F_E4M3;
    if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return "A and B are both E5M2";
    if (p.d.type == CUDA_R_8F_E5M2 && same) return "D is E5M2 of two E4M3";
    if (!size_of(p.c.type) || !size_of(p.d.type) || is_fp8(p.c.type)) return "the type of C or D";
    bool fits = is_fp8(p.d.type) ? p.c.type != CUDA_R_32F : p.c.type == p.d.type;
    if (!fits) return "the type of C for this D";
    int bias = p.c.type == CUDA_R_32F ? CUDA_R_16BF : p.c.type;
    if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) && p.bias_type != bias) return "the type of the bias";
    return nullptr;
}

/// "All matrix dimensions must meet the optimal requirements listed in Tensor Core Usage": multiples of 16 bytes.
static const char* alignment(const Matrix& matrix) {
    uint64_t bytes = size_of(matrix.type);
    if (matrix.rows * bytes % 16) return "the rows of a matrix are no multiple of 16 bytes";
    if ((uint64_t)matrix.ld * bytes % 16) return "a leading dimension is no multiple of 16 bytes";
    if (matrix.batch > 1 && (uint64_t)matrix.stride * bytes % 16) return "a stride between matrices is no multiple of 16 bytes";
    if ((uint64_t)matrix.ld < matrix.rows) return "a leading dimension is less than the rows";
    return nullptr;
}

static const char* scales(const Problem& p, long device) {
    if (!is_fp8(p.d.type) && p.scale_d) return "a scale of D, which is not FP8";
    if (!is_fp8(p.d.type) && p.amax_d) return "an amax of D, which is not FP8";
    int modes[] = {p.scale_mode_a, p.scale_mode_b};
    for (int mode : modes) {
        if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) continue;
        bool mx = mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
        if (mx && device < 100) return "scales of blocks of 32 are for compute capability 10.0 and newer";
        if (!mx && device != 90) return "scales of vectors or blocks in f32 are for compute capability 9.0";
        // With blocks of 32 D would have scales of blocks too, by an attribute that this simulation does not know.
        if (is_fp8(p.d.type)) return "D is FP8 and scales are of vectors or blocks";
    }
    bool vectors = modes[0] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F || modes[1] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    if (vectors && modes[0] != modes[1]) return "one operand has a scale for each row, the other has not";
    bool mx = modes[0] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 || modes[1] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    if (mx && modes[0] != modes[1]) return "one operand has a scale for each 32 elements, the other has not";
    bool scaled = modes[0] != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F || modes[1] != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    if (scaled && (!p.scale_a || !p.scale_b)) return "no pointer to scales of vectors or blocks";
    bool squares = modes[0] == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && modes[1] == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    return squares ? "both operands have a scale for each block of 128 × 128" : nullptr;
}

/// The bit of the epilogues that have an auxiliary output.
static const uint32_t AUXILIARY = 128;

const char* refusal(const Problem& p, long device) {
    if (const char* reason = types(p)) return reason;
    if (!p.transpose_a || p.transpose_b) {
        // Blackwell's data center GPUs (10.x) take all four.
        if (device < 100) return "not TN: A must be transposed, B must not";
        return "this simulation runs TN only";
    }
    if (p.compute_type != CUBLAS_COMPUTE_32F) return "the compute type is not 32F";
    if (p.scale_type != CUDA_R_32F) return "the scale type is not R_32F";
    if (p.a.rows != p.b.rows || p.d.rows != p.a.columns || p.d.columns != p.b.columns || p.c.rows != p.d.rows || p.c.columns != p.d.columns) {
        return "the shapes do not fit";
    }
    if (!p.a.rows || !p.d.rows || !p.d.columns) return "a dimension is 0";
    for (const Matrix& matrix : {p.a, p.b, p.c, p.d}) {
        if (matrix.batch != p.d.batch) return "the batches differ";
        if (const char* reason = alignment(matrix)) return reason;
    }
    if (p.epilogue & AUXILIARY) return "this simulation has no auxiliary outputs";
    return scales(p, device);
}
