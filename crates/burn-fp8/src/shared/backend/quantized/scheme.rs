//! What one of Burn's schemes says of FP8.

use burn_backend::Shape;
use burn_backend::quantization::{BlockSize, QuantMode, QuantScheme, QuantValue};
use burn_fp8_core::{Fp8Format, Recipe, e8m0, scale};

use crate::backend::quantized::{self, ScaleType};
use crate::engine::WHOLE;

/// A scheme whose values are FP8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheme {
    pub(crate) format: Fp8Format,
    /// Rows and columns that share a scale.
    pub(crate) block: [usize; 2],
    scales: ScaleType,
}

impl Scheme {
    /// What Burn's scheme says of a tensor of this shape, where its values are FP8, and this crate holds such.
    ///
    /// # Panics
    /// Where it holds none, and the backend inside would compute something else.
    pub(crate) fn of(scheme: &QuantScheme, shape: &[usize]) -> Option<Self> {
        let format = Self::format(scheme)?;
        match Self::new(format, scheme, shape.len()) {
            Ok(of_fp8) if quantized::INSIDE_IS_RIGHT => {
                of_fp8.divides(&Shape::from(shape.to_vec())).then_some(of_fp8)
            }
            Ok(of_fp8) => Some(of_fp8),
            Err(_) if quantized::INSIDE_IS_RIGHT => None,
            Err(reason) => panic!("{scheme:?}: {reason}"),
        }
    }

    /// Rows and columns that share a scale in a tensor of this rank, as a scheme says.
    pub(crate) fn block_of(scheme: &QuantScheme, rank: usize) -> Option<[usize; 2]> {
        Some(Self::new(Self::format(scheme)?, scheme, rank).ok()?.block)
    }

    fn format(scheme: &QuantScheme) -> Option<Fp8Format> {
        // Of other modes a value is no number, but a place in a table.
        match scheme.value {
            _ if scheme.mode != QuantMode::Symmetric => None,
            QuantValue::E4M3 => Some(Fp8Format::E4M3),
            QuantValue::E5M2 => Some(Fp8Format::E5M2),
            _ => None,
        }
    }

    fn new(format: Fp8Format, scheme: &QuantScheme, rank: usize) -> Result<Self, &'static str> {
        let block = match quantized::block(scheme) {
            None => WHOLE,
            Some(size) => {
                let sizes: Vec<_> = size.to_dim_vec(rank).into_iter().map(usize::from).collect();
                let (leading, last) = sizes.split_at(rank.saturating_sub(2));
                let is_cut = rank > 1 && size.as_slice().len() > rank;
                if is_cut || leading.iter().any(|size| *size != 1) || sizes.contains(&0) {
                    return Err(
                        "blocks of FP8 have elements, in the last two dimensions alone, as [1, 32] and [128, 128]",
                    );
                }
                match *last {
                    [rows, columns] => [rows, columns],
                    [columns] => [1, columns],
                    _ => WHOLE,
                }
            }
        };
        match quantized::scale_type(scheme) {
            Some(scales) if scales != ScaleType::UE4M3 => Ok(Self { format, block, scales }),
            _ => Err(
                "scales of FP8 values are F32, BF16, F16 or UE8M0 (MXFP8), for the tensor or for its blocks, not for both",
            ),
        }
    }

    /// Whether blocks divide a tensor.
    pub(crate) fn divides(self, shape: &Shape) -> bool {
        let divides = |size: usize, block: usize| block == usize::MAX || size.is_multiple_of(block);
        let [rows, columns] = self.block;
        let matrix = in_rows(shape);
        let last = matrix.num_dims() - 2;
        divides(matrix[last], rows) && divides(matrix[last + 1], columns)
    }

    /// The shape of a tensor as rows and columns.
    ///
    /// # Panics
    /// Where blocks do not divide it.
    pub(crate) fn matrix_shape(self, shape: &Shape) -> Shape {
        let [rows, columns] = self.block;
        assert!(
            self.divides(shape),
            "blocks of {rows}×{columns} do not divide a tensor {:?}: take a block that does, or one scale for the tensor",
            shape.as_slice()
        );
        in_rows(shape)
    }

    /// How scales follow from amaxes, where that says all: f32, or the powers of two of UE8M0.
    pub(crate) fn recipe(self) -> Option<Recipe> {
        match (self.scales, self.block) {
            (ScaleType::F32, _) => Some(Recipe::current()),
            (ScaleType::UE8M0, WHOLE) => Some(Recipe::current().with_power_of_two(true)),
            (ScaleType::UE8M0, _) => Some(Recipe::mxfp8()),
            _ => None,
        }
    }

    /// A scale as the scheme holds it: that of nothing but zeros, whose scale Burn takes for 0, is 1.
    ///
    /// # Panics
    /// Where it is none: NaN, infinite or negative.
    pub(crate) fn scale(self, given: f32) -> f32 {
        assert!(
            given >= 0.0 && given.is_finite(),
            "a scale of {} values is {given}; it must be finite and not negative. A tensor with NaN or infinities has such a one where Burn computes \
             it: quantize_dynamic takes the largest finite magnitude",
            self.format
        );
        match self.scales {
            ScaleType::UE8M0 => e8m0::round_up(given),
            _ if given == 0.0 => 1.0,
            // The least of each type that is not 0.
            of => quantized::narrowed(given, of).max(scale::MIN_SCALE),
        }
    }
}

/// With two dimensions at least: `[n]` is a row.
fn in_rows(shape: &Shape) -> Shape {
    let mut sizes = shape.to_vec();
    while sizes.len() < 2 {
        sizes.insert(0, 1);
    }
    Shape::from(sizes)
}

/// The scheme of a tensor of this rank whose blocks have this size now. Where it says so already it keeps its words.
pub(crate) fn with_block(scheme: QuantScheme, rank: usize, now: [usize; 2]) -> QuantScheme {
    let [rows, columns] = now;
    if Scheme::block_of(&scheme, rank) == Some(now) {
        return scheme;
    }
    let size = |size: usize| u8::try_from(size).expect("a block is of one of Burn's schemes");
    quantized::by_blocks(scheme, BlockSize::new([size(rows), size(columns)]))
}
