//! What the decorator costs where it does nothing: FP8 off, no trace running.

use std::hint::black_box;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::{Fp8Backend, Fp8Config};

use crate::harness::{Options, Side, pool};
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

/// Compares small products with the decorator switched off to the same products without it, on one thread.
pub fn run(options: &Options) -> Vec<Row> {
    pool(1).install(|| {
        [(16, "2000 products 16×16×16, FP8 off"), (64, "2000 products 64×64×64, FP8 off")]
            .map(|(size, name)| {
                let mut decorated = products::<Fp8Backend<Flex>>(size);
                let mut off = || Fp8Config::off().scope(&mut decorated);
                let mut plain = products::<Flex>(size);
                let reference = Side::new("the same on Flex", &mut plain);
                options.compare((GROUP, 1, None), Side::new(name, &mut off), reference)
            })
            .into()
    })
}
