//! Products of codes on the matrix unit of the CPU, from codes to f32: against f32 by the crate `gemm`, in both builds, and against PyTorch's bf16.

use burn_fp8_bench_f32::Gemm;
use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cpu::{Codes, Epilogue, Output, Unit, matmul};

use crate::harness::{Options, Side, pool};
use crate::partner::Partner;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "cpu-gemm";

/// M, N and K.
const SHAPES: [[usize; 3]; 3] = [[1024, 1024, 1024], [2048, 2048, 2048], [256, 4096, 1024]];

/// Two matrices of codes and room for their product.
struct Product {
    shape: [usize; 3],
    lhs: Vec<u8>,
    rhs: Vec<u8>,
    output: Vec<f32>,
}

impl Product {
    fn new(shape @ [m, n, k]: [usize; 3]) -> Self {
        // All codes but NaN.
        let codes = |count: usize| (0..count).map(|i| (i * 97 % 255) as u8).collect::<Vec<_>>();
        let finite = |codes: Vec<u8>| codes.into_iter().map(|c| if c == 0x7F { 0 } else { c });
        let (lhs, rhs) = (finite(codes(m * k)).collect(), finite(codes(k * n)).collect());
        Self { shape, lhs, rhs, output: vec![0.0; m * n] }
    }

    fn run(&mut self, unit: Unit) {
        let [m, n, k] = self.shape;
        let lhs = Codes::rows(&self.lhs, E4M3, [m, k]);
        let rhs = Codes::rows(&self.rhs, E4M3, [k, n]);
        matmul(unit, lhs, rhs, &Epilogue::scaled(0.5, 0.25), Output::F32(&mut self.output));
    }
}

/// Measures each shape at each number of threads, and two threads beside one.
pub fn run(options: &Options) -> Vec<Row> {
    let unit = Unit::current();
    let mut rows = Vec::new();
    for shape in SHAPES {
        rows.extend(options.on_pools(|threads| measure(shape, threads, unit, options)));
        if let [one, .., many] = options.threads[..]
            && one == 1
        {
            rows.push(scaling(shape, many, unit, options));
        }
    }
    rows
}

fn measure(shape: [usize; 3], threads: usize, unit: Unit, options: &Options) -> Vec<Row> {
    let [m, n, k] = shape;
    let name = format!("{m}×{n}×{k} on {unit}");
    let mut product = Product::new(shape);
    let mut run = || product.run(unit);
    let mut row = |reference: &str, other: &mut dyn FnMut()| {
        let (subject, reference) = (Side::new(&name, &mut run), Side::new(reference, other));
        let row = options.compare((GROUP, threads, None), subject, reference);
        let operations = 2.0 * (m * n * k) as f64;
        Row { teraflops_per_second: Some(operations / row.milliseconds / 1e9), ..row }
    };
    let mut f32 = Gemm::new(shape);
    let mut rows = vec![row("f32, AVX-512", &mut || f32.run())];
    let sizes = shape.map(|size| size.to_string());
    let [m_text, n_text, k_text] = sizes.each_ref().map(String::as_str);
    let arguments = |kind| [kind, m_text, n_text, k_text];
    match Partner::f32(&arguments("gemm"), threads) {
        Ok(mut partner) => rows.push(row("f32, AVX2", &mut || partner.run())),
        Err(error) => eprintln!("f32, AVX2: not measured: {error}"),
    }
    if let Some(python) = &options.python {
        match Partner::torch(python, &arguments("gemm-bf16"), threads) {
            Ok(mut partner) => {
                let name = format!("{}: bf16", partner.name);
                rows.push(row(&name, &mut || partner.run()));
            }
            Err(error) => eprintln!("{error}"),
        }
    }
    rows
}

/// The same product on several threads and on one.
fn scaling([m, n, k]: [usize; 3], threads: usize, unit: Unit, options: &Options) -> Row {
    let (one, many) = (pool(1), pool(threads));
    let (mut alone, mut together) = (Product::new([m, n, k]), Product::new([m, n, k]));
    let name = format!("{m}×{n}×{k} on {unit}");
    options.compare(
        (GROUP, threads, None),
        Side::new(&name, &mut || many.install(|| together.run(unit))),
        Side::new("1 thread", &mut || one.install(|| alone.run(unit))),
    )
}
