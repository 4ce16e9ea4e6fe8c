//! The same training in several precisions, from the same seeds and in the same order, and what came of it. All arms of a seed start from the same
//! weights and see the same text, so that what they have in common drops out where they are compared with the reference.

use std::fmt::Write;

use anyhow::Result;
use comfy_table::presets;
use examples_common::charts::{self, Rows};
use examples_common::{Origin, once, table, write, write_json};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

use crate::args::Compare;
use crate::child;
use crate::precision::Arm;
use crate::run::{Outcome, PROGRAM, mean};
use crate::size::Size;

/// One run of a comparison.
#[derive(Serialize, Deserialize)]
struct Run {
    /// What it computed with.
    #[serde(rename = "precision")]
    arm: Arm,
    seed: u64,
    /// The validation loss after its last epoch.
    final_loss: f64,
    /// What it came to.
    outcome: Outcome,
}

impl Run {
    fn new(arm: Arm, seed: u64, outcome: Outcome) -> Self {
        Self { arm, seed, final_loss: outcome.final_loss(), outcome }
    }
}

/// Something that a comparison must show.
#[derive(Serialize, Deserialize)]
struct Goal {
    /// In words.
    what: String,
    /// The number in those words.
    limit: f64,
    /// The number that was measured.
    value: f64,
    /// Whether that is good enough.
    reached: bool,
}

/// The mean final validation loss of an arm.
#[derive(Serialize, Deserialize)]
struct Mean {
    #[serde(rename = "precision")]
    arm: Arm,
    /// In nats a character.
    final_loss: f64,
    /// Its difference from that of the reference, as a share.
    against_f32: f64,
}

/// All runs of a comparison: `comparison.json`.
#[derive(Serialize, Deserialize)]
struct Comparison {
    /// What it was measured with.
    origin: Origin,
    /// The size of the model.
    size: Size,
    /// The validation loss of the bigram model, the same in all runs: it depends on the text alone.
    bigram_loss: f64,
    /// The means over the seeds, that of the reference first.
    means: Vec<Mean>,
    /// What it had to show; nothing at a size for tests.
    goals: Vec<Goal>,
    /// The runs, never none, that of the reference first among those of a seed.
    runs: Vec<Run>,
}

/// Trains all of them, writes `comparison.json` and `differences.svg`, and returns the table and whether a goal was missed.
pub fn compare(args: &Compare) -> Result<(String, bool)> {
    let arms = once([args.reference.into()].into_iter().chain(args.precisions.iter().copied()));
    let seeds = once(args.seeds.iter().copied());
    let plan: Vec<_> = seeds.iter().flat_map(|seed| arms.iter().map(|arm| (*arm, *seed))).collect();
    let (epochs, folder) = (args.common.epochs(), args.out.join("runs"));
    let outcomes = child::train_all(&plan, epochs, &folder, &args.common)?;
    let runs = plan.into_iter().zip(outcomes);
    let runs: Vec<_> = runs.map(|((arm, seed), outcome)| Run::new(arm, seed, outcome)).collect();
    let origin = Origin::here(PROGRAM, &["--out"]).with_backend(args.common.backend);
    let size = args.common.size;
    let comparison = Comparison::new(origin, size, goals(size, &arms, &runs), runs);
    write_json(&args.out.join("comparison.json"), &comparison)?;
    if arms.len() > 1 {
        write(&args.out.join("differences.svg"), comparison.dots()?)?;
    }
    let missed = comparison.goals.iter().any(|goal| !goal.reached);
    Ok((format!("{}\n{}\n", comparison.markdown(), args.out.display()), missed))
}

/// What the size promises, and whether it came so.
fn goals(size: Size, arms: &[Arm], runs: &[Run]) -> Vec<Goal> {
    let Some(goals) = size.goals() else { return vec![] };
    let reference = arms[0];
    let f32_loss = final_loss(runs, reference);
    let bigram = mean(runs.iter().map(|run| run.outcome.bigram_loss));
    // A NaN reaches no goal.
    let below = bigram - f32_loss;
    let mut list = vec![Goal {
        what: format!("{reference} below the bigram model, in nats a character: at least"),
        limit: goals.below_bigram,
        value: below,
        reached: below >= goals.below_bigram,
    }];
    for arm in arms.iter().filter(|arm| arm.precision.is_fp8()) {
        let difference = final_loss(runs, *arm) / f32_loss - 1.0;
        list.push(Goal {
            what: format!("{arm} against {reference}, difference of the loss: at most"),
            limit: goals.fp8_within,
            value: difference,
            reached: difference.abs() <= goals.fp8_within,
        });
    }
    list
}

