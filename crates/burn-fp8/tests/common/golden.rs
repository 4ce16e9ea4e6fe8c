//! Golden files as tensors; and `current_scaling`: products in FP8 with their gradients, by Flax and JAX.

use safetensors::Dtype;

use super::special::quantize;
use super::*;

/// Relative to the largest magnitude of a result: f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

/// Reads a golden file.
pub fn golden(name: &str) -> Golden {
    Golden::read(env!("CARGO_MANIFEST_DIR"), name)
}

/// Golden data for Burn.
pub trait Tensors {
    /// A tensor of its own type: f64, f32, bf16, f16, u8 or u16.
    fn data(&self, name: &str) -> TensorData;

    /// Entry `index` of a tensor along its first dimension.
    fn entry(&self, name: &str, index: usize) -> TensorData;

    /// The numbers of a tensor of any float type.
    fn wide(&self, name: &str) -> Vec<f32>;

    /// The numbers of bf16 whose bits are in a tensor of integers.
    fn wide_bf16(&self, name: &str) -> Vec<f32>;
}

impl Tensors for Golden {
    fn data(&self, name: &str) -> TensorData {
        let (dtype, shape, bytes) = self.tensor(name);
        let dtype = match dtype {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::U8 => DType::U8,
            Dtype::U16 => DType::U16,
            other => panic!("golden {name} is {other:?}"),
        };
        TensorData::from_bytes_vec(bytes, shape, dtype)
    }

    fn entry(&self, name: &str, index: usize) -> TensorData {
        let data = self.data(name);
        let shape = data.shape[1..].to_vec();
        let size = shape.iter().product::<usize>() * data.dtype.size();
        let bytes = data.as_bytes()[index * size..(index + 1) * size].to_vec();
        TensorData::from_bytes_vec(bytes, shape, data.dtype)
    }

    fn wide(&self, name: &str) -> Vec<f32> {
        self.data(name).convert::<f32>().to_vec().expect("converted to f32")
    }

    fn wide_bf16(&self, name: &str) -> Vec<f32> {
        self.u16s(name).iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect()
    }
}

/// The cases with two dimensions, then those with more.
pub const MATRICES: [&str; 5] = ["mm0", "mm1", "mm2", "mm5", "zero_w"];
pub const BATCHED: [&str; 2] = ["mm3", "mm4"];

const OPERANDS: [(&str, Fp8Format); 3] =
    [("x", Fp8Format::E4M3), ("w", Fp8Format::E4M3), ("dy", Fp8Format::E5M2)];

fn dims<const D: usize>(shape: &[usize]) -> [usize; D] {
    let mut dims = [1; D];
    dims[D - shape.len()..].copy_from_slice(shape);
    dims
}

/// Codes and scales of every tensor of every case equal the golden ones bit for bit.
pub fn codes_and_scales_are_exact<B: Fp8Matmul>() {
    let golden = golden("current_scaling");
    let names = golden.case_names("cases");
    assert!(names.iter().all(|name| MATRICES.contains(&&name[..]) || BATCHED.contains(&&name[..])));
    for case in names {
        for (name, format) in OPERANDS {
            let x = exact::<B, 3>(golden.data(&format!("{case}/{name}")));
            let (values, scale) = quantize(x, format, Recipe::current());
            let expected = golden.f32s(&format!("{case}/{name}_scale"))[0];
            assert_eq!(scale.to_bits(), expected.to_bits(), "{case}/{name} scale");
            let codes = golden.u8s(&format!("{case}/{name}_codes"));
            let expected: Vec<f32> = codes.iter().map(|code| format.decode(*code)).collect();
            assert_eq!(bits(&values), bits(&expected), "{case}/{name} values");
        }
    }
}

fn products<B: AutodiffBackend, const D: usize>(
    golden: &Golden,
    case: &str,
    config: &Fp8Config,
) -> ([Vec<f32>; 3], Report) {
    let tensors = OPERANDS.map(|(name, _)| exact::<B, D>(golden.data(&format!("{case}/{name}"))));
    trace(|| config.scope(|| step(tensors).map(values)))
}

