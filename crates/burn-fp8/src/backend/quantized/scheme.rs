//! What one of Burn's schemes says of FP8.

use burn::tensor::{bf16, f16};
use burn_backend::Shape;
use burn_backend::quantization::{
    BlockSize, QuantLevel, QuantMode, QuantParam, QuantScheme, QuantValue,
};
use burn_fp8_core::{Fp8Format, Recipe, e8m0, scale};

use crate::engine::WHOLE;

/// A scheme whose values are FP8.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    pub(super) format: Fp8Format,
    /// Rows and columns that share a scale.
    pub(super) block: [usize; 2],
    param: QuantParam,
}

impl Scheme {
    /// What Burn's scheme says, where its values are FP8.
    ///
    /// # Panics
    /// Where blocks span more than the last two dimensions, or scales are UE4M3.
    pub(super) fn of(scheme: &QuantScheme) -> Option<Self> {
        let format = match scheme.value {
            QuantValue::E4M3 => Fp8Format::E4M3,
            QuantValue::E5M2 => Fp8Format::E5M2,
            _ => return None,
        };
        // The only one that there is: without zero points.
        let QuantMode::Symmetric = scheme.mode;
        let block = match scheme.level {
            QuantLevel::Tensor => WHOLE,
            QuantLevel::Block(size) => {
                let sizes = size.as_slice();
                let (leading, last) = sizes.split_at(sizes.len().saturating_sub(2));
                assert!(
                    leading.iter().all(|size| *size == 1) && sizes.iter().all(|size| *size > 0),
                    "{scheme:?}: blocks of FP8 have elements, in the last two dimensions alone, as [1, 32] and [128, 128]"
                );
                match *last {
                    [rows, columns] => [rows.into(), columns.into()],
                    [columns] => [1, columns.into()],
                    _ => WHOLE,
                }
            }
        };
        assert!(
            scheme.param != QuantParam::UE4M3,
            "{scheme:?}: scales of FP8 values are F32, BF16, F16 or UE8M0 (MXFP8)"
        );
        Some(Self { format, block, param: scheme.param })
    }

    /// Whether blocks divide a tensor.
    pub(super) fn divides(self, shape: &Shape) -> bool {
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
    pub(super) fn matrix_shape(self, shape: &Shape) -> Shape {
        let [rows, columns] = self.block;
        assert!(
            self.divides(shape),
            "blocks of {rows}×{columns} do not divide a tensor {:?}: take a block that does, or QuantLevel::Tensor",
            shape.as_slice()
        );
        in_rows(shape)
    }

    /// How scales follow from amaxes, where that says all: f32, or the powers of two of UE8M0.
    pub(super) fn recipe(self) -> Option<Recipe> {
        match (self.param, self.block) {
            (QuantParam::F32, _) => Some(Recipe::current()),
            (QuantParam::UE8M0, WHOLE) => Some(Recipe::current().with_power_of_two(true)),
            (QuantParam::UE8M0, _) => Some(Recipe::mxfp8()),
            _ => None,
        }
    }

    /// A scale as the scheme holds it: that of nothing but zeros, whose scale Burn takes for 0, is 1.
    ///
    /// # Panics
    /// Where it is none: NaN, infinite or negative.
    pub(super) fn scale(self, given: f32) -> f32 {
        assert!(
            given >= 0.0 && given.is_finite(),
            "a scale of {} values is {given}; it must be finite and not negative. A tensor with NaN or infinities has such a one where Burn computes \
             it: quantize_dynamic takes the largest finite magnitude",
            self.format
        );
        // The least of each type that is not 0.
        let scale = match self.param {
            QuantParam::UE8M0 => return e8m0::round_up(given),
            _ if given == 0.0 => return 1.0,
            QuantParam::F16 => f16::from_f32(given).clamp(f16::from_bits(1), f16::MAX).to_f32(),
            QuantParam::BF16 => bf16::from_f32(given).min(bf16::MAX).to_f32(),
            _ => given,
        };
        scale.max(scale::MIN_SCALE)
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

/// The scheme of a tensor whose blocks have this size now.
pub(super) fn with_block(scheme: QuantScheme, [rows, columns]: [usize; 2]) -> QuantScheme {
    let size = |size: usize| u8::try_from(size).expect("a block is of one of Burn's schemes");
    scheme.with_level(QuantLevel::Block(BlockSize::new([size(rows), size(columns)])))
}
