//! How the inputs of a frozen layer are scaled.

use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor};
use burn_fp8_core::{Fp8Format, Recipe, scale};

use crate::engine::tensor::{constant, primitive, read};
use crate::engine::{check_scale, portable};
use crate::error::Fp8Error;

/// How the inputs of a frozen layer are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ActivationScale {
    /// By this scale, the dequantization multiplier: `x ≈ code × scale`. Finite values beyond 448 times the scale become
    /// that; infinite ones and NaN become NaN.
    Static(f32),
    /// By the amax of each input, which takes one more read of it.
    Current,
}

impl ActivationScale {
    /// A static scale with which magnitudes up to `amax` do not saturate: `amax / 448`.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where `amax` is not finite or not positive.
    pub fn from_amax(amax: f32) -> Result<Self, Fp8Error> {
        if !(amax.is_finite() && amax > 0.0) {
            let reason =
                format!("the amax of the samples is {amax}; it must be finite and positive");
            return Err(Fp8Error::Invalid { what: "calibrated activation scale", reason });
        }
        Ok(Self::Static(scale::from_amax(amax, Fp8Format::E4M3, Recipe::current())))
    }

    /// A static scale with which no finite element of the sample inputs saturates. Elements that are not finite are left out.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where there are no samples, or nothing in them but zeros and elements that are not finite.
    pub fn from_samples<B: Backend, const D: usize>(
        samples: impl IntoIterator<Item = Tensor<B, D>>,
    ) -> Result<Self, Fp8Error> {
        let mut amax = 0f32;
        for sample in samples {
            if sample.shape().num_elements() > 0 {
                let sample = primitive(constant(sample).cast(FloatDType::F32));
                amax = amax.max(read::<B>(portable::scale::amax::<B>(sample))[0]);
            }
        }
        Self::from_amax(amax)
    }

    /// Whether the scale can be used, else why not.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::Static(scale) => check_scale("input_scale", scale),
            Self::Current => Ok(()),
        }
    }
}
