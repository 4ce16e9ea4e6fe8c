//! How far from f32, the reference, each arm ends, paired by seed: two runs of a seed start from the same weights and see the same text, so that what all arms
//! of a seed have in common drops out.

use std::fmt::Write;

use anyhow::Result;
use comfy_table::presets;
use examples_common::charts::{self, Rows};
use examples_common::table;
use plotters::prelude::*;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

use super::report::{Comparison, Mean, Run};
use crate::arm::Arm;
use crate::run::mean;

/// The relative differences of an arm's validation loss from that of the reference.
pub struct Differences {
    pub arm: Arm,
    /// Of the final losses: of each seed that the reference has, too, as a share; NaN where one of both diverged.
    pub of_seeds: Vec<f64>,
    /// The same of the means over the last quarter of the epochs, where the learning rate is small: a validation more or less changes them less.
    pub of_last_quarter: Vec<f64>,
    /// The mean final loss of the arm, in nats a character.
    pub final_loss: f64,
    /// The share of matrix FLOPs in FP8.
    pub fp8_share: f64,
}

impl Differences {
    /// Of each arm but the reference, the smallest mean first.
    fn all(comparison: &Comparison) -> Vec<Self> {
        let means = comparison.means.iter().filter(|mean| mean.arm != comparison.reference());
        let mut all: Vec<_> = means
            .map(|&Mean { arm, final_loss, .. }| {
                let runs = comparison.of_arm(arm);
                let against_f32 = |loss: fn(&Run) -> f64| {
                    runs.clone().filter_map(|run| comparison.against_f32(run, loss)).collect()
                };
                let of_seeds = against_f32(|run| run.final_loss);
                let of_last_quarter = against_f32(|run| run.outcome.last_quarter());
                let fp8_share = mean(runs.map(|run| run.outcome.fp8_share));
                Self { arm, of_seeds, of_last_quarter, final_loss, fp8_share }
            })
            .collect();
        all.sort_by(|a, b| a.mean().total_cmp(&b.mean()));
        all
    }

    /// The mean over the seeds.
    pub fn mean(&self) -> f64 {
        mean(self.of_seeds.iter().copied())
    }

    /// The 95% confidence interval of the mean.
    pub fn interval(&self) -> Option<(f64, f64)> {
        interval(&self.of_seeds)
    }

    /// Whether it computes what f32 computes, in another order or with other elements dropped: its differences are noise.
    fn is_control(&self) -> bool {
        self.arm.precision.is_f32()
    }
}

/// The 95% confidence interval of the mean, by Student's t; none of fewer than two seeds, or where one diverged.
fn interval(of_seeds: &[f64]) -> Option<(f64, f64)> {
    let count = of_seeds.len() as f64;
    let middle = mean(of_seeds.iter().copied());
    if count < 2.0 || !middle.is_finite() {
        return None;
    }
    let standard_error = of_seeds.iter().std_dev() / count.sqrt();
    let half = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975) * standard_error;
    Some((middle - half, middle + half))
}

/// The mean and its interval, as shares.
fn with_interval(of_seeds: &[f64]) -> [String; 2] {
    let interval = match interval(of_seeds) {
        Some((low, high)) => format!("{} … {}", percent(low), percent(high)),
        None => "–".into(),
    };
    [percent(mean(of_seeds.iter().copied())), interval]
}

/// The differences as a table with what it needs to be read, as Markdown, the smallest mean first.
pub fn markdown(comparison: &Comparison) -> String {
    let reference = comparison.reference();
    let against = format!("against {reference}");
    let last_quarter = format!("last quarter {against}");
    let header = [
        "precision",
        "seeds",
        "final validation loss",
        &against,
        "95% interval",
        &last_quarter,
        "95% interval",
        "FP8 share of FLOPs",
    ];
    let all = Differences::all(comparison);
    let rows = all.iter().map(|differences| {
        let [last, last_interval] = with_interval(&differences.of_seeds);
        let [quarter, quarter_interval] = with_interval(&differences.of_last_quarter);
        [
            differences.arm.to_string(),
            differences.of_seeds.len().to_string(),
            format!("{:.4}", differences.final_loss),
            last,
            last_interval,
            quarter,
            quarter_interval,
            format!("{:.1}%", 100.0 * differences.fp8_share),
        ]
    });
    let mut text = format!(
        "{}\n\nThe final validation loss of each precision, mean over the seeds, in nats a character, and its difference from that of {reference} ({:.4}), paired by seed. \
         The last quarter is the mean validation loss of the last quarter of the epochs. Size {}; {}.\n",
        table(presets::ASCII_MARKDOWN, header, rows, &[0]),
        super::final_loss(&comparison.runs, reference),
        comparison.size.as_str(),
        comparison.origin
    );
    let controls = all.iter().filter(|differences| differences.is_control());
    let controls: Vec<_> = controls.map(|differences| format!("`{}`", differences.arm)).collect();
    if !controls.is_empty() {
        let _ = writeln!(
            text,
            "\nControl: {}. How far f32 ends from f32 is noise, which the other differences are read against. `f32-joined` adds in another order; `f32-fused` \
             also drops other elements.",
            controls.join(" and ")
        );
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:+.2}%", 100.0 * share)
}

