//! The file, and the operands of its cases.

use std::cell::RefCell;
use std::collections::BTreeSet;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData, bf16};
use burn_fp8::scaled::ScaledOutput;
use burn_fp8::{
    Activation, Fp8Format, Fp8Matmul, Fp8Tensor, Gemm, GemmRole, ProductKind, ScaledMatmulOptions,
    scaled_matmul, trace,
};

use super::bf16_bits;
use crate::common::exact::Exact;
use crate::common::golden::Golden;
use crate::common::{reference, tensor, values};

/// The file, and what of it has been looked at.
pub struct File {
    pub golden: Golden,
    seen: RefCell<BTreeSet<String>>,
}

impl File {
    pub fn open() -> Self {
        Self { golden: Golden::open("fused_matmul"), seen: RefCell::default() }
    }

    pub fn data(&self, name: String) -> TensorData {
        let data = self.golden.data(&name);
        self.seen.borrow_mut().insert(name);
        data
    }

    pub fn f32s(&self, name: String) -> Vec<f32> {
        self.data(name).convert::<f32>().to_vec().expect("converted to f32")
    }

    pub fn codes(&self, name: String) -> Vec<u8> {
        self.data(name).to_vec().expect("codes are u8")
    }

    pub fn scale(&self, name: String) -> f32 {
        self.f32s(name)[0]
    }

    /// Nothing in the file was passed over.
    pub fn check_seen(&self, belongs: impl Fn(&str) -> bool) {
        let names: BTreeSet<_> =
            self.golden.names().into_iter().filter(|name| belongs(name)).collect();
        assert!(!names.is_empty());
        assert_eq!(*self.seen.borrow(), names, "every tensor of the file is checked");
    }
}

/// The operands of a case.
pub struct Case<B: Backend> {
    pub name: String,
    pub a: Fp8Tensor<B, 2>,
    /// `[K, N]`, the transpose of what is in the file.
    pub b: Fp8Tensor<B, 2>,
    /// In bf16 where the device has it.
    pub bias: Option<Tensor<B, 1>>,
    gemm: Gemm,
    product: Exact,
    bias_values: Vec<f32>,
}

impl<B: Fp8Matmul> Case<B> {
    pub fn load(
        file: &File,
        case: &serde_json::Value,
        formats: [Fp8Format; 2],
        on_device: bool,
    ) -> Self {
        let name = case["name"].as_str().expect("a name").to_owned();
        let [m, n, k] = ["m", "n", "k"].map(|key| case[key].as_u64().expect("a size") as usize);
        let device = Default::default();
        let operand = |operand: &str, scale: &str, shape, format| {
            let codes = file.codes(format!("{name}/{operand}"));
            let scale = file.scale(format!("{name}/{scale}"));
            match on_device {
                true => {
                    let scale = tensor::<B, 1>(&[scale], [1]);
                    Fp8Tensor::from_bytes(codes, shape, format, scale, &device)
                }
                false => Fp8Tensor::from_bytes(codes, shape, format, scale, &device),
            }
            .expect("codes of the shape")
        };
        let a = operand("a", "scale_a", [m, k], formats[0]);
        let b = operand("b_t", "scale_b", [n, k], formats[1]).transpose();
        let is_biased = case["bias"].as_bool().unwrap_or(true);
        let bias_values = match is_biased {
            true => bf16_bits(&file.data(format!("{name}/bias_bf16"))),
            false => vec![],
        };
        let bias = is_biased.then(|| {
            let bias = tensor::<B, 1>(&bias_values, [n]);
            match B::supports_dtype(&device, DType::BF16) {
                true => bias.cast(FloatDType::BF16),
                false => bias,
            }
        });
        let numbers = |operand: &str, scale: &str, format| -> Vec<f64> {
            let scale = f64::from(file.scale(format!("{name}/{scale}")));
            let codes = file.codes(format!("{name}/{operand}"));
            codes.iter().map(|code| reference::decode(*code, format) * scale).collect()
        };
        let b_t = numbers("b_t", "scale_b", formats[1]);
        let product = Exact::product(
            &numbers("a", "scale_a", formats[0]),
            &reference::transpose(&b_t, [n, k]),
            [m, k, n],
        );
        Self { name, a, b, bias, gemm: Gemm::matrix(m, n, k), product, bias_values }
    }

    /// The result in f64.
    pub fn exact(&self, bias: bool, activation: Activation) -> Exact {
        let product = self.product.clone();
        let product = if bias { product.plus_bias(&self.bias_values) } else { product };
        product.activated(activation)
    }

    /// Runs the product and checks what the trace says of it: that it is one.
    pub fn run(
        &self,
        options: ScaledMatmulOptions<B>,
        bias: bool,
        activation: Activation,
    ) -> ScaledOutput<B> {
        let options = options.with_activation(activation);
        let options = match bias {
            true => options.with_bias(self.bias.clone().expect("a case with bias")),
            false => options,
        };
        let (output, report) = trace(|| scaled_matmul(&self.a, &self.b, &options));
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let [product] = &report.products[..] else { panic!("{}: {report}", self.name) };
        assert_eq!(
            (product.kind, product.role, product.gemm),
            (ProductKind::ScaledMatmul, GemmRole::Output, self.gemm)
        );
        for (operand, tensor) in [(product.lhs, &self.a), (product.rhs, &self.b)] {
            let operand = operand.expect("in FP8");
            assert_eq!((operand.format, operand.scale), (tensor.format(), tensor.read_scale()));
        }
        output
    }

    /// Float output in f32, bf16 included: on a device without bf16 rounded here, after it was refused there.
    pub fn float(&self, dtype: FloatDType, bias: bool, activation: Activation) -> Vec<f32> {
        let device = self.a.device();
        if B::supports_dtype(&device, dtype.into()) {
            let d = self.run(ScaledMatmulOptions::float(dtype), bias, activation).into_float();
            assert_eq!(d.dtype(), DType::from(dtype), "{}", self.name);
            return values(d);
        }
        let refused = scaled_matmul(&self.a, &self.b, &ScaledMatmulOptions::float(dtype));
        let refused = refused.expect_err("the device has no such type").to_string();
        assert!(refused.contains("ask for F32 output"), "{refused}");
        let d = self.run(ScaledMatmulOptions::default(), bias, activation).into_float();
        values(d).into_iter().map(|x| bf16::from_f32(x).to_f32()).collect()
    }
}
