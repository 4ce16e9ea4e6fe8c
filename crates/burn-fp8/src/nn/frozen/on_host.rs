//! A frozen layer where it lies in the host's memory.

use burn_backend::{Backend, tensor::FloatTensor};
use burn_fp8_core::Gemm;
use burn_fp8_core::sums::Sums;
use burn_fp8_cpu::decoder::{Inputs, Linear};
use burn_fp8_cpu::{Rows, Unit};

use super::FrozenLinear;
use crate::backend::Fp8Matmul;
use crate::config;
use crate::engine::tensor::read;
use crate::engine::{Codes, Execution, MatrixOf, Scales, Target};
use crate::host::primitive;
use crate::product::ActivationScale;
use crate::product::frozen_layer::target;
use crate::report::is_tracing;

/// A [`FrozenLinear`] on slices, for loops without a framework: a decoder's step for a token has two hundred products, between which operations on tensors
/// take as long as some of these.
///
/// It shares the codes of the layer, and has scales and bias for itself.
#[derive(Clone, Debug)]
pub struct HostLinear<B: Backend> {
    /// `[d_input, d_output]`, its codes column by column.
    weight: MatrixOf<B>,
    /// Of blocks of outputs and inputs: `[⌈d_output / outputs⌉, ⌈d_input / inputs⌉]`.
    scales: Vec<f32>,
    /// Outputs and inputs of a block.
    block: [usize; 2],
    bias: Option<Vec<f32>>,
    activation: ActivationScale,
    execution: Execution,
    /// The unit that multiplies it.
    unit: Option<Unit>,
}

impl<B: Fp8Matmul> FrozenLinear<B> {
    /// The layer on slices, for as long as [it applies](HostLinear::applies). None on other backends than `Flex` and `Fp8Backend<Flex>`; inside of [`high_precision`](crate::high_precision); while a [`trace`](crate::trace()) wants to know of
    /// each product; and with the [sums](crate::Fp8Config::sums) of tensor cores.
    ///
    /// On a matrix unit, blocks along inputs that are no multiple of 64, as in MXFP8, are multiplied in f32 here, where [`FrozenLinear::forward`] has the unit multiply them: the same but
    /// for the order of sums. [`Execution::Native`] has no such layer on slices.
    pub fn on_host(&self) -> Option<HostLinear<B>> {
        let config = config::current().config;
        let quantizes = self.activation != ActivationScale::Unquantized;
        let in_f32 = config.sums == Sums::F32 || !quantizes;
        if !B::FP8_ON_HOST || !config.enabled || !in_f32 || is_tracing() {
            return None;
        }
        let ([k, n], device) = (self.dims(), self.device());
        let weight = self.weight.laid_out(true);
        let gemm = Gemm::matrix(1, n, k);
        let target = target::<B>(&config, gemm, &device, &weight, self.activation.into()).ok()?;
        let along = [weight.scales.block()[0], self.activation.block()[1]];
        let unit = match target {
            Target::MatrixUnit if Linear::is_for_units(along, k) => Some(Unit::current()),
            Target::MatrixUnit if config.execution == Execution::Native => return None,
            Target::MatrixUnit | Target::Emulation(_) => None,
            Target::TensorCores => return None,
        };
        let (scales, block) = match weight.scales.clone() {
            Scales::One(scale) => (vec![scale.read::<B>()], [n, k]),
            Scales::Grid { scales, block, .. } => {
                let scales: FloatTensor<B> = B::float_transpose(scales);
                (read::<B>(scales), [block[1].min(n), block[0].min(k)])
            }
        };
        let bias = self.bias.clone().map(|bias| read::<B>(primitive(bias)));
        let (activation, execution) = (self.activation, config.execution);
        let layer = HostLinear { weight, scales, block, bias, activation, execution, unit };
        layer.codes().is_some().then_some(layer)
    }
}

impl<B: Fp8Matmul> HostLinear<B> {
    fn codes(&self) -> Option<&[u8]> {
        match &self.weight.transposed {
            Some(Codes::Bytes(codes)) => B::fp8_codes(codes),
            _ => None,
        }
    }

    /// Whether it may stand for [`FrozenLinear::forward`] now: the configuration is that under which the layer was made, as is the
    /// matrix unit that multiplies it, and no [`trace`](crate::trace()) wants to know of each product.
    ///
    /// A unit that is forced later does not take over a layer that none multiplies.
    pub fn applies(&self) -> bool {
        let config = config::current().config;
        !is_tracing()
            && config.enabled
            && config.execution == self.execution
            && (config.sums == Sums::F32 || self.activation == ActivationScale::Unquantized)
            && self.unit.is_none_or(|unit| Unit::current() == unit)
    }

    /// The layer, borrowed.
    pub fn linear(&self) -> Linear<'_> {
        let (codes, format) = (self.codes().expect("checked"), self.weight.format);
        let [k, n] = self.weight.shape().dims();
        let (scales, block) = (&self.scales[..], self.block);
        let (weight, scales) = match block {
            [rows, columns] if columns == k && (rows == 1 || rows == n) => {
                (Rows::Codes(codes, format), scales)
            }
            _ => (Rows::Blocks { codes, format, block, scales }, &[1.0][..]),
        };
        let inputs = match self.activation {
            ActivationScale::Unquantized => Inputs::AsTheyAre,
            ActivationScale::Static(scale) => Inputs::Given(scale),
            activation => Inputs::Measured(activation.block(), activation.recipe()),
        };
        let bias = self.bias.as_deref();
        Linear { weight, unit: self.unit, shape: [n, k], scales, bias, inputs }
    }
}
