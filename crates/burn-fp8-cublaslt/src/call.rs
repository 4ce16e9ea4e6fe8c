//! The addresses and factors of one call, checked against the product that they are for.

use crate::error::Error;
use crate::problem::{ScaledMatmul, Scales};
use crate::raw::driver::DevicePointer;

/// Addresses on the device; 0 where there is none.
///
/// Scales, factors and amaxes are f32. `scale_a` and `scale_b` hold one number, or as many as [`Scales`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    /// Codes of A.
    pub a: DevicePointer,
    /// Codes of B, transposed.
    pub b: DevicePointer,
    /// C, where the product has one. May be D if type and leading dimension are the same.
    pub c: DevicePointer,
    /// The output.
    pub d: DevicePointer,
    /// Scale of A; 0 with [`Scales::None`].
    pub scale_a: DevicePointer,
    /// Scale of B; 0 with [`Scales::None`].
    pub scale_b: DevicePointer,
    /// What D is **multiplied** by before it is rounded, where `scaled_d`: the reciprocal of D's dequantization scale.
    pub inverse_scale_d: DevicePointer,
    /// Where the amax of D goes, where `amax_d`: that of the values before they are multiplied and rounded.
    pub amax_d: DevicePointer,
    /// The bias.
    pub bias: DevicePointer,
}

/// One address of a call, and what a product says of it.
pub(crate) struct Argument {
    name: &'static str,
    pub(crate) address: DevicePointer,
    /// Whether the product has it.
    pub(crate) expected: bool,
    /// What it is a multiple of.
    pub(crate) alignment: u32,
}

/// What the scales of blocks are aligned to, by the cuBLAS documentation.
const OF_BLOCKS: u32 = 16;
/// What other scales, factors and amaxes are aligned to: as f32.
const OF_F32: u32 = 4;

impl Pointers {
    /// The matrices, which are arguments of `cublasLtMatmul`, then those that are attributes of its operation.
    pub(crate) fn arguments(&self, problem: &ScaledMatmul) -> ([Argument; 4], [Argument; 5]) {
        let promised = problem.alignment;
        let scaled = problem.scales != Scales::None;
        let scale = match problem.scales {
            Scales::Blocks { .. } => OF_BLOCKS,
            Scales::None | Scales::PerTensor | Scales::PerRow => OF_F32,
        };
        let has_bias = problem.epilogue.bias.is_some();
        let argument =
            |(name, address, expected, alignment)| Argument { name, address, expected, alignment };
        let matrices = [
            ("a", self.a, true, promised.a),
            ("b", self.b, true, promised.b),
            ("c", self.c, problem.c.is_some(), promised.c),
            ("d", self.d, true, promised.d),
        ];
        let others = [
            ("scale_a", self.scale_a, scaled, scale),
            ("scale_b", self.scale_b, scaled, scale),
            ("inverse_scale_d", self.inverse_scale_d, problem.scaled_d, OF_F32),
            ("amax_d", self.amax_d, problem.amax_d, OF_F32),
            ("bias", self.bias, has_bias, promised.bias),
        ];
        (matrices.map(argument), others.map(argument))
    }

    /// Checks that everything the product has is there and aligned as promised, and that beta goes with C.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], naming the argument.
    pub fn check(&self, problem: &ScaledMatmul, beta: f32) -> Result<(), Error> {
        let fail = |argument, found: String| {
            Err(Error::Call { shape: problem.shape, argument, problem: found })
        };
        let (matrices, others) = self.arguments(problem);
        for Argument { name, address, expected, alignment } in matrices.into_iter().chain(others) {
            match (expected, address) {
                (true, 0) => return fail(name, "the address is null".to_owned()),
                (false, 0) => {}
                (false, _) => {
                    let found = "an address is given where the product has none".to_owned();
                    return fail(name, found);
                }
                (true, address) if !address.is_multiple_of(alignment.into()) => {
                    return fail(
                        name,
                        format!(
                            "{address:#x} is not a multiple of {alignment} bytes; put the true alignment into ScaledMatmul::alignment"
                        ),
                    );
                }
                (true, _) => {}
            }
        }
        match problem.c {
            None if beta != 0.0 => {
                let found = format!("it is {beta} and the product has no C; pass 0 or C");
                fail("beta", found)
            }
            Some(c) if self.c == self.d && c != problem.d => fail(
                "c",
                "it is D, but type or leading dimension differ; use the same ones, or another C"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }
}
