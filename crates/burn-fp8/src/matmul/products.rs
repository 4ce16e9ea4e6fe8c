//! The three products of training, forward and backward: what is quantized, kept and multiplied when, wherever it runs.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{GemmRole, Operand};

use super::{Fp8Matmul, Product, SavedOperand};
use crate::Scalar;
use crate::report::Quantization;

/// How operands are quantized, kept and multiplied: emulated or on tensor cores.
///
/// Role and operand name a place in the three products: the weight in `grad_input`, for example, which stands there transposed.
pub(crate) trait Engine<B: Fp8Matmul> {
    /// A quantized operand, for all of its places.
    type Quantized;
    /// An operand in its place in a product.
    type Factor;

    /// Quantizes an operand, once for all the products that it is in.
    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        product: &Product,
    ) -> Self::Quantized;

    fn amax(quantized: &Self::Quantized) -> Option<Scalar<B>>;

    /// The scale, where it is that of the whole tensor.
    fn scale(quantized: &Self::Quantized) -> Option<Scalar<B>> {
        let _ = quantized;
        None
    }

    /// What the observatory wants to know.
    fn quantization(quantized: &Self::Quantized) -> Quantization<B> {
        Quantization { scale: Self::scale(quantized), amax: Self::amax(quantized) }
    }

    fn factor(
        quantized: &Self::Quantized,
        operand: Operand,
        role: GemmRole,
        product: &Product,
    ) -> Self::Factor;

    /// What is kept of an operand for a product of the backward pass.
    fn keep(quantized: &Self::Quantized, operand: Operand, role: GemmRole) -> SavedOperand<B>;

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        product: &Product,
    ) -> Self::Factor;

    /// Multiplies two factors, and records the product.
    fn multiply(
        role: GemmRole,
        factors: [Self::Factor; 2],
        dtype: DType,
        product: &Product,
    ) -> FloatTensor<B>;
}

/// The products that an operand is quantized for.
pub(crate) struct Uses {
    /// Those of this pass.
    pub(crate) now: Vec<GemmRole>,
    /// The one of the backward pass that it is kept for.
    pub(crate) later: Option<GemmRole>,
}

impl Uses {
    fn now(roles: impl IntoIterator<Item = GemmRole>) -> Self {
        Self { now: roles.into_iter().collect(), later: None }
    }

    /// All of them.
    pub(crate) fn roles(&self) -> impl Iterator<Item = GemmRole> {
        self.now.iter().copied().chain(self.later)
    }
}

/// A product of the forward pass, and what its backward pass needs.
pub(crate) struct Forward<B: Fp8Matmul> {
    pub(crate) output: FloatTensor<B>,
    /// The operands that were asked for.
    pub(crate) saved: [Option<SavedOperand<B>>; 2],
    /// The amaxes of the operands that were quantized.
    pub(crate) amaxes: [Option<Scalar<B>>; 2],
}

/// A product of the forward pass: operands of the same rank, or any left operand and a matrix. Keeps the operands that
/// `save` asks for.
pub(crate) fn forward<B: Fp8Matmul, E: Engine<B>>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
    save: [bool; 2],
) -> Forward<B> {
    let dtype = lhs.dtype();
    let mut shape = lhs.shape();
    let last = shape.num_dims() - 1;
    shape[last] = rhs.shape()[rhs.rank() - 1];

    let in_fp8 = |role: &GemmRole| product.recipe().products.in_fp8(*role);
    let prepare = |tensor: &FloatTensor<B>, operand: Operand, save: bool| {
        let uses = Uses {
            later: Some(again(operand)).filter(|role| save && in_fp8(role)),
            ..Uses::now(Some(GemmRole::Output).filter(in_fp8))
        };
        let quantized = uses.roles().next().map(|_| E::quantize(tensor, operand, &uses, product));
        let saved = save.then(|| match (&quantized, uses.later) {
            (Some(quantized), Some(role)) => E::keep(quantized, operand, role),
            _ => SavedOperand::High(tensor.clone()),
        });
        (quantized, saved)
    };
    let [input, weight] = GemmRole::Output.operands();
    let (lhs_fp8, lhs_saved) = prepare(&lhs, input, save[0]);
    let (rhs_fp8, rhs_saved) = prepare(&rhs, weight, save[1]);
    let amaxes = [&lhs_fp8, &rhs_fp8].map(|operand| E::amax(operand.as_ref()?));
    if let Some(tap) = product.tap() {
        let seen = [(input, &lhs, &lhs_fp8), (weight, &rhs, &rhs_fp8)]
            .map(|(operand, x, fp8)| (operand, x.clone(), fp8.as_ref().map(E::quantization)));
        tap.see::<B>(seen, &[GemmRole::Output], product.recipe());
    }

    let role = GemmRole::Output;
    let output = match (lhs_fp8, rhs_fp8) {
        (Some(lhs), Some(rhs)) if in_fp8(&role) => {
            let factors =
                [E::factor(&lhs, input, role, product), E::factor(&rhs, weight, role, product)];
            E::multiply(role, factors, dtype, product)
        }
        _ => {
            let (lhs, rhs) = (product.join::<B>(lhs), product.join::<B>(rhs));
            multiply_high::<B>(role, lhs, rhs, product)
        }
    };
    let output = match product.is_flat() {
        true => reshape::<B>(output, shape),
        false => output,
    };
    Forward { output, saved: [lhs_saved, rhs_saved], amaxes }
}

