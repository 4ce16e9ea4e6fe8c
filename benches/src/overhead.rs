//! What the decorator costs where it does nothing: FP8 off, no trace running.

use std::hint::black_box;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::{Fp8Backend, Fp8Config};

use crate::harness::{Options, Row, Side, compare};

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
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a pool of one thread").install(|| {
        [(16, "2000 products 16×16×16, FP8 off"), (64, "2000 products 64×64×64, FP8 off")]
            .map(|(size, name)| {
                let mut decorated = products::<Fp8Backend<Flex>>(size);
                let mut off = || Fp8Config::off().scope(&mut decorated);
                let mut plain = products::<Flex>(size);
                let subject = Side { name, bytes: None, run: &mut off };
                let reference = Side { name: "the same on Flex", bytes: None, run: &mut plain };
                compare((GROUP, 1, None), subject, reference, options.repetitions)
            })
            .into()
    })
}