/// The mean final validation loss of an arm.
fn final_loss(runs: &[Run], arm: Arm) -> f64 {
    mean(runs.iter().filter(|run| run.arm == arm).map(|run| run.final_loss))
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

fn percent(share: f64) -> String {
    format!("{:+.2}%", 100.0 * share)
}

impl Comparison {
    /// Of these runs, which may have had goals.
    fn new(origin: Origin, size: Size, goals: Vec<Goal>, runs: Vec<Run>) -> Self {
        let f32_loss = runs.first().map_or(f64::NAN, |run| final_loss(&runs, run.arm));
        let of_arm = |arm| {
            let final_loss = final_loss(&runs, arm);
            Mean { arm, final_loss, against_f32: final_loss / f32_loss - 1.0 }
        };
        let means = once(runs.iter().map(|run| run.arm)).into_iter().map(of_arm).collect();
        let bigram_loss = runs.first().map_or(f64::NAN, |run| run.outcome.bigram_loss);
        Self { origin, size, bigram_loss, means, goals, runs }
    }

    /// The runs of an arm.
    fn of_arm(&self, arm: Arm) -> impl Iterator<Item = &Run> + Clone {
        self.runs.iter().filter(move |run| run.arm == arm)
    }

    /// What the others are compared with: f32, in some order of sums.
    fn reference(&self) -> Arm {
        self.runs[0].arm
    }

    /// The final loss of a run relative to that of the reference with the same seed, less 1; none where it has no such run.
    fn difference(&self, run: &Run) -> Option<f64> {
        let reference = self.of_arm(self.reference()).find(|other| other.seed == run.seed)?;
        Some(run.final_loss / reference.final_loss - 1.0)
    }

    /// That of each seed of an arm.
    fn differences(&self, arm: Arm) -> Vec<f64> {
        self.of_arm(arm).filter_map(|run| self.difference(run)).collect()
    }

    /// The number of seeds.
    fn seeds(&self) -> usize {
        once(self.runs.iter().map(|run| run.seed)).len()
    }

    /// The table with what it needs to be read, as Markdown.
    fn markdown(&self) -> String {
        let against = format!("against {}", self.reference());
        let header = [
            "precision",
            "seed",
            "final validation loss",
            &against,
            "95% interval",
            "tokens/s",
            "peak memory, MiB",
            "FP8 share of FLOPs",
        ];
        let mut rows: Vec<_> =
            self.runs.iter().map(|run| self.row(run.arm, run.seed.to_string(), &[run])).collect();
        if self.seeds() > 1 {
            rows.extend(self.means.iter().map(|mean| {
                let runs: Vec<_> = self.of_arm(mean.arm).collect();
                self.row(mean.arm, "mean".into(), &runs)
            }));
        }
        let table = table(presets::ASCII_MARKDOWN, header, rows, &[0]);
        let mut text = format!(
            "{table}\n\nLosses are in nats a character; that of a bigram model is {:.4}. Differences are paired by seed. A token is a character. Size {}; {}.\n",
            self.bigram_loss,
            self.size.as_str(),
            self.origin
        );
        let seconds: f64 = self.runs.iter().map(|run| run.outcome.seconds).sum();
        let _ = writeln!(
            text,
            "\nThe {} runs trained for {seconds:.0} s in all, validation not counted.",
            self.runs.len()
        );
        if self.runs.iter().any(|run| run.outcome.resumed) {
            let _ = writeln!(
                text,
                "\nRuns that were resumed measured time, tokens/s and memory in their last process."
            );
        }
        let others = self.means.iter().map(|mean| mean.arm).filter(|arm| *arm != self.reference());
        for control in others.filter(|arm| arm.precision.is_f32()) {
            let _ = writeln!(
                text,
                "\nControl: `{control}` is f32 too, in another order of sums or with other elements dropped. Its difference is noise, which the others are read against."
            );
        }
        for Goal { what, limit, value, reached } in &self.goals {
            let verdict = if *reached { "reached" } else { "MISSED" };
            let _ = writeln!(text, "\nGoal {verdict}: {what} {limit}; it is {value:.4}.");
        }
        text
    }

    /// A row of one run, or of the means of several.
    fn row(&self, arm: Arm, seed: String, runs: &[&Run]) -> [String; 8] {
        let over =
            |number: &dyn Fn(&Outcome) -> f64| mean(runs.iter().map(|run| number(&run.outcome)));
        let whole =
            |number: f64| if number.is_nan() { "–".into() } else { format!("{number:.0}") };
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let of_seeds: Vec<_> = runs.iter().filter_map(|run| self.difference(run)).collect();
        let interval =
            interval(&of_seeds).map(|(low, high)| format!("{} … {}", percent(low), percent(high)));
        let [difference, interval] = match arm == self.reference() {
            true => ["–".into(), "–".into()],
            false => [percent(mean(of_seeds)), interval.unwrap_or("–".into())],
        };
        [
            arm.to_string(),
            seed,
            format!("{:.4}", mean(runs.iter().map(|run| run.final_loss))),
            difference,
            interval,
            whole(over(&|outcome| outcome.tokens_per_second.unwrap_or(f64::NAN))),
            whole(over(&|outcome| outcome.peak_memory.map_or(f64::NAN, mebibytes))),
            format!("{:.1}%", 100.0 * over(&|outcome| outcome.fp8_share)),
        ]
    }

    /// A row for each arm but the reference, the smallest mean at the top: a dot for each seed, and the mean with its 95% interval. As SVG.
    fn dots(&self) -> Result<String> {
        let others = self.means.iter().filter(|mean| mean.arm != self.reference());
        let in_percent =
            |arm| self.differences(arm).into_iter().map(|share| 100.0 * share).collect::<Vec<_>>();
        let mut arms: Vec<_> = others.map(|other| (other.arm, in_percent(other.arm))).collect();
        let middle = |of_seeds: &[f64]| mean(of_seeds.iter().copied());
        // An arm of which a run diverged has no place in the picture.
        arms.retain(|(_, of_seeds)| middle(of_seeds).is_finite());
        arms.sort_by(|(_, a), (_, b)| middle(a).total_cmp(&middle(b)));
        let ends = arms.iter().flat_map(|(_, of_seeds)| {
            let (low, high) = interval(of_seeds).unwrap_or((0.0, 0.0));
            of_seeds.iter().copied().chain([low, high])
        });
        let (low, high) = charts::range((0.0, 0.1), ends);
        let margin = (high - low) * 0.04;
        let names: Vec<_> = arms.iter().map(|(arm, _)| arm.to_string()).collect();
        let rows = Rows {
            title: format!(
                "Final validation loss against {}, size {}",
                self.reference(),
                self.size.as_str()
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
            for (index, (_, of_seeds)) in arms.iter().enumerate() {
                let row = rows.middle(index);
                let line = |ends| PathElement::new(ends, charts::VERMILION.stroke_width(3));
                if let Some((low, high)) = interval(of_seeds) {
                    chart.draw_series([line([(low, row), (high, row)])])?;
                }
                let mean = middle(of_seeds);
                chart.draw_series([line([(mean, row - 0.28), (mean, row + 0.28)])])?;
                let dot = |share: &f64| Circle::new((*share, row), 4, charts::SKY_BLUE.filled());
                chart.draw_series(of_seeds.iter().map(dot))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use examples_common::testing::Results;

    use super::*;

    /// The comparisons that are committed.
    const FOLDERS: [&str; 13] = [
        "",
        "recipes/",
        "recipes-best/",
        "confirmed/",
        "longer/",
        "longer-more/",
        "noise/",
        "seeds/",
        "seeds-more/",
        "seeds-bf16/",
        "medium/",
        "sums/",
        "saved/",
    ];

    fn committed(folder: &str) -> Comparison {
        let results = Results::of(env!("CARGO_MANIFEST_DIR"));
        results.json(&format!("{folder}comparison.json"))
    }

    fn run(precision: &str, valid_loss: f64) -> Run {
        let arm = precision.parse().expect("a precision");
        Run::new(arm, 1, Outcome::made_up(2.5, &[valid_loss]))
    }

    #[test]
    fn goals_are_of_the_mean() {
        let reached = |f32_losses: [f64; 2], fp8_losses: [f64; 2]| -> Vec<bool> {
            let f32_runs = f32_losses.map(|loss| run("f32", loss));
            let fp8_runs = fp8_losses.map(|loss| run("m=fp8_delayed", loss));
            let arms = ["f32", "m=fp8_delayed"].map(|name| name.parse().expect("a precision"));
            let runs: Vec<_> = f32_runs.into_iter().chain(fp8_runs).collect();
            goals(Size::Tiny, &arms, &runs).iter().map(|goal| goal.reached).collect()
        };
        let limit = 2.5 - Size::Tiny.goals().expect("goals").below_bigram;
        let (above, below) = ([limit - 0.1, limit + 0.11], [limit - 0.1, limit + 0.09]);
        for (f32_losses, fp8_losses, expected) in [
            (above, above, [false, true]),
            (below, below, [true, true]),
            ([1.0, 1.0], [1.0, 1.019], [true, true]),
            ([1.0, 1.0], [1.0, 1.021], [true, false]),
            // So much better is no agreement.
            ([1.0, 1.0], [0.97, 0.97], [true, false]),
            ([1.0, 1.0], [f64::NAN, 1.0], [true, false]),
            ([f64::NAN, 1.0], [1.0, 1.0], [false, false]),
        ] {
            assert_eq!(reached(f32_losses, fp8_losses), expected, "{f32_losses:?} {fp8_losses:?}");
        }
        let f32 = run("f32", 1.0);
        assert!(goals(Size::Smoke, &[f32.arm], &[f32]).is_empty());
    }

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
        let runs = [("a=high", 2.0), ("f32", 2.2), ("m=fp8", 2.1)];
        let runs = runs.map(|(precision, loss)| run(precision, loss));
        let origin = Origin::here("char-lm", &[]);
        let comparison = Comparison::new(origin, Size::Tiny, vec![], runs.into());
        let text = comparison.markdown();
        let row = |name: &str| text.lines().find(|line| line.contains(name)).expect("a row");
        assert!(text.contains("against a=high") && text.contains("Control: `f32`"), "{text}");
        assert!(row("| m=fp8 ").contains("+5.00%") && row("| f32 ").contains("+10.00%"), "{text}");
    }

    #[test]
    fn times_of_all_runs_are_added() {
        let mut comparison = committed("");
        comparison.runs.truncate(2);
        for (run, seconds) in comparison.runs.iter_mut().zip([30.25, 12.5]) {
            run.outcome.seconds = seconds;
        }
        assert!(comparison.markdown().contains("The 2 runs trained for 43 s in all"));
        assert!(!comparison.markdown().contains("resumed"));
        comparison.runs[1].outcome.resumed = true;
        assert!(comparison.markdown().contains("resumed measured time, tokens/s and memory"));
    }

    #[test]
    fn the_picture_is_of_the_committed_numbers() {
        let results = Results::of(env!("CARGO_MANIFEST_DIR"));
        let name = "recipes-best/";
        let svg = committed(name).dots().expect("drawn");
        results.check(&format!("{name}differences.svg"), &svg);
    }

    /// Means and the loss of the bigram model stand in the files, and so do final losses: they are those of the runs.
    #[test]
    fn what_is_committed_is_computed_from_the_committed_runs() {
        for folder in FOLDERS {
            let Comparison { origin, size, bigram_loss, means, goals, runs } = committed(folder);
            let again = Comparison::new(origin, size, goals, runs);
            assert_eq!(again.bigram_loss, bigram_loss);
            for (again, mean) in again.means.iter().zip(&means) {
                assert_eq!((again.arm, again.final_loss), (mean.arm, mean.final_loss), "{folder}");
                assert_eq!(again.against_f32, mean.against_f32, "{folder}");
            }
            assert_eq!(again.means.len(), means.len());
            let is_last = |run: &Run| run.final_loss == run.outcome.final_loss();
            assert!(again.runs.iter().all(is_last), "{folder}");
        }
    }
}
