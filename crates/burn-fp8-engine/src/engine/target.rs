//! The decision where a product runs: on tensor cores, on a matrix unit of the CPU, or emulated.

use burn_fp8_core::sums::Sums;
use burn_fp8_core::{Block, Gemm, Layouts, Operand, Recipe};
use serde::{Deserialize, Serialize};

use super::backend::Fp8Engine;
use super::capability::{Capability, Fallback};
use super::launch::Otherwise;
use super::matrix::WHOLE;
use super::problem::blocks_of;
use super::product::Target;
use super::request::Wanted;
use crate::engine::Fp8Error;

/// How the products that the filter takes are run.
///
/// It never decides *which* products run in FP8: what a laptop emulates is what the GPU runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Execution {
    /// Natively where the device can, else fake-quantized.
    #[default]
    Auto,
    /// Emulated: codes are decoded, multiplied in f32 and scaled, whatever the device can do. For comparison with other backends.
    FakeQuantized,
    /// Natively; an error of `Fp8Config::check`, or a panic of the thread that asks for the product, says why where the
    /// device or cuBLASLt cannot. The first product of a shape waits until cuBLASLt has been asked.
    Native,
}

impl Execution {
    /// What becomes of a product that its target turns out not to take.
    pub fn otherwise(self) -> Otherwise {
        match self {
            Self::Native => Otherwise::Refuse,
            Self::Auto | Self::FakeQuantized => Otherwise::Emulate,
        }
    }
}

/// What a product requires of what runs it.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    /// What is multiplied.
    pub form: Form,
    /// The elements that share a scale, as in [`Problem::blocks`](super::Problem::blocks).
    pub blocks: Option<[[usize; 2]; 2]>,
    /// How many elements are summed, where all products of the kind sum as many; else more than any block has.
    pub k: usize,
    /// Whether all scales of both operands are powers of two.
    pub are_powers_of_two: bool,
}

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Two matrices.
    Matrices,
    /// A batch of matrices.
    Batch,
    /// Attention as one operation.
    Attention,
}

/// In which manner a configuration wants products run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// On what.
    pub execution: Execution,
    /// Whether tensor cores are to be given several scales.
    pub native_blocks: bool,
    /// Whose sums emulated products have.
    pub sums: Sums,
}

impl Manner {
    /// Emulated products sum in f32.
    pub fn in_f32(execution: Execution) -> Self {
        Self { execution, native_blocks: false, sums: Sums::F32 }
    }
}

impl Target {
    /// Where a product of this kind runs on a device.
    ///
    /// # Errors
    /// Why not, where it must run natively and cannot; where the device computes nothing; where no card has such sums of such scales.
    pub fn of<B: Fp8Engine>(
        device: &B::Device,
        requirements: Requirements,
        manner: Manner,
    ) -> Result<Self, Fp8Error> {
        let Manner { execution, native_blocks, sums } = manner;
        let mut capability = usable::<B>(device)?;
        requirements.check_sums(sums)?;
        let in_order = requirements.form != Form::Attention && has_sums(&capability, sums);
        if sums != Sums::F32 && !in_order {
            return requirements.emulated_sums::<B>(device, &capability, manner);
        }
        if execution == Execution::FakeQuantized {
            return Ok(Self::Emulation(None));
        }
        if let Capability::MatrixUnit(_) = capability {
            // The operating system may refuse the unit that was expected: only now is it known.
            #[cfg(feature = "flex")]
            let _ = burn_fp8_cpu::Unit::current();
            capability = B::fp8_capability(device, None);
        }
        let unavailable =
            |reason| Err(Fp8Error::NativeUnavailable { backend: B::name(device), reason });
        let (target, gap) = match capability {
            Capability::Native(_) => {
                (Self::TensorCores, requirements.gap_of_tensor_cores(native_blocks))
            }
            Capability::MatrixUnit(_) => (Self::MatrixUnit, requirements.gap_of_units()),
            Capability::FakeQuantized { reason } | Capability::Unusable { reason } => {
                return match execution {
                    Execution::Native => unavailable(reason.into_owned()),
                    _ => Ok(Self::Emulation(None)),
                };
            }
        };
        match (gap, execution) {
            (None, _) => Ok(target),
            (Some(fallback), Execution::Native) => unavailable(fallback.to_string()),
            (Some(fallback), _) => Ok(Self::Emulation(Some(fallback))),
        }
    }

