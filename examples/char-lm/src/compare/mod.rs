//! The same training in several precisions, from the same seeds and in the same order, and what came of it.

mod plot;
mod report;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::args::Compare;
use crate::child::{self, Child, Origin, mean, once};
use crate::precision::Precision;
use crate::run;

pub use report::{Comparison, Goal, Run};

/// Trains all of them, writes `comparison.json`, `table.md` and `loss.svg`, and says whether the goals were reached.
///
/// # Errors
/// Where a run fails, or a file cannot be written.
pub fn compare(args: &Compare) -> Result<(String, ExitCode)> {
    let precisions = once([Precision::F32].into_iter().chain(args.precisions.iter().copied()));
    let seeds = once(args.seeds.iter().copied());
    let runs_folder = args.out.join("runs");
    fs::create_dir_all(&runs_folder)
        .with_context(|| format!("cannot make the folder {}", runs_folder.display()))?;
    let mut runs = vec![];
    let count = precisions.len() * seeds.len();
    for &seed in &seeds {
        for &precision in &precisions {
            let name = format!("{precision}-{seed}");
            child::announce(args.common.quiet, runs.len(), count, &name);
            let folder = runs_folder.join(name);
            let epochs = args.common.epochs();
            let child = Child { precision, high: None, seed, epochs, folder };
            runs.push(Run { precision, seed, outcome: child.train(&args.common)? });
        }
    }
    let comparison = Comparison {
        origin: Origin::here(&args.common),
        size: args.common.size,
        goals: goals(args, &precisions, &runs),
        runs,
    };
    let table = comparison.markdown();
    let write = |name: &str, content: &str| {
        let path = args.out.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    run::write_json(&args.out.join("comparison.json"), &comparison.json())?;
    write("table.md", &table)?;
    write("loss.svg", &plot::loss(&comparison)?)?;
    let reached = comparison.goals.iter().all(|goal| goal.reached);
    let code = if reached { ExitCode::SUCCESS } else { ExitCode::from(1) };
    Ok((format!("{table}\n{}\n", args.out.display()), code))
}

/// The mean final validation loss of a precision.
fn final_loss(runs: &[Run], precision: Precision) -> f64 {
    let of_precision = runs.iter().filter(|run| run.precision == precision);
    mean(of_precision.map(|run| run.outcome.final_loss()))
}

/// What the size promises, and whether it came so.
fn goals(args: &Compare, precisions: &[Precision], runs: &[Run]) -> Vec<Goal> {
    let Some(goals) = args.common.size.goals() else { return vec![] };
    let f32_loss = final_loss(runs, Precision::F32);
    let bigram = mean(runs.iter().map(|run| run.outcome.bigram_loss));
    // A NaN reaches no goal.
    let below = bigram - f32_loss;
    let mut list = vec![Goal {
        what: "f32 below the bigram model, in nats a character: at least".into(),
        limit: goals.below_bigram,
        value: below,
        reached: below >= goals.below_bigram,
    }];
    for precision in precisions.iter().filter(|precision| precision.is_fp8()) {
        let difference = final_loss(runs, *precision) / f32_loss - 1.0;
        list.push(Goal {
            what: format!("{precision} against f32, difference of the loss: at most"),
            limit: goals.fp8_within,
            value: difference,
            reached: difference.abs() <= goals.fp8_within,
        });
    }
    list
}
