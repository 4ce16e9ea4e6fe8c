//! What a layer can be: its input scale, its weight, its bias.

use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion, FloatDType, Tensor};
use burn_fp8_core::{Fp8Format, Recipe, scale};

use crate::engine::tensor::read;
use crate::engine::{check_scale, portable};
use crate::error::Fp8Error;
use crate::host::{constant, primitive};
use crate::ops::ActivationScale;

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
            Self::Blocks { size: 0, .. } => Err("blocks of 0 elements share no scale".into()),
            _ => Ok(()),
        }
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "calibrated activation scale", reason }
}

/// Whether a weight can be of this shape, else why not.
pub(super) fn check_shape([d_input, d_output]: [usize; 2]) -> Result<(), String> {
    match d_input > 0 && d_output > 0 {
        true => Ok(()),
        false => Err(format!("the weight [{d_input}, {d_output}] has no elements")),
    }
}

/// Whether weight and bias have a finite element each, else which one has not.
pub(super) fn check_finite(
    [d_input, d_output]: [usize; 2],
    codes: &[u8],
    bias: Option<&[f32]>,
) -> Result<(), String> {
    const REMEDY: &str = "all are NaN or infinite; the model that it comes from has diverged, or its file is damaged";
    if codes.iter().all(|code| Fp8Format::E4M3.decode(*code).is_nan()) {
        return Err(format!(
            "no element of the weight [{d_input}, {d_output}] is finite: {REMEDY}"
        ));
    }
    if bias.is_some_and(|bias| !bias.is_empty() && !bias.iter().any(|b| b.is_finite())) {
        return Err(format!("no element of the bias [{d_output}] is finite: {REMEDY}"));
    }
    Ok(())
}

/// The bias on the host. Waits for the device.
pub(super) fn read_bias<B: Backend>(bias: &Option<Tensor<B, 1>>) -> Option<Vec<f32>> {
    let bias = constant(bias.clone()?).cast(FloatDType::F32);
    Some(bias.into_data().to_vec().expect("it is f32"))
}
