//! The product of an FP8 layer: three operands with delayed scaling, two ways to multiply.

mod dequantized;
mod quantizer;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, TensorMetadata};
use burn_fp8_core::{Fp8Format, Gemm, ProductKind, Recipe};

use super::flax;
use super::options::{DotMode, DotOptions};
use crate::config::{self, Execution};
use crate::engine::Fp8Engine;
use crate::product::gemms::{self, Gradients};
use crate::product::scheme::{Gemms, Path};
use crate::product::{Emulated, Native, SavedOperand, Units, native_unavailable, path};
use crate::report;
use dequantized::Dequantized;
use quantizer::LayerQuantizer;

/// Calls a function of [`gemms`] with the scheme of a layer.
macro_rules! on_scheme {
    ($gemms:expr, $mode:expr, $function:ident($($argument:expr),*)) => {
        match (&$gemms.path, $mode) {
            (Path::Native, _) => gemms::$function::<B, _, Native>($($argument),*),
            (Path::MatrixUnit, _) => gemms::$function::<B, _, Units>($($argument),*),
            (_, DotMode::Direct) => gemms::$function::<B, _, Emulated>($($argument),*),
            (_, DotMode::QuantizeDequantize) => {
                gemms::$function::<B, _, Emulated<Dequantized>>($($argument),*)
            }
        }
    };
}

/// The product of the forward pass, and what the backward pass needs.
pub(super) struct Forward<B: Fp8Engine> {
    pub(super) output: FloatTensor<B>,
    pub(super) saved: Saved<B>,
    /// The new state of both operands: scale `[1]` and history `[H]`.
    pub(super) states: [[FloatTensor<B>; 2]; 2],
}

/// What the backward pass needs: it runs where the forward pass has run.
#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    gemms: Gemms,
    options: DotOptions,
    /// The codes of the operands that were asked for.
    operands: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
}

/// `x` `[…, K]` times `kernel` `[K, N]`, neither of them empty and both of one type.
pub(super) fn forward<B: Fp8Engine>(
    x: FloatTensor<B>,
    kernel: FloatTensor<B>,
    [input, weight]: [[FloatTensor<B>; 2]; 2],
    options: DotOptions,
    save: [bool; 2],
) -> Forward<B> {
    let gemms = plan::<B>(&x, &kernel, &input, options);
    let shapes = [x.shape(), kernel.shape()];
    let qdq = options.qdq(Fp8Format::E4M3, kernel.dtype());
    let input = flax::update::<B>(&x, input, qdq);
    let weight = flax::update::<B>(&kernel, weight, qdq);
    let scales = [input[0].clone(), weight[0].clone()];
    let quantizer = LayerQuantizer::of_operands(scales, kernel.dtype(), &gemms);
    let gemms::Forward { output, saved: operands, amaxes: _ } =
        on_scheme!(gemms, options.mode, forward(x, kernel, &quantizer, &gemms, save));
    let saved = Saved { gemms, options, operands, shapes };
    Forward { output, saved, states: [input, weight] }
}

/// The gradients of a product.
pub(super) struct Backward<B: Fp8Engine> {
    /// Those of the operands, of their shapes, where the counterpart was saved.
    pub(super) operands: [Option<FloatTensor<B>>; 2],
    /// The new state of the output gradient.
    pub(super) state: [FloatTensor<B>; 2],
}

/// The gradients of `x` and `kernel`, from E5M2 codes of the output gradient.
pub(super) fn backward<B: Fp8Engine>(
    output_grad: FloatTensor<B>,
    Saved { gemms, options, operands, shapes }: Saved<B>,
    state: [FloatTensor<B>; 2],
) -> Backward<B> {
    let dtype = output_grad.dtype();
    let state = flax::update::<B>(&output_grad, state, options.qdq(Fp8Format::E5M2, dtype));
    let quantizer = LayerQuantizer::of_output_grad(state[0].clone(), dtype, &gemms);
    let Gradients { operands, amax: _ } = on_scheme!(
        gemms,
        options.mode,
        backward(output_grad, operands, shapes, &quantizer, &gemms)
    );
    Backward { operands, state }
}

/// What the three GEMMs of a layer have in common. Panics where they have to run natively and cannot.
fn plan<B: Fp8Engine>(
    x: &FloatTensor<B>,
    kernel: &FloatTensor<B>,
    [_, history]: &[FloatTensor<B>; 2],
    options: DotOptions,
) -> Gemms {
    let kernel = kernel.shape();
    let forward = Gemm::matrix(x.shape().num_elements() / kernel[0], kernel[1], kernel[0]);
    let DotOptions { mode, margin, amax_choice } = options;
    // The recipe that says what a layer does.
    let recipe = Recipe::delayed()
        .with_history_length(history.shape().num_elements())
        .with_margin(margin)
        .with_amax_choice(amax_choice);
    let execution = config::current().config.execution;
    let path = path::<B>(x, execution);
    if mode == DotMode::QuantizeDequantize && execution == Execution::Native {
        let reason =
            "DotMode::QuantizeDequantize multiplies dequantized operands; use DotMode::Direct";
        native_unavailable::<B>(&B::float_device(x), reason.into());
    }
    let path = if mode == DotMode::Direct { path } else { Path::FakeQuantized };
    let tap = report::observe(report::FP8_LAYER, forward);
    Gemms { kind: ProductKind::Linear, forward, recipe, path, execution, site: None, tap }
}
