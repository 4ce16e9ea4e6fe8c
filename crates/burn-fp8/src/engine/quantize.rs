//! What a backend is asked for when a tensor is quantized, and what it answers.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Fp8Format, Overflow, Recipe};

use super::codes::CodesPrimitive;
use super::scalar::Scalar;

/// What to quantize a tensor to, and what to keep of it.
#[derive(Clone, Debug)]
pub struct Quantize<B: Backend> {
    /// The format of the codes.
    pub format: Fp8Format,
    /// How the scale is chosen.
    pub scale: ScaleRule<B>,
    /// Whether the codes will be needed again, in the backward pass.
    pub save: bool,
}

/// How the scale of a tensor is chosen.
#[derive(Clone, Debug)]
pub enum ScaleRule<B: Backend> {
    /// From the amax of the tensor. Finite values saturate, the others stay visible: [`Overflow::SaturateFinite`].
    Current(Recipe),
    /// From this amax, of earlier steps; from that of the tensor where it is 0. Overflow as for `Current`.
    Delayed(Scalar<B>, Recipe),
    /// This scale, positive and finite, and this treatment of overflow.
    Given(Scalar<B>, Overflow),
}

/// A quantized tensor, ready to be multiplied.
#[derive(Clone, Debug)]
pub struct Quantized<B: Backend> {
    /// The values of the codes, without their scale: f32, of the shape of the tensor.
    pub values: FloatTensor<B>,
    /// The codes, where they were asked for.
    pub codes: Option<CodesPrimitive<B>>,
    /// The scale: `x ≈ values × scale`.
    pub scale: Scalar<B>,
    /// The largest finite magnitude of the tensor, 0 if there are none; not where the scale was given.
    pub amax: Option<Scalar<B>>,
    /// The format of the codes.
    pub format: Fp8Format,
}

/// What to quantize a tensor to, with a scale for all elements along one dimension.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeRows {
    /// The dimension along which elements share a scale: the last one, or the one before.
    pub dim: usize,
    /// The format of the codes.
    pub format: Fp8Format,
    /// How a scale follows from an amax.
    pub recipe: Recipe,
    /// Whether the values are wanted, to be multiplied, or codes, to be kept.
    pub values: bool,
}