/// The product of the backward pass that an operand of the forward pass is in again: that for the gradient of the other one.
fn again(operand: Operand) -> GemmRole {
    match operand {
        Operand::Weight => GemmRole::GradInput,
        _ => GemmRole::GradWeight,
    }
}

/// The gradients of a product.
pub(crate) struct Gradients<B: Fp8Matmul> {
    /// Those of the operands, of their shapes, where the counterpart was saved.
    pub(crate) operands: [Option<FloatTensor<B>>; 2],
    /// The amax of the output gradient, where it was quantized.
    pub(crate) amax: Option<Scalar<B>>,
}

/// The gradients of the operands of a forward product, of the shapes of those operands.
///
/// The gradient of the left operand needs the right one saved, and the other way round; where the operand was not saved
/// its counterpart's gradient is not computed.
pub(crate) fn backward<B: Fp8Matmul, E: Engine<B>>(
    output_grad: FloatTensor<B>,
    [lhs, rhs]: [Option<SavedOperand<B>>; 2],
    [lhs_shape, rhs_shape]: [Shape; 2],
    product: &Product,
) -> Gradients<B> {
    let dtype = output_grad.dtype();
    let in_fp8 = |saved: &Option<SavedOperand<B>>| {
        saved.as_ref().is_some_and(|saved| !matches!(saved, SavedOperand::High(_)))
    };
    let uses = [(in_fp8(&rhs), GemmRole::GradInput), (in_fp8(&lhs), GemmRole::GradWeight)];
    let uses = Uses::now(uses.into_iter().filter_map(|(is, role)| is.then_some(role)));
    let quantized = (!uses.now.is_empty())
        .then(|| E::quantize(&output_grad, Operand::OutputGrad, &uses, product));
    let amax = quantized.as_ref().and_then(E::amax);
    if let Some(tap) = product.tap() {
        let fp8 = quantized.as_ref().map(E::quantization);
        tap.see::<B>(
            [(Operand::OutputGrad, output_grad.clone(), fp8)],
            &uses.now,
            product.recipe(),
        );
    }
    let gradient = |role| {
        let quantized = quantized.as_ref().expect("quantized where an operand is in FP8");
        E::factor(quantized, Operand::OutputGrad, role, product)
    };

    let grad_lhs = rhs.map(|rhs| {
        let role = GemmRole::GradInput;
        let grad = match rhs {
            SavedOperand::High(rhs) => {
                let rhs = B::float_transpose(product.join::<B>(rhs));
                let output_grad = product.join::<B>(output_grad.clone());
                multiply_high::<B>(role, output_grad, rhs, product)
            }
            rhs => {
                let rhs = E::restore(rhs, Operand::Weight, role, product);
                E::multiply(role, [gradient(role), rhs], dtype, product)
            }
        };
        reduce::<B>(grad, lhs_shape)
    });
    let grad_rhs = lhs.map(|lhs| {
        let role = GemmRole::GradWeight;
        let grad = match lhs {
            SavedOperand::High(lhs) => {
                let lhs = B::float_transpose(product.join::<B>(lhs));
                multiply_high::<B>(role, lhs, product.join::<B>(output_grad), product)
            }
            lhs => {
                let lhs = E::restore(lhs, Operand::Input, role, product);
                E::multiply(role, [lhs, gradient(role)], dtype, product)
            }
        };
        reduce::<B>(grad, rhs_shape)
    });
    Gradients { operands: [grad_lhs, grad_rhs], amax }
}

