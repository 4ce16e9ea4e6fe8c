//! How the inputs of a frozen layer are scaled.

use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion, FloatDType, Tensor};
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
            return Err(invalid(reason));
        }
        Ok(Self::Static(scale::from_amax(amax, Fp8Format::E4M3, Recipe::current())))
    }

    /// A static scale with which no finite element of the sample inputs saturates. Elements that are not finite are left out.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], which tells these apart, where there are no samples or no elements in them, where none is finite, and where all finite ones
    /// are 0.
    pub fn from_samples<B: Backend, const D: usize>(
        samples: impl IntoIterator<Item = Tensor<B, D>>,
    ) -> Result<Self, Fp8Error> {
        let (mut amax, mut count, mut elements, mut is_finite) = (0f32, 0, 0, false);
        for sample in samples {
            count += 1;
            elements += sample.shape().num_elements();
            if sample.shape().num_elements() > 0 {
                let sample = constant(sample).cast(FloatDType::F32);
                let largest = portable::scale::amax::<B>(primitive(sample.clone()));
                amax = amax.max(read::<B>(largest)[0]);
                is_finite |= amax > 0.0 || sample.is_finite().any().into_scalar().elem::<bool>();
            }
        }
        let reason = match (count, elements) {
            (0, _) => "there are no samples; give some inputs of the layer".into(),
            (_, 0) => {
                format!("the samples ({count}) have no elements; give some inputs of the layer")
            }
            _ if !is_finite => {
                format!(
                    "none of the {elements} elements of the samples is finite: all are NaN or infinite"
                )
            }
            _ if amax == 0.0 => {
                format!("all finite elements of the samples ({elements} elements) are 0")
            }
            _ => return Self::from_amax(amax),
        };
        Err(invalid(reason))
    }

    /// Whether the scale can be used, else why not.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::Static(scale) => check_scale("input_scale", scale),
            Self::Current => Ok(()),
        }
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "calibrated activation scale", reason }
}
