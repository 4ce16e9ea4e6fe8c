//! What the products of a layer tell the observatory.

use burn::tensor::TensorMetadata;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{GemmRole, Operand, Recipe};

use super::{Backward, DotOptions, gemm};
use crate::report::{self, Quantization, Tap};
use crate::{Fp8Matmul, Scalar};

/// A tap, with the operands of a product that is about to run, where a step is sampled.
pub(super) fn forward<B: Fp8Matmul>(
    operands: [&FloatTensor<B>; 2],
) -> Option<(Tap, [FloatTensor<B>; 2])> {
    let shapes = operands.map(TensorMetadata::shape);
    let tap = report::observe(report::FP8_LAYER, gemm(&shapes))?;
    Some((tap, operands.map(Clone::clone)))
}

/// Sees the operands, with the state that they have been quantized with.
pub(super) fn see_forward<B: Fp8Matmul>(
    tap: &Tap,
    operands: [FloatTensor<B>; 2],
    states: &[[FloatTensor<B>; 2]; 2],
    options: DotOptions,
) {
    let [input, weight] = GemmRole::Output.operands();
    let seen = [input, weight].into_iter().zip(operands).zip(states);
    let seen: Vec<_> = seen
        .map(|((operand, tensor), state)| {
            let quantization = quantization::<B>(&tensor, state);
            (operand, tensor, Some(quantization))
        })
        .collect();
    tap.see::<B>(seen, &[GemmRole::Output], &recipe::<B>(&states[0], options));
}

/// Sees the gradient of the output.
pub(super) fn see_backward<B: Fp8Matmul>(
    tap: &Tap,
    output_grad: FloatTensor<B>,
    backward: &Backward<B>,
    options: DotOptions,
) {
    let [grad_x, grad_kernel] = &backward.operands;
    let roles = [(grad_x, GemmRole::GradInput), (grad_kernel, GemmRole::GradWeight)];
    let roles: Vec<_> =
        roles.into_iter().filter(|(grad, _)| grad.is_some()).map(|(_, role)| role).collect();
    let quantization = quantization::<B>(&output_grad, &backward.state);
    let seen = [(Operand::OutputGrad, output_grad, Some(quantization))];
    tap.see::<B>(seen, &roles, &recipe::<B>(&backward.state, options));
}

fn quantization<B: Fp8Matmul>(
    tensor: &FloatTensor<B>,
    [scale, _]: &[FloatTensor<B>; 2],
) -> Quantization<B> {
    let amax = Scalar::Device(B::fp8_amax(tensor.clone()));
    Quantization { scale: Some(Scalar::Device(scale.clone())), amax: Some(amax) }
}

/// The recipe that says what a layer does.
fn recipe<B: Fp8Matmul>([_, history]: &[FloatTensor<B>; 2], options: DotOptions) -> Recipe {
    let DotOptions { mode: _, margin, amax_choice } = options;
    let length = history.shape().num_elements();
    Recipe::delayed().with_history_length(length).with_margin(margin).with_amax_choice(amax_choice)
}
