//! Operands in FP8: quantized for all of their products, placed in one, kept for another.

use burn_backend::{Backend, DType, tensor::FloatTensor, tensor::IntTensor};
use burn_fp8_core::sums::Accumulations;
use burn_fp8_core::{Block, Gemm, GemmRole, Granularity, Layouts, Operand, ProductKind, Recipe};

use crate::engine::tensor::join;
use crate::engine::{Fp8Engine, Manner, MatrixOf, Scales, Target, WHOLE, Wanted, portable};
use crate::report::{self, PendingOperand, Quantization, Site, Tap};

/// A product of the model, forward and backward: what its three GEMMs have in common.
#[derive(Clone, Debug)]
pub(crate) struct Gemms {
    pub(crate) kind: ProductKind,
    /// The shape of the forward product.
    pub(crate) forward: Gemm,
    /// Which of the three are in FP8, in which formats, and how many elements share a scale.
    pub(crate) recipe: Recipe,
    /// What runs them.
    pub(crate) target: Target,
    /// How they were to be run.
    pub(crate) manner: Manner,
    /// Which of them accumulate fast, with one scale for each tensor.
    pub(crate) accumulation: Accumulations,
    /// The place of the product under delayed scaling.
    pub(crate) site: Option<Site>,
    /// Where it leaves what the observatory wants to see.
    pub(crate) tap: Option<Tap>,
}

impl Gemms {
    /// Whether the operands of the forward product are two plain matrices once leading dimensions have joined M.
    pub(crate) fn is_flat(&self) -> bool {
        self.forward.batch == 1 && self.forward.plain_operand
    }

    /// A tensor as it is multiplied: as a matrix where leading dimensions join M.
    pub(crate) fn join<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        match self.is_flat() {
            true => join::<B>(tensor),
            false => tensor,
        }
    }
}

/// Who chooses the scales of operands: the recipe in force, or the state of a layer.
pub(crate) trait Quantizer<B: Fp8Engine> {
    /// What the three GEMMs have in common.
    fn gemms(&self) -> &Gemms;

    /// Quantizes an operand, in blocks of so many rows and columns.
    fn quantize(
        &self,
        tensor: &FloatTensor<B>,
        operand: Operand,
        block: [usize; 2],
        wanted: Wanted,
    ) -> MatrixOf<B>;

    /// An operand as it goes into a product of this type.
    fn finish(&self, operand: MatrixOf<B>, dtype: DType) -> MatrixOf<B> {
        let _ = dtype;
        operand
    }
}

/// A quantized operand.
#[derive(Clone, Debug)]
pub(crate) struct Measured<B: Fp8Engine> {
    pub(crate) matrix: MatrixOf<B>,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    saturated: Option<IntTensor<B>>,
}

/// An operand kept for the backward pass.
#[derive(Clone, Debug)]
pub(crate) enum SavedOperand<B: Fp8Engine> {
    /// In FP8.
    Fp8(Measured<B>),
    /// As it came, for a product in high precision.
    High(FloatTensor<B>),
}

/// The products that an operand is quantized for.
pub(crate) struct Uses {
    /// Those of this pass.
    pub(crate) now: Vec<GemmRole>,
    /// The one of the backward pass that it is kept for.
    pub(crate) later: Option<GemmRole>,
}

/// An operand quantized for its products: once, or once for each of them where they want other blocks.
///
/// A scale must not differ among elements that are summed, but by blocks, and the three products sum over different dimensions:
///
/// | role          | summed over | left          | right         |
/// |---------------|-------------|---------------|---------------|
/// | `output`      | K           | x `[M, K]`    | w `[K, N]`    |
/// | `grad_input`  | N           | g `[M, N]`    | wᵀ `[N, K]`   |
/// | `grad_weight` | M           | xᵀ `[K, M]`   | g `[M, N]`    |
pub(crate) struct Quantized<B: Fp8Engine>(Vec<(Vec<GemmRole>, Measured<B>)>);

impl Uses {
    pub(super) fn now(roles: impl IntoIterator<Item = GemmRole>) -> Self {
        Self { now: roles.into_iter().collect(), later: None }
    }

    /// All of them.
    pub(crate) fn roles(&self) -> impl Iterator<Item = GemmRole> {
        self.now.iter().copied().chain(self.later)
    }
}

impl<B: Fp8Engine> Measured<B> {
    /// A tensor that has been quantized.
    pub(crate) fn new(tensor: &FloatTensor<B>, matrix: MatrixOf<B>) -> Self {
        let saturated =
            report::is_tracing().then(|| portable::count_saturated::<B>(tensor, &matrix));
        Self { matrix, saturated }
    }

