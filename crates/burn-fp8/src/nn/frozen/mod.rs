//! Layers for inference, with weights held in FP8.
//!
//! ```
//! use burn::backend::Flex;
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8::nn::{ActivationScale, FrozenLinear};
//!
//! let device = Default::default();
//! let weight = Tensor::<Flex, 2>::random([64, 32], Distribution::Default, &device);
//! let x = Tensor::<Flex, 2>::random([1, 64], Distribution::Default, &device);
//!
//! let activation = ActivationScale::from_samples([x.clone()])?;
//! let layer = FrozenLinear::from_weight(weight, None, activation)?;
//! assert_eq!(layer.bytes(), 64 * 32);
//! assert_eq!(layer.forward(x).dims(), [1, 32]);
//! # Ok::<(), burn_fp8::Fp8Error>(())
//! ```

mod activation;
mod check;
mod file;
mod module;
mod record;
mod weight;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor, TensorMetadata, TensorPrimitive};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, Overflow, ProductKind, Recipe};

pub use activation::ActivationScale;
use check::{check_finite, check_shape, read_bias};
pub use file::{load_all, save_all};
pub use record::FrozenLinearRecord;

use crate::backend::Fp8Matmul;
use crate::config::{self, Execution};
use crate::engine::tensor::{add_bias, constant, join, primitive, reshape};
use crate::engine::{
    Activation, NativeProblem, Otherwise, OutputType, Quantize, Scalar, ScaleRule, ScaledOperand,
    ScaledRequest, ScaledValues, UnitOperand, UnitOptions, UnitScale, check_scale, portable,
};
use crate::error::Fp8Error;
use crate::product::scheme::Path;
use crate::product::{Measured, MeasuredCodes, native_unavailable, path};
use crate::report::{
    self, HighPrecision, Implementation, Pending, PendingOperand, PendingRan, new_note,
    record_high_precision,
};
use crate::scaled::{Fp8Codes, Fp8Tensor};
use weight::Weight;

/// A linear layer for inference: the weight in E4M3, one byte an element, with one scale.
///
/// `forward` quantizes its input to E4M3, multiplies it with the codes of the weight, applies both scales and adds the bias: what
/// a linear layer under [`Fp8Backend`](crate::Fp8Backend) with current scaling gives, without the work of quantizing the weight
/// again each time. It appears once in a [`trace`](crate::trace), is not subject to the filter, and runs in high precision
/// inside [`high_precision`](crate::high_precision): the input as it is, times the dequantized weight.
///
/// Where the device has FP8 tensor cores it is one call of cuBLASLt. The codes of the weight stay in the layout that the last product took: the
/// first native one moves them once.
///
/// It has no trainable parameters: optimizers and mappers leave it as it is, visitors see a copy of the scale of the weight. (So
/// Burn counts one parameter in an `Option<FrozenLinear<B>>`, though `num_params` of the layer counts weight and bias.) Its record
/// holds the codes as bytes, whatever the precision settings of the recorder.
#[derive(Clone, Debug)]
pub struct FrozenLinear<B: Backend> {
    /// `[d_input, d_output]`.
    weight: Weight<B>,
    weight_scale: f32,
    /// `[d_output]`, f32.
    bias: Option<Tensor<B, 1>>,
    activation: ActivationScale,
}

impl<B: Fp8Matmul> FrozenLinear<B> {
    /// Quantizes a weight `[d_input, d_output]` with current scaling; `bias` is `[d_output]`. Gradients end here.
    ///
    /// Reads weight and bias from the device: the codes are put there again as small as the device can hold them.
    ///
    /// # Errors
    /// As [`from_parts`](Self::from_parts).
    pub fn from_weight(
        weight: Tensor<B, 2>,
        bias: Option<Tensor<B, 1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        let (shape, device) = (weight.dims(), weight.device());
        check_shape(shape).map_err(invalid)?;
        let format = Fp8Format::E4M3;
        let request = Quantize { format, scale: ScaleRule::Current(Recipe::current()), save: true };
        let weight = primitive(constant(weight).cast(FloatDType::F32));
        let quantized = B::fp8_quantize(weight, request);
        let scale = quantized.scale.read();
        let codes = Fp8Codes::<B, 2>::new(quantized.codes.expect("asked for"), format);
        let bytes = codes.to_bytes();
        check_finite(shape, &bytes, read_bias(&bias).as_deref()).map_err(invalid)?;
        let weight = Fp8Codes::from_bytes(bytes, shape, format, &device)?;
        Self::checked(weight, scale, bias, activation)
    }

