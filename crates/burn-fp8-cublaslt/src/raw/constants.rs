//! Numbers of `cuda.h`, `library_types.h`, `cublas_api.h` and `cublasLt.h`, which are part of NVIDIA's ABI.
#![allow(missing_docs, reason = "the names are those of the headers")]

/// Declares constants, and a test that compares them with those of the same names in enums of cudarc's generated bindings.
macro_rules! constants {
    ($($of:path: $type:ty { $($name:ident = $value:literal,)* })*) => {
        $($(pub const $name: $type = $value;)*)*

        #[test]
        fn constants_equal_those_of_the_generated_bindings() {
            $({
                type Theirs = $of;
                $(assert_eq!(i64::from($name), Theirs::$name as i64, stringify!($name));)*
            })*
        }
    };
}

constants! {
    // cuda.h
    cudarc::driver::sys::CUdevice_attribute: i32 {
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    }
    cudarc::driver::sys::CUstream_flags: u32 {
        CU_STREAM_NON_BLOCKING = 1,
    }
    cudarc::driver::sys::CUevent_flags: u32 {
        CU_EVENT_DISABLE_TIMING = 2,
    }
    // library_types.h
    cudarc::cublaslt::sys::cudaDataType_t: i32 {
        CUDA_R_32F = 0,
        CUDA_R_16F = 2,
        CUDA_R_16BF = 14,
        CUDA_R_8F_E4M3 = 28,
        CUDA_R_8F_E5M2 = 29,
    }
    cudarc::cublaslt::sys::libraryPropertyType_t: i32 {
        MAJOR_VERSION = 0,
        MINOR_VERSION = 1,
        PATCH_LEVEL = 2,
    }
    // cublas_api.h
    cudarc::cublaslt::sys::cublasComputeType_t: i32 {
        CUBLAS_COMPUTE_32F = 68,
    }
    // cublasLt.h
    cudarc::cublaslt::sys::cublasLtEpilogue_t: u32 {
        CUBLASLT_EPILOGUE_DEFAULT = 1,
        CUBLASLT_EPILOGUE_RELU = 2,
        CUBLASLT_EPILOGUE_BIAS = 4,
        CUBLASLT_EPILOGUE_GELU = 32,
    }
    cudarc::cublaslt::sys::cublasLtMatmulMatrixScale_t: i32 {
        CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F = 0,
        CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 = 2,
        CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3,
        CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4,
    }
    cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t: i32 {
        CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0,
        CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1,
        CUBLASLT_MATMUL_DESC_TRANSA = 3,
        CUBLASLT_MATMUL_DESC_TRANSB = 4,
        CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
        CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
        CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
        CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
        CUBLASLT_MATMUL_DESC_D_SCALE_POINTER = 20,
        CUBLASLT_MATMUL_DESC_AMAX_D_POINTER = 21,
        CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25,
        CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
        CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
        CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32,
    }
    cudarc::cublaslt::sys::cublasLtMatrixLayoutAttribute_t: i32 {
        CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
        CUBLASLT_MATRIX_LAYOUT_ROWS = 2,
        CUBLASLT_MATRIX_LAYOUT_COLS = 3,
        CUBLASLT_MATRIX_LAYOUT_LD = 4,
        CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
        CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
    }
    cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t: i32 {
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
    }
    cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t: i32 {
        CUBLASLT_ALGO_CONFIG_ID = 0,
        CUBLASLT_ALGO_CONFIG_TILE_ID = 1,
        CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2,
        CUBLASLT_ALGO_CONFIG_STAGES_ID = 6,
        CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID = 8,
    }
}

pub const CUBLASLT_MATMUL_MATRIX_SCALE_BLK128X128_32F: i32 = 5;
/// cublas_api.h: cudarc's bindings of cuBLASLt lack `cublasOperation_t`.
pub const CUBLAS_OP_N: i32 = 0;
pub const CUBLAS_OP_T: i32 = 1;

#[test]
fn constants_of_other_names_equal_those_of_the_generated_bindings() {
    use cudarc::cublaslt::sys::cublasLtMatmulMatrixScale_t as scale;
    let of_blocks = scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F as i32;
    assert_eq!(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128X128_32F, of_blocks);
}
