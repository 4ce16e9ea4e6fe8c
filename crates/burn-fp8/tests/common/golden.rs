//! The golden file `current_scaling`: products in FP8 with their gradients, by Flax and JAX.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_fp8::engine::{Quantize, ScaleRule};
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Format, Fp8Matmul, GemmRole, Recipe, Report, trace};
use safetensors::SafeTensors;

use super::exact::{Exact, Sums};
use super::{Outer, assert_close, bits, every_matmul, reference, tensor, values};

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

    fn bytes(&self, name: &str) -> (Vec<u8>, Vec<usize>) {
        let file = SafeTensors::deserialize(&self.tensors).expect("the golden file is valid");
        let view = file.tensor(name).unwrap_or_else(|_| panic!("golden {name} is missing"));
        (view.data().to_vec(), view.shape().to_vec())
    }

    pub fn f32(&self, name: &str) -> (Vec<f32>, Vec<usize>) {
        let (bytes, shape) = self.bytes(name);
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        (values.collect(), shape)
    }

    pub fn codes(&self, name: &str) -> Vec<u8> {
        self.bytes(name).0
    }
}

/// The cases with two dimensions, then those with more.
pub const MATRICES: [&str; 5] = ["mm0", "mm1", "mm2", "mm5", "zero_w"];
pub const BATCHED: [&str; 2] = ["mm3", "mm4"];

fn dims<const D: usize>(shape: &[usize]) -> [usize; D] {
    let mut dims = [1; D];
    dims[D - shape.len()..].copy_from_slice(shape);
    dims
}

/// Codes and scales of every tensor of every case equal the golden ones bit for bit.
pub fn codes_and_scales_are_exact<B: Fp8Matmul>() {
    let golden = Golden::load();
    let cases = Golden::open("current_scaling").cases();
    let names: BTreeSet<_> =
        cases.iter().map(|case| case["name"].as_str().expect("a name")).collect();
    assert_eq!(names, MATRICES.iter().chain(&BATCHED).copied().collect(), "every case runs");
    for case in MATRICES.iter().chain(&BATCHED) {
        for (name, format) in
            [("x", Fp8Format::E4M3), ("w", Fp8Format::E4M3), ("dy", Fp8Format::E5M2)]
        {
            let (x, shape) = golden.f32(&format!("{case}/{name}"));
            let TensorPrimitive::Float(x) = tensor::<B, 3>(&x, dims(&shape)).into_primitive()
            else {
                unreachable!("made of floats");
            };
            let request =
                Quantize { format, scale: ScaleRule::Current(Recipe::current()), save: true };
            let mut quantized = B::fp8_quantize(x, request);
            let scale = quantized.scale.read();
            let expected = golden.f32(&format!("{case}/{name}_scale")).0[0];
            assert_eq!(scale.to_bits(), expected.to_bits(), "{case}/{name} scale");

            let codes = golden.codes(&format!("{case}/{name}_codes"));
            let expected: Vec<f32> = codes.iter().map(|code| format.decode(*code)).collect();
            let rounded = Tensor::<B, 3>::from_primitive(TensorPrimitive::Float(quantized.values));
            assert_eq!(rounded.dtype(), DType::F32);
            assert_eq!(bits(&values(rounded)), bits(&expected), "{case}/{name} values");

            let saved = B::fp8_values(quantized.codes.take().expect("codes were asked for"));
            let saved = Tensor::<B, 3>::from_primitive(TensorPrimitive::Float(saved));
            assert_eq!(bits(&values(saved)), bits(&expected), "{case}/{name} saved codes");
        }
    }
}

struct Products {
    y: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
    report: Report,
}

fn products<B: AutodiffBackend, const D: usize>(
    golden: &Golden,
    case: &str,
    config: &Fp8Config,
) -> Products {
    let load = |name: &str| golden.f32(&format!("{case}/{name}"));
    let (x, x_shape) = load("x");
    let (w, w_shape) = load("w");
    let (dy, dy_shape) = load("dy");
    let x = tensor::<B, D>(&x, dims(&x_shape)).require_grad();
    let w = tensor::<B, D>(&w, dims(&w_shape)).require_grad();
    let dy = tensor::<B, D>(&dy, dims(&dy_shape));
    let ((y, grads), report) = trace(|| {
        config.scope(|| {
            let y = x.clone().matmul(w.clone());
            // The gradient of sum(y · dy) with respect to y is dy, exactly.
            let grads = (y.clone() * dy).sum().backward();
            (y, grads)
        })
    });
    Products {
        y: values(y),
        dx: values(x.grad(&grads).expect("x is tracked")),
        dw: values(w.grad(&grads).expect("w is tracked")),
        report,
    }
}

