//! What the modules share: configurations, data whose products are exact, and products of integers.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_fp8::Fp8Format::{self, E4M3, E5M2};
use burn_fp8::engine::Fallback;
use burn_fp8::report::Implementation;
use burn_fp8::{Execution, Fp8Config, Recipe, Report, trace};

use crate::common::exact::{Exact, Sums};
use crate::common::{Random, every_matmul, reference, tensor};

/// Whether a check is only rehearsed, on Flex.
pub fn is_rehearsal<B: Backend>() -> bool {
    B::name(&B::Device::default()).contains("flex")
}

/// Whether the device is too slow for sizes that are meant for a GPU: a simulated one, for which `cargo xtask sim` says so.
pub fn is_small() -> bool {
    std::env::var_os("BURN_FP8_TEST_SIZE").is_some_and(|size| size == "small")
}

/// Fewer of what is many, in a rehearsal and on a slow device.
pub fn fewer<B: Backend>(count: usize) -> usize {
    if is_rehearsal::<B>() || is_small() { count.div_ceil(50) } else { count }
}

/// The first of some shapes: `small` of them on a slow device.
pub fn first<T>(shapes: &[T], small: usize) -> &[T] {
    if is_small() { &shapes[..small] } else { shapes }
}

/// Every product on tensor cores; one that cannot run there panics.
pub fn native<B: Backend>() -> Fp8Config {
    match is_rehearsal::<B>() {
        true => emulated(),
        false => every_matmul().with_execution(Execution::Native),
    }
}

/// Every product emulated, on the same device.
pub fn emulated() -> Fp8Config {
    every_matmul().with_execution(Execution::FakeQuantized)
}

/// A way to run products.
pub struct Way {
    pub name: &'static str,
    pub config: Fp8Config,
    /// What adds up their terms.
    pub sums: Sums,
    pub is_native: bool,
}

/// All ways to run products: on tensor cores and emulated; in a rehearsal emulated only.
pub fn ways<B: Backend>() -> Vec<Way> {
    match is_rehearsal::<B>() {
        true => vec![emulated_way()],
        false => vec![of_tensor_cores::<B>(), emulated_way()],
    }
}

/// Emulated, on the same device.
pub fn emulated_way() -> Way {
    Way { name: "emulated", config: emulated(), sums: Sums::F32, is_native: false }
}

/// On tensor cores; in a rehearsal emulated.
pub fn of_tensor_cores<B: Backend>() -> Way {
    let sums = if is_rehearsal::<B>() { Sums::F32 } else { Sums::TensorCores };
    Way { name: "native", config: native::<B>(), sums, is_native: true }
}

/// Output and gradients of a product, in f64, of what the operands hold in FP8: `x` `[m, k]`, `w` `[k, n]`, `g` `[m, n]`.
pub fn exact_step([x, w, g]: [&[f64]; 3], [m, k, n]: [usize; 3]) -> [Exact; 3] {
    [
        Exact::product(x, w, [m, k, n]),
        Exact::product(g, &reference::transpose(w, [k, n]), [m, n, k]),
        Exact::product(&reference::transpose(x, [m, k]), g, [k, m, n]),
    ]
}

/// What operands hold under current scaling.
pub fn quantized([x, w, g]: [&[f32]; 3]) -> [Vec<f64>; 3] {
    [
        reference::quantize_dequantize(x, E4M3),
        reference::quantize_dequantize(w, E4M3),
        reference::quantize_dequantize(g, E5M2),
    ]
}

/// A matrix before it is quantized with current scaling, row by row.
#[derive(Clone, Copy)]
pub struct Operand<'a>(pub &'a [f32], pub Fp8Format);

