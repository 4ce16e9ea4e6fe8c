//! The golden products of Flax and JAX.

use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::{Execution, Fp8Backend, Fp8Matmul};

use crate::common::exact::Sums;
use crate::common::{Outer, every_matmul, golden};
use crate::on_cuda;

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
    golden::products_and_gradients_match_under::<B>(&config, Sums::F32);
}

/// Batched products among them fall back to emulation.
fn products_match<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Autodiff<B>: Fp8Matmul,
    Fp8Backend<B>: burn::tensor::backend::Backend,
{
    golden::products_and_gradients_match_under::<B>(&every_matmul(), Sums::TensorCores);
}

on_cuda!(emulated_codes_and_scales_are_exact, emulated_products_match, products_match);
