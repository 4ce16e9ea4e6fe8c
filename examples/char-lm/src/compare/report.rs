//! A comparison as a table and as JSON.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use examples_common::{Origin, once};
use serde_json::{Value, json};

use crate::arm::Arm;
use crate::child::mean;
use crate::run::Outcome;
use crate::size::Size;

/// One run of a comparison.
pub struct Run {
    /// What it computed with.
    pub arm: Arm,
    /// Its seed.
    pub seed: u64,
    /// What it came to.
    pub outcome: Outcome,
}

/// Something that a comparison must show.
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

/// All runs of a comparison.
pub struct Comparison {
    /// What it was measured with.
    pub origin: Origin,
    /// The size of the model.
    pub size: Size,
    /// What it had to show; nothing at a size for tests.
    pub goals: Vec<Goal>,
    /// The runs, never none, f32 first among those of a seed.
    pub runs: Vec<Run>,
}

/// The mean final validation loss of an arm.
pub fn final_loss(runs: &[Run], arm: Arm) -> f64 {
    let of_arm = runs.iter().filter(|run| run.arm == arm);
    mean(of_arm.map(|run| run.outcome.final_loss()))
}

impl Comparison {
    /// The arms, in their order.
    pub fn arms(&self) -> Vec<Arm> {
        once(self.runs.iter().map(|run| run.arm))
    }

    /// The number of seeds.
    pub fn seeds(&self) -> usize {
        once(self.runs.iter().map(|run| run.seed)).len()
    }

    /// The validation loss of the bigram model, the same in all runs: it depends on the text alone.
    pub fn bigram_loss(&self) -> f64 {
        self.runs.first().map_or(f64::NAN, |run| run.outcome.bigram_loss)
    }

    /// The mean final loss of this precision and its difference from that of f32, as a share.
    fn mean_loss(&self, arm: Arm) -> (f64, f64) {
        let loss = final_loss(&self.runs, arm);
        (loss, loss / final_loss(&self.runs, Arm::F32) - 1.0)
    }

    /// The table with what it needs to be read, as Markdown.
    pub fn markdown(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header([
            "precision",
            "seed",
            "final validation loss",
            "against f32",
            "tokens/s",
            "peak memory, MiB",
            "FP8 share of FLOPs",
        ]);
        for run in &self.runs {
            let f32_run =
                self.runs.iter().find(|other| other.seed == run.seed && other.arm == Arm::F32);
            let reference = f32_run.map_or(f64::NAN, |run| run.outcome.final_loss());
            table.add_row(row(
                run.arm,
                run.seed.to_string(),
                run.outcome.final_loss(),
                run.outcome.final_loss() / reference - 1.0,
                [&run.outcome],
            ));
        }
        if self.seeds() > 1 {
            for arm in self.arms() {
                let (loss, difference) = self.mean_loss(arm);
                let outcomes = self.runs.iter().filter(|run| run.arm == arm);
                let outcomes = outcomes.map(|run| &run.outcome);
                table.add_row(row(arm, "mean".into(), loss, difference, outcomes));
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!(
            "{table}\n\nLosses are in nats a character; that of a bigram model is {:.4}",
            self.bigram_loss()
        );
        let _ = writeln!(
            text,
            ". A token is a character. Size {}; {}.",
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

    /// All numbers.
    pub fn json(&self) -> Value {
        let runs = self.runs.iter().map(|run| {
            json!({
                "precision": run.arm.to_string(),
                "seed": run.seed,
                "final_loss": run.outcome.final_loss(),
                "outcome": run.outcome,
            })
        });
        let means = self.arms().into_iter().map(|arm| {
            let (loss, difference) = self.mean_loss(arm);
            json!({ "precision": arm.to_string(), "final_loss": loss, "against_f32": difference })
        });
        let goals = self.goals.iter().map(|goal| {
            json!({ "what": goal.what, "limit": goal.limit, "value": goal.value, "reached": goal.reached })
        });
        json!({
            "origin": self.origin,
            "size": self.size.as_str(),
            "bigram_loss": self.bigram_loss(),
            "means": means.collect::<Vec<_>>(),
            "goals": goals.collect::<Vec<_>>(),
            "runs": runs.collect::<Vec<_>>(),
        })
    }
}

/// A row of one run, or of the means of several.
fn row<'a>(
    arm: Arm,
    seed: String,
    loss: f64,
    difference: f64,
    outcomes: impl IntoIterator<Item = &'a Outcome> + Clone,
) -> [String; 7] {
    let over = |number: fn(&Outcome) -> f64| mean(outcomes.clone().into_iter().map(number));
    let whole = |number: f64| if number.is_nan() { "–".into() } else { format!("{number:.0}") };
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory = move |outcome: &Outcome| outcome.peak_memory.map_or(f64::NAN, mebibytes);
    [
        arm.to_string(),
        seed,
        format!("{loss:.4}"),
        if arm == Arm::F32 { "–".into() } else { format!("{:+.2}%", 100.0 * difference) },
        whole(over(|outcome| outcome.tokens_per_second.unwrap_or(f64::NAN))),
        whole(mean(outcomes.clone().into_iter().map(memory))),
        format!("{:.1}%", 100.0 * over(|outcome| outcome.fp8_share)),
    ]
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::committed::{self, field};
    use crate::compare::{differences, dots, plot};

    /// The comparisons that have folders of their own in `results`.
    const FOLDERS: [&str; 5] = ["recipes", "recipes-best", "confirmed", "longer", "longer-more"];

    /// The comparison in `results`.
    fn committed() -> Comparison {
        of_file("comparison.json")
    }

    fn of_file(name: &str) -> Comparison {
        let json = committed::read(name);
        let list = |name: &str| json[name].as_array().expect("a list").iter();
        let run = |run: &Value| Run {
            arm: committed::text(run, "precision").parse().expect("an arm"),
            seed: field(run, "seed"),
            outcome: field(run, "outcome"),
        };
        let goal = |goal: &Value| Goal {
            what: field(goal, "what"),
            limit: field(goal, "limit"),
            value: field(goal, "value"),
            reached: field(goal, "reached"),
        };
        Comparison {
            origin: field(&json, "origin"),
            size: Size::from_str(committed::text(&json, "size"), false).expect("a size"),
            goals: list("goals").map(goal).collect(),
            runs: list("runs").map(run).collect(),
        }
    }

    #[test]
    fn what_is_committed_is_drawn_from_the_committed_numbers() {
        let comparison = committed();
        committed::results().check("table.md", &comparison.markdown());
        committed::results().check("loss.svg", &plot::loss(&comparison).expect("drawn"));
        for folder in FOLDERS {
            let comparison = of_file(&format!("{folder}/comparison.json"));
            let check = |name: &str, text: &str| {
                committed::results().check(&format!("{folder}/{name}"), text);
            };
            check("table.md", &comparison.markdown());
            check("loss.svg", &plot::loss(&comparison).expect("drawn"));
            check("differences.md", &differences::markdown(&comparison));
            check("differences.svg", &dots::differences(&comparison).expect("drawn"));
        }
    }

    #[test]
    fn times_of_all_runs_are_added() {
        let mut comparison = committed();
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
