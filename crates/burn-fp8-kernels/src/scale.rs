//! Scales, and where they come from.

use burn_fp8_core::scale::{MAX_SCALE, MIN_SCALE};
use burn_fp8_core::{Fp8Format, Overflow, Recipe};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::amax::{NonFinite, given_bits, largest_partial, measure};
use crate::error::KernelError;
use crate::launch::{array, cube_dim};
use crate::reduce::cube_max;
use crate::tensor::{Input, Scalar, check_scalar};

/// How the scale of a tensor is chosen. A scale is the dequantization multiplier: `x ≈ code × scale`.
#[derive(Clone, Debug)]
pub enum ScaleRule {
    /// From the amax of the tensor. Finite values saturate, the others stay visible: [`Overflow::SaturateFinite`].
    Current(Recipe),
    /// From this amax of earlier steps, finite and not negative; from that of the tensor where it is 0, which is decided on the
    /// device. Overflow as for `Current`.
    Delayed {
        /// One f32 on the device.
        from: Handle,
        /// Margin and rounding of the scale.
        recipe: Recipe,
    },
    /// This scale, positive, normal and finite.
    Given {
        /// The scale.
        scale: Scalar,
        /// What becomes of values that are too large.
        overflow: Overflow,
    },
}

impl ScaleRule {
    pub(crate) fn overflow(&self) -> Overflow {
        match self {
            Self::Current(_) | Self::Delayed { .. } => Overflow::SaturateFinite,
            Self::Given { overflow, .. } => *overflow,
        }
    }
}

/// A scale on its way into a kernel, and the amax that goes with it.
pub(crate) struct Chosen {
    pub(crate) scale: Scalar,
    /// Measured; or zero, where the kernel is to measure it.
    pub(crate) amax: Option<Handle>,
    /// Whether the kernel is to raise `amax` to that of the tensor.
    pub(crate) measure: bool,
}

/// Launches what a rule needs before its tensor can be quantized: nothing, or two kernels.
pub(crate) fn choose<R: Runtime>(
    client: &ComputeClient<R>,
    input: &Input<'_>,
    format: Fp8Format,
    rule: &ScaleRule,
) -> Result<Chosen, KernelError> {
    let (from, recipe) = match rule {
        ScaleRule::Given { scale, .. } => {
            scale.check()?;
            return Ok(Chosen { scale: scale.clone(), amax: None, measure: false });
        }
        ScaleRule::Current(recipe) => (None, recipe),
        ScaleRule::Delayed { from, recipe } => (Some(from), recipe),
    };
    from.map_or(Ok(()), check_scalar)?;
    let (partials, [amax, scale]) = measure(client, input, NonFinite::Excluded, from)?;
    // SAFETY: One cube, which reads the partials that there are and writes two words.
    #[allow(unsafe_code, reason = "indices are in bounds by construction")]
    unsafe {
        scale_from_partials::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            cube_dim(),
            partials.arg(),
            from.map(array).into(),
            amax.arg(),
            scale.arg(),
            partials.words,
            format.max(),
            power_of_two(recipe.margin),
            recipe.power_of_two,
        );
    }
    Ok(Chosen {
        scale: Scalar::Device(scale.into_handle()),
        amax: Some(amax.into_handle()),
        measure: from.is_some(),
    })
}

/// The scale from a given amax, if that is not zero, else from the maximum of partials.
///
/// Where the amax is given, the partials were not written, and the amax of the tensor is left to the next kernel: it starts at zero.
#[cube(launch_unchecked)]
fn scale_from_partials(
    partials: &Array<u32>,
    from: &ComptimeOption<Array<u32>>,
    amax: &mut Array<u32>,
    scale: &mut Array<f32>,
    count: usize,
    max_code: f32,
    margin: f32,
    #[comptime] power_of_two: bool,
) {
    let given = given_bits(from);
    let is_given = given & 0x7FFF_FFFF != 0;
    let mut measured = 0u32;
    if !is_given {
        measured = largest_partial(partials, count);
    }
    let measured = cube_max(measured);
    if UNIT_POS == 0 {
        amax[0] = measured;
        let mut bits = measured;
        if is_given {
            bits = given;
        }
        scale[0] = from_amax(bits, max_code, margin, power_of_two);
    }
}

/// [`burn_fp8_core::scale::from_amax`], bit for bit where the device keeps f32 subnormals.
#[cube]
pub(crate) fn from_amax(
    amax: u32,
    max_code: f32,
    margin: f32,
    #[comptime] power_of_two: bool,
) -> f32 {
    let exact = u32::reinterpret(f32::reinterpret(amax) / max_code * margin);
    let smallest = comptime!(MIN_SCALE.to_bits()).runtime();
    let bits = if comptime!(power_of_two) {
        let largest = comptime!(127u32 + 127).runtime() << 23;
        min((max(exact, smallest) + 0x7F_FFFF) & 0xFF80_0000u32, largest)
    } else {
        min(max(exact, smallest), comptime!(MAX_SCALE.to_bits()).runtime())
    };
    f32::reinterpret(select(amax == 0, 0x3F80_0000, bits))
}

/// `2^exponent` for exponents in -126..=127.
pub(crate) fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
