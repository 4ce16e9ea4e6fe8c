//! The product of an FP8 layer: three operands with delayed scaling, two ways to multiply.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata};
use burn_fp8_core::{Fp8Format, Gemm, Operand, ProductKind, Recipe};

use super::flax;
use super::options::{DotMode, DotOptions, QdqOptions};
use crate::Fp8Error;
use crate::config;
use crate::engine::{
    Codes, Execution, Fp8Engine, Manner, Matrix, MatrixOf, Scalar, Scales, Target, Wanted, decode,
};
use crate::host::primitive;
use crate::product::gemms::{self, Gradients};
use crate::product::{Gemms, Quantizer, SavedOperand, target};
use crate::report;

/// The product of the forward pass, and what the backward pass needs.
pub(super) struct Forward<B: Fp8Engine> {
    pub(super) output: FloatTensor<B>,
    pub(super) saved: Saved<B>,
    /// The new state of both operands: scale `[1]` and history `[H]`.
    pub(super) states: [[FloatTensor<B>; 2]; 2],
}

/// Where the scale of an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Its history, which the backward pass moves on: Flax's arithmetic.
    Moving,
    /// Its history, which stays what it is, as in inference; the operand itself where the state has seen nothing.
    Still,
    /// The operand itself: its history cannot follow what the layers around it learn.
    Operand,
}

impl Source {
    /// The scale `[1]` for `x`, and its history `[H]` afterwards.
    fn update<B: Fp8Engine>(
        self,
        x: &FloatTensor<B>,
        state: [FloatTensor<B>; 2],
        options: QdqOptions,
    ) -> [FloatTensor<B>; 2] {
        let [scale, history] = match self {
            Self::Moving => return flax::update::<B>(x, state, options),
            Self::Still | Self::Operand => state.map(flax::vector::<B>),
        };
        let current = flax::current_scale::<B>(x, scale.clone(), options);
        let scale = match self {
            Self::Operand => current,
            _ => {
                let unseen = flax::has_seen_nothing::<B>(&scale, &history);
                let stored = flax::next_scale::<B>(primitive(scale), &history, options);
                stored.mask_where(unseen, current)
            }
        };
        [scale, history].map(primitive)
    }
}

/// What the backward pass needs: it runs where the forward pass has run.
#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    gemms: Gemms,
    options: DotOptions,
    /// Where the scale of the output gradient comes from.
    source: Source,
    /// The codes of the operands that were asked for.
    operands: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
}

/// `x` `[…, K]` times `kernel` `[K, N]`, neither of them empty and both of one type. `sources` are those of input, kernel and output gradient.
pub(super) fn forward<B: Fp8Engine>(
    x: FloatTensor<B>,
    kernel: FloatTensor<B>,
    [input, weight]: [[FloatTensor<B>; 2]; 2],
    sources: [Source; 3],
    options: DotOptions,
    save: [bool; 2],
) -> Forward<B> {
    let gemms = plan::<B>(&x, &kernel, &input, sources, options);
    let [of_input, of_weight, source] = sources;
    let shapes = [x.shape(), kernel.shape()];
    let qdq = options.qdq(Fp8Format::E4M3, kernel.dtype());
    let input = of_input.update::<B>(&x, input, qdq);
    let weight = of_weight.update::<B>(&kernel, weight, qdq);
    let scales = [Some(input[0].clone()), Some(weight[0].clone()), None];
    let (compute_dtype, mode) = (kernel.dtype().into(), options.mode);
    let quantizer = LayerQuantizer { scales, compute_dtype, mode, gemms: &gemms };
    let gemms::Forward { output, saved: operands, amaxes: _ } =
        gemms::forward(x, kernel, None, &quantizer, save);
    let saved = Saved { gemms, options, source, operands, shapes };
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
    Saved { gemms, options, source, operands, shapes }: Saved<B>,
    state: [FloatTensor<B>; 2],
) -> Backward<B> {
    let dtype = output_grad.dtype();
    let state = source.update::<B>(&output_grad, state, options.qdq(Fp8Format::E5M2, dtype));
    let scales = [None, None, Some(state[0].clone())];
    let (compute_dtype, mode) = (dtype.into(), options.mode);
    let quantizer = LayerQuantizer { scales, compute_dtype, mode, gemms: &gemms };
    let Gradients { operands, amax: _ } =
        gemms::backward(output_grad, operands, shapes, &quantizer);
    Backward { operands, state }
}

