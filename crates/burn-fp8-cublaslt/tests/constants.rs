//! The numbers of NVIDIA's headers, against cudarc's generated bindings.

use burn_fp8_cublaslt::raw::constants as ours;
use cudarc::cublaslt::sys::{
    cublasComputeType_t as compute, cublasLtEpilogue_t as epilogue,
    cublasLtMatmulAlgoConfigAttributes_t as config, cublasLtMatmulDescAttributes_t as desc,
    cublasLtMatmulMatrixScale_t as scale, cublasLtMatmulPreferenceAttributes_t as preference,
    cublasLtMatrixLayoutAttribute_t as layout, cudaDataType_t as data,
    libraryPropertyType_t as property,
};
use cudarc::driver::sys::{
    CUdevice_attribute as device, CUevent_flags as event, CUstream_flags as stream,
};

/// Compares constants of one name here and in an enum of cudarc.
macro_rules! same {
    ($($theirs:ident { $($name:ident),* $(,)? })*) => {
        $($(assert_eq!(i64::from(ours::$name), $theirs::$name as i64, stringify!($name));)*)*
    };
}

#[test]
fn constants_equal_those_of_the_generated_bindings() {
    same! {
        data { CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2 }
        property { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL }
        compute { CUBLAS_COMPUTE_32F }
        epilogue {
            CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU,
        }
        scale {
            CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
            CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
        }
        desc {
            CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUBLASLT_MATMUL_DESC_TRANSA,
            CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
            CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
            CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE,
            CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE,
            CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER,
            CUBLASLT_MATMUL_DESC_FAST_ACCUM, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
            CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
        }
        layout {
            CUBLASLT_MATRIX_LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_ROWS, CUBLASLT_MATRIX_LAYOUT_COLS,
            CUBLASLT_MATRIX_LAYOUT_LD, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
        }
        preference {
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        }
        config {
            CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
            CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_STAGES_ID,
            CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
        }
        device { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR }
        event { CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING }
        stream { CU_STREAM_NON_BLOCKING }
    }
    let theirs = [
        (
            ours::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128X128_32F as i64,
            scale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F as i64,
        ),
        (
            i64::from(ours::CUBLASLT_EPILOGUE_AUX),
            epilogue::CUBLASLT_EPILOGUE_GELU_AUX as i64 - epilogue::CUBLASLT_EPILOGUE_GELU as i64,
        ),
        (i64::from(ours::CUBLAS_OP_T), 1),
        (i64::from(ours::CUBLAS_OP_N), 0),
    ];
    for (ours, theirs) in theirs {
        assert_eq!(ours, theirs);
    }
}