    /// What a trace is told of it: not the codes, which a trace must not hold.
    pub(crate) fn pending(&self, granularity: Granularity) -> PendingOperand {
        let (scales, format) = (self.matrix.scales.clone(), self.matrix.format);
        PendingOperand::new::<B>(format, granularity, scales, self.saturated.clone())
    }
}

impl<B: Fp8Engine> Quantized<B> {
    /// Quantizes an operand for its products. Whoever chooses the scales of whole tensors has no say in those of blocks.
    ///
    /// A tensor with one scale is quantized in the layout it has and joined to a matrix afterwards: quantizing takes any layout without a copy, joining
    /// dimensions does not.
    pub(super) fn new(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        quantizer: &impl Quantizer<B>,
    ) -> Self {
        let gemms = quantizer.gemms();
        let mut groups: Vec<([usize; 2], Vec<GemmRole>)> = vec![];
        for role in uses.roles() {
            let block = block(operand, role, gemms);
            match groups.iter_mut().find(|(of_group, _)| *of_group == block) {
                Some((_, roles)) => roles.push(role),
                None => groups.push((block, vec![role])),
            }
        }
        let quantize = |(block, roles): ([usize; 2], Vec<GemmRole>)| {
            let any = |is: &dyn Fn(GemmRole) -> bool| roles.iter().any(|role| is(*role));
            let layouts = Layouts::of(
                any(&|role| !reads_transposed(operand, role)),
                any(&|role| reads_transposed(operand, role)),
            );
            let wanted = gemms.target.wanted::<B>(
                gemms.manner.sums,
                [any(&|role| uses.now.contains(&role)), any(&|role| uses.later == Some(role))],
                layouts.expect("an operand of some product"),
                gemms.is_flat(),
            );
            let tensor = match block {
                WHOLE => tensor.clone(),
                _ => gemms.join::<B>(tensor.clone()),
            };
            let matrix = quantizer.quantize(&tensor, operand, block, wanted);
            (roles, Measured::new(&tensor, matrix))
        };
        Self(groups.into_iter().map(quantize).collect())
    }

    fn of(&self, role: GemmRole) -> &Measured<B> {
        let of_role = self.0.iter().find(|(roles, _)| roles.contains(&role));
        &of_role.expect("quantized for this product").1
    }

    /// What the observatory and delayed scaling want to know: of one scale.
    pub(super) fn quantization(&self) -> Quantization<B> {
        let matrix = &self.0[0].1.matrix;
        let scale = match &matrix.scales {
            Scales::One(scale) => Some(scale.clone()),
            Scales::Grid { .. } => None,
        };
        Quantization { scale, amax: matrix.amax.clone() }
    }

    /// The operand as it stands in a product.
    pub(super) fn place(&self, operand: Operand, role: GemmRole, gemms: &Gemms) -> Measured<B> {
        self.of(role).clone().place(operand, role, gemms)
    }

    /// What is kept of it for a product of the backward pass.
    pub(super) fn keep(&self, operand: Operand, role: GemmRole) -> SavedOperand<B> {
        let Measured { matrix, saturated } = self.of(role).clone();
        let matrix = matrix.keep(reads_transposed(operand, role));
        SavedOperand::Fp8(Measured { matrix, saturated })
    }
}

impl<B: Fp8Engine> Measured<B> {
    /// The operand as it stands in a product.
    pub(super) fn place(self, operand: Operand, role: GemmRole, gemms: &Gemms) -> Self {
        let matrix = match gemms.is_flat() {
            true => self.matrix.join::<B>(),
            false => self.matrix,
        };
        let matrix = match is_transposed(operand, role) {
            true => matrix.transpose::<B>(),
            false => matrix,
        };
        Self { matrix, ..self }
    }
}

/// The rows and columns of a block of an operand, as it lies before it is transposed.
fn block(operand: Operand, role: GemmRole, gemms: &Gemms) -> [usize; 2] {
    let Block { along, across } = gemms.recipe.granularity().block(operand);
    match sums_columns(operand, role) {
        true => [across, along],
        false => [along, across],
    }
}

/// Whether an operand stands transposed in a product.
fn is_transposed(operand: Operand, role: GemmRole) -> bool {
    matches!(
        (role, operand),
        (GemmRole::GradInput, Operand::Weight) | (GemmRole::GradWeight, Operand::Input)
    )
}

/// Whether a product sums over the last dimension of an operand, as it lies before it is transposed.
fn sums_columns(operand: Operand, role: GemmRole) -> bool {
    match role {
        GemmRole::Output => operand == Operand::Input,
        GemmRole::GradInput => true,
        GemmRole::GradWeight => false,
    }
}

/// Whether tensor cores, which want the dimension contiguous that is summed over, read the transpose of an operand, as it lies before it is transposed.
fn reads_transposed(operand: Operand, role: GemmRole) -> bool {
    !sums_columns(operand, role)
}
