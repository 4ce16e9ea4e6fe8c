//! Attention as one operation: what is asked for.

use burn_backend::TensorMetadata;
use burn_backend::tensor::{BoolTensor, FloatTensor};
use burn_fp8_core::{AttentionPrecision, AttentionShape, AttentionShapeError, Dropout};

use crate::engine::{Target, Watch};

/// How attention is computed: `softmax(scale · q · kᵀ, capped, + bias, masked) · v`. `F` and `M` are how a backend holds float and bool tensors.
#[derive(Clone, Debug)]
pub struct Attention<F, M> {
    /// What scores are multiplied by.
    pub scale: f32,
    /// Whether the last query sees all keys, the one before it all but the last, and so on.
    pub causal: bool,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// What is added to scores: f32 `[batch, heads, queries, keys]`, of which dimensions may be 1.
    pub bias: Option<F>,
    /// Where one is true, the query does not see the key; shapes as of the bias. A query that sees none gives 0.
    pub masks: Vec<M>,
    /// Which probabilities become 0; the others are multiplied by [`Dropout::factor`]. The row of a probability is
    /// `(batch · heads + head) · queries + query`, its column the key.
    pub dropout: Option<Dropout>,
    /// Which numbers are multiplied.
    pub precision: AttentionPrecision,
    /// What multiplies them where they are not f32: a matrix unit, or emulation.
    pub target: Target,
    /// Who is told of its products, if anybody wants to know.
    pub watch: Option<Watch>,
}

/// An [`Attention`] of a backend.
pub type AttentionOf<B> = Attention<FloatTensor<B>, BoolTensor<B>>;

impl<F, M> Attention<F, M> {
    /// The same with the tensor of the bias handed through `float`.
    pub fn map<G>(self, float: impl FnOnce(F) -> G) -> Attention<G, M> {
        let Self { bias, scale, causal, softcap, masks, dropout, precision, target, watch } = self;
        let bias = bias.map(float);
        Attention { bias, scale, causal, softcap, masks, dropout, precision, target, watch }
    }
}

/// The gradients of attention.
#[derive(Clone, Debug)]
pub struct AttentionGradients<F, const OPERANDS: usize = 3> {
    /// Those of queries, keys and values, or one of all three.
    pub operands: [F; OPERANDS],
    /// That of the bias, where it was asked for.
    pub bias: Option<F>,
}

/// Checks shapes.
pub fn check<F: TensorMetadata, M: TensorMetadata>(
    qkv: [&F; 3],
    attention: &Attention<F, M>,
) -> Result<AttentionShape, AttentionShapeError> {
    check_shapes(qkv.map(|tensor| tensor.shape().dims()), attention)
}

/// The same of the shapes of queries, keys and values.
pub fn check_shapes<F: TensorMetadata, M: TensorMetadata>(
    [q, k, v]: [[usize; 4]; 3],
    attention: &Attention<F, M>,
) -> Result<AttentionShape, AttentionShapeError> {
    let shape = AttentionShape::new(q, k, v)?;
    attention.bias.iter().try_for_each(|bias| shape.check("bias", bias.shape().dims()))?;
    attention.masks.iter().try_for_each(|mask| shape.check("mask", mask.shape().dims()))?;
    Ok(shape)
}

/// Panics where the scale is not finite, or the softcap not positive.
pub(super) fn check_numbers<F, M>(attention: &Attention<F, M>) {
    let Attention { scale, softcap, .. } = attention;
    assert!(scale.is_finite(), "the scale of attention is {scale}; it must be finite");
    assert!(
        softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0),
        "the softcap of attention is {softcap:?}; it must be positive and finite"
    );
}
