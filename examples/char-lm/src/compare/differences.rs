//! How far from f32 each arm ends, paired by seed: two runs of a seed start from the same weights and see the same text, so that what all arms
//! of a seed have in common drops out.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::report::{Comparison, Run};
use crate::arm::Arm;
use crate::child::mean;

/// The relative differences of an arm's final validation loss from that of f32.
pub struct Differences {
    /// The arm.
    pub arm: Arm,
    /// Of each seed that f32 has, too, as a share; NaN where one of both diverged.
    pub of_seeds: Vec<f64>,
    /// The mean final loss of the arm, in nats a character.
    pub final_loss: f64,
    /// The share of matrix FLOPs in FP8.
    pub fp8_share: f64,
}

impl Differences {
    /// Of each arm but f32, in their order.
    pub fn all(comparison: &Comparison) -> Vec<Self> {
        comparison
            .arms()
            .into_iter()
            .filter(|arm| *arm != Arm::F32)
            .map(|arm| Self::of(arm, &comparison.runs))
            .collect()
    }

    fn of(arm: Arm, runs: &[Run]) -> Self {
        let of_arm = || runs.iter().filter(|run| run.arm == arm);
        let of_seeds = of_arm().filter_map(|run| {
            let f32_run =
                runs.iter().find(|other| other.arm == Arm::F32 && other.seed == run.seed)?;
            Some(run.outcome.final_loss() / f32_run.outcome.final_loss() - 1.0)
        });
        Self {
            arm,
            of_seeds: of_seeds.collect(),
            final_loss: mean(of_arm().map(|run| run.outcome.final_loss())),
            fp8_share: mean(of_arm().map(|run| run.outcome.fp8_share)),
        }
    }

    /// The mean over the seeds.
    pub fn mean(&self) -> f64 {
        mean(self.of_seeds.iter().copied())
    }

    /// The 95% confidence interval of the mean, by Student's t; none of fewer than two seeds, or where one diverged.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let count = self.of_seeds.len() as f64;
        let middle = self.mean();
        if count < 2.0 || !middle.is_finite() {
            return None;
        }
        let squares = self.of_seeds.iter().map(|difference| (difference - middle).powi(2));
        let standard_error = (squares.sum::<f64>() / (count - 1.0) / count).sqrt();
        let half = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975) * standard_error;
        Some((middle - half, middle + half))
    }
}

/// The differences as a table with what it needs to be read, as Markdown, the smallest mean first.
pub fn markdown(comparison: &Comparison) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "precision",
        "seeds",
        "final validation loss",
        "against f32",
        "95% interval",
        "FP8 share of FLOPs",
    ]);
    let mut all = Differences::all(comparison);
    all.sort_by(|a, b| a.mean().total_cmp(&b.mean()));
    for differences in all {
        table.add_row([
            differences.arm.to_string(),
            differences.of_seeds.len().to_string(),
            format!("{:.4}", differences.final_loss),
            percent(differences.mean()),
            match differences.interval() {
                Some((low, high)) => format!("{} … {}", percent(low), percent(high)),
                None => "–".into(),
            },
            format!("{:.1}%", 100.0 * differences.fp8_share),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n\n");
    let f32_loss = super::final_loss(&comparison.runs, Arm::F32);
    let _ = writeln!(
        text,
        "The final validation loss of each precision, mean over the seeds, in nats a character, and its difference from that of f32 ({f32_loss:.4}), paired by seed. \
         Size {}; {}.",
        comparison.size.as_str(),
        comparison.origin
    );
    text
}

fn percent(share: f64) -> String {
    format!("{:+.2}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(of_seeds: &[f64]) -> Differences {
        Differences { arm: Arm::F32, of_seeds: of_seeds.to_vec(), final_loss: 1.0, fp8_share: 0.9 }
    }

    /// By a table of Student's t: 12.7062 of 1 degree of freedom, 2.3646 of 7, at 97.5%.
    #[test]
    fn intervals_are_of_students_t() {
        let interval = |of_seeds: &[f64]| differences(of_seeds).interval();
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
}
