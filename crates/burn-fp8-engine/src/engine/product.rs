//! A product: what a backend is asked for, and what it answers.

use burn_backend::{FloatDType, tensor::FloatTensor, tensor::IntTensor};
use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::{SplitK, Sums};

use super::capability::Fallback;
use super::launch::{LaunchNote, Otherwise};
use super::matrix::Matrix;
use super::scalar::Scalar;

/// An operand of a product, or its result.
#[derive(Clone, Debug)]
pub enum Operand<F, I> {
    /// In FP8.
    Matrix(Matrix<F, I>),
    /// As it is; f32 beside a matrix.
    Float(F),
}

/// An [`Operand`] of a backend.
pub type OperandOf<B> = Operand<FloatTensor<B>, IntTensor<B>>;

/// What is made of a product: `activation(product × scales + beta × C + bias)` in f32, then the type of the result.
#[derive(Clone, Debug)]
pub struct Epilogue<F> {
    /// The type of the result.
    pub output: OutputType<F>,
    /// What is added before the bias.
    pub added: Option<Added<F>>,
    /// A bias `[N]`: BF16 or F16 as cuBLASLt wants it, or F32 where the device has not got that. Not tracked.
    pub bias: Option<F>,
    /// What is applied after the bias.
    pub activation: Activation,
    /// Whether the amax is wanted.
    pub amax: bool,
}

/// A matrix that is multiplied by a number and added to a product: C and beta of cuBLASLt.
#[derive(Clone, Debug)]
pub struct Added<F> {
    /// C `[M, N]`: F32, BF16 or F16. Not tracked.
    pub c: F,
    /// What it is multiplied by.
    pub beta: f32,
}

/// An [`Epilogue`] of a backend.
pub type EpilogueOf<B> = Epilogue<FloatTensor<B>>;

/// The type of the result of a product.
#[derive(Clone, Copy, Debug)]
pub enum OutputType<F> {
    /// F32, BF16 or F16.
    Float(FloatDType),
    /// FP8.
    Fp8 {
        /// The format.
        format: Fp8Format,
        /// The dequantization multiplier of the result: its reciprocal is cuBLASLt's `D_SCALE`.
        scale: Scalar<F>,
    },
}

/// What is applied to each element after the bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`: the approximation of cuBLASLt and of JAX's `gelu(approximate=True)`, not the error
    /// function that [`burn::tensor::activation::gelu`] has.
    Gelu,
}

/// What runs a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// FP8 tensor cores.
    TensorCores,
    /// A matrix unit of the CPU.
    MatrixUnit,
    /// Tensor operations in f32; with the reason on a device that runs other products natively.
    Emulation(Option<Fallback>),
}

/// How a product is run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What runs it.
    pub target: Target,
    /// Whether tensor cores may sum with fewer bits.
    pub fast_accumulation: bool,
    /// Whose sums an emulated product of two matrices has.
    pub sums: Sums,
    /// How those are split.
    pub split: Option<SplitK>,
    /// What becomes of it where the target turns out not to take it.
    pub otherwise: Otherwise,
    /// Whether two float operands are rounded to bf16 first, and summed in f32.
    pub in_bf16: bool,
    /// Whether an emulated product may sum in any order: those of training have the same bits wherever codes lie.
    pub any_order: bool,
    /// Where it leaves what ran it, if anybody wants to know.
    pub note: Option<LaunchNote>,
}

/// What a product came to.
#[derive(Clone, Debug)]
pub struct Product<F, I> {
    /// The result `[…, M, N]`: of the type that was asked for, in FP8 codes row by row.
    pub result: Operand<F, I>,
    /// Its largest magnitude before it is scaled and rounded, f32 `[1]`, where it was asked for.
    pub amax: Option<F>,
}

/// A [`Product`] of a backend.
pub type ProductOf<B> = Product<FloatTensor<B>, IntTensor<B>>;

impl<F, I> Operand<F, I> {
    /// The same operand, its tensors handed through `float` and `int`, in a fixed order.
    pub fn map<G, J, X>(
        self,
        context: &mut X,
        float: impl Fn(&mut X, F) -> G,
        int: impl Fn(&mut X, I) -> J,
    ) -> Operand<G, J> {
        match self {
            Self::Matrix(matrix) => Operand::Matrix(matrix.map(context, float, int)),
            Self::Float(tensor) => Operand::Float(float(context, tensor)),
        }
    }

    /// The float tensor. Panics where the operand is in FP8: a backend gives what it was asked for.
    pub fn into_float(self) -> F {
        match self {
            Self::Float(tensor) => tensor,
            Self::Matrix(_) => unreachable!("a float was asked for"),
        }
    }
}

impl<F> OutputType<F> {
    /// The same type, the tensor of its scale handed through `float`.
    pub fn map<G>(self, float: impl FnOnce(F) -> G) -> OutputType<G> {
        match self {
            Self::Float(dtype) => OutputType::Float(dtype),
            Self::Fp8 { format, scale } => OutputType::Fp8 { format, scale: scale.map(float) },
        }
    }
}

impl<F> Epilogue<F> {
    /// The product itself, of this type.
    pub const fn float(dtype: FloatDType) -> Self {
        let output = OutputType::Float(dtype);
        Self { output, added: None, bias: None, activation: Activation::None, amax: false }
    }

    /// What is added, and the rest.
    pub fn split_added(self) -> (Option<Added<F>>, Self) {
        (self.added, Self { added: None, ..self })
    }

    /// The same epilogue, its tensors handed through `float`, in a fixed order.
    pub fn map<G, X>(self, context: &mut X, float: impl Fn(&mut X, F) -> G) -> Epilogue<G> {
        let Self { output, added, bias, activation, amax } = self;
        let output = output.map(|scale| float(context, scale));
        let added = added.map(|Added { c, beta }| Added { c: float(context, c), beta });
        let bias = bias.map(|bias| float(context, bias));
        Epilogue { output, added, bias, activation, amax }
    }
}

impl<F, I> Product<F, I> {
    /// The same product, its tensors handed through `float` and `int`, in a fixed order.
    pub fn map<G, J, X>(
        self,
        context: &mut X,
        float: impl Fn(&mut X, F) -> G,
        int: impl Fn(&mut X, I) -> J,
    ) -> Product<G, J> {
        let result = self.result.map(context, &float, &int);
        Product { result, amax: self.amax.map(|amax| float(context, amax)) }
    }
}

impl Run {
    /// Emulated, and nobody is told.
    pub const fn emulated() -> Self {
        Self {
            target: Target::Emulation(None),
            fast_accumulation: false,
            sums: Sums::F32,
            split: None,
            otherwise: Otherwise::Emulate,
            in_bf16: false,
            any_order: true,
            note: None,
        }
    }
}
