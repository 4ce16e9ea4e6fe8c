//! How the scale of a loss follows the steps: data and arithmetic, without tensors.

use burn_fp8::Fp8Error;
use burn_fp8_core::json::{Object, object};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// JMP's `DynamicLossScale` (0.0.4): the scale is divided by a factor when gradients are not finite, and multiplied by it after a period of
/// steps whose gradients all were.
///
/// A multiplication that would overflow f32 is left out; the scale never falls below the minimum.
///
/// As JSON its fields; those that are missing take JMP's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct DynamicLossScale {
    /// The scale of the next loss.
    pub loss_scale: f32,
    /// How many steps in a row had finite gradients since the scale changed; less than the period.
    pub counter: u32,
    /// After how many of them the scale grows.
    pub period: u32,
    /// What the scale is multiplied or divided by; more than 1.
    pub factor: f32,
    /// The smallest scale.
    pub min_loss_scale: f32,
}

impl Serialize for DynamicLossScale {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for DynamicLossScale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let dynamic = Self::deserialize(deserializer)?;
        dynamic.validate().map_err(D::Error::custom)?;
        Ok(dynamic)
    }
}

/// JMP's defaults: from 2¹⁵, a period of 2000 steps, a factor of 2, at least 1.
impl Default for DynamicLossScale {
    fn default() -> Self {
        Self { loss_scale: 32768.0, counter: 0, period: 2000, factor: 2.0, min_loss_scale: 1.0 }
    }
}

impl DynamicLossScale {
    /// The same, starting at this scale.
    pub fn with_loss_scale(self, loss_scale: f32) -> Self {
        Self { loss_scale, ..self }
    }

    /// The same, growing after this many steps.
    pub fn with_period(self, period: u32) -> Self {
        Self { period, ..self }
    }

    /// The same with another factor.
    pub fn with_factor(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// The same with another minimum.
    pub fn with_min_loss_scale(self, min_loss_scale: f32) -> Self {
        Self { min_loss_scale, ..self }
    }

    /// What it is after a step whose gradients were all finite, or were not.
    #[must_use]
    pub fn adjust(self, grads_finite: bool) -> Self {
        if !grads_finite {
            let loss_scale = (self.loss_scale / self.factor).max(self.min_loss_scale);
            return Self { loss_scale, counter: 0, ..self };
        }
        if self.counter + 1 < self.period {
            return Self { counter: self.counter + 1, ..self };
        }
        let grown = self.loss_scale * self.factor;
        let loss_scale = if grown.is_finite() { grown } else { self.loss_scale };
        Self { loss_scale, counter: 0, ..self }
    }

    /// Checks the numbers. What was read from JSON or a record is valid.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] for scales that are not positive normal numbers, a factor that is not more than 1 and finite, a period of 0, a
    /// counter that has reached the period, and a scale below the minimum.
    pub fn validate(&self) -> Result<(), Fp8Error> {
        let Self { loss_scale, counter, period, factor, min_loss_scale } = *self;
        scale("loss_scale", loss_scale)?;
        scale("min_loss_scale", min_loss_scale)?;
        if loss_scale < min_loss_scale {
            return Err(invalid(format!(
                "loss_scale = {loss_scale} is less than min_loss_scale = {min_loss_scale}; raise the one or lower the other"
            )));
        }
        if !(factor.is_finite() && factor > 1.0) {
            return Err(invalid(format!(
                "factor = {factor} is not a finite number greater than 1; 2 is usual"
            )));
        }
        if counter >= period {
            return Err(invalid(format!(
                "counter = {counter} has reached period = {period}; it starts at 0, and 2000 is a usual period"
            )));
        }
        Ok(())
    }
}

/// How a loss is scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScaleRule {
    /// Not at all.
    #[default]
    None,
    /// By a constant.
    Static(#[serde(deserialize_with = "static_scale")] f32),
    /// By a scale that follows the gradients.
    Dynamic(#[serde(deserialize_with = "object")] DynamicLossScale),
}

impl LossScaleRule {
    /// What the next loss is multiplied by.
    pub fn loss_scale(&self) -> f32 {
        match self {
            Self::None => 1.0,
            Self::Static(loss_scale) => *loss_scale,
            Self::Dynamic(dynamic) => dynamic.loss_scale,
        }
    }

    /// Checks the numbers. What was read from JSON or a record is valid.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] for a static scale that is not a positive normal number, and as [`DynamicLossScale::validate`].
    pub fn validate(&self) -> Result<(), Fp8Error> {
        match self {
            Self::None => Ok(()),
            Self::Static(loss_scale) => scale("the static loss scale", *loss_scale),
            Self::Dynamic(dynamic) => dynamic.validate(),
        }
    }

    /// What it is after a step whose gradients were all finite, or were not.
    #[must_use]
    pub fn adjust(self, grads_finite: bool) -> Self {
        match self {
            Self::Dynamic(dynamic) => Self::Dynamic(dynamic.adjust(grads_finite)),
            constant => constant,
        }
    }
}

/// All that loss scaling holds: what checkpoints carry.
///
/// ```
/// use burn_fp8_train::policy::{DynamicLossScale, LossScaleRule, LossScaleState};
///
/// let rule = LossScaleRule::Dynamic(DynamicLossScale::default().with_period(100));
/// let state = LossScaleState { rule, skipped: 3 };
/// assert_eq!(LossScaleState::from_json(&state.to_json())?, state);
/// assert_eq!(LossScaleState::from_json(r#"{"rule": {"static": 1024}}"#)?.rule, LossScaleRule::Static(1024.0));
///
/// let error = LossScaleState::from_json(r#"{"rule": {"dynamic": {"factor": 0.5}}}"#).unwrap_err();
/// assert!(error.to_string().contains("factor = 0.5 is not a finite number greater than 1"));
/// # Ok::<(), burn_fp8::Fp8Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossScaleState {
    /// How the loss is scaled, with the scale and the counter as they are.
    pub rule: LossScaleRule,
    /// How many steps were skipped because a gradient was not finite.
    pub skipped: u64,
}

impl LossScaleState {
    /// The state as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and names always serialize")
    }

    /// Reads a state from JSON. Missing fields take their defaults.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], with line and column, for malformed JSON, unknown fields and numbers out of range.
    pub fn from_json(json: &str) -> Result<Self, Fp8Error> {
        let state = serde_json::from_str(json).map(|Object(state)| state);
        state.map_err(|error| invalid(error.to_string()))
    }
}

fn static_scale<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    // Not as f32, whose range serde_json checks in words of its own where a crate turns on its feature `float_roundtrip`.
    let rule = LossScaleRule::Static(f64::deserialize(deserializer)? as f32);
    rule.validate().map_err(D::Error::custom)?;
    Ok(rule.loss_scale())
}

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "loss scaling", reason }
}

/// Checks a scale. One that is not normal would be taken for 0 by some devices, and so would gradients.
fn scale(name: &str, scale: f32) -> Result<(), Fp8Error> {
    if scale.is_normal() && scale > 0.0 {
        return Ok(());
    }
    Err(invalid(format!(
        "{name} = {scale} is not a finite number of at least 2^-126; 32768 is usual"
    )))
}
