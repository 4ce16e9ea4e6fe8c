//! The golden file `current_scaling`: products in FP8 with their gradients, by Flax and JAX.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::special::quantize;
use super::*;

/// Relative to the largest magnitude of a result: f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

/// The folder of the golden files, for a test program that was carried to a machine without the repository.
const FOLDER: &str = "BURN_FP8_GOLDEN";

pub struct Golden {
    tensors: Vec<u8>,
    sidecar: Vec<u8>,
}

impl Golden {
    pub fn load() -> Self {
        Self::open("current_scaling")
    }

    /// Reads a golden file and its sidecar.
    pub fn open(name: &str) -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let folder = match std::env::var_os(FOLDER) {
            Some(folder) => PathBuf::from(folder),
            // Those that both crates need lie beside the tests of the other one.
            None if !own.join(format!("{name}.json")).exists() => {
                own.join("../../../burn-fp8-core/tests/golden")
            }
            None => own,
        };
        let read = |extension| {
            let path = folder.join(format!("{name}.{extension}"));
            std::fs::read(&path).unwrap_or_else(|error| {
                panic!(
                    "{}: {error}; golden files are committed, {FOLDER} overrides their folder",
                    path.display()
                )
            })
        };
        Self { tensors: read("safetensors"), sidecar: read("json") }
    }

    /// The cases that the sidecar lists.
    pub fn cases(&self) -> Vec<serde_json::Value> {
        self.list("cases")
    }

    /// A list of the sidecar.
    pub fn list(&self, key: &str) -> Vec<serde_json::Value> {
        let sidecar: serde_json::Value =
            serde_json::from_slice(&self.sidecar).expect("the sidecar is JSON");
        sidecar[key].as_array().expect("a list").clone()
    }

    /// The names of all tensors.
    pub fn names(&self) -> BTreeSet<String> {
        let file = SafeTensors::deserialize(&self.tensors).expect("the golden file is valid");
        file.names().into_iter().map(String::from).collect()
    }

    /// A tensor of its own type: f64, f32, bf16, f16, u8 or u16.
    pub fn data(&self, name: &str) -> TensorData {
        let file = SafeTensors::deserialize(&self.tensors).expect("the golden file is valid");
        let view = file.tensor(name).unwrap_or_else(|_| panic!("golden {name} is missing"));
        let dtype = match view.dtype() {
            safetensors::Dtype::F64 => DType::F64,
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::BF16 => DType::BF16,
            safetensors::Dtype::F16 => DType::F16,
            safetensors::Dtype::U8 => DType::U8,
            safetensors::Dtype::U16 => DType::U16,
            other => panic!("golden {name} is {other:?}"),
        };
        TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype)
    }

    /// Entry `index` of a tensor along its first dimension.
    pub fn entry(&self, name: &str, index: usize) -> TensorData {
        let data = self.data(name);
        let shape = data.shape[1..].to_vec();
        let size = shape.iter().product::<usize>() * data.dtype.size();
        let bytes = data.as_bytes()[index * size..(index + 1) * size].to_vec();
        TensorData::from_bytes_vec(bytes, shape, data.dtype)
    }

    /// The numbers of a tensor and its shape.
    pub fn f32(&self, name: &str) -> (Vec<f32>, Vec<usize>) {
        let data = self.data(name);
        let shape = data.shape.to_vec();
        (data.to_vec().expect("f32"), shape)
    }

    /// The numbers of a tensor of any float type.
    pub fn wide(&self, name: &str) -> Vec<f32> {
        self.data(name).convert::<f32>().to_vec().expect("converted to f32")
    }

    pub fn codes(&self, name: &str) -> Vec<u8> {
        self.data(name).to_vec().expect("u8")
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
    let golden = Golden::load();
    let cases = golden.cases();
    let names: BTreeSet<_> =
        cases.iter().map(|case| case["name"].as_str().expect("a name")).collect();
    assert_eq!(names, MATRICES.iter().chain(&BATCHED).copied().collect(), "every case runs");
    for case in names {
        for (name, format) in OPERANDS {
            let (x, shape) = golden.f32(&format!("{case}/{name}"));
            let x = tensor::<B, 3>(&x, dims(&shape));
            let (values, scale) = quantize(x, format, Recipe::current());
            let expected = golden.f32(&format!("{case}/{name}_scale")).0[0];
            assert_eq!(scale.to_bits(), expected.to_bits(), "{case}/{name} scale");
            let codes = golden.codes(&format!("{case}/{name}_codes"));
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
    let tensors = OPERANDS.map(|(name, _)| {
        let (x, shape) = golden.f32(&format!("{case}/{name}"));
        tensor::<B, D>(&x, dims(&shape))
    });
    trace(|| config.scope(|| step(tensors).map(values)))
}

/// Each matrix of a batch by itself, whose products are added up by `sums`.
fn check(golden: &Golden, case: &str, (results, report): ([Vec<f32>; 3], Report), sums: Sums) {
    let expect = |name: &str| golden.f32(&format!("{case}/{name}")).0;
    let scale = |name: &str| expect(&format!("{name}_scale"))[0];
    // Of the codes and scales in the file.
    let operands = OPERANDS.map(|(name, format)| {
        reference::numbers(&golden.codes(&format!("{case}/{name}_codes")), format, scale(name))
    });
    // Where the right operand is one matrix, batch and rows of the left one join.
    let [count, k, n] = dims::<3>(&golden.f32(&format!("{case}/w")).1);
    let m = operands[0].len() / (count * k);
    fn part<T>(values: &[T], index: usize, count: usize) -> &[T] {
        &values[index * values.len() / count..][..values.len() / count]
    }
    for matrix in 0..count {
        let own = operands.each_ref().map(|values| part(values, matrix, count));
        let exact = exact_step(own, [m, k, n]);
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
    let golden = Golden::load();
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
pub fn assert_same<B: Backend, const D: usize>(
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
    special::assert_same(&actual, &expected, what);
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
