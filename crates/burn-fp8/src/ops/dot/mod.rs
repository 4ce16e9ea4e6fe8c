//! The product of an FP8 layer: three operands with delayed scaling, two ways to multiply.

mod emulated;
mod native;
mod observed;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_fp8_core::{AmaxChoice, Fp8Format, Gemm};
use serde::{Deserialize, Serialize};

use super::QdqOptions;
use crate::Fp8Matmul;
use crate::config::{self, Execution};
use crate::matmul::{self, SavedOperand, native_unavailable};
use crate::report::Tap;

/// How an FP8 layer multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DotMode {
    /// Operands are dequantized, then multiplied: `in_qdq`, `in_qdq`, dot, `out_qdq`. Flax's `Fp8DotGeneralOp`. Always emulated.
    QuantizeDequantize,
    /// Codes are multiplied, the product then by both scales at once: what FP8 hardware does, and what runs natively where the
    /// device can. Flax's `Fp8DirectDotGeneralOp`.
    #[default]
    Direct,
}

/// The options of an FP8 layer's product.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DotOptions {
    /// How it multiplies.
    pub mode: DotMode,
    /// The scales are multiplied by 2 to this power.
    pub margin: i32,
    /// Which amax of a history counts.
    pub amax_choice: AmaxChoice,
}

impl DotOptions {
    fn qdq(self, format: Fp8Format, dtype: DType) -> QdqOptions {
        let Self { mode: _, margin, amax_choice } = self;
        QdqOptions { format, compute_dtype: Some(dtype.into()), margin, amax_choice }
    }
}

/// The product of the forward pass, and what the backward pass needs.
pub(crate) struct Forward<B: Fp8Matmul> {
    pub(crate) output: FloatTensor<B>,
    /// The codes of the operands that were asked for.
    pub(crate) saved: [Option<SavedOperand<B>>; 2],
    /// The new state of both operands: scale `[1]` and history `[H]`.
    pub(crate) states: [[FloatTensor<B>; 2]; 2],
    /// The observatory, where this step is sampled.
    pub(crate) tap: Option<Tap>,
}

/// `x` `[…, K]` times `kernel` `[K, N]`, neither of them empty, in the type of the kernel.
pub(crate) fn forward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    kernel: FloatTensor<B>,
    states: [[FloatTensor<B>; 2]; 2],
    options: DotOptions,
    save: [bool; 2],
) -> Forward<B> {
    let seen = observed::forward::<B>([&x, &kernel]);
    let mut forward = match runs_natively::<B>(&x, options.mode) {
        true => native::forward::<B>(x, kernel, states, options, save),
        false => emulated::forward::<B>(x, kernel, states, options, save),
    };
    if let Some((tap, operands)) = seen {
        observed::see_forward::<B>(&tap, operands, &forward.states, options);
        forward.tap = Some(tap);
    }
    forward
}

/// The gradients of a product.
pub(crate) struct Backward<B: Fp8Matmul> {
    /// Those of the operands, of their shapes, where the counterpart was saved.
    pub(crate) operands: [Option<FloatTensor<B>>; 2],
    /// The new state of the output gradient.
    pub(crate) state: [FloatTensor<B>; 2],
}

/// The gradients of `x` and `kernel`, of the given shapes, from E5M2 codes of the output gradient. They run where the forward
/// product has run.
pub(crate) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    saved: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
    state: [FloatTensor<B>; 2],
    options: DotOptions,
    tap: Option<&Tap>,
) -> Backward<B> {
    let is_native = |saved: &Option<_>| matches!(saved, Some(SavedOperand::Matrix(_)));
    let seen = tap.map(|tap| (tap, output_grad.clone()));
    let backward = match saved.iter().any(is_native) {
        true => native::backward::<B>(output_grad, saved, shapes, state, options),
        false => emulated::backward::<B>(output_grad, saved, shapes, state, options),
    };
    if let Some((tap, output_grad)) = seen {
        observed::see_backward::<B>(tap, output_grad, &backward, options);
    }
    backward
}

/// Whether a layer on this device multiplies natively. Panics where it has to and cannot.
fn runs_natively<B: Fp8Matmul>(x: &FloatTensor<B>, mode: DotMode) -> bool {
    let execution = config::current().config.execution;
    let native = matmul::runs_natively::<B>(x, execution);
    if native && mode == DotMode::QuantizeDequantize && execution == Execution::Native {
        let reason =
            "DotMode::QuantizeDequantize multiplies dequantized operands; use DotMode::Direct";
        native_unavailable::<B>(&B::float_device(x), reason.into());
    }
    native && mode == DotMode::Direct
}

fn gemm([x, kernel]: &[Shape; 2]) -> Gemm {
    Gemm::matrix(x.num_elements() / kernel[0], kernel[1], kernel[0])
}