    /// The form in which an operand is wanted: for products that follow at once, and for later ones; in these layouts where it matters, as a matrix
    /// where it is `flat`.
    ///
    /// `sums`: those of the products where they are emulated.
    pub fn wanted<B: Fp8Engine>(
        &self,
        sums: Sums,
        [now, later]: [bool; 2],
        layouts: Layouts,
        flat: bool,
    ) -> Wanted {
        match self {
            // A kernel reads codes along what is summed, as tensor cores do.
            Self::Emulation(_) if sums != Sums::F32 && B::FP8_KERNELS && flat => {
                Wanted::Lines(layouts)
            }
            Self::Emulation(_) if sums != Sums::F32 => Wanted::Codes,
            Self::TensorCores if flat => Wanted::Lines(layouts),
            Self::TensorCores => Wanted::Batch(layouts),
            Self::MatrixUnit => Wanted::Codes,
            Self::Emulation(_) => match (now, later) {
                (true, true) => Wanted::CodesAndValues,
                (true, false) => Wanted::Values,
                (false, _) => Wanted::Codes,
            },
        }
    }
}

impl Requirements {
    /// Without scales of blocks.
    pub fn plain(form: Form) -> Self {
        Self { form, blocks: None, k: usize::MAX, are_powers_of_two: false }
    }

    /// Two plain matrices, of scales of blocks of so many rows and columns, that are multiplied over K.
    pub fn of_matrices(blocks: [[usize; 2]; 2], k: usize, are_powers_of_two: bool) -> Self {
        Self { form: Form::Matrices, blocks: blocks_of(blocks, k), k, are_powers_of_two }
    }

    /// The products of training with the scales of a recipe.
    pub fn of_recipe(recipe: &Recipe, forward: Gemm) -> Self {
        let of = |operand| {
            let Block { along, across } = recipe.granularity().block(operand);
            [across, along]
        };
        let blocks = [of(Operand::Input), of(Operand::Weight)];
        Self {
            form: match forward.batch == 1 && forward.plain_operand {
                true => Form::Matrices,
                false => Form::Batch,
            },
            blocks: (blocks != [WHOLE; 2]).then_some(blocks),
            k: usize::MAX,
            are_powers_of_two: recipe.has_powers_of_two(),
        }
    }

    /// Whether a card with these sums has an instruction for such scales.
    ///
    /// # Errors
    /// [`Fp8Error::InvalidConfig`] where it has none.
    pub fn check_sums(self, sums: Sums) -> Result<(), Fp8Error> {
        let is_mx = |block: [usize; 2]| block == [1, 32];
        match (sums, self.blocks) {
            (Sums::Hopper | Sums::Ada, Some([a, b])) if is_mx(a) || is_mx(b) => {
                Err(Fp8Error::InvalidConfig(format!(
                    "MXFP8 with the sums of {sums}: its tensor cores have no scales of blocks of 32; use Sums::Blackwell, or Recipe::blockwise()"
                )))
            }
            (_, Some(blocks)) => self.check_chains(sums, blocks),
            _ => Ok(()),
        }
    }

    /// Whether blocks of scales are whole blocks of products, and the larger ones whole blocks of the smaller ones.
    fn check_chains(self, sums: Sums, blocks: [[usize; 2]; 2]) -> Result<(), Fp8Error> {
        let Some(accumulator) = sums.accumulator() else { return Ok(()) };
        let along = blocks.map(|[_, along]| along).into_iter().filter(|along| *along < self.k);
        let products = accumulator.products as usize;
        let wrong = along.clone().find(|along| !along.is_multiple_of(products));
        let least = along.clone().min().unwrap_or(1);
        let chain = accumulator.chain;
        if least == 32 && chain != u32::MAX && !chain.is_multiple_of(32) {
            return Err(Fp8Error::InvalidConfig(format!(
                "MXFP8 with chains of {chain}: they must be multiples of its blocks of 32"
            )));
        }
        match wrong.or_else(|| along.clone().find(|along| !along.is_multiple_of(least))) {
            None => Ok(()),
            Some(along) => Err(Fp8Error::InvalidConfig(format!(
                "scales of blocks of {along} with the sums of {sums}: blocks must be multiples of its {} products, and of each other",
                accumulator.products
            ))),
        }
    }