/// `output_grad` `[…, N]` times `weight` `[K, N]` transposed.
pub(crate) fn linear_x_backward<B: Fp8Matmul, E: Engine<B>>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    let mut shape = output_grad.shape();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[0];
    let grad = gradient::<B, E>(GemmRole::GradInput, [&output_grad, &weight], product);
    reshape::<B>(grad, shape)
}

/// `x` `[…, K]` transposed times `output_grad` `[…, N]`, summed over the leading dimensions by joining them in one GEMM.
pub(crate) fn linear_weight_backward<B: Fp8Matmul, E: Engine<B>>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    gradient::<B, E>(GemmRole::GradWeight, [&x, &output_grad], product)
}

/// A product of the backward pass by itself, of operands that nobody has quantized.
fn gradient<B: Fp8Matmul, E: Engine<B>>(
    role: GemmRole,
    tensors: [&FloatTensor<B>; 2],
    product: &Product,
) -> FloatTensor<B> {
    let [lhs, rhs] = role.operands();
    let factor = |tensor: &FloatTensor<B>, operand| {
        let quantized = E::quantize(tensor, operand, &Uses::now([role]), product);
        if let Some(tap) = product.tap() {
            let fp8 = Some(E::quantization(&quantized));
            tap.see::<B>([(operand, tensor.clone(), fp8)], &[role], product.recipe());
        }
        E::factor(&quantized, operand, role, product)
    };
    let factors = [factor(tensors[0], lhs), factor(tensors[1], rhs)];
    // Both are tensors of the backward pass of one layer, of one type.
    E::multiply(role, factors, tensors[0].dtype(), product)
}

/// A product that the recipe keeps in high precision.
fn multiply_high<B: Fp8Matmul>(
    role: GemmRole,
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    product: &Product,
) -> FloatTensor<B> {
    product.record_high_precision(role);
    B::fp8_plain_matmul(lhs, rhs)
}

impl Product {
    /// A tensor as the product multiplies it: as a matrix where leading dimensions join M.
    pub(super) fn join<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        match self.is_flat() {
            true => join::<B>(tensor),
            false => tensor,
        }
    }
}

/// Adds a bias `[N]` to `[…, N]`.
pub(crate) fn add_bias<B: Backend>(
    output: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    match bias {
        Some(bias) => {
            let bias = unsqueeze::<B>(bias, output.rank());
            B::float_add(output, bias)
        }
        None => output,
    }
}

/// Prepends dimensions of size 1 until the tensor has `rank` dimensions.
fn unsqueeze<B: Backend>(tensor: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let shape = tensor.shape();
    let mut dims = vec![1; rank.saturating_sub(shape.num_dims())];
    dims.extend(shape.iter());
    reshape::<B>(tensor, Shape::from(dims))
}

/// Joins all dimensions but the last.
pub(crate) fn join<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let columns = shape[shape.num_dims() - 1];
    let rows = shape.num_elements() / columns;
    reshape::<B>(tensor, Shape::new([rows, columns]))
}

pub(crate) fn reshape<B: Backend>(tensor: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    match tensor.shape() == shape {
        true => tensor,
        false => B::float_reshape(tensor, shape),
    }
}

/// Sums a gradient over the dimensions along which its operand was broadcast, and gives it the operand's shape.
pub(crate) fn reduce<B: Backend>(mut grad: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    if grad.rank() == shape.num_dims() {
        for dim in 0..shape.num_dims() {
            if shape[dim] == 1 && grad.shape()[dim] != 1 {
                grad = B::float_sum_dim(grad, dim);
            }
        }
    }
    reshape::<B>(grad, shape)
}
