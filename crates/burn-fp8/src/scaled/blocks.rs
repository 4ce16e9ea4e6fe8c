//! Products of two tensors with several scales each: of rows, or of blocks.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn_fp8_core::e8m0;

use super::scales::{BlockScales, Scales, Shown};
use super::tensor::Fp8Tensor;
use crate::engine::tensor::{primitive, read};
use crate::engine::{
    BlockCodes, Capability, Fallback, Fp8Engine, GemmOptions, Launched, NativeProblem, Otherwise,
    ScaledProduct, ScaledRequest, UnitOperand, UnitOptions, UnitScale, finish, note,
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

/// What runs operands that [`check`] has let pass.
pub(super) enum Runner {
    /// A matrix unit of the CPU.
    MatrixUnit,
    /// Tensor cores.
    TensorCores,
    /// The emulation; with the reason where the device runs other products natively.
    Emulation(Option<Fallback>),
}

impl Runner {
    /// By what the device can do, and whether tensor cores are to be given scales of blocks.
    pub(super) fn of(capability: &Capability, native_blocks: bool) -> Self {
        match capability {
            Capability::MatrixUnit(_) => Self::MatrixUnit,
            Capability::Native(_) if native_blocks => Self::TensorCores,
            Capability::Native(_) => Self::Emulation(Some(Fallback::BlocksUntried)),
            Capability::FakeQuantized { .. } | Capability::Unusable { .. } => Self::Emulation(None),
        }
    }
}

/// Multiplies operands that [`check`] has let pass; or says why it does not, where nothing else than a native product will do.
pub(super) fn multiply<B: Fp8Engine>(
    operands: [&Fp8Tensor<B, 2>; 2],
    runner: Runner,
    request: ScaledRequest<B>,
) -> Result<ScaledProduct<B>, Fallback> {
    let must_be_native = request.otherwise == Otherwise::Refuse;
    let (otherwise, note_of) = (request.otherwise, request.note.clone());
    let product = match runner {
        Runner::MatrixUnit => {
            let [lhs, rhs] = on_unit(operands);
            let options = UnitOptions { dtype: DType::F32, otherwise, note: note_of };
            B::fp8_matmul_on_unit(lhs, rhs, options)
        }
        Runner::TensorCores => {
            let [lhs, rhs] = for_tensor_cores(operands);
            let options = options(operands, &request);
            if must_be_native {
                let problem = NativeProblem::of_blocks([&lhs, &rhs], &options);
                B::fp8_check_native(&lhs.codes.device(), &problem)?;
            }
            B::fp8_gemm_of_blocks(lhs, rhs, options)
        }
        Runner::Emulation(fallback) if must_be_native => {
            return Err(fallback.unwrap_or(Fallback::Blocks));
        }
        Runner::Emulation(fallback) => {
            note(&note_of, || match fallback {
                Some(fallback) => Launched::Fallback(fallback),
                None => Launched::FakeQuantized,
            });
            let [a, b] = operands.map(|operand| primitive(operand.dequantize()));
            B::fp8_matmul_values(a, b)
        }
    };
    Ok(finish::<B>(product, request))
}

/// The product in f32: what is asked for beside it is done with that.
fn options<B: Fp8Engine>([a, _]: [&Fp8Tensor<B, 2>; 2], request: &ScaledRequest<B>) -> GemmOptions {
    GemmOptions {
        k: a.dims()[1],
        dtype: DType::F32,
        fast_accumulation: request.fast_accumulation,
        otherwise: request.otherwise,
        note: request.note.clone(),
    }
}

/// The operands as tensor cores take them: `[M, K]`, and the right one transposed, `[N, K]`.
fn for_tensor_cores<B: Fp8Engine>([a, b]: [&Fp8Tensor<B, 2>; 2]) -> [BlockCodes<B>; 2] {
    let [_, k] = a.dims();
    [(a, false), (b, true)].map(|(operand, of_transpose)| {
        let BlockScales { scales, block } = scales_of(operand, of_transpose);
        let block = match block {
            // A row, whose scale may be any number.
            [1, along] if along >= k => [1, usize::MAX],
            block => block,
        };
        let codes = operand.row_major(of_transpose);
        BlockCodes { codes, scales, block, format: operand.format() }
    })
}

/// The scales of an operand, or of its transpose.
fn scales_of<B: Fp8Engine>(operand: &Fp8Tensor<B, 2>, of_transpose: bool) -> BlockScales<B> {
    match operand.as_they_lie() {
        Scales::Blocks(scales) if operand.is_transposed() != of_transpose => {
            scales.clone().transpose()
        }
        Scales::Blocks(scales) => scales.clone(),
        Scales::One(_) => unreachable!("both operands have several scales"),
    }
}

/// Operands with several scales each, as a matrix unit takes them.
fn on_unit<B: Fp8Engine>(operands: [&Fp8Tensor<B, 2>; 2]) -> [UnitOperand<B>; 2] {
    let [of_a, of_b] = operands.map(|operand| scales_of(operand, false));
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
    [operand(a, of_a), operand(b, of_b)]
}

fn are_powers_of_two<B: Backend>(scales: &BlockScales<B>) -> bool {
    let is_power = |scale: f32| e8m0::encode(scale).is_some_and(|byte| byte != e8m0::NAN);
    read::<B>(scales.scales.clone()).into_iter().all(is_power)
}
