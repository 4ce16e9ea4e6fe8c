//! A frozen layer where it lies in the host's memory.

use burn_backend::{Backend, DType, tensor::FloatTensor};
use burn_fp8_core::{Gemm, slice::Rows};
use burn_fp8_cpu::decoder::{Inputs, Linear};

use super::FrozenLinear;
use crate::backend::Fp8Matmul;
use crate::config;
use crate::engine::{Codes, Execution, MatrixOf, Scales, Target};
use crate::host::primitive;
use crate::product::ActivationScale;
use crate::product::frozen_layer::options;
use crate::report::is_tracing;

/// A [`FrozenLinear`] on slices, for loops without a framework: a decoder's step for a token has two hundred products, between which operations on tensors
/// take as long as some of these.
#[derive(Clone, Debug)]
pub struct HostLinear<B: Backend> {
    /// `[d_input, d_output]`, its codes column by column.
    weight: MatrixOf<B>,
    scales: HostScales<B>,
    bias: Option<FloatTensor<B>>,
    activation: ActivationScale,
    execution: Execution,
}

#[derive(Clone, Debug)]
enum HostScales<B: Backend> {
    One([f32; 1]),
    /// Those of blocks of outputs and inputs: `[⌈d_output / outputs⌉, ⌈d_input / inputs⌉]`.
    Grid(FloatTensor<B>, [usize; 2]),
}

impl<B: Fp8Matmul> FrozenLinear<B> {
    /// The layer on slices, for as long as [it applies](HostLinear::applies); none where [`forward`](Self::forward) does not multiply codes in f32 as they lie:
    /// where the device has FP8 tensor cores or a matrix unit, and inside of [`high_precision`](crate::high_precision).
    pub fn on_host(&self) -> Option<HostLinear<B>> {
        let ([k, n], device) = (self.dims(), self.device());
        let mut weight = self.weight.get();
        let gemm = Gemm::matrix(1, n, k);
        let options = options::<B>(DType::F32, gemm, &device, weight.matrix(), self.activation)?;
        let Target::Emulation(_) = options.target else { return None };
        if !weight.is_transposed() {
            weight = self.weight.laid_out(true);
        }
        let weight = weight.into_matrix();
        let scales = match &weight.scales {
            Scales::One(scale) => HostScales::One([scale.clone().read::<B>()]),
            Scales::Grid { scales, block, .. } => {
                let block = [block[1].min(n), block[0].min(k)];
                HostScales::Grid(B::float_transpose(scales.clone()), block)
            }
        };
        let bias = self.bias.clone().map(primitive);
        let (activation, execution) = (self.activation, options.execution);
        let layer = HostLinear { weight, scales, bias, activation, execution };
        let floats = layer.bias.iter().chain(match &layer.scales {
            HostScales::One(_) => None,
            HostScales::Grid(scales, _) => Some(scales),
        });
        let has_memory = || floats.into_iter().all(|tensor| B::fp8_numbers(tensor).is_some());
        (layer.codes().is_some() && has_memory()).then_some(layer)
    }
}

impl<B: Fp8Matmul> HostLinear<B> {
    fn codes(&self) -> Option<&[u8]> {
        match &self.weight.transposed {
            Some(Codes::Bytes(codes)) => B::fp8_codes(codes),
            _ => None,
        }
    }

    /// Whether [`FrozenLinear::forward`] would multiply in the same way now: the configuration is that under which the layer was made, and no
    /// [`trace`](crate::trace()) wants to know of each product.
    pub fn applies(&self) -> bool {
        let config = config::current().config;
        !is_tracing() && config.enabled && config.execution == self.execution
    }

    /// The layer, borrowed.
    pub fn linear(&self) -> Linear<'_> {
        let numbers = |tensor| B::fp8_numbers(tensor).expect("checked");
        let (codes, format) = (self.codes().expect("checked"), self.weight.format);
        let [k, n] = self.weight.shape().dims();
        let (weight, scales) = match &self.scales {
            HostScales::One(scale) => (Rows::Codes(codes, format), &scale[..]),
            HostScales::Grid(scales, [1, columns]) if *columns == k => {
                (Rows::Codes(codes, format), numbers(scales))
            }
            HostScales::Grid(scales, block) => {
                let (block, scales) = (*block, numbers(scales));
                (Rows::Blocks { codes, format, block, scales }, &[1.0][..])
            }
        };
        let inputs = match self.activation {
            ActivationScale::Unquantized => Inputs::AsTheyAre,
            ActivationScale::Static(scale) => Inputs::Given(scale),
            activation => Inputs::Measured(activation.block(), activation.recipe()),
        };
        let bias = self.bias.as_ref().map(numbers);
        Linear { weight, shape: [n, k], scales, bias, inputs }
    }
}
