//! What the observatory sees, as metrics of Burn's `Learner`.

use std::sync::Arc;

use burn::train::metric::Metric;
use burn::train::metric::MetricAttributes;
use burn::train::metric::MetricMetadata;
use burn::train::metric::MetricName;
use burn::train::metric::Numeric;
use burn::train::metric::NumericAttributes;
use burn::train::metric::NumericEntry;
use burn::train::metric::SerializedEntry;
use burn::train::metric::state::FormatOptions;
use burn::train::metric::state::NumericMetricState;
use burn_fp8_report::Summary;

use super::Observatory;

/// What a [`Fp8Metric`] shows of the last sampled step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statistic {
    /// The lowest SQNR of a product, in dB.
    WorstSqnr,
    /// The mean SQNR of the products that are not exact, in dB.
    MeanSqnr,
    /// The share of the operands' elements that were flushed to zero, in percent.
    Flushed,
    /// The share that saturated, in percent.
    Saturated,
    /// The share that is infinite or NaN, in percent.
    NonFinite,
}

impl Statistic {
    /// Its name, its unit, and what it is, NaN where there is nothing to tell.
    fn row(self) -> (&'static str, &'static str, fn(Summary) -> f64) {
        match self {
            Self::WorstSqnr => ("FP8 worst SQNR", "dB", |of| of.worst_sqnr.unwrap_or(f64::NAN)),
            Self::MeanSqnr => ("FP8 mean SQNR", "dB", |of| of.mean_sqnr.unwrap_or(f64::NAN)),
            Self::Flushed => ("FP8 flushed to zero", "%", |of| 100.0 * of.flushed),
            Self::Saturated => ("FP8 saturated", "%", |of| 100.0 * of.saturated),
            Self::NonFinite => ("FP8 not finite", "%", |of| 100.0 * of.non_finite),
        }
    }
}

/// A number of the last sampled step, as a metric of Burn's `Learner`, whatever the model's output is:
/// `.metric_train_numeric(Fp8Metric::new(observatory.clone(), Statistic::WorstSqnr))`.
///
/// Between samples it shows the last one, also where an epoch begins. [`running_value`](Numeric::running_value) is the mean of the samples
/// shown in an epoch, each counted once; the mean that Burn's loggers form of what they are given weighs each by the steps that it was shown.
/// NaN before the first sample; what has no number, since there is no signal, is left out of the mean. Burn updates metrics on a thread of
/// their own: a value may be that of a step sampled meanwhile.
///
/// # The step is the model's to tell
/// The `Learner` does not know of the observatory: `TrainStep::step` of the model has to run in [`Observatory::step`]. Where it does not, the metric says so in the
/// place of its value, and at the end of the first epoch on standard error and in [`Observatory::failure`].
#[derive(Clone)]
pub struct Fp8Metric {
    observatory: Observatory,
    statistic: Statistic,
    name: MetricName,
    state: NumericMetricState,
    /// The step that was counted last, and how it was shown.
    shown: Option<(u64, SerializedEntry)>,
    /// Whether it had to be shown before there was a sample, and that was not told yet.
    starves: bool,
}

impl Fp8Metric {
    /// Shows a number of what the observatory sees.
    pub fn new(observatory: Observatory, statistic: Statistic) -> Self {
        let name = Arc::new(statistic.row().0.to_owned());
        Self {
            observatory,
            statistic,
            name,
            state: NumericMetricState::new(),
            shown: None,
            starves: false,
        }
    }

    /// Why there is no sample.
    fn nothing(&self) -> &'static str {
        match self.observatory.has_begun() {
            true => "the sampled steps had no product in FP8 that the observatory sees",
            false => {
                "no step was observed: run the body of `TrainStep::step` in `Observatory::step`"
            }
        }
    }
}

impl Metric for Fp8Metric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        let (name, unit, _) = self.statistic.row();
        Some(format!("{name} in the last sampled step, in {unit}"))
    }

    fn attributes(&self) -> MetricAttributes {
        let (_, unit, _) = self.statistic.row();
        NumericAttributes { unit: Some(unit.into()), higher_is_better: unit == "dB" }.into()
    }

    fn update(&mut self, _: &(), _: &MetricMetadata) -> SerializedEntry {
        let Some(summary) = self.observatory.summary() else {
            self.starves = true;
            return SerializedEntry::new(self.nothing().into(), f64::NAN.to_string());
        };
        match &self.shown {
            Some((step, entry)) if *step == summary.step => entry.clone(),
            _ => {
                let format = FormatOptions::new(self.name.clone());
                let (_, unit, of) = self.statistic.row();
                let (format, value) = (format.unit(unit).precision(2), of(summary));
                let entry = match value.is_finite() {
                    true => self.state.update(value, 1, format),
                    false => SerializedEntry::new("no signal".into(), f64::NAN.to_string()),
                };
                self.shown = Some((summary.step, entry.clone()));
                entry
            }
        }
    }

    /// An epoch has ended.
    fn clear(&mut self) {
        self.state.reset();
        self.shown = None;
        if self.starves && self.observatory.summary().is_none() {
            let warning = format!("the metrics of the observatory are NaN: {}", self.nothing());
            self.observatory.fail(&warning);
            eprintln!("warning: {warning}");
        }
        self.starves = false;
    }
}

impl Numeric for Fp8Metric {
    fn value(&self) -> NumericEntry {
        self.state.current_value()
    }

    fn running_value(&self) -> NumericEntry {
        self.state.running_value()
    }
}
