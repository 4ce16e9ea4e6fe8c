//! The golden products of Flax and JAX.

use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::{Execution, Fp8Backend, Fp8Matmul};

use crate::common::{Outer, every_matmul, golden};
use crate::on_cuda;

/// Relative to the largest magnitude. Tensor cores keep 14 bits or so of each sum (DeepSeek-V3, arXiv:2412.19437, section 3.3.2),
/// and the cases sum at most 128 products.
const NATIVE_TOLERANCE: f32 = 1.0 / 1024.0;

fn emulated_codes_and_scales_are_exact<B: Fp8Matmul>() {
    golden::codes_and_scales_are_exact::<B>();
}

fn emulated_products_match<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Autodiff<B>: Fp8Matmul,
    Fp8Backend<B>: burn::tensor::backend::Backend,
{
    let config = every_matmul().with_execution(Execution::FakeQuantized);
    golden::products_and_gradients_match_within::<B>(1e-5, &config);
}

/// Batched products among them fall back to emulation.
fn products_match<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Autodiff<B>: Fp8Matmul,
    Fp8Backend<B>: burn::tensor::backend::Backend,
{
    golden::products_and_gradients_match_within::<B>(NATIVE_TOLERANCE, &every_matmul());
}

on_cuda!(emulated_codes_and_scales_are_exact, emulated_products_match, products_match);