    /// Applies the layer to `[…, d_input]`, f32, f16 or bf16; the output `[…, d_output]` has the type of `x`. Tensors of other
    /// types are multiplied in high precision.
    ///
    /// # Panics
    /// Where the last dimension of `x` is not `d_input`; where [`Execution::Native`] is asked for and not available; where `x` has a gradient, unless in high precision.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let [k, n] = self.weight.dims();
        assert!(
            x.dims().last() == Some(&k),
            "a FrozenLinear of {k} inputs and {n} outputs takes […, {k}], not {:?}",
            x.dims()
        );
        let dtype = x.dtype();
        let mut shape = x.shape();
        let m = shape.num_elements() / k;
        shape[D - 1] = n;
        if m == 0 {
            // No bias: CubeCL does not broadcast it over no rows.
            let output = B::float_zeros(shape, &x.device(), dtype.into());
            return Tensor::from_primitive(TensorPrimitive::Float(output));
        }
        let output = self.multiply(primitive(x), Gemm::matrix(m, n, k));
        let bias = self.bias.clone().map(|bias| primitive(bias.cast(FloatDType::from(dtype))));
        let output = add_bias::<B>(reshape::<B>(output, shape), bias);
        Tensor::from_primitive(TensorPrimitive::Float(output))
    }

    /// `[M, N]`, of the type of `x`.
    fn multiply(&self, x: FloatTensor<B>, gemm: Gemm) -> FloatTensor<B> {
        let (kind, role, dtype) = (ProductKind::Linear, GemmRole::Output, x.dtype());
        let ambient = config::current();
        let in_fp8 = match dtype {
            _ if !ambient.config.enabled => Err(HighPrecision::Off),
            DType::F32 | DType::F16 | DType::BF16 | DType::Flex32 => Ok(()),
            dtype => Err(HighPrecision::Dtype(dtype)),
        };
        if let Err(reason) = in_fp8 {
            record_high_precision(kind, role, gemm, reason);
            let weight = primitive(self.weight());
            return B::fp8_plain_matmul(join::<B>(x), B::float_cast(weight, dtype.into()));
        }
        let scale = match self.activation {
            ActivationScale::Static(scale) => {
                ScaleRule::Given(Scalar::Host(scale), Overflow::SaturateFinite)
            }
            ActivationScale::Current => ScaleRule::Current(Recipe::current()),
        };
        match path::<B>(&x, ambient.config.execution) {
            Path::Native => {
                return self.multiply_natively(x, scale, gemm, ambient.config.execution);
            }
            Path::MatrixUnit => return self.multiply_on_unit(x, scale, gemm),
            Path::FakeQuantized | Path::Fallback(_) => {}
        }
        let request = Quantize { format: Fp8Format::E4M3, scale, save: false };
        let x = Measured::<B>::new(&x, B::fp8_quantize(x.clone(), request));
        let weight_scale = self.weight_scale;
        report::record(|| {
            let weight =
                PendingOperand::per_tensor::<B>(Fp8Format::E4M3, Scalar::Host(weight_scale), None);
            let operands = Some([x.pending(), weight]);
            let ran = PendingRan::Known(Implementation::FakeQuantized);
            Pending { kind, role, gemm, operands, site: None, ran }
        });
        let codes = self.weight.laid_out(false);
        let output = B::fp8_matmul_codes(join::<B>(x.quantized.values), codes);
        let output = B::fp8_rescale(output, &x.quantized.scale, &Scalar::Host(self.weight_scale));
        match dtype {
            DType::F32 => output,
            dtype => B::float_cast(output, dtype.into()),
        }
    }

    /// The same on a matrix unit of the CPU.
    fn multiply_on_unit(
        &self,
        x: FloatTensor<B>,
        scale: ScaleRule<B>,
        gemm: Gemm,
    ) -> FloatTensor<B> {
        let format = Fp8Format::E4M3;
        let dtype = x.dtype();
        let x = join::<B>(x);
        let x = MeasuredCodes::new(&x, B::fp8_quantize_for_unit(x.clone(), format, scale));
        let weight_scale = Scalar::Host(self.weight_scale);
        let codes = self.weight.laid_out(false);
        let note = new_note();
        if let Some(note) = &note {
            let weight = PendingOperand::per_tensor::<B>(format, weight_scale.clone(), None);
            let operands = Some([x.pending(), weight]);
            let (kind, role) = (ProductKind::Linear, GemmRole::Output);
            let ran = PendingRan::noted::<B>(note, codes.device());
            report::record(|| Pending { kind, role, gemm, operands, site: None, ran });
        }
        let x = x.quantized;
        let x = UnitOperand { codes: x.codes, scale: UnitScale::Tensor(x.scale) };
        let weight = UnitOperand { codes, scale: UnitScale::Tensor(weight_scale) };
        // It has no scales of blocks, which alone may be refused.
        let otherwise = Otherwise::Emulate;
        B::fp8_matmul_on_unit(x, weight, UnitOptions { dtype, otherwise, note })
    }

    /// The same on tensor cores, or emulated by the device where they have no algorithm.
    fn multiply_natively(
        &self,
        x: FloatTensor<B>,
        scale: ScaleRule<B>,
        gemm: Gemm,
        execution: Execution,
    ) -> FloatTensor<B> {
        let format = Fp8Format::E4M3;
        let (device, dtype) = (B::float_device(&x), FloatDType::from(x.dtype()));
        let x = join::<B>(x);
        let (codes, scale) = B::fp8_quantize_codes(x.clone(), format, scale);
        let note = new_note();
        if let Some(note) = &note {
            let saturated = portable::count_saturated::<B>(&x, &scale, format);
            let x = PendingOperand::per_tensor::<B>(format, scale.clone(), Some(saturated));
            let weight_scale = Scalar::Host(self.weight_scale);
            let weight = PendingOperand::per_tensor::<B>(format, weight_scale, None);
            let operands = Some([x, weight]);
            let (kind, role) = (ProductKind::Linear, GemmRole::Output);
            let ran = PendingRan::noted::<B>(note, device.clone());
            report::record(|| Pending { kind, role, gemm, operands, site: None, ran });
        }
        let x = ScaledOperand { codes, format, scale };
        let codes = self.weight.laid_out(true);
        let weight = ScaledOperand { codes, format, scale: Scalar::Host(self.weight_scale) };
        let otherwise = execution.otherwise();
        let request = ScaledRequest {
            output: OutputType::Float(dtype),
            bias: None,
            activation: Activation::None,
            amax: false,
            fast_accumulation: true,
            otherwise,
            note,
        };
        if otherwise == Otherwise::Refuse
            && let Err(fallback) =
                B::fp8_check_native(&device, &NativeProblem::of_scaled([&x, &weight], &request))
        {
            native_unavailable::<B>(&device, fallback.to_string());
        }
        match B::fp8_scaled_matmul(x, weight, request).values {
            ScaledValues::Float(output) => output,
            ScaledValues::Codes(_) => unreachable!("a float was asked for"),
        }
    }

    /// The weight `[d_input, d_output]` that the codes and the scale stand for, in f32.
    pub fn weight(&self) -> Tensor<B, 2> {
        self.weight.get().dequantize()
    }
}

