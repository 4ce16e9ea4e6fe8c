//! The product of a published layer.

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorMetadata, TensorPrimitive};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, Granularity, Overflow, ProductKind, Recipe};

use super::held::{Held, block_codes};
use super::layer::CheckpointLinear;
use crate::backend::Fp8Matmul;
use crate::checkpoint::Activations;
use crate::config::{self, Execution};
use crate::engine::tensor::{add_bias, join, primitive, reshape};
use crate::engine::{
    CodesPrimitive, Fallback, Quantize, QuantizeBlocks, QuantizeRows, Scalar, ScaleRule,
    UnitOperand, UnitOptions, UnitScale, portable,
};
use crate::product::scheme::Path;
use crate::product::{native_unavailable, path};
use crate::report::{
    self, HighPrecision, Implementation, Pending, PendingOperand, PendingRan, new_note,
    record_high_precision,
};

const FORMAT: Fp8Format = Fp8Format::E4M3;
const KIND: ProductKind = ProductKind::Linear;
const ROLE: GemmRole = GemmRole::Output;

impl<B: Fp8Matmul> CheckpointLinear<B> {
    /// Applies the layer to `[…, d_input]`, f32, f16 or bf16; the output `[…, d_output]` has the type of `x`. Tensors of other types are multiplied in
    /// high precision, and so is everything inside [`high_precision`](crate::high_precision): the input as it is, times the dequantized weight.
    ///
    /// It appears once in a [`trace`](crate::trace) and is not subject to the filter.
    ///
    /// # Panics
    /// Where the last dimension of `x` is not `d_input`; where [`Execution::Native`] is asked for and not available; where `x` has a gradient and is
    /// quantized.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let [k, n] = self.dims;
        assert!(
            x.dims().last() == Some(&k),
            "a CheckpointLinear of {k} inputs and {n} outputs takes […, {k}], not {:?}",
            x.dims()
        );
        if let Held::Tensor(frozen) = &self.weight
            && config::current().config.enabled
        {
            return frozen.forward(x);
        }
        let dtype = x.dtype();
        let mut shape = x.shape();
        let m = shape.num_elements() / k;
        shape[D - 1] = n;
        if m == 0 {
            // No bias: CubeCL does not broadcast it over no rows.
            let output = B::float_zeros(shape, &x.device(), dtype.into());
            return Tensor::from_primitive(TensorPrimitive::Float(output));
        }
        let output = self.multiply(join::<B>(primitive(x)), Gemm::matrix(m, n, k));
        let bias = self.bias.clone().map(|bias| primitive(bias.cast(FloatDType::from(dtype))));
        let output = add_bias::<B>(reshape::<B>(output, shape), bias);
        Tensor::from_primitive(TensorPrimitive::Float(output))
    }

    /// `[M, N]`, of the type of `x` `[M, K]`.
    fn multiply(&self, x: FloatTensor<B>, gemm: Gemm) -> FloatTensor<B> {
        let dtype = x.dtype();
        let ambient = config::current();
        let in_fp8 = match dtype {
            _ if !ambient.config.enabled => Err(HighPrecision::Off),
            DType::F32 | DType::F16 | DType::BF16 | DType::Flex32 => match self.activations {
                Activations::None => Err(HighPrecision::WeightOnly),
                _ => Ok(()),
            },
            dtype => Err(HighPrecision::Dtype(dtype)),
        };
        if let Err(reason) = in_fp8 {
            let weight_only = reason == HighPrecision::WeightOnly;
            record_high_precision(KIND, ROLE, gemm, reason);
            if weight_only {
                let output = self.multiply_codes(B::float_cast(x, FloatDType::F32), None);
                return B::float_cast(output, dtype.into());
            }
            let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            let weight = B::float_cast(primitive(self.weight()), wide.into());
            let output = B::fp8_plain_matmul(B::float_cast(x, wide.into()), weight);
            return B::float_cast(output, dtype.into());
        }
        let execution = ambient.config.execution;
        let (path, otherwise) = (path::<B>(&x, execution), execution.otherwise());
        let x = Input::quantize(x, self.activations);
        if path == Path::MatrixUnit
            && let Some(weight) = self.for_unit(&x)
        {
            let note = new_note();
            if let Some(note) = &note {
                let ran = PendingRan::noted::<B>(note, self.weight.device());
                self.record(gemm, &x, ran);
            }
            return B::fp8_matmul_on_unit(
                x.for_unit(),
                weight,
                UnitOptions { dtype, otherwise, note },
            );
        }
        let ran = match path {
            Path::FakeQuantized => Implementation::FakeQuantized,
            _ => Implementation::Fallback(self.fallback()),
        };
        if let (Implementation::Fallback(fallback), Execution::Native) = (&ran, execution) {
            native_unavailable::<B>(&self.weight.device(), fallback.to_string());
        }
        self.record(gemm, &x, PendingRan::Known(ran));
        let output = match x.by_rows() {
            Some(rows) => self.multiply_codes(B::fp8_values(x.codes), Some(rows)),
            None => self.multiply_codes(x.dequantize(), None),
        };
        B::float_cast(output, dtype.into())
    }

    /// `x` `[M, K]`, f32, times the weight, and times scales of its rows, `[M, 1]`, where it has some. Codes are decoded as they are multiplied, where the
    /// backend does that.
    fn multiply_codes(&self, x: FloatTensor<B>, rows: Option<FloatTensor<B>>) -> FloatTensor<B> {
        let scaled = |x, rows: Option<FloatTensor<B>>| match rows {
            Some(rows) => B::float_mul(x, rows),
            None => x,
        };
        match &self.weight {
            Held::Tensor(_) => B::fp8_plain_matmul(scaled(x, rows), primitive(self.weight())),
            Held::Outputs { codes, scales } => {
                let rows = rows.unwrap_or_else(|| {
                    let shape = Shape::new([x.shape()[0], 1]);
                    B::float_ones(shape, &B::float_device(&x), FloatDType::F32)
                });
                let output = B::fp8_matmul_codes(x, codes.codes().clone());
                B::fp8_rescale_rows(output, rows, primitive(scales.clone()))
            }
            Held::Blocks { codes, scales, block, .. } => {
                B::fp8_matmul_block_codes(scaled(x, rows), block_codes(codes, scales, *block))
            }
        }
    }

    /// The weight as a matrix unit of the CPU takes it with this input, where it does.
    fn for_unit(&self, x: &Input<B>) -> Option<UnitOperand<B>> {
        match &self.weight {
            Held::Outputs { codes, scales } if x.block.is_none() => {
                let scale = UnitScale::Rows(primitive(scales.clone()));
                Some(UnitOperand { codes: codes.codes().clone(), scale })
            }
            Held::Blocks { codes, scales, block, are_powers_of_two } => {
                let (along, of_x) = (block[0], x.block?);
                let are_possible = along == of_x || *are_powers_of_two && x.are_powers_of_two;
                if !are_possible || [along, of_x].iter().any(|along| !along.is_multiple_of(32)) {
                    return None;
                }
                let scale = UnitScale::Blocks {
                    scales: primitive(scales.clone()),
                    block: *block,
                    are_powers_of_two: *are_powers_of_two,
                };
                Some(UnitOperand { codes: codes.codes().clone(), scale })
            }
            _ => None,
        }
    }

    /// Why a device with a unit for FP8 does not take the product.
    fn fallback(&self) -> Fallback {
        match (&self.weight, self.activations) {
            (Held::Blocks { .. }, _) | (_, Activations::Blocks { .. } | Activations::Mx) => {
                Fallback::Blocks
            }
            _ => Fallback::PerRow,
        }
    }

    fn record(&self, gemm: Gemm, x: &Input<B>, ran: PendingRan) {
        report::record(|| {
            let (granularity, scales) = match &self.weight {
                Held::Tensor(_) => unreachable!("a frozen layer records itself"),
                Held::Outputs { scales, .. } => (Granularity::PerRow, scales),
                Held::Blocks { scales, block: [32, 1], are_powers_of_two: true, .. } => {
                    (Recipe::mxfp8().granularity(), scales)
                }
                Held::Blocks { scales, .. } => (Granularity::Blockwise, scales),
            };
            let scales = primitive(scales.clone());
            let weight = PendingOperand::of_scales::<B>(FORMAT, granularity, scales, None);
            let operands = Some([x.pending(), weight]);
            Pending { kind: KIND, role: ROLE, gemm, operands, site: None, ran }
        });
    }
}

