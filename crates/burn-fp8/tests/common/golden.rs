//! The golden file `current_scaling`: products in FP8 with their gradients, by Flax and JAX.

use std::path::Path;

use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_fp8::{
    Fp8Backend, Fp8Format, Fp8Matmul, GemmRole, Quantize, Recipe, Report, ScaleRule, trace,
};
use safetensors::SafeTensors;

use super::{Outer, assert_close, bits, every_matmul, tensor, values};

/// Relative to the largest magnitude of a result: f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

pub struct Golden(Vec<u8>);

impl Golden {
    pub fn load() -> Self {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/current_scaling.safetensors");
        Self(std::fs::read(path).expect("the golden file is committed"))
    }

    fn bytes(&self, name: &str) -> (Vec<u8>, Vec<usize>) {
        let file = SafeTensors::deserialize(&self.0).expect("the golden file is valid");
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

fn products<B: AutodiffBackend, const D: usize>(golden: &Golden, case: &str) -> Products {
    let load = |name: &str| golden.f32(&format!("{case}/{name}"));
    let (x, x_shape) = load("x");
    let (w, w_shape) = load("w");
    let (dy, dy_shape) = load("dy");
    let x = tensor::<B, D>(&x, dims(&x_shape)).require_grad();
    let w = tensor::<B, D>(&w, dims(&w_shape)).require_grad();
    let dy = tensor::<B, D>(&dy, dims(&dy_shape));
    let ((y, grads), report) = trace(|| {
        every_matmul().scope(|| {
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

fn check(golden: &Golden, case: &str, products: Products) {
    let expect = |name: &str| golden.f32(&format!("{case}/{name}")).0;
    assert_close(&products.y, &expect("y"), TOLERANCE, &format!("{case}/y"));
    assert_close(&products.dx, &expect("dx"), TOLERANCE, &format!("{case}/dx"));
    assert_close(&products.dw, &expect("dw"), TOLERANCE, &format!("{case}/dw"));

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
    let golden = Golden::load();
    for case in MATRICES {
        check(&golden, case, products::<Outer<B>, 2>(&golden, case));
    }
    for case in BATCHED {
        check(&golden, case, products::<Outer<B>, 3>(&golden, case));
    }
}