impl<B: Backend> FrozenLinear<B> {
    /// A layer of codes `[d_input, d_output]` in E4M3, `weight ≈ codes × weight_scale`, and a bias `[d_output]`, which is held in f32.
    ///
    /// Reads codes and bias from the device to check them.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the codes are not E4M3 or there are none, the bias has another length than the weight has columns, a scale
    /// is not a finite number of at least 2^-126, or all elements of the weight, or of the bias, are NaN or infinite. (One that is makes its outputs NaN:
    /// that is seen, and allowed.)
    pub fn from_parts(
        weight: Fp8Codes<B, 2>,
        weight_scale: f32,
        bias: Option<Tensor<B, 1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        let (shape, codes) = (weight.dims(), weight.to_bytes());
        let layer = Self::checked(weight, weight_scale, bias, activation)?;
        check_finite(shape, &codes, read_bias(&layer.bias).as_deref()).map_err(invalid)?;
        Ok(layer)
    }

    /// The same, of a weight and a bias that have finite elements.
    fn checked(
        weight: Fp8Codes<B, 2>,
        weight_scale: f32,
        bias: Option<Tensor<B, 1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        if weight.format() != Fp8Format::E4M3 {
            return Err(invalid(format!("the weight is {}; it must be E4M3", weight.format())));
        }
        check_shape(weight.dims())
            .and_then(|()| check_scale("weight_scale", weight_scale))
            .and_then(|()| activation.check())
            .map_err(invalid)?;
        let [_, d_output] = weight.dims();
        if let Some(bias) = &bias
            && bias.dims() != [d_output]
        {
            let [len] = bias.dims();
            return Err(invalid(format!("the bias has {len} elements for {d_output} outputs")));
        }
        let bias = bias.map(|bias| constant(bias).cast(FloatDType::F32));
        let weight = Weight::new(Fp8Tensor::new(weight, Scalar::Host(weight_scale)));
        Ok(Self { weight, weight_scale, bias, activation })
    }

    /// The codes of the weight, `[d_input, d_output]`: a copy where the layer holds them in another layout.
    pub fn codes(&self) -> Fp8Codes<B, 2> {
        self.weight.codes()
    }

    /// The scale of the weight: `weight ≈ codes × weight_scale`.
    pub fn weight_scale(&self) -> f32 {
        self.weight_scale
    }

    /// The bias `[d_output]`, in f32.
    pub fn bias(&self) -> Option<&Tensor<B, 1>> {
        self.bias.as_ref()
    }

    /// How inputs are scaled.
    pub fn activation(&self) -> ActivationScale {
        self.activation
    }

    /// The same layer with another way of scaling its inputs.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where a static scale is not a finite number of at least 2^-126.
    pub fn with_activation(self, activation: ActivationScale) -> Result<Self, Fp8Error> {
        activation.check().map_err(invalid)?;
        Ok(Self { activation, ..self })
    }

    /// The bytes that the layer holds on its device: the codes of the weight and the bias.
    pub fn bytes(&self) -> usize {
        let bias = self.bias.as_ref();
        let bias = bias.map_or(0, |bias| bias.shape().num_elements() * bias.dtype().size());
        self.weight.get().bytes_held() + bias
    }

    /// `[d_input, d_output]`.
    pub fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "frozen linear layer", reason }
}