/// A quantized input `[M, K]`.
struct Input<B: Fp8Matmul> {
    codes: CodesPrimitive<B>,
    /// `[1, 1]`, `[M, 1]`, or a grid of blocks.
    scales: FloatTensor<B>,
    granularity: Granularity,
    /// The elements of a block along K.
    block: Option<usize>,
    /// Whether scales are those of blocks, and powers of two.
    are_powers_of_two: bool,
    saturated: Option<IntTensor<B>>,
    rows: usize,
}

impl<B: Fp8Matmul> Input<B> {
    fn quantize(x: FloatTensor<B>, activations: Activations) -> Self {
        let [rows, k] = x.shape().dims();
        // A file may declare any size.
        let activations = match activations {
            Activations::Blocks { size, power_of_two } => {
                Activations::Blocks { size: size.min(k.next_multiple_of(32)), power_of_two }
            }
            other => other,
        };
        let (granularity, block) = match activations {
            Activations::PerToken => (Granularity::PerRow, None),
            Activations::Mx => (Recipe::mxfp8().granularity(), Some(32)),
            Activations::Blocks { size, .. } => (Granularity::Blockwise, Some(size)),
            _ => (Granularity::PerTensor, None),
        };
        let (codes, scales) = match activations {
            Activations::PerToken => {
                let recipe = Recipe::rowwise();
                let request = QuantizeRows { dim: 1, format: FORMAT, recipe, values: false };
                B::fp8_quantize_rows(x.clone(), request)
            }
            Activations::Blocks { size, power_of_two } => {
                let recipe = Recipe::blockwise().with_power_of_two(power_of_two);
                Self::in_blocks(&x, size, recipe)
            }
            Activations::Mx => Self::in_blocks(&x, 32, Recipe::mxfp8()),
            scale => {
                let rule = match scale {
                    Activations::Static(scale) => {
                        ScaleRule::Given(Scalar::Host(scale), Overflow::SaturateFinite)
                    }
                    _ => ScaleRule::Current(Recipe::current()),
                };
                let request = Quantize { format: FORMAT, scale: rule, save: true };
                let quantized = B::fp8_quantize(x.clone(), request);
                let scale = quantized.scale.on_device(&B::float_device(&x));
                let codes = quantized.codes.expect("asked for");
                (codes, B::float_reshape(scale, Shape::new([1, 1])))
            }
        };
        let saturated = report::is_tracing().then(|| {
            let shape = x.shape();
            let scales = match block {
                Some(size) => portable::blocks::Grid::new(&shape, [1, size])
                    .spread::<B>(scales.clone(), shape),
                None => scales.clone(),
            };
            portable::count_saturated_by::<B>(&x, scales, FORMAT)
        });
        let are_powers_of_two =
            matches!(activations, Activations::Mx | Activations::Blocks { power_of_two: true, .. });
        Self { codes, scales, granularity, block, are_powers_of_two, saturated, rows }
    }