/// A row for each arm but the reference, the smallest mean at the top: a dot for each seed, and the mean with its 95% interval. As SVG.
pub fn dots(comparison: &Comparison) -> Result<String> {
    // An arm of which a run diverged has no place in the picture.
    let mut arms = Differences::all(comparison);
    arms.retain(|arm| arm.mean().is_finite());
    let interval =
        |arm: &Differences| arm.interval().map(|(low, high)| (100.0 * low, 100.0 * high));
    let ends = arms.iter().flat_map(|arm| {
        let (low, high) = interval(arm).unwrap_or((0.0, 0.0));
        arm.of_seeds.iter().map(|share| 100.0 * share).chain([low, high])
    });
    let (low, high) = charts::range((0.0, 0.1), ends);
    let margin = (high - low) * 0.04;
    let names: Vec<_> = arms.iter().map(|arm| arm.arm.to_string()).collect();
    let rows = Rows {
        title: format!(
            "Final validation loss against {}, size {}",
            comparison.reference(),
            comparison.size.as_str()
        ),
        name_width: names.iter().map(|name| 7 * name.len() as u32).fold(230, u32::max),
        names,
        height: 34,
        range: low - margin..high + margin,
        axis: "← better, worse →, in %: a dot for each seed, the mean with its 95% interval",
        // As many digits as tell one line of the grid from the next.
        number: match high - low < 0.6 {
            true => |percent| match percent.abs() < 0.005 {
                true => "0".into(),
                false => format!("{percent:+.2}"),
            },
            false => |percent| match percent.abs() < 0.05 {
                true => "0".into(),
                false => format!("{percent:+.1}"),
            },
        },
    };
    rows.svg("the differences", |chart| {
        rows.zero(chart)?;
        for (index, arm) in arms.iter().enumerate() {
            let middle = rows.middle(index);
            let line = |ends| PathElement::new(ends, charts::VERMILION.stroke_width(3));
            if let Some((low, high)) = interval(arm) {
                chart.draw_series([line([(low, middle), (high, middle)])])?;
            }
            let mean = 100.0 * arm.mean();
            chart.draw_series([line([(mean, middle - 0.28), (mean, middle + 0.28)])])?;
            let places = arm.of_seeds.iter().map(|share| (100.0 * share, middle));
            let dot = |place| Circle::new(place, 4, charts::SKY_BLUE.filled());
            chart.draw_series(places.map(dot))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use examples_common::Origin;

    use super::*;
    use crate::precision::Precision;
    use crate::run::Outcome;
    use crate::size::Size;

    /// By a table of Student's t: 12.7062 of 1 degree of freedom, 2.3646 of 7, at 97.5%.
    #[test]
    fn intervals_are_of_students_t() {
        let is_near = |(low, high): (f64, f64), middle: f64, half: f64| {
            (low - (middle - half)).abs() < 1e-4 && (high - (middle + half)).abs() < 1e-4
        };
        // Two seeds: the standard error is half of their distance.
        assert!(is_near(interval(&[0.01, 0.03]).expect("an interval"), 0.02, 12.7062 * 0.01));
        // 1 to 8: standard deviation √6, standard error √(6/8).
        let eight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        assert!(is_near(interval(&eight).expect("an interval"), 4.5, 2.364624 * 0.75f64.sqrt()));
        assert_eq!(interval(&[0.01]), None);
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[0.01, f64::NAN]), None);
    }

    /// The first of the runs is what the others are compared with.
    #[test]
    fn differences_are_from_the_reference() {
        let losses =
            [(Precision::F32Fused, 2.0), (Precision::F32, 2.2), (Precision::FP8_CURRENT, 2.1)];
        let runs = losses
            .map(|(precision, loss)| Run::new(precision.into(), 1, Outcome::made_up(2.5, &[loss])));
        let origin = Origin::here("char-lm", &[]);
        let comparison = Comparison::new(origin, Size::Tiny, vec![], runs.into());
        let text = markdown(&comparison);
        assert!(text.contains("against f32-fused"), "{text}");
        let row = |name: &str| text.lines().find(|line| line.contains(name)).expect("a row");
        assert!(
            row("| fp8-current ").contains("+5.00%") && row("| f32 ").contains("+10.00%"),
            "{text}"
        );
        assert!(!text.contains("| f32-fused "), "{text}");
    }
}
