//! Products of two tensors with several scales each: of rows, or of blocks.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn_fp8_core::e8m0;

use super::scales::{BlockScales, Scales, Shown};
use super::tensor::Fp8Tensor;
use crate::engine::tensor::{primitive, read};
use crate::engine::{
    Capability, Fallback, Fp8Engine, Launched, ScaledProduct, ScaledRequest, UnitOperand,
    UnitOptions, UnitScale, finish, note,
};

/// Which dimension of an operand is summed: of the left one, and of the right one.
pub(super) const SUMMED: [usize; 2] = [1, 0];

/// Whether a product has several scales for each operand, else one; or why there is none of such two operands.
///
/// By the table of scaling modes in NVIDIA's documentation of `cublasLtMatmul`, and what PyTorch's `scaled_mm` takes.
pub(super) fn check<B: Fp8Engine>([a, b]: [&Fp8Tensor<B, 2>; 2], k: usize) -> Result<bool, String> {
    let [of_a, of_b] = match [a.block(), b.block()] {
        [None, None] => return Ok(false),
        [Some(of_a), Some(of_b)] => [of_a, [of_b[1], of_b[0]]],
        blocks => {
            let shown = |block: Option<[usize; 2]>| match block {
                Some(block) => format!("a scale for each block {}", Shown(block)),
                None => "one scale".into(),
            };
            return Err(format!(
                "the left operand has {}, the right one {}: both have one scale, or both have several",
                shown(blocks[0]),
                shown(blocks[1])
            ));
        }
    };
    // Across what is summed, and along it.
    let is_row = |[across, along]: [usize; 2]| across == 1 && along >= k;
    let is_128 = |block: [usize; 2]| matches!(block, [1 | 128, 128]);
    let is_possible = is_row(of_a) && is_row(of_b)
        || [of_a, of_b] == [[1, 32]; 2]
        || is_128(of_a) && is_128(of_b) && [of_a, of_b] != [[128, 128]; 2];
    match is_possible {
        true => Ok(true),
        false => Err(format!(
            "blocks {} of the left operand, {} of the right one [K, N]: possible are rows times columns (1×K and K×1), 1×32 times 32×1, and \
             1×128 or 128×128 times 128×1 or 128×128, but not 128×128 on both sides",
            Shown(of_a),
            Shown([of_b[1], of_b[0]])
        )),
    }
}

/// Multiplies operands that [`check`] has let pass: on a matrix unit of the CPU where it takes their scales, else in f32.
pub(super) fn multiply<B: Fp8Engine>(
    operands: [&Fp8Tensor<B, 2>; 2],
    capability: &Capability,
    request: ScaledRequest<B>,
) -> ScaledProduct<B> {
    let unit = match capability {
        Capability::MatrixUnit(_) => on_unit(operands),
        _ => None,
    };
    let product = match unit {
        Some([lhs, rhs]) => {
            let (otherwise, note) = (request.otherwise, request.note.clone());
            B::fp8_matmul_on_unit(lhs, rhs, UnitOptions { dtype: DType::F32, otherwise, note })
        }
        None => {
            note(&request.note, || match capability.is_native() {
                true => Launched::Fallback(Fallback::Blocks),
                false => Launched::FakeQuantized,
            });
            let [a, b] = operands.map(|operand| primitive(operand.dequantize()));
            B::fp8_matmul_values(a, b)
        }
    };
    finish::<B>(product, request)
}

/// Whether there are scales that this device multiplies natively.
pub(super) fn is_native<B: Fp8Engine>(
    operands: [&Fp8Tensor<B, 2>; 2],
    capability: &Capability,
) -> bool {
    matches!(capability, Capability::MatrixUnit(_)) && on_unit(operands).is_some()
}

/// The operands as a matrix unit takes them; none where they have one scale each.
fn on_unit<B: Fp8Engine>(operands: [&Fp8Tensor<B, 2>; 2]) -> Option<[UnitOperand<B>; 2]> {
    let several = operands.map(|operand| match operand.as_they_lie() {
        Scales::Blocks(scales) if operand.is_transposed() => Some(scales.clone().transpose()),
        Scales::Blocks(scales) => Some(scales.clone()),
        Scales::One(_) => None,
    });
    let [Some(of_a), Some(of_b)] = several else { return None };
    let [[_, k], _] = operands.map(Fp8Tensor::dims);
    // Not blocks of several rows that hold all of K.
    let are_rows =
        [of_a.block[0], of_b.block[1]] == [1, 1] && of_a.block[1] >= k && of_b.block[0] >= k;
    let are_powers_of_two = !are_rows && [&of_a, &of_b].into_iter().all(are_powers_of_two);
    let [a, b] = operands;
    let operand = |operand: &Fp8Tensor<B, 2>, BlockScales { scales, block }| UnitOperand {
        codes: operand.row_major(false),
        scale: match are_rows {
            true => UnitScale::Rows(scales),
            false => UnitScale::Blocks { scales, block, are_powers_of_two },
        },
    };
    Some([operand(a, of_a), operand(b, of_b)])
}

fn are_powers_of_two<B: Backend>(scales: &BlockScales<B>) -> bool {
    let is_power = |scale: f32| e8m0::encode(scale).is_some_and(|byte| byte != e8m0::NAN);
    read::<B>(scales.scales.clone()).into_iter().all(is_power)
}
