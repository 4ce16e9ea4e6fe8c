//! What the modules share: configurations, data whose products are exact, and products of integers.

use burn_fp8::engine::Fallback;

use crate::common::*;

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

/// A matrix before it is quantized with current scaling, row by row.
#[derive(Clone, Copy)]
pub struct Operand<'a>(pub &'a [f32], pub Fp8Format);

/// Elements here and there of `a` `[m, k]` times `b` `[k, n]`: of `count` rows and columns, and the same by sums on the host.
pub fn sample(
    actual: &[f32],
    [Operand(a, a_format), Operand(b, b_format)]: [Operand<'_>; 2],
    [m, k, n]: [usize; 3],
    count: usize,
) -> (Vec<f32>, Exact) {
    assert_eq!(actual.len(), m * n, "elements");
    let spread = |size: usize| (0..count).map(move |index| index * (size - 1) / (count - 1));
    let rows: Vec<f32> = spread(m).flat_map(|row| &a[row * k..][..k]).copied().collect();
    let columns: Vec<f32> =
        (0..k).flat_map(|row| spread(n).map(move |column| b[row * n + column])).collect();
    let rows = fp8::quantize_dequantize_by(&rows, fp8::scale(a, a_format), a_format);
    let columns = fp8::quantize_dequantize_by(&columns, fp8::scale(b, b_format), b_format);
    let sample = spread(m).flat_map(|row| spread(n).map(move |column| actual[row * n + column]));
    let exact = Exact::product(&rows, &columns, [count, k, count]);
    assert!(exact.values.iter().any(|value| *value != 0.0), "there are numbers");
    (sample.collect(), exact)
}

/// Asserts that elements here and there are those of sums on the host.
#[track_caller]
pub fn assert_sample<B: Backend>(
    actual: &[f32],
    operands: [Operand<'_>; 2],
    shape: [usize; 3],
    dtype: FloatDType,
    what: &str,
) {
    let (sample, exact) = sample(actual, operands, shape, 8);
    exact.rounded(float(dtype)).assert(&sample, of_tensor_cores::<B>().sums, what);
}

pub const DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

/// Integers in `-limit..=limit`, the largest among them.
pub fn integers(seed: u64, count: usize, limit: i32) -> Vec<f32> {
    let all: Vec<f32> = (-limit..=limit).map(|x| x as f32).collect();
    let mut values = Random(seed).picks(&all, count);
    values[0] = limit as f32;
    values
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