    /// What becomes of products whose sums this device has not.
    fn emulated_sums<B: Fp8Engine>(
        self,
        device: &B::Device,
        capability: &Capability,
        Manner { execution, sums, .. }: Manner,
    ) -> Result<Target, Fp8Error> {
        if execution == Execution::Native {
            let reason = match capability {
                _ if self.form == Form::Attention => Fallback::SumsOfAttention.to_string(),
                Capability::Native(card) => format!("{card} has other sums than those of {sums}"),
                _ => format!("sums of {sums} are emulated here"),
            };
            let reason =
                format!("{reason}: use Execution::Auto, or leave Fp8Config::with_sums out");
            return Err(Fp8Error::NativeUnavailable { backend: B::name(device), reason });
        }
        let of_attention = self.form == Form::Attention;
        Ok(Target::Emulation(of_attention.then_some(Fallback::SumsOfAttention)))
    }

    fn gap_of_tensor_cores(self, native_blocks: bool) -> Option<Fallback> {
        match self {
            Self { blocks: Some(_), .. } if !native_blocks => Some(Fallback::BlocksUntried),
            Self { blocks: Some(blocks), .. } if !has_tensor_cores_for(blocks) => {
                Some(Fallback::Blocks)
            }
            Self { form: Form::Batch, blocks: Some(_), .. } => Some(Fallback::Batched),
            Self { form: Form::Attention, .. } => Some(Fallback::Attention),
            _ => None,
        }
    }

    /// Scales of elements that are summed: bf16 takes powers of two, and f32 ones wait for the sum over a block. A block that holds all that is summed is as
    /// good as one scale.
    fn gap_of_units(self) -> Option<Fallback> {
        let [along_a, along_b] = self.blocks?.map(|[_, along]| along.min(self.k));
        let fits = match (along_a == self.k, along_b == self.k) {
            (true, true) => true,
            (false, false) => {
                let whole_lines = [along_a, along_b].iter().all(|along| along.is_multiple_of(32));
                whole_lines && (along_a == along_b || self.are_powers_of_two)
            }
            _ => false,
        };
        (!fits).then_some(Fallback::Blocks)
    }
}

/// Whether cuBLASLt multiplies such blocks: rows by columns, 32 by 32, and 128 by 128 unless both are squares.
///
/// By the table of scaling modes in NVIDIA's documentation of `cublasLtMatmul`, and what PyTorch's `scaled_mm` takes.
pub fn has_tensor_cores_for(blocks: [[usize; 2]; 2]) -> bool {
    let is_128 = |block: [usize; 2]| matches!(block, [1 | 128, 128]);
    match blocks {
        [[1, usize::MAX], [1, usize::MAX]] | [[1, 32], [1, 32]] => true,
        [a, b] => is_128(a) && is_128(b) && [a, b] != [[128, 128]; 2],
    }
}

/// Whether a device is a card with these sums.
fn has_sums(capability: &Capability, sums: Sums) -> bool {
    let Capability::Native(device) = capability else { return false };
    matches!(
        (device.compute_capability, sums),
        ((8, 9), Sums::Ada) | ((9, _), Sums::Hopper) | ((10.., _), Sums::Blackwell)
    )
}

/// What a device can do. Linux, which has to permit AMX, is not asked for it.
///
/// # Errors
/// Where the device computes nothing.
pub fn usable<B: Fp8Engine>(device: &B::Device) -> Result<Capability, Fp8Error> {
    match B::fp8_capability(device, None) {
        Capability::Unusable { reason } => {
            Err(Fp8Error::DeviceUnusable { backend: B::name(device), reason: reason.into_owned() })
        }
        capability => Ok(capability),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of the left operand, of the right one `[K, N]`, K, and whether a unit multiplies them with scales in f32.
    #[test]
    fn a_block_of_all_that_is_summed_is_one_scale() {
        const BLOCK: [usize; 2] = [1, 128];
        for (lhs, rhs, k, fits) in [
            (BLOCK, [128, 128], 1024, true),
            (BLOCK, [128, 128], 128, true),
            // A weight of one block, as one scale or as what is left of the block.
            (BLOCK, WHOLE, 128, true),
            (BLOCK, [100, 64], 100, true),
            (BLOCK, WHOLE, 100, true),
            (WHOLE, [128, 128], 128, true),
            (BLOCK, WHOLE, 129, false),
            (WHOLE, [128, 128], 129, false),
            (BLOCK, [64, 64], 128, false),
            ([1, 32], [32, 1], 20, true),
            ([1, 32], WHOLE, 32, true),
            ([1, 32], WHOLE, 64, false),
            ([1, 24], [24, 1], 48, false),
        ] {
            let gap = Requirements::of_matrices([lhs, rhs], k, false).gap_of_units();
            let expected = if fits { None } else { Some(Fallback::Blocks) };
            assert_eq!(gap, expected, "{lhs:?} {rhs:?} {k}");
        }
    }
}