/// Asserts that elements here and there of `a` `[m, k]` times `b` `[k, n]` are those of sums on the host.
#[track_caller]
pub fn assert_sample<B: Backend>(
    actual: &[f32],
    [Operand(a, a_format), Operand(b, b_format)]: [Operand<'_>; 2],
    [m, k, n]: [usize; 3],
    dtype: FloatDType,
    what: &str,
) {
    const COUNT: usize = 8;
    assert_eq!(actual.len(), m * n, "{what}: elements");
    let spread = |size: usize| (0..COUNT).map(move |index| index * (size - 1) / (COUNT - 1));
    let rows: Vec<f32> = spread(m).flat_map(|row| &a[row * k..][..k]).copied().collect();
    let columns: Vec<f32> =
        (0..k).flat_map(|row| spread(n).map(move |column| b[row * n + column])).collect();
    let rows = reference::quantize_dequantize_by(&rows, reference::scale(a, a_format), a_format);
    let columns =
        reference::quantize_dequantize_by(&columns, reference::scale(b, b_format), b_format);
    let sample: Vec<f32> =
        spread(m).flat_map(|row| spread(n).map(move |column| actual[row * n + column])).collect();
    let exact = Exact::product(&rows, &columns, [COUNT, k, COUNT]).rounded(dtype);
    assert!(exact.values.iter().any(|value| *value != 0.0), "{what}: there are numbers");
    exact.assert(&sample, of_tensor_cores::<B>().sums, what);
}

/// Small integers have exact codes under it: their scale is a power of two.
pub fn power_of_two(config: Fp8Config) -> Fp8Config {
    config.with_recipe(Recipe { power_of_two: true, ..config.recipe })
}

pub const DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

/// Integers in `-limit..=limit`, both ends among them where there is room.
pub fn integers(seed: u64, count: usize, limit: i32) -> Vec<f32> {
    let mut random = Random(seed);
    let span = 2 * limit as u64 + 1;
    let mut values: Vec<f32> =
        (0..count).map(|_| (random.bits() % span) as f32 - limit as f32).collect();
    if let Some(first) = values.first_mut() {
        *first = limit as f32;
    }
    values
}

/// Normally distributed numbers (a sum of twelve uniform ones).
pub fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| (0..12).map(|_| random.unit()).sum::<f32>() / 2.0).collect()
}

/// `[m, k]` times `[k, n]`, row by row, of integers so small that every sum is exact in f32.
pub fn product(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let mut product = vec![0.0; m * n];
    for row in 0..m {
        for i in 0..k {
            let factor = a[row * k + i];
            let target = &mut product[row * n..][..n];
            target.iter_mut().zip(&b[i * n..][..n]).for_each(|(sum, b)| *sum += factor * b);
        }
    }
    product
}

pub fn transposed(a: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| a[row * columns + column])).collect()
}

/// Rounded to a type and back.
pub fn rounded(values: Vec<f32>, dtype: FloatDType) -> Vec<f32> {
    let count = values.len();
    let data = TensorData::new(values, [count]).convert_dtype(DType::from(dtype));
    data.convert::<f32>().to_vec().expect("converted to f32")
}

/// A tensor of a type.
pub fn typed<B: Backend, const D: usize>(
    values: &[f32],
    shape: [usize; D],
    dtype: FloatDType,
) -> Tensor<B, D> {
    tensor::<B, D>(values, shape).cast(dtype)
}

/// Whether it ran on tensor cores, by an algorithm that is named.
pub fn is_native(ran: &Implementation) -> bool {
    matches!(ran, Implementation::Native { algorithm } if algorithm.starts_with("algorithm "))
}

/// How often cuBLASLt has multiplied in this process so far, with everything enqueued that was asked for. Tests run one by one, so that
/// no other one multiplies meanwhile.
fn launches<B: Backend>() -> u64 {
    B::sync(&B::Device::default()).expect("the device computes");
    #[cfg(feature = "cuda")]
    {
        burn_fp8_cublaslt::launches()
    }
    #[cfg(not(feature = "cuda"))]
    {
        0
    }
}

/// As `trace`; panics unless each native product was one call of cuBLASLt. The report cannot tell: it has one entry for a product,
/// whatever runs it.
#[track_caller]
pub fn trace_single_calls<B: Backend, R>(products: impl FnOnce() -> R) -> (R, Report) {
    let before = launches::<B>();
    let (result, report) = trace(products);
    let calls = launches::<B>() - before;
    let native = report.products.iter().filter(|product| is_native(&product.ran)).count();
    assert_eq!(calls, native as u64, "calls of cublasLtMatmul: {report}");
    (result, report)
}

/// Panics unless every product of a report ran on tensor cores.
#[track_caller]
pub fn assert_native<B: Backend>(report: &Report, products: usize) {
    assert_eq!(report.products.len(), products, "{report}");
    for product in &report.products {
        assert!(is_native(&product.ran) || is_rehearsal::<B>(), "{report}");
    }
}

/// The same, but for products with GELU and an output in F32 or FP8: cuBLASLt may have no algorithm for these, which is printed.
#[track_caller]
pub fn assert_native_but_gelu<B: Backend>(report: &Report, what: &str) {
    assert!(!report.products.is_empty(), "{what}");
    for product in &report.products {
        match &product.ran {
            // INVALID_VALUE may as well be a mistake in what cuBLASLt was told.
            Implementation::Fallback(Fallback::NoAlgorithm(reason))
                if reason.contains("GELU") && !reason.contains("INVALID_VALUE") =>
            {
                println!("NOT THERE {what}: {reason}");
            }
            ran => assert!(is_native(ran) || is_rehearsal::<B>(), "{what}: {report}"),
        }
    }
}

/// What codes stand for, without their scale.
pub fn decoded(format: Fp8Format, codes: &[u8]) -> Vec<f32> {
    codes.iter().map(|code| format.decode(*code)).collect()
}
