//! The addresses and factors of one call, checked against the product that they are for.

use crate::descriptor::DescriptorPointers;
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
    /// C, where the product has one. May be D if type, leading dimension and stride are the same.
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
    /// Where the auxiliary output goes.
    pub aux: DevicePointer,
    /// What the auxiliary output is multiplied by before it is rounded, where it is scaled.
    pub inverse_scale_aux: DevicePointer,
    /// Where the amax of the auxiliary output goes, where it has one.
    pub amax_aux: DevicePointer,
}

/// Bytes that scales per tensor and per row, factors and amaxes are aligned to: those of f32.
const F32: u32 = 4;

/// Bytes that scales per block are aligned to, by the cuBLAS documentation.
const BLOCK_SCALES: u32 = 16;

impl Pointers {
    pub(crate) fn for_descriptor(&self) -> DescriptorPointers {
        DescriptorPointers {
            scale_a: self.scale_a,
            scale_b: self.scale_b,
            scale_d: self.inverse_scale_d,
            amax_d: self.amax_d,
            bias: self.bias,
            aux: self.aux,
            scale_aux: self.inverse_scale_aux,
            amax_aux: self.amax_aux,
        }
    }

    /// Checks that everything the product has is there and aligned as promised, and that beta goes with C.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], naming the argument.
    pub fn check(&self, problem: &ScaledMatmul, beta: f32) -> Result<(), Error> {
        let (promised, aux) = (problem.alignment, problem.epilogue.aux);
        let scale = match problem.scales {
            Scales::Blocks { .. } => BLOCK_SCALES,
            Scales::None | Scales::PerTensor | Scales::PerRow => F32,
        };
        let scaled = problem.scales != Scales::None;
        let scaled_aux = aux.is_some_and(|aux| aux.kind.scaled());
        let amax_aux = aux.is_some_and(|aux| aux.kind.amax());
        let arguments = [
            ("a", self.a, true, promised.a),
            ("b", self.b, true, promised.b),
            ("c", self.c, problem.c.is_some(), promised.c),
            ("d", self.d, true, promised.d),
            ("scale_a", self.scale_a, scaled, scale),
            ("scale_b", self.scale_b, scaled, scale),
            ("inverse_scale_d", self.inverse_scale_d, problem.scaled_d, F32),
            ("amax_d", self.amax_d, problem.amax_d, F32),
            ("bias", self.bias, problem.epilogue.bias.is_some(), promised.bias),
            ("aux", self.aux, aux.is_some(), promised.aux),
            ("inverse_scale_aux", self.inverse_scale_aux, scaled_aux, F32),
            ("amax_aux", self.amax_aux, amax_aux, F32),
        ];
        let fail = |argument, problem_found: String| {
            Err(Error::Call { shape: problem.shape, argument, problem: problem_found })
        };
        for (argument, address, expected, alignment) in arguments {
            match (expected, address) {
                (true, 0) => return fail(argument, "the address is null".to_owned()),
                (false, 0) => {}
                (false, _) => {
                    let found = "an address is given where the product has none".to_owned();
                    return fail(argument, found);
                }
                (true, address) if !address.is_multiple_of(alignment.into()) => {
                    return fail(
                        argument,
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
            Some(c) if self.c == self.d && c != problem.d => {
                fail("c", "it is D, but type, leading dimension or stride differ; use the same ones, or another C".to_owned())
            }
            _ => Ok(()),
        }
    }
}
