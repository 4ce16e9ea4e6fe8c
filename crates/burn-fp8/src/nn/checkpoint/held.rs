//! A published weight on its device.

use burn::module::Module;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_fp8_core::{Fp8Format, e8m0};

use crate::backend::Fp8Matmul;
use crate::checkpoint::{Activations, QuantizedLinear};
use crate::engine::BlockCodes;
use crate::engine::tensor::primitive;
use crate::nn::frozen::{ActivationScale, FrozenLinear};
use crate::scaled::Fp8Codes;

/// A weight in the granularity of its file.
#[derive(Clone, Debug)]
pub(super) enum Held<B: Backend> {
    /// One scale, and one for activations: what a frozen layer is.
    Tensor(FrozenLinear<B>),
    /// A scale for each output.
    Outputs {
        /// `[d_input, d_output]`.
        codes: Fp8Codes<B, 2>,
        /// `[1, d_output]`.
        scales: Tensor<B, 2>,
    },
    /// A scale for each block.
    Blocks {
        /// `[d_input, d_output]`.
        codes: Fp8Codes<B, 2>,
        /// A grid of the same orientation.
        scales: Tensor<B, 2>,
        /// Inputs, outputs.
        block: [usize; 2],
        /// Whether all scales are.
        are_powers_of_two: bool,
    },
}

impl<B: Backend> Held<B> {
    /// Puts a weight, and the bias of a frozen layer, on a device.
    pub(super) fn new(
        layer: QuantizedLinear,
        bias: &Option<Tensor<B, 1>>,
        device: &B::Device,
    ) -> Self {
        let [d_output, d_input] = layer.shape();
        let (scales, activations) = (layer.scales().clone(), layer.activations());
        let codes = |codes, shape| {
            Fp8Codes::from_bytes(codes, shape, Fp8Format::E4M3, device)
                .expect("as many codes as the weight has elements")
        };
        let transposed = transpose(&layer.into_codes(), [d_output, d_input]);
        let weight = codes(transposed, [d_input, d_output]);
        let in_blocks = matches!(activations, Activations::Blocks { .. } | Activations::Mx);
        if scales.block()[1] < d_input || (in_blocks && scales.block()[1] > 1) {
            let [down, across] = scales.grid();
            let grid = (0..down * across).map(|at| scales.values()[at % down * across + at / down]);
            let [outputs, inputs] = scales.block();
            return Self::Blocks {
                codes: weight,
                scales: f32s(grid.collect(), [across, down], device),
                // A file may declare any size. A matrix unit wants multiples of 32.
                block: [inputs.min(d_input.next_multiple_of(32)), outputs.min(d_output)],
                // As bytes of E8M0: subnormal scales below 2^-127 are none.
                are_powers_of_two: scales
                    .values()
                    .iter()
                    .all(|scale| e8m0::encode(*scale).is_some()),
            };
        }
        let activation = match activations {
            Activations::Static(scale) => Some(ActivationScale::Static(scale)),
            Activations::PerTensor => Some(ActivationScale::Current),
            _ => None,
        };
        if let ([1, 1], Some(activation)) = (scales.grid(), activation)
            && let Ok(frozen) = FrozenLinear::from_parts(
                weight.clone(),
                scales.values()[0],
                bias.clone(),
                activation,
            )
        {
            return Self::Tensor(frozen);
        }
        let of_blocks = scales.values().iter();
        let scales = of_blocks.flat_map(|scale| core::iter::repeat_n(*scale, scales.block()[0]));
        let scales: Vec<f32> = scales.take(d_output).collect();
        Self::Outputs { codes: weight, scales: f32s(scales, [1, d_output], device) }
    }

    pub(super) fn device(&self) -> B::Device {
        match self {
            Self::Tensor(frozen) => frozen.devices().swap_remove(0),
            Self::Outputs { codes, .. } | Self::Blocks { codes, .. } => codes.device(),
        }
    }

    pub(super) fn moved_to(self, device: &B::Device) -> Self {
        match self {
            Self::Tensor(frozen) => Self::Tensor(frozen.to_device(device)),
            Self::Outputs { codes, scales } => {
                Self::Outputs { codes: codes.to_device(device), scales: scales.to_device(device) }
            }
            Self::Blocks { codes, scales, block, are_powers_of_two } => Self::Blocks {
                codes: codes.to_device(device),
                scales: scales.to_device(device),
                block,
                are_powers_of_two,
            },
        }
    }

    /// Bytes on the device, with those of a bias.
    pub(super) fn bytes(&self, bias: &Option<Tensor<B, 1>>) -> usize {
        const F32: usize = size_of::<f32>();
        match self {
            Self::Tensor(frozen) => frozen.bytes(),
            Self::Outputs { codes, scales } | Self::Blocks { codes, scales, .. } => {
                let bias = bias.as_ref().map_or(0, |bias| bias.shape().num_elements());
                codes.bytes_held() + F32 * (scales.shape().num_elements() + bias)
            }
        }
    }
}

impl<B: Fp8Matmul> Held<B> {
    /// The weight `[d_input, d_output]` in f32: codes times scales, as most loaders dequantize it.
    pub(super) fn dequantize(&self) -> Tensor<B, 2> {
        match self {
            Self::Tensor(frozen) => frozen.weight(),
            Self::Outputs { codes, scales } => codes.values() * scales.clone(),
            Self::Blocks { codes, scales, block, .. } => {
                let values = B::fp8_dequantize_blocks(block_codes(codes, scales, *block));
                Tensor::from_primitive(TensorPrimitive::Float(values))
            }
        }
    }
}

/// Codes and the scales of their blocks, for the engine.
pub(super) fn block_codes<B: Backend>(
    codes: &Fp8Codes<B, 2>,
    scales: &Tensor<B, 2>,
    block: [usize; 2],
) -> BlockCodes<B> {
    let (codes, scales) = (codes.codes().clone(), primitive(scales.clone()));
    BlockCodes { codes, scales, block, format: Fp8Format::E4M3 }
}

/// A tensor of f32, whatever the device's default is.
pub(super) fn f32s<B: Backend, const D: usize>(
    values: Vec<f32>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// The transpose of a matrix of bytes, in squares that fit into the first-level cache.
fn transpose(codes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    const SIDE: usize = 64;
    let mut transposed = vec![0; codes.len()];
    for first in (0..rows).step_by(SIDE) {
        for from in (0..columns).step_by(SIDE) {
            for row in first..rows.min(first + SIDE) {
                for column in from..columns.min(from + SIDE) {
                    transposed[column * rows + row] = codes[row * columns + column];
                }
            }
        }
    }
    transposed
}
