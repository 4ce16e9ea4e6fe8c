//! The quantized matrix: codes and a grid of scales.

use burn_backend::{Backend, Shape, TensorMetadata, tensor::FloatTensor, tensor::IntTensor};
use burn_fp8_core::{Fp8Format, Granularity, Recipe, ScaleRounding, e8m0};

use super::codes::Codes;
use super::portable::{codes, grid};
use super::scalar::Scalar;
use super::tensor::join;
use crate::host;

/// The block of a tensor with one scale.
pub const WHOLE: [usize; 2] = [usize::MAX; 2];

/// A tensor `[…, R, C]` in FP8: `x ≈ code × scale`.
///
/// Every granularity is a block shape. The codes are there in one form or several, as its [`Request`](super::Request) wanted them; whoever
/// multiplies takes the form that suits it. `F` and `I` are how a backend holds float and integer tensors; [`MatrixOf<B>`] names the type by its
/// backend.
#[derive(Clone, Debug)]
pub struct Matrix<F, I> {
    /// The codes, `[…, R, C]`.
    pub codes: Option<Codes<F, I>>,
    /// Those of the transpose, `[…, C, R]`.
    pub transposed: Option<Codes<F, I>>,
    /// The numbers that the codes stand for, without scales, f32 `[…, R, C]`.
    pub values: Option<F>,
    /// The scales.
    pub scales: Scales<F>,
    /// The format of the codes.
    pub format: Fp8Format,
    /// The largest finite magnitude of the tensor, 0 if there are none; only where one scale was made from it.
    pub amax: Option<Scalar<F>>,
}

/// A [`Matrix`] of a backend.
pub type MatrixOf<B> = Matrix<FloatTensor<B>, IntTensor<B>>;

/// The scales of a matrix.
#[derive(Clone, Debug)]
pub enum Scales<F> {
    /// One for all elements.
    One(Scalar<F>),
    /// One for each block of the last two dimensions, cut off at their ends.
    Grid {
        /// f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]`.
        scales: F,
        /// Rows and columns of a block.
        block: [usize; 2],
        /// What kind of numbers the scales are.
        kind: ScaleKind,
    },
}

/// What kind of numbers the scales of a grid are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    /// Any f32.
    F32,
    /// Powers of two from 2^-127 to 2^127, which one byte of E8M0 holds.
    PowerOfTwo,
}

impl ScaleKind {
    /// Of these scales.
    pub fn of_scales(scales: &[f32]) -> Self {
        let is_power = |scale: &f32| e8m0::encode(*scale).is_some_and(|byte| byte != e8m0::NAN);
        match scales.iter().all(is_power) {
            true => Self::PowerOfTwo,
            false => Self::F32,
        }
    }

    /// Of the scales that a recipe makes.
    pub fn of(recipe: &Recipe) -> Self {
        match recipe.has_powers_of_two() {
            true => Self::PowerOfTwo,
            false => Self::F32,
        }
    }
}

impl<F> Scales<F> {
    /// The same scales, their tensor handed through `float`.
    pub fn map<G>(self, float: impl FnOnce(F) -> G) -> Scales<G> {
        match self {
            Self::One(scale) => Scales::One(scale.map(float)),
            Self::Grid { scales, block, kind } => {
                Scales::Grid { scales: float(scales), block, kind }
            }
        }
    }

    /// Rows and columns of the elements that share a scale.
    pub const fn block(&self) -> [usize; 2] {
        match self {
            Self::One(_) => WHOLE,
            Self::Grid { block, .. } => *block,
        }
    }

    /// Whether every scale is known to be a power of two.
    pub fn are_powers_of_two(&self) -> bool {
        matches!(self, Self::Grid { kind: ScaleKind::PowerOfTwo, .. })
    }

    /// The scales of the transpose.
    pub fn transpose<B: Backend<FloatTensorPrimitive = F>>(self) -> Self {
        match self {
            Self::Grid { scales, block: [rows, columns], kind } => {
                let scales = B::float_transpose(scales);
                Self::Grid { scales, block: [columns, rows], kind }
            }
            one => one,
        }
    }
}

impl<F, I> Matrix<F, I> {
    /// A matrix of codes.
    pub fn new(codes: Codes<F, I>, scales: Scales<F>, format: Fp8Format) -> Self {
        Self { codes: Some(codes), transposed: None, values: None, scales, format, amax: None }
    }

    /// The same matrix, its tensors handed through `float` and `int`, in a fixed order.
    pub fn map<G, J, X>(
        self,
        context: &mut X,
        float: impl Fn(&mut X, F) -> G,
        int: impl Fn(&mut X, I) -> J,
    ) -> Matrix<G, J> {
        let Self { codes, transposed, values, scales, format, amax } = self;
        Matrix {
            codes: codes.map(|codes| codes.map(context, &float, &int)),
            transposed: transposed.map(|codes| codes.map(context, &float, &int)),
            values: values.map(|values| float(context, values)),
            scales: scales.map(|scales| float(context, scales)),
            format,
            amax: amax.map(|amax| amax.map(|amax| float(context, amax))),
        }
    }

    /// The one scale. Panics where there are several.
    #[track_caller]
    pub fn scale(&self) -> &Scalar<F> {
        match &self.scales {
            Scales::One(scale) => scale,
            Scales::Grid { block: [rows, columns], .. } => {
                panic!("the tensor has a scale for each block {rows}×{columns}: use scales()")
            }
        }
    }