    fn in_blocks(
        x: &FloatTensor<B>,
        size: usize,
        recipe: Recipe,
    ) -> (CodesPrimitive<B>, FloatTensor<B>) {
        let request = QuantizeBlocks { block: [1, size], format: FORMAT, recipe };
        let quantized = B::fp8_quantize_blocks(x.clone(), request);
        (quantized.codes, quantized.scales)
    }

    /// A scale for each row, `[M, 1]`, where elements that are summed share one.
    fn by_rows(&self) -> Option<FloatTensor<B>> {
        match self.granularity {
            Granularity::PerRow => Some(self.scales.clone()),
            Granularity::PerTensor => {
                Some(B::float_expand(self.scales.clone(), Shape::new([self.rows, 1])))
            }
            _ => None,
        }
    }

    fn for_unit(self) -> UnitOperand<B> {
        let scale = match (self.by_rows(), self.block) {
            (Some(rows), _) => UnitScale::Rows(rows),
            (None, block) => UnitScale::Blocks {
                scales: self.scales,
                block: [1, block.unwrap_or(1)],
                are_powers_of_two: self.are_powers_of_two,
            },
        };
        UnitOperand { codes: self.codes, scale }
    }

    /// In f32.
    fn dequantize(self) -> FloatTensor<B> {
        let values = B::fp8_values(self.codes);
        let scales = match self.block {
            Some(size) => {
                let shape = values.shape();
                portable::blocks::Grid::new(&shape, [1, size]).spread::<B>(self.scales, shape)
            }
            None => self.scales,
        };
        B::float_mul(values, scales)
    }

    fn pending(&self) -> PendingOperand {
        let scales = self.scales.clone();
        PendingOperand::of_scales::<B>(FORMAT, self.granularity, scales, self.saturated.clone())
    }
}