/// What the three GEMMs of a layer have in common. Panics where they have to run natively and cannot.
fn plan<B: Fp8Engine>(
    x: &FloatTensor<B>,
    kernel: &FloatTensor<B>,
    [_, history]: &[FloatTensor<B>; 2],
    sources: [Source; 3],
    options: DotOptions,
) -> Gemms {
    let kernel = kernel.shape();
    let forward = Gemm::matrix(x.shape().num_elements() / kernel[0], kernel[1], kernel[0]);
    let DotOptions { mode, margin, amax_choice } = options;
    // The recipe that says what a layer does.
    let recipe = match sources {
        [Source::Operand, Source::Operand, Source::Operand] => Recipe::current(),
        _ => Recipe::delayed()
            .with_history_length(history.shape().num_elements())
            .with_amax_choice(amax_choice),
    };
    let recipe = recipe.with_margin(margin);
    let config = config::current().config;
    let target = target::<B>(&recipe, forward, x, &config);
    // Dequantized operands are no codes.
    let manner = match mode {
        DotMode::Direct => config.manner(),
        DotMode::QuantizeDequantize => Manner::in_f32(config.execution),
    };
    let target = match mode {
        DotMode::Direct => target,
        DotMode::QuantizeDequantize if config.execution == Execution::Native => {
            let backend = B::name(&B::float_device(x));
            let reason =
                "DotMode::QuantizeDequantize multiplies dequantized operands; use DotMode::Direct";
            panic!("{}", Fp8Error::NativeUnavailable { backend, reason: reason.into() });
        }
        DotMode::QuantizeDequantize => Target::Emulation(None),
    };
    let tap = report::observe(report::FP8_LAYER, forward, manner.sums, config.accumulation);
    Gemms {
        kind: ProductKind::Linear,
        forward,
        recipe,
        target,
        manner,
        accumulation: config.accumulation,
        site: None,
        tap,
    }
}

/// Quantizes the operands of one pass as Flax does, with scales that were chosen before.
struct LayerQuantizer<'a, B: Fp8Engine> {
    /// By operand: those of this pass.
    scales: [Option<FloatTensor<B>>; 3],
    /// The type that operands are divided in.
    compute_dtype: FloatDType,
    mode: DotMode,
    gemms: &'a Gemms,
}

impl<B: Fp8Engine> Quantizer<B> for LayerQuantizer<'_, B> {
    fn gemms(&self) -> &Gemms {
        self.gemms
    }

    fn quantize(
        &self,
        tensor: &FloatTensor<B>,
        operand: Operand,
        _block: [usize; 2],
        wanted: Wanted,
    ) -> MatrixOf<B> {
        let format = self.gemms.recipe.formats.of(operand);
        let scale = self.scales[operand as usize].clone().expect("an operand of this pass");
        let matrix = flax::quantize::<B>(tensor, scale, format, self.compute_dtype, wanted);
        // The amax where the observatory asks for it.
        let amax = self.gemms.tap.as_ref().map(|_| Scalar::Device(B::fp8_amax(tensor.clone())));
        Matrix { amax, ..matrix }
    }

    /// With [`DotMode::QuantizeDequantize`] dequantized, to the type of the product, before it is multiplied.
    fn finish(&self, operand: MatrixOf<B>, dtype: DType) -> MatrixOf<B> {
        if self.mode == DotMode::Direct {
            return operand;
        }
        let format = operand.format;
        let values = match dtype {
            DType::F32 => B::fp8_dequantize(operand),
            _ => {
                let scale = operand.scale().on_device::<B>(&operand.device::<B>());
                let values = decode::<B>(operand);
                flax::cast::<B>(flax::dequantize::<B>(values, scale, dtype), DType::F32)
            }
        };
        Matrix::new(Codes::Values(values), Scales::One(Scalar::Host(1.0)), format)
    }
}
