//! Commands that train several times, at the size for tests.

use std::fs;

use examples_common::testing::{has, list, number};
use serde_json::json;

use crate::char_lm;

#[test]
fn a_comparison_has_all_runs_and_is_not_trained_twice() {
    let char_lm = char_lm();
    let arguments = "compare --size smoke --epochs 2 --precision m=fp8 --seed 1,2 --out comparison";
    let (stdout, stderr) = char_lm.succeeds(arguments);
    has(&stderr, &["run 4/4: m=fp8-2"]);
    let comparison = char_lm.json("comparison/comparison.json");
    let runs = list(&comparison["runs"]);
    let names: Vec<_> =
        runs.iter().map(|run| (run["precision"].as_str(), run["seed"].as_u64())).collect();
    let (f32, fp8) = (Some("f32"), Some("m=fp8"));
    assert_eq!(names, [(f32, Some(1)), (fp8, Some(1)), (f32, Some(2)), (fp8, Some(2))]);
    for run in runs {
        let losses = list(&run["outcome"]["losses"]);
        assert_eq!(losses.len(), 2);
        assert_eq!(number(run, "final_loss"), number(&losses[1], "valid_loss"));
        assert!(number(&run["outcome"], "tokens_per_second") > 0.0);
        assert_eq!(number(&run["outcome"], "fp8_share") > 0.0, run["precision"] == "m=fp8");
        if cfg!(target_os = "linux") {
            // The text alone takes some.
            assert!(number(&run["outcome"], "peak_memory") > f64::from(10 << 20));
        }
    }
    // Means by hand.
    let loss = |index: usize| number(&runs[index], "final_loss");
    let means = list(&comparison["means"]);
    assert!((number(&means[0], "final_loss") - (loss(0) + loss(2)) / 2.0).abs() < 1e-12);
    let against = (loss(1) + loss(3)) / (loss(0) + loss(2)) - 1.0;
    assert!((number(&means[1], "against_f32") - against).abs() < 1e-12);
    // At this size nothing is promised.
    assert_eq!(comparison["goals"], json!([]));

    let is_row = |line: &&str| line.starts_with("| f32") || line.starts_with("| m=fp8");
    let table: Vec<_> = stdout.lines().filter(is_row).collect();
    assert_eq!(table.len(), 6, "{stdout}");
    has(&stdout, &["char-lm compare --size smoke"]);
    let mean = 50.0 * (loss(1) / loss(0) + loss(3) / loss(2)) - 100.0;
    has(table[5], &["mean", &format!("{mean:+.2}%"), " … "]);
    has(&char_lm.text("comparison/differences.svg"), &["<svg", "m=fp8"]);

    let weights = char_lm.path("comparison/runs/f32-1/weights.safetensors");
    let written = || fs::metadata(&weights).and_then(|file| file.modified()).expect("a file");
    let before = written();
    char_lm.succeeds(arguments);
    assert_eq!(written(), before, "finished runs are found");
}

#[test]
fn a_comparison_that_misses_a_goal_exits_with_1() {
    let char_lm = char_lm();
    // One epoch is not enough to beat the bigram model by as much as `tiny` promises.
    let arguments = "compare --size tiny --epochs 1 --precision f32 --seed 1 --quiet --out out";
    let output = char_lm.run(arguments);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8_lossy(&output.stdout);
    has(&stdout, &["Goal MISSED: f32 below the bigram model"]);
    let comparison = char_lm.json("out/comparison.json");
    let goal = &comparison["goals"][0];
    assert_eq!((&goal["reached"], number(goal, "limit")), (&false.into(), 0.5));
    let loss = number(&comparison["runs"][0], "final_loss");
    assert!((number(goal, "value") - (number(&comparison, "bigram_loss") - loss)).abs() < 1e-12);
}

#[test]
fn losses_are_compared_with_those_of_the_same_seed() {
    let char_lm = char_lm();
    // Runs that have ended, with losses that are made up.
    for (precision, loss) in [("f32", 2.0), ("m=fp8", 2.1)] {
        let run = format!("out/runs/{precision}-1");
        let train = "train --size smoke --epochs 1 --quiet";
        char_lm.succeeds(&format!("{train} --precision {precision} --out {run}"));
        char_lm.edit(&format!("{run}/outcome.json"), |outcome| {
            outcome["losses"][0]["valid_loss"] = loss.into();
        });
    }
    let compare = "compare --epochs 1 --precision m=fp8 --seed 1 --out out";
    has(&char_lm.succeeds(&format!("{compare} --size smoke")).0, &["+5.00%"]);

    // What a run says of itself comes through.
    char_lm.write("out/runs/m=fp8-1/outcome.json", "{\n\"loss\": 1}");
    let words = ["the run in", "m=fp8-1 failed", "outcome.json: unknown field `loss`"];
    char_lm.fails(&format!("{compare} --size smoke --quiet"), &words);

    // Runs of another size are not taken for those asked for.
    let words = ["size \"smoke\" instead of \"tiny\""];
    char_lm.fails(&format!("{compare} --size tiny --quiet"), &words);
}

#[test]
fn one_computation_is_trained_once_whatever_it_is_called() {
    let char_lm = char_lm();
    let compare = "compare --size smoke --epochs 1 --seed 1 --quiet --out out --precision";
    char_lm.succeeds(&format!("{compare} p=f32,c=f32,o=f32 f32 m=high"));
    assert_eq!(list(&char_lm.json("out/comparison.json")["runs"]).len(), 1);
}
