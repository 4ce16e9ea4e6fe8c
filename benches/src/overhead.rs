//! What the decorator costs where it does nothing: FP8 off, or products too small to gain; no trace running.

use std::hint::black_box;

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::{Fp8Backend, Fp8Config};

use crate::harness::{Options, Side, pool};
use crate::mlp::measured;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "overhead";

/// Products per run: one alone is too short for the clock.
const PRODUCTS: usize = 2000;

/// A product of two square matrices, many times.
fn products<B: Backend>(size: usize) -> impl FnMut() {
    let device = Default::default();
    let x = Tensor::<B, 2>::full([size, size], 0.5, &device);
    move || {
        for _ in 0..PRODUCTS {
            black_box(x.clone().matmul(x.clone()));
        }
    }
}

/// Compares small products with the decorator switched off, and with the filter that was measured, to the same products without it, on one
/// thread.
pub fn run(options: &Options) -> Vec<Row> {
    pool(1).install(|| {
        let measured = measured::<Fp8Backend<Autodiff<Flex>>>();
        let configs =
            [("FP8 off", Fp8Config::off()), ("FP8 where it was measured to gain", measured)];
        let mut rows = Vec::new();
        for (what, config) in configs {
            for size in [16, 64] {
                let name = format!("{PRODUCTS} products {size}×{size}×{size}, {what}");
                let mut decorated = products::<Fp8Backend<Flex>>(size);
                let mut decorated = || config.scope(&mut decorated);
                let mut plain = products::<Flex>(size);
                let reference = Side::new("the same on Flex", &mut plain);
                let subject = Side::new(&name, &mut decorated);
                rows.push(options.compare((GROUP, 1, None), subject, reference));
            }
        }
        rows
    })
}
