// cuBLASLt's functions that burn-fp8-cublaslt calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cublasLt.h>

#include "../driver/faults.h"
#include "attributes.h"
#include "product.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

static long device() {
    const char* value = getenv("SIM_CAPABILITY");
    return value ? atol(value) : 89;
}

EXPORT size_t cublasLtGetVersion() {
    long asked = fault("cublaslt-version");
    return asked ? asked : 130000;
}

EXPORT cublasStatus_t cublasLtGetProperty(libraryPropertyType property, int* value) {
    int version = cublasLtGetVersion();
    *value = property == MAJOR_VERSION ? version / 10000 : property == MINOR_VERSION ? version / 100 % 100 : version % 100;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    if (fault("no-handle")) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = (cublasLtHandle_t) new char;
    sim_hold("handles", 1);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete (char*)handle;
    sim_hold("handles", -1);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- descriptors ----

/// The four functions of a kind of descriptor, after its creation.
#define DESCRIPTOR(NAME, TYPE, ATTRIBUTE)                                                                                              \
    EXPORT cublasStatus_t NAME##Destroy(TYPE descriptor) {                                                                             \
        delete (Attributes*)descriptor;                                                                                                \
        sim_hold("descriptors", -1);                                                                                                   \
        return CUBLAS_STATUS_SUCCESS;                                                                                                  \
    }                                                                                                                                  \
    EXPORT cublasStatus_t NAME##SetAttribute(TYPE descriptor, ATTRIBUTE attribute, const void* value, size_t bytes) {                  \
        ((Attributes*)descriptor)->set(attribute, value, bytes);                                                                       \
        return CUBLAS_STATUS_SUCCESS;                                                                                                  \
    }                                                                                                                                  \
    EXPORT cublasStatus_t NAME##GetAttribute(TYPE descriptor, ATTRIBUTE attribute, void* value, size_t bytes, size_t* written) {       \
        bool copied = ((const Attributes*)descriptor)->copy(attribute, value, bytes, written);                                         \
        return copied ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;                                                           \
    }
DESCRIPTOR(cublasLtMatmulDesc, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t)
DESCRIPTOR(cublasLtMatrixLayout, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t)
DESCRIPTOR(cublasLtMatmulPreference, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t)

static Attributes* new_descriptor() {
    sim_hold("descriptors", 1);
    return new Attributes;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t compute, cudaDataType_t scale) {
    auto attributes = new_descriptor();
    attributes->put<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute);
    attributes->put<int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale);
    *descriptor = (cublasLtMatmulDesc_t)attributes;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
    auto attributes = new_descriptor();
    attributes->put<uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE, type);
    attributes->put<uint64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
    attributes->put<uint64_t>(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
    attributes->put<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD, ld);
    *layout = (cublasLtMatrixLayout_t)attributes;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    *preference = (cublasLtMatmulPreference_t)new_descriptor();
    return CUBLAS_STATUS_SUCCESS;
}

// ---- algorithms: three, alike but for their numbers ----

constexpr int ALGORITHMS = 3;
/// What each needs, in bytes.
constexpr size_t WORKSPACES[ALGORITHMS] = {0, 1 << 20, 8 << 20};

static Problem problem_of(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                          cublasLtMatrixLayout_t d) {
    return Problem::of(*(Attributes*)description, *(Attributes*)a, *(Attributes*)b, *(Attributes*)c, *(Attributes*)d);
}

/// Says why a product is refused, where SIM_TRACE is set.
static bool is_refused(const Problem& problem) {
    const char* reason = refusal(problem, device());
    if (reason && getenv("SIM_TRACE")) fprintf(stderr, "simulated cuBLASLt: refused: %s\n", reason);
    return reason != nullptr;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int* found) {
    *found = 0;
    if (long status = fault("heuristics")) return (cublasStatus_t)status;
    if (fault("no-algorithm")) return CUBLAS_STATUS_SUCCESS;
    if (is_refused(problem_of(description, a, b, c, d))) return CUBLAS_STATUS_NOT_SUPPORTED;
    auto& preferences = *(Attributes*)preference;
    for (int attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        if (preferences.get<uint32_t>(attribute, 256) < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    uint64_t workspace = preferences.get<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
    for (int number = 0; number < ALGORITHMS && *found < wanted; number++) {
        if (WORKSPACES[number] > workspace) continue;
        cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
        memset(&result, 0, sizeof result);
        result.algo.data[0] = 60 + number;
        result.workspaceSize = WORKSPACES[number];
        result.wavesCount = 1;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                           void* value, size_t bytes, size_t* written) {
    uint64_t number = attribute == CUBLASLT_ALGO_CONFIG_ID ? algorithm->data[0] : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? 1 : 0;
    memcpy(value, &number, bytes < sizeof number ? bytes : sizeof number);
    if (written) *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- the product ----

static bool is_aligned(const void* pointer) { return (uintptr_t)pointer % 16 == 0; }

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                                     const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout,
                                     void* d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
    if (long status = fault("product")) return (cublasStatus_t)status;
    Problem problem = problem_of(description, a_layout, b_layout, c_layout, d_layout);
    if (is_refused(problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
    auto product = new Product{problem, device(), *(const float*)alpha, *(const float*)beta, (const char*)a, (const char*)b, (const char*)c, (char*)d};
    uint64_t number = algorithm ? algorithm->data[0] - 60 : 0;
    bool fits = number < ALGORITHMS && WORKSPACES[number] <= workspace_bytes && (uintptr_t)workspace % 256 == 0;
    bool aligned = is_aligned(a) && is_aligned(b) && is_aligned(c) && is_aligned(d) && is_aligned(problem.bias);
    bool given = a && b && d && (c || product->beta == 0) && (problem.bias || !(problem.epilogue & CUBLASLT_EPILOGUE_BIAS));
    if (!fits || !aligned || !given) {
        delete product;
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    std::vector<SimRange> reads, writes;
    ranges(*product, reads, writes);
    // Nothing else may use the workspace meanwhile.
    if (WORKSPACES[number]) writes.push_back({workspace, WORKSPACES[number]});
    auto run = [](void* data) {
        multiply(*(Product*)data);
        delete (Product*)data;
    };
    bool enqueued = sim_enqueue(stream, "cublasLtMatmul", reads.data(), reads.size(), writes.data(), writes.size(), run, product);
    if (!enqueued) delete product;
    return enqueued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
