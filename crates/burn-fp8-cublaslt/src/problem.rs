//! What a product is: shapes, layouts, formats, scales, epilogue. Plain data, the key of the plan cache.

use core::fmt;

use burn_fp8_core::Fp8Format;

/// One FP8 product, or a batch of them:
///
/// `D = scale_D · act(alpha · (scale_A · A) × (scale_B · B)ᵀ + beta · C + bias)`
///
/// All matrices are row-major. A is M×K, **B is given transposed, N×K**, so K is contiguous in both (the only layout that
/// Ada, Hopper and GeForce Blackwell multiply); C and D are M×N, the bias has N elements.
///
/// The struct says nothing of addresses except how they are [aligned](Alignment): one value serves many calls, and
/// equal values share a plan and an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledMatmul {
    /// M, N and K.
    pub shape: Shape,
    /// How many products of this shape there are, and where their matrices lie.
    pub batch: Batch,
    /// The left operand, M×K.
    pub a: Operand,
    /// The right operand, transposed: N×K.
    pub b: Operand,
    /// The matrix that is multiplied by beta and added. Without it beta must be 0.
    pub c: Option<Matrix>,
    /// The output, M×N.
    pub d: Matrix,
    /// How A and B are scaled.
    pub scales: Scales,
    /// Whether D is multiplied by a factor on the device before it is rounded to FP8.
    pub scaled_d: bool,
    /// Whether the largest magnitude of D before that factor is computed. Only for a D in FP8.
    pub amax_d: bool,
    /// What happens between the product and D.
    pub epilogue: Epilogue,
    /// How the tensor cores accumulate.
    pub accumulation: Accumulation,
    /// What the addresses of every call are multiples of.
    pub alignment: Alignment,
}

impl ScaledMatmul {
    /// A single product `[m, k] × [n, k]ᵀ → [m, n]` of contiguous matrices with a scale per tensor, precise accumulation and
    /// nothing else; D of type `output`, addresses aligned to 256 bytes.
    pub const fn new(m: u64, n: u64, k: u64, a: Fp8Format, b: Fp8Format, output: DataType) -> Self {
        Self {
            shape: Shape { m, n, k },
            batch: Batch::ONE,
            a: Operand { format: a, ld: k },
            b: Operand { format: b, ld: k },
            c: None,
            d: Matrix { dtype: output, ld: n },
            scales: Scales::PerTensor,
            scaled_d: false,
            amax_d: false,
            epilogue: Epilogue::NONE,
            accumulation: Accumulation::Precise,
            alignment: Alignment::MAX,
        }
    }
}

/// M, N and K of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of A and D.
    pub m: u64,
    /// Rows of B as given, columns of D.
    pub n: u64,
    /// Columns of A and of B as given.
    pub k: u64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, k } = self;
        write!(f, "{m}×{n}×{k}")
    }
}

/// How many products a call has, and how far their matrices lie apart, in elements: 0 for an operand that all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Products.
    pub count: u64,
    /// From one A to the next.
    pub a: u64,
    /// From one B to the next.
    pub b: u64,
    /// From one D to the next.
    pub d: u64,
}

impl Batch {
    /// A single product.
    pub const ONE: Self = Self { count: 1, a: 0, b: 0, d: 0 };
}

/// An operand of FP8 codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The format of the codes.
    pub format: Fp8Format,
    /// Leading dimension: elements from one row to the next, at least K.
    pub ld: u64,
}

/// An element type of C, D or the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// FP8 codes.
    Fp8(Fp8Format),
}

impl DataType {
    /// Bytes of an element.
    pub const fn size(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::Fp8(_) => 1,
        }
    }

    /// Whether this is an FP8 format.
    pub const fn is_fp8(self) -> bool {
        matches!(self, Self::Fp8(_))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bf16 => f.pad("BF16"),
            Self::F16 => f.pad("F16"),
            Self::F32 => f.pad("F32"),
            Self::Fp8(format) => format.fmt(f),
        }
    }
}

/// C or D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// The type of its elements.
    pub dtype: DataType,
    /// Leading dimension: elements from one row to the next, at least N.
    pub ld: u64,
}

/// How A and B are scaled. Scales lie on the device, dequantization multipliers: `x ≈ code × scale`. f32, but for those of [`BlockScale::Row32`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// No scale on the device: both are 1, or the caller has put them into alpha.
    None,
    /// One scale for each operand.
    PerTensor,
    /// A scale for each row: `[M]` for A, `[N]` for B. cuBLAS: "outer vector scaling". Hopper, cuBLASLt 12.9.
    PerRow,
    /// A scale for each block along K. Blocks of 128: Hopper, cuBLASLt 12.9. Blocks of 32, for both operands or for none: Blackwell.
    Blocks {
        /// Of A.
        a: BlockScale,
        /// Of B.
        b: BlockScale,
    },
}

/// The blocks along K that share a scale. `L` is how many there are: `⌈K / 32⌉` or `⌈K / 128⌉`.
///
/// Layouts after the cuBLAS documentation, "1D Block Scaling Factors Layout" for blocks of 32, and "128-element 1D and 128x128 2D Block Scaling For FP8 Data
/// Types".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockScale {
    /// 1×32, MXFP8: one byte of E8M0 each. Rows are padded to a multiple of 128 and `L` to a multiple of 4, which gives tiles of 128×4 scales, 512 bytes each,
    /// row-major. In a tile that of row `r` and block `l` is byte `16 (r mod 32) + 4 ⌊r / 32⌋ + l`.
    Row32,
    /// 1×128: row-major `[L, rows]`, so the scales of one column of blocks are contiguous.
    Row128,
    /// 128×128: row-major `[⌈rows / 128⌉, L₄]` where `L₄` is `L` rounded up to a multiple of 4.
    Square128,
}

/// What is done to the products before they are stored: bias, then activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// The function applied to every element.
    pub activation: Activation,
    /// The type of a vector of N elements that is added to every row: BF16 where D is BF16 or F32, F16 where D is F16, the type of C
    /// where D is FP8.
    pub bias: Option<DataType>,
}

impl Epilogue {
    /// Nothing.
    pub const NONE: Self = Self { activation: Activation::None, bias: None };
}

/// An activation of the epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The identity.
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, the approximation that cuBLASLt documents.
    Gelu,
}

/// How the tensor cores of Ada and Hopper accumulate; others ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// Partial sums are promoted to f32 at intervals. For backward products.
    Precise,
    /// No promotion: faster, less exact. For forward products.
    Fast,
}

/// What the addresses of each call are multiples of, in bytes: powers of two from 16 to 256.
///
/// cuBLASLt chooses among algorithms by these. A call whose pointers do not keep the promise is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// Of A.
    pub a: u32,
    /// Of B.
    pub b: u32,
    /// Of C.
    pub c: u32,
    /// Of D.
    pub d: u32,
    /// Of the bias.
    pub bias: u32,
}

impl Alignment {
    /// The largest alignment that cuBLASLt distinguishes, and what allocators give: 256 bytes for everything.
    pub const MAX: Self = Self::all(256);

    /// The same alignment for everything.
    pub const fn all(bytes: u32) -> Self {
        Self { a: bytes, b: bytes, c: bytes, d: bytes, bias: bytes }
    }

    /// The largest power of two up to 256 that divides an address.
    pub const fn of(address: u64) -> u32 {
        let zeros = address.trailing_zeros();
        1 << if zeros < 8 { zeros } else { 8 }
    }
}