/// Each matrix of a batch by itself, whose products are added up by `sums`.
fn check(golden: &Golden, case: &str, (results, report): ([Vec<f32>; 3], Report), sums: Sums) {
    let expect = |name: &str| golden.f32s(&format!("{case}/{name}"));
    let scale = |name: &str| expect(&format!("{name}_scale"))[0];
    // Of the codes and scales in the file.
    let operands = OPERANDS.map(|(name, format)| {
        fp8::numbers(&golden.u8s(&format!("{case}/{name}_codes")), format, scale(name))
    });
    // Where the right operand is one matrix, batch and rows of the left one join.
    let [count, k, n] = dims::<3>(&golden.shape(&format!("{case}/w")));
    let m = operands[0].len() / (count * k);
    fn part<T>(values: &[T], index: usize, count: usize) -> &[T] {
        &values[index * values.len() / count..][..values.len() / count]
    }
    for matrix in 0..count {
        let own = operands.each_ref().map(|values| part(values, matrix, count));
        let exact = Exact::step(own, [m, k, n]);
        for ((name, actual), exact) in ["y", "dx", "dw"].into_iter().zip(&results).zip(exact) {
            let (expected, what) = (expect(name), format!("{case}/{name}, matrix {matrix}"));
            let of_file = format!("{what} of the file");
            exact.assert(part(&expected, matrix, count), Sums::F32, &of_file);
            exact.assert(part(actual, matrix, count), sums, &what);
        }
    }
    for (name, actual) in ["y", "dx", "dw"].into_iter().zip(&results) {
        if sums == Sums::F32 {
            assert_close(actual, &expect(name), TOLERANCE, &format!("{case}/{name}"));
        }
    }
    assert_eq!(report.products.len(), 3, "{case}: {report}");
    let operands = [["x", "w"], ["dy", "w"], ["x", "dy"]];
    for ((product, role), operands) in report.products.iter().zip(GemmRole::ALL).zip(operands) {
        assert_eq!(product.role, role, "{case}");
        let scales = [product.lhs, product.rhs].map(|operand| operand.expect("in FP8").scale);
        assert_eq!(scales, operands.map(scale), "{case} {role}");
    }
}

/// Products and gradients equal the golden ones up to the order of summation; the trace tells the golden scales.
pub fn products_and_gradients_match<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    products_and_gradients_match_under::<B>(&every_matmul(), Sums::F32);
}

/// The same under a configuration that takes every product; products are added up by `sums`.
pub fn products_and_gradients_match_under<B: Fp8Matmul>(config: &Fp8Config, sums: Sums)
where
    Autodiff<B>: Fp8Matmul,
{
    let golden = golden("current_scaling");
    for case in MATRICES {
        check(&golden, case, products::<Outer<B>, 2>(&golden, case, config), sums);
    }
    for case in BATCHED {
        check(&golden, case, products::<Outer<B>, 3>(&golden, case, config), sums);
    }
}

/// A tensor of the golden data's own type.
pub fn exact<B: Backend, const D: usize>(data: TensorData) -> Tensor<B, D> {
    let dtype = data.dtype;
    let shape: [usize; D] = dims(&data.shape[..]);
    let data = TensorData::from_bytes(data.bytes, shape, dtype);
    Tensor::from_data(data, (&Default::default(), dtype))
}

/// Asserts that a tensor has the type, the shape and the bits of golden data; any NaN equals any NaN.
#[track_caller]
pub fn assert_tensor<B: Backend, const D: usize>(
    actual: Tensor<B, D>,
    expected: &TensorData,
    what: &str,
) {
    assert_eq!(actual.dtype(), expected.dtype, "{what}: type");
    // Of a tensor with less dimensions than `D` the file's shape lacks the leading ones, which are 1.
    let missing = D.saturating_sub(expected.shape.num_dims());
    let (dims, ones) = (actual.dims(), [1; D]);
    assert_eq!(dims[..missing], ones[..missing], "{what}: leading dimensions");
    assert_eq!(dims[missing..], expected.shape[..], "{what}: shape");
    // Widening keeps every number.
    let [actual, expected] = [actual.into_data(), expected.clone()]
        .map(|data| data.convert::<f32>().to_vec::<f32>().expect("converted to f32"));
    assert_same(&actual, &expected, what);
}

/// The format by its name in the sidecars.
pub fn format(name: &serde_json::Value) -> Fp8Format {
    match name.as_str() {
        Some("e4m3fn") => Fp8Format::E4M3,
        Some("e5m2") => Fp8Format::E5M2,
        other => panic!("no format {other:?}"),
    }
}

/// The float type by its name in the sidecars.
pub fn dtype(name: &serde_json::Value) -> FloatDType {
    match name.as_str() {
        Some("f32") => FloatDType::F32,
        Some("bf16") => FloatDType::BF16,
        Some("f16") => FloatDType::F16,
        other => panic!("no type {other:?}"),
    }
}