/// Output and gradients in f64, of the codes and scales in the file.
fn exact_products(golden: &Golden, case: &str) -> [Exact; 3] {
    let number = |name: &str, format| -> Vec<f64> {
        let scale = f64::from(golden.f32(&format!("{case}/{name}_scale")).0[0]);
        let codes = golden.codes(&format!("{case}/{name}_codes"));
        codes.iter().map(|code| reference::decode(*code, format) * scale).collect()
    };
    let shape = |name: &str| dims::<2>(&golden.f32(&format!("{case}/{name}")).1);
    let ([m, k], [_, n]) = (shape("x"), shape("w"));
    let (x, w) = (number("x", Fp8Format::E4M3), number("w", Fp8Format::E4M3));
    let dy = number("dy", Fp8Format::E5M2);
    [
        Exact::product(&x, &w, [m, k, n]),
        Exact::product(&dy, &reference::transpose(&w, [k, n]), [m, n, k]),
        Exact::product(&reference::transpose(&x, [m, k]), &dy, [k, m, n]),
    ]
}

/// `sums` are those of matrices; batched products are always emulated.
fn check(golden: &Golden, case: &str, products: Products, sums: Sums) {
    let expect = |name: &str| golden.f32(&format!("{case}/{name}")).0;
    let exact = MATRICES.contains(&case).then(|| exact_products(golden, case));
    let results = [("y", &products.y), ("dx", &products.dx), ("dw", &products.dw)];
    for (index, (name, actual)) in results.into_iter().enumerate() {
        let (expected, what) = (expect(name), format!("{case}/{name}"));
        if let Some(exact) = &exact {
            exact[index].assert(&expected, Sums::F32, &format!("{what} of the file"));
            exact[index].assert(actual, sums, &what);
        }
        if sums == Sums::F32 || exact.is_none() {
            assert_close(actual, &expected, TOLERANCE, &what);
        }
    }

    let scale = |name: &str| expect(&format!("{name}_scale"))[0];
    let operands = |role| match role {
        GemmRole::Output => ["x", "w"],
        GemmRole::GradInput => ["dy", "w"],
        GemmRole::GradWeight => ["x", "dy"],
    };
    assert_eq!(products.report.products.len(), 3, "{case}: {}", products.report);
    for (product, role) in products.report.products.iter().zip(GemmRole::ALL) {
        assert_eq!(product.role, role, "{case}");
        let scales = [product.lhs, product.rhs].map(|operand| operand.expect("in FP8").scale);
        assert_eq!(scales, operands(role).map(scale), "{case} {role}");
    }
}

/// Products and gradients equal the golden ones up to the order of summation; the trace tells the golden scales.
pub fn products_and_gradients_match<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Autodiff<B>: Fp8Matmul,
    Fp8Backend<B>: burn::tensor::backend::Backend,
{
    products_and_gradients_match_under::<B>(&every_matmul(), Sums::F32);
}

/// The same under a configuration that takes every product; products of two matrices are added up by `sums`.
pub fn products_and_gradients_match_under<B: Fp8Matmul>(config: &Fp8Config, sums: Sums)
where
    Outer<B>: AutodiffBackend,
    Autodiff<B>: Fp8Matmul,
    Fp8Backend<B>: burn::tensor::backend::Backend,
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
pub fn exact<B: burn::tensor::backend::Backend, const D: usize>(data: TensorData) -> Tensor<B, D> {
    let dtype = data.dtype;
    let mut shape = data.shape.to_vec();
    while shape.len() < D {
        shape.insert(0, 1);
    }
    let data = TensorData::from_bytes(data.bytes, shape, dtype);
    Tensor::from_data(data, (&Default::default(), dtype))
}

/// Asserts that a tensor has the type, the shape and the bits of golden data; any NaN equals any NaN.
#[track_caller]
pub fn assert_same<B: burn::tensor::backend::Backend, const D: usize>(
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
    for (index, (a, e)) in actual.iter().zip(&expected).enumerate() {
        let same = a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan());
        assert!(same, "{what}[{index}]: {a:e} instead of {e:e}");
    }
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
pub fn dtype(name: &serde_json::Value) -> burn::tensor::FloatDType {
    match name.as_str() {
        Some("f32") => burn::tensor::FloatDType::F32,
        Some("bf16") => burn::tensor::FloatDType::BF16,
        Some("f16") => burn::tensor::FloatDType::F16,
        other => panic!("no type {other:?}"),
    }
}
