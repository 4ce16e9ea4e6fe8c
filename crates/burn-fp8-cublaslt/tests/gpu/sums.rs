//! How many outputs of a card differ from the model of its sums, and by how much: a report to send, which fails on a simulated device alone.
//!
//! Where `BURN_FP8_RESULTS` names a folder, as `cargo xtask gpu` does, `sums.json` is written there.

use std::fmt::Write;
use std::path::Path;
use std::thread;

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::sums::{Accumulator, SplitK, SplitOrder, dot, scaled};
use burn_fp8_cublaslt::*;
use burn_fp8_test_support::Random;

use crate::data::{Case, Inputs};
use crate::device::{Gpu, OnDevice, is_small};
use crate::model::{accumulation, accumulator, is_simulated};

/// M, N and K: large, with few rows, that cuBLASLt likes to split along K, and that end within blocks and chains.
const SHAPES: [[u64; 3]; 7] = [
    [256, 1024, 4096],
    [16, 4096, 4096],
    [64, 64, 32768],
    [128, 128, 128],
    [37, 80, 4112],
    [1, 48, 1008],
    [130, 144, 272],
];
/// For a slow device.
const SMALL: [[u64; 3]; 4] = [[64, 64, 512], [37, 80, 1040], [1, 48, 1008], [130, 144, 272]];

const FORMATS: [[Fp8Format; 2]; 3] = [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]];

/// Ways to split K that are known of cuBLASLt; which of them a card takes, the model does not say.
const ORDERS: [(&str, SplitOrder); 3] = [
    ("contiguous", SplitOrder::Contiguous),
    ("serial", SplitOrder::Serial),
    ("pairwise", SplitOrder::Pairwise),
];

/// All outputs as the model has them.
fn model(
    accumulator: Accumulator,
    problem: &ScaledMatmul,
    inputs: &Inputs,
    split: Option<SplitK>,
) -> Vec<f32> {
    let Shape { m, n, k } = problem.shape;
    let [n, k] = [n, k].map(|size| size as usize);
    let formats = [problem.a.format, problem.b.format];
    let mut outputs = vec![0.0; m as usize * n];
    let threads = thread::available_parallelism().map_or(1, Into::into);
    let share = outputs.len().div_ceil(threads);
    thread::scope(|scope| {
        for (index, outputs) in outputs.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (at, output) in (index * share..).zip(outputs) {
                    let a = &inputs.a[at / n * k..][..k];
                    let b = &inputs.b[at % n * k..][..k];
                    let sum = dot(accumulator, [a, b], formats, accumulation(problem), split);
                    *output = scaled(sum, [inputs.scale_a[0], inputs.scale_b[0]]);
                }
            });
        }
    });
    outputs
}

/// How many differ, and the largest distance in units in the last place.
fn distance(got: &[f32], expected: &[f32]) -> (usize, u64) {
    // Numbers in the order of their values.
    let place = |x: f32| {
        let bits = i64::from(x.to_bits() & i32::MAX as u32);
        if x.is_sign_negative() { -bits } else { bits }
    };
    let distances = got.iter().zip(expected).map(|(x, y)| place(*x).abs_diff(place(*y)));
    let different = got.iter().zip(expected).filter(|(x, y)| x.to_bits() != y.to_bits()).count();
    (different, distances.max().unwrap_or(0))
}

/// What was found of a product: a line to read, and an object of JSON.
struct Found {
    is_equal: bool,
    line: String,
    json: String,
}

/// Compares a product with the model; where K was split, with each order that parts may have, of which the nearest counts.
fn compare(
    accumulator: Accumulator,
    problem: &ScaledMatmul,
    inputs: &Inputs,
    plain: &[f32],
    got: &[f32],
    algorithm: AlgorithmInfo,
) -> Found {
    let mut compared = vec![("not split", distance(got, plain))];
    if algorithm.split_k > 1 {
        for (name, order) in ORDERS {
            let split = SplitK { splits: algorithm.split_k as usize, order };
            let split = model(accumulator, problem, inputs, Some(split));
            compared.push((name, distance(got, &split)));
        }
    }
    let nearest = compared.into_iter().min_by_key(|(_, (different, _))| *different);
    let (order, (different, ulps)) = nearest.expect("it is compared at least once");
    let verdict = match different {
        0 => "equal".to_owned(),
        _ => format!("{different} of {} differ, by at most {ulps} ulp", got.len()),
    };
    let json = format!(
        r#""algorithm": "{algorithm}", "order": "{order}", "outputs": {}, "different": {different}, "ulps": {ulps}"#,
        got.len()
    );
    Found { is_equal: different == 0, line: format!("{verdict} ({order}; {algorithm})"), json }
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn the_sums_of_this_card_beside_those_of_the_model() {
    let gpu = Gpu::new();
    let capability = gpu.lt.capability();
    let Some(accumulator) = accumulator(capability.compute) else {
        println!("SKIPPED: the sums of {} are not known", capability.compute);
        return;
    };
    println!("{}: {accumulator}", capability.compute);
    let without = CublasLt::with_workspace(0).expect("cuBLASLt");
    let mut rows: Vec<String> = vec![];
    let shapes = if is_small() { &SMALL[..] } else { &SHAPES };
    for (index, [m, n, k]) in shapes.iter().enumerate() {
        let [a, b] = FORMATS[index % FORMATS.len()];
        for accumulation in [Accumulation::Fast, Accumulation::Precise] {
            let problem =
                ScaledMatmul { accumulation, ..ScaledMatmul::new(*m, *n, *k, a, b, DataType::F32) };
            let inputs = Inputs::new(&problem, &mut Random(30 + index as u64));
            let plain = model(accumulator, &problem, &inputs, None);
            for (workspace, lt) in [("none", &without), ("usual", &gpu.lt)] {
                let device = OnDevice::new(&Case::new(problem), &inputs);
                // SAFETY: the buffers cover the product and live until the synchronization.
                let launch = unsafe { lt.run(&problem, &device.pointers, 1.0, 0.0) };
                gpu.synchronize();
                let d = device.d.read();
                let found = launch.map(|Launch { algorithm, .. }| {
                    let elements = d.as_chunks().0.iter();
                    let got: Vec<f32> = elements.map(|bytes| f32::from_le_bytes(*bytes)).collect();
                    compare(accumulator, &problem, &inputs, &plain, &got, algorithm)
                });
                // Without a workspace there may be no algorithm.
                let found = found.unwrap_or_else(|error| Found {
                    is_equal: false,
                    line: error.to_string(),
                    json: format!(
                        r#""error": "{}""#,
                        error.to_string().replace(['"', '\\', '\n'], " ")
                    ),
                });
                let shape = problem.shape;
                let title = format!("{shape} {a} {b} {accumulation:?}, workspace {workspace}");
                println!("{title}: {}", found.line);
                assert!(found.is_equal || !is_simulated(), "{title}: {}", found.line);
                let json = found.json;
                rows.push(format!(r#"    {{"product": "{title}", {json}}}"#));
            }
        }
    }
    let Some(folder) = std::env::var_os("BURN_FP8_RESULTS") else { return };
    let mut json = String::from("{\n");
    for (name, value) in [
        ("compute_capability", capability.compute.to_string()),
        ("cublaslt", capability.library.to_string()),
        ("model", accumulator.to_string()),
        ("simulated", is_simulated().to_string()),
    ] {
        writeln!(json, r#"  "{name}": "{value}","#).expect("memory");
    }
    writeln!(json, "  \"products\": [\n{}\n  ]\n}}", rows.join(",\n")).expect("memory");
    let path = Path::new(&folder).join("sums.json");
    std::fs::write(&path, json).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
