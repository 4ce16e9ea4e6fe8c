//! The epilogue in cuBLASLt's terms.

use crate::problem::{Activation, Epilogue};
use crate::raw::constants as k;

/// `cublasLtEpilogue_t`.
pub(super) fn number(epilogue: &Epilogue) -> u32 {
    let activation = match epilogue.activation {
        Activation::None => 0,
        Activation::Relu => k::CUBLASLT_EPILOGUE_RELU,
        Activation::Gelu => k::CUBLASLT_EPILOGUE_GELU,
    };
    let aux = if epilogue.aux.is_some() { k::CUBLASLT_EPILOGUE_AUX } else { 0 };
    let bias = if epilogue.bias.is_some() { k::CUBLASLT_EPILOGUE_BIAS } else { 0 };
    match activation | aux | bias {
        0 => k::CUBLASLT_EPILOGUE_DEFAULT,
        number => number,
    }
}
