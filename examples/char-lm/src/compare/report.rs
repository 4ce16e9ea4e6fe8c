//! A comparison as a table and as JSON.

use std::fmt::Write;

use comfy_table::presets;
use examples_common::{Origin, once, table};
use serde::{Deserialize, Serialize};

use crate::arm::Arm;
use crate::run::{Outcome, mean};
use crate::size::Size;

/// One run of a comparison.
#[derive(Serialize, Deserialize)]
pub struct Run {
    /// What it computed with.
    #[serde(rename = "precision")]
    pub arm: Arm,
    pub seed: u64,
    /// The validation loss after its last epoch.
    pub final_loss: f64,
    /// What it came to.
    pub outcome: Outcome,
}

impl Run {
    /// A run that came to this.
    pub fn new(arm: Arm, seed: u64, outcome: Outcome) -> Self {
        Self { arm, seed, final_loss: outcome.final_loss(), outcome }
    }
}

/// Something that a comparison must show.
#[derive(Serialize, Deserialize)]
pub struct Goal {
    /// In words.
    pub what: String,
    /// The number in those words.
    pub limit: f64,
    /// The number that was measured.
    pub value: f64,
    /// Whether that is good enough.
    pub reached: bool,
}

/// The mean final validation loss of an arm.
#[derive(Serialize, Deserialize)]
pub struct Mean {
    #[serde(rename = "precision")]
    pub arm: Arm,
    /// In nats a character.
    pub final_loss: f64,
    /// Its difference from that of the reference, as a share.
    pub against_f32: f64,
}

/// All runs of a comparison: `comparison.json`.
#[derive(Serialize, Deserialize)]
pub struct Comparison {
    /// What it was measured with.
    pub origin: Origin,
    /// The size of the model.
    pub size: Size,
    /// The validation loss of the bigram model, the same in all runs: it depends on the text alone.
    pub bigram_loss: f64,
    /// The means over the seeds, that of the reference first.
    pub means: Vec<Mean>,
    /// What it had to show; nothing at a size for tests.
    pub goals: Vec<Goal>,
    /// The runs, never none, that of the reference first among those of a seed.
    pub runs: Vec<Run>,
}

/// The mean final validation loss of an arm.
pub fn final_loss(runs: &[Run], arm: Arm) -> f64 {
    mean(runs.iter().filter(|run| run.arm == arm).map(|run| run.final_loss))
}

impl Comparison {
    /// Of these runs, which may have had goals.
    pub fn new(origin: Origin, size: Size, goals: Vec<Goal>, runs: Vec<Run>) -> Self {
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
    pub fn of_arm(&self, arm: Arm) -> impl Iterator<Item = &Run> + Clone {
        self.runs.iter().filter(move |run| run.arm == arm)
    }

    /// What the others are compared with: f32, in some order of sums.
    pub fn reference(&self) -> Arm {
        self.runs[0].arm
    }

    /// This loss of a run relative to that of the reference with the same seed, less 1; none where it has no such run.
    pub fn against_f32(&self, run: &Run, loss: impl Fn(&Run) -> f64) -> Option<f64> {
        let reference = self.of_arm(self.reference()).find(|other| other.seed == run.seed)?;
        Some(loss(run) / loss(reference) - 1.0)
    }

    /// The number of seeds.
    pub fn seeds(&self) -> usize {
        once(self.runs.iter().map(|run| run.seed)).len()
    }

    /// The table with what it needs to be read, as Markdown.
    pub fn markdown(&self) -> String {
        let reference = self.reference();
        let against = format!("against {reference}");
        let header = [
            "precision",
            "seed",
            "final validation loss",
            &against,
            "tokens/s",
            "peak memory, MiB",
            "FP8 share of FLOPs",
        ];
        let mut rows: Vec<_> = self
            .runs
            .iter()
            .map(|run| {
                let against_f32 = self.against_f32(run, |run| run.final_loss).unwrap_or(f64::NAN);
                let mean = Mean { arm: run.arm, final_loss: run.final_loss, against_f32 };
                row((&mean, reference), run.seed.to_string(), [run])
            })
            .collect();
        if self.seeds() > 1 {
            let of_arm = |mean: &Mean| row((mean, reference), "mean".into(), self.of_arm(mean.arm));
            rows.extend(self.means.iter().map(of_arm));
        }
        let table = table(presets::ASCII_MARKDOWN, header, rows, &[0]);
        let mut text = format!(
            "{table}\n\nLosses are in nats a character; that of a bigram model is {:.4}. A token is a character. Size {}; {}.\n",
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
        for Goal { what, limit, value, reached } in &self.goals {
            let verdict = if *reached { "reached" } else { "MISSED" };
            let _ = writeln!(text, "\nGoal {verdict}: {what} {limit}; it is {value:.4}.");
        }
        text
    }
}

/// A row of one run, or of the means of several.
fn row<'a>(
    (mean_loss, reference): (&Mean, Arm),
    seed: String,
    runs: impl IntoIterator<Item = &'a Run> + Clone,
) -> [String; 7] {
    let Mean { arm, final_loss, against_f32 } = mean_loss;
    let over = |number: &dyn Fn(&Outcome) -> f64| {
        mean(runs.clone().into_iter().map(|run| number(&run.outcome)))
    };
    let whole = |number: f64| if number.is_nan() { "–".into() } else { format!("{number:.0}") };
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    [
        arm.to_string(),
        seed,
        format!("{final_loss:.4}"),
        if *arm == reference { "–".into() } else { format!("{:+.2}%", 100.0 * against_f32) },
        whole(over(&|outcome| outcome.tokens_per_second.unwrap_or(f64::NAN))),
        whole(over(&|outcome| outcome.peak_memory.map_or(f64::NAN, mebibytes))),
        format!("{:.1}%", 100.0 * over(&|outcome| outcome.fp8_share)),
    ]
}

#[cfg(test)]
mod tests {
    use examples_common::testing::Results;

    use super::*;
    use crate::compare::{differences, plot};

    /// The comparisons that have folders of their own in `results`.
    const FOLDERS: [&str; 10] = [
        "recipes",
        "recipes-best",
        "confirmed",
        "longer",
        "longer-more",
        "noise",
        "seeds",
        "seeds-more",
        "seeds-bf16",
        "medium",
    ];

    fn results() -> Results {
        Results::of(env!("CARGO_MANIFEST_DIR"))
    }

    /// The comparison in `results`, or in a folder there.
    fn committed(folder: &str) -> Comparison {
        results().json(&format!("{folder}comparison.json"))
    }

    #[test]
    fn what_is_committed_is_drawn_from_the_committed_numbers() {
        let comparison = committed("");
        results().check("table.md", &comparison.markdown());
        results().check("loss.svg", &plot::loss(&comparison).expect("drawn"));
        for folder in FOLDERS {
            let comparison = committed(&format!("{folder}/"));
            let check = |name: &str, text: &str| results().check(&format!("{folder}/{name}"), text);
            check("table.md", &comparison.markdown());
            check("loss.svg", &plot::loss(&comparison).expect("drawn"));
            check("differences.md", &differences::markdown(&comparison));
            check("differences.svg", &differences::dots(&comparison).expect("drawn"));
        }
    }

    /// Means and the loss of the bigram model are read from the file by the tables: they are those of the runs.
    #[test]
    fn what_is_committed_is_computed_from_the_committed_runs() {
        for folder in FOLDERS.map(|folder| format!("{folder}/")).iter().chain([&String::new()]) {
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
}
