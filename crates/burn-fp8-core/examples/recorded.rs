//! Compares the model with dot products that cards gave:
//!
//! ```sh
//! cargo run --release -p burn-fp8-core --example recorded -- FOLDER
//! ```
//!
//! FOLDER holds `instructions.safetensors` and `instructions.json`: of each card and format `a`, `b` `[count, 32]` codes, and `c`, `d` `[count]` f32, where
//! one instruction gave `d = c + Σ a·b`. The vectors of MATLAB-tensor-core (`model_validation/`, BSD 2-Clause) are such, but are not part of this project.

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::sums::{Accumulator, RunningSum, step};
use burn_fp8_test_support::Golden;

/// Cards, how their unit adds, and whether it used `c`.
const CARDS: [(&str, Accumulator, bool); 3] = [
    ("ada", Accumulator::ADA, true),
    ("h100", Accumulator::HOPPER, false),
    // `mma.sync`, which is not what cuBLAS runs there: products first, then `c` in f32.
    ("b200", Accumulator { running: RunningSum::Late, ..Accumulator::BLACKWELL }, true),
];

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: recorded FOLDER, which holds instructions.safetensors and its .json");
        std::process::exit(2);
    };
    let recorded = Golden::of_folder(folder.as_ref(), "instructions");
    let mut wrong = 0;
    for (card, accumulator, uses_c) in CARDS {
        for (name, format) in [("e4m3fn", E4M3), ("e5m2", E5M2)] {
            let tensor = |of: &str| format!("{card}.{name}/{of}");
            let [a, b] = ["a", "b"].map(|of| recorded.u8s(&tensor(of)));
            let [c, d] = ["c", "d"].map(|of| recorded.u32s(&tensor(of)));
            let instruction = |at: usize| {
                let c = if uses_c { f32::from_bits(c[at]) } else { 0.0 };
                let [a, b] = [&a, &b].map(|codes| &codes[at * 32..][..32]);
                in_blocks(accumulator, [a, b], format, c).to_bits() != d[at]
            };
            let differ = (0..d.len()).filter(|at| instruction(*at)).count();
            println!("{card} {format}: {differ} of {} differ", d.len());
            wrong += differ;
        }
    }
    std::process::exit(i32::from(wrong > 0));
}

fn in_blocks(accumulator: Accumulator, [a, b]: [&[u8]; 2], format: Fp8Format, c: f32) -> f32 {
    let products = accumulator.products as usize;
    let blocks = a.chunks(products).zip(b.chunks(products));
    blocks.fold(c, |c, (a, b)| step(accumulator, [a, b], [format; 2], 0, c))
}
