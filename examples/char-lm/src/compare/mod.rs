//! The same training in several precisions, from the same seeds and in the same order, and what came of it.

mod differences;
mod plot;
mod report;

use anyhow::{Result, bail};
use examples_common::{Origin, once, write, write_json};

use crate::args::Compare;
use crate::arm::Arm;
use crate::child;
use crate::run::{PROGRAM, mean};
use crate::size::Size;

use report::final_loss;
pub use report::{Comparison, Goal, Run};

/// Trains all of them, writes `comparison.json`, `table.md`, `loss.svg`, `differences.md` and `differences.svg`, and returns the tables and whether a goal was missed.
pub fn compare(args: &Compare) -> Result<(String, bool)> {
    let arms = once(
        [Arm::from(args.reference)]
            .into_iter()
            .chain(args.precisions.iter().flat_map(|list| list.0.iter().copied())),
    );
    for (index, arm) in arms.iter().enumerate() {
        if let Some(first) = arms[..index].iter().find(|first| first.is_same(*arm)) {
            bail!("--precision {arm} computes what {first} computes: name only one of them");
        }
    }
    let seeds = once(args.seeds.iter().copied());
    let plan: Vec<_> = seeds.iter().flat_map(|seed| arms.iter().map(|arm| (*arm, *seed))).collect();
    let (epochs, folder) = (args.common.epochs(), args.out.join("runs"));
    let outcomes = child::train_all(&plan, epochs, &folder, &args.common)?;
    let runs = plan.into_iter().zip(outcomes);
    let runs: Vec<_> = runs.map(|((arm, seed), outcome)| Run::new(arm, seed, outcome)).collect();
    let origin = Origin::here(PROGRAM, &["--out"]).with_backend(args.common.backend);
    let size = args.common.size;
    let comparison = Comparison::new(origin, size, goals(size, &arms, &runs), runs);
    let table = comparison.markdown();
    write_json(&args.out.join("comparison.json"), &comparison)?;
    write(&args.out.join("table.md"), &table)?;
    write(&args.out.join("loss.svg"), plot::loss(&comparison)?)?;
    let mut told = table;
    if arms.len() > 1 {
        let differences = differences::markdown(&comparison);
        write(&args.out.join("differences.md"), &differences)?;
        write(&args.out.join("differences.svg"), differences::dots(&comparison)?)?;
        told = format!("{told}\n{differences}");
    }
    let missed = comparison.goals.iter().any(|goal| !goal.reached);
    Ok((format!("{told}\n{}\n", args.out.display()), missed))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precision::Precision;
    use crate::run::Outcome;

    fn run(precision: Precision, valid_loss: f64) -> Run {
        Run::new(precision.into(), 1, Outcome::made_up(2.5, &[valid_loss]))
    }

    fn reached(f32_losses: [f64; 2], fp8_losses: [f64; 2]) -> Vec<bool> {
        let f32_runs = f32_losses.map(|loss| run(Precision::F32, loss));
        let fp8_runs = fp8_losses.map(|loss| run(Precision::FP8_DELAYED, loss));
        let runs: Vec<_> = f32_runs.into_iter().chain(fp8_runs).collect();
        let goals = goals(Size::Tiny, &[Arm::F32, Precision::FP8_DELAYED.into()], &runs);
        goals.iter().map(|goal| goal.reached).collect()
    }

    #[test]
    fn goals_are_of_the_mean() {
        let limit = 2.5 - Size::Tiny.goals().expect("goals").below_bigram;
        let (above, below) = ([limit - 0.1, limit + 0.11], [limit - 0.1, limit + 0.09]);
        assert_eq!(reached(above, above), [false, true]);
        assert_eq!(reached(below, below), [true, true]);
        assert_eq!(reached([1.0, 1.0], [1.0, 1.019]), [true, true]);
        assert_eq!(reached([1.0, 1.0], [1.0, 1.021]), [true, false]);
        assert_eq!(
            reached([1.0, 1.0], [0.97, 0.97]),
            [true, false],
            "so much better is no agreement"
        );
        assert_eq!(reached([1.0, 1.0], [f64::NAN, 1.0]), [true, false]);
        assert_eq!(reached([f64::NAN, 1.0], [1.0, 1.0]), [false, false]);
        assert!(goals(Size::Smoke, &[Arm::F32], &[run(Precision::F32, 1.0)]).is_empty());
    }
}