    /// Codes and scales that are kept for a later product: those of the transpose where it takes them and they are there, else those as they are.
    pub fn keep(self, transposed: bool) -> Self {
        let (codes, of_transpose) = match (self.codes, self.transposed) {
            (Some(_), Some(codes)) if transposed => (None, Some(codes)),
            (Some(codes), _) => (Some(codes), None),
            (None, codes) => (None, codes),
        };
        Self { codes, transposed: of_transpose, values: None, amax: None, ..self }
    }
}

impl<F: TensorMetadata + Clone, I: TensorMetadata + Clone> Matrix<F, I> {
    /// `[…, R, C]`.
    pub fn shape(&self) -> Shape {
        match (&self.codes, &self.values, &self.transposed) {
            (Some(codes), ..) => codes.shape(),
            (None, Some(values), _) => values.shape(),
            (None, None, Some(codes)) => swapped(codes.shape()),
            (None, None, None) => unreachable!("a matrix has its codes in some form"),
        }
    }

    /// What a trace calls the scales, where the elements along `dim` of a matrix are summed.
    pub fn granularity(&self, dim: usize) -> Granularity {
        let block = self.scales.block();
        match (block[1 - dim], block[dim]) {
            (usize::MAX, usize::MAX) => Granularity::PerTensor,
            (1, 32) => Granularity::Mx(ScaleRounding::default()),
            (1, along) if along >= self.shape()[dim] => Granularity::PerRow,
            _ => Granularity::Blockwise,
        }
    }

    /// Where it lies.
    pub fn device<B>(&self) -> B::Device
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        match self.codes.as_ref().or(self.transposed.as_ref()) {
            Some(Codes::Bytes(codes) | Codes::Packed(codes, _) | Codes::Padded(codes, _)) => {
                host::int_device::<B>(codes)
            }
            Some(Codes::Values(values)) => host::float_device::<B>(values),
            None => host::float_device::<B>(self.values.as_ref().expect("its codes in some form")),
        }
    }

    /// The same matrix on another device.
    pub fn moved_to<B>(self, device: &B::Device) -> Self
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        self.map(&mut (), |_, x| B::float_to_device(x, device), |_, x| B::int_to_device(x, device))
    }

    /// The transpose. No code moves.
    pub fn transpose<B>(self) -> Self
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        let Self { codes, transposed, values, scales, format, amax } = self;
        Self {
            codes: transposed,
            transposed: codes,
            values: values.map(B::float_transpose),
            scales: scales.transpose::<B>(),
            format,
            amax,
        }
    }

    /// A matrix with one scale `[…, R, C]`, its leading dimensions joined.
    pub fn join<B>(self) -> Self
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        if self.transposed.is_some() || self.shape().num_dims() == 2 {
            return self;
        }
        Self { codes: self.codes.map(codes::join::<B>), values: self.values.map(join::<B>), ..self }
    }

    /// The codes row by row of the matrix, or of its transpose; moved where they lie the other way.
    pub fn row_by_row<B>(&self, of_transpose: bool) -> Codes<F, I>
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        let [here, there] = match of_transpose {
            false => [&self.codes, &self.transposed],
            true => [&self.transposed, &self.codes],
        };
        match (here, there) {
            (Some(codes), _) => codes.clone(),
            (None, Some(codes)) => codes::transpose::<B>(codes.clone()),
            (None, None) => {
                let values = self.values.clone().expect("a matrix has its codes in some form");
                Codes::Values(if of_transpose { B::float_transpose(values) } else { values })
            }
        }
    }

    /// The same matrix with its codes in one form, row by row in memory or column by column: a copy where they lie the other way.
    pub fn laid_out<B>(&self, of_transpose: bool) -> Self
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        let laid_out = Some(codes::contiguous::<B>(self.row_by_row::<B>(of_transpose)));
        let (codes, transposed) = if of_transpose { (None, laid_out) } else { (laid_out, None) };
        Self { codes, transposed, ..self.clone() }
    }

    /// Whether all elements along a dimension, the last but one or the last, share a scale, which may be applied after they are summed: one for each line
    /// along it, or one for all.
    pub fn is_constant_along(&self, dim: usize) -> bool {
        let (shape, block) = (self.shape(), self.scales.block());
        let reaches = |dim: usize| block[dim] >= shape[shape.num_dims() - 2 + dim];
        reaches(dim) && (block[1 - dim] == 1 || reaches(1 - dim))
    }

    /// The scale of each element, so that it broadcasts against `[…, R, C]`.
    pub fn spread_scales<B>(&self) -> F
    where
        B: Backend<FloatTensorPrimitive = F, IntTensorPrimitive = I>,
    {
        let shape = self.shape();
        match self.scales.clone() {
            Scales::One(scale) => {
                let scale = scale.on_device::<B>(&self.device::<B>());
                B::float_reshape(scale, Shape::from(vec![1; shape.num_dims()]))
            }
            Scales::Grid { scales, block, .. } => {
                grid::Grid::new(&shape, block).spread::<B>(scales, shape)
            }
        }
    }
}

/// A shape with its last two dimensions swapped.
pub(super) fn swapped(mut shape: Shape) -> Shape {
    let rank = shape.num_dims();
    let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
    (shape[rank - 2], shape[rank - 1]) = (columns, rows);
    shape
}
