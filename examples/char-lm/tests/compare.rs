//! Commands that train several times, at the size for tests.

use std::fs;

use examples_common::testing::{Program, has, list, number};
use serde_json::json;

fn char_lm() -> Program {
    Program::new(env!("CARGO_BIN_EXE_char-lm"))
}

#[test]
fn a_comparison_has_all_runs_and_is_not_trained_twice() {
    let char_lm = char_lm();
    let arguments =
        "compare --size smoke --epochs 2 --precision fp8-current --seed 1,2 --out comparison";
    let (stdout, stderr) = char_lm.succeeds(arguments);
    has(&stderr, &["run 4/4: fp8-current-2"]);
    let comparison = char_lm.json("comparison/comparison.json");
    let runs = list(&comparison["runs"]);
    let names: Vec<_> =
        runs.iter().map(|run| (run["precision"].as_str(), run["seed"].as_u64())).collect();
    let (f32, fp8) = (Some("f32"), Some("fp8-current"));
    assert_eq!(names, [(f32, Some(1)), (fp8, Some(1)), (f32, Some(2)), (fp8, Some(2))]);
    for run in runs {
        let losses = list(&run["outcome"]["losses"]);
        assert_eq!(losses.len(), 2);
        assert_eq!(number(run, "final_loss"), number(&losses[1], "valid_loss"));
        assert!(number(&run["outcome"], "tokens_per_second") > 0.0);
        assert_eq!(number(&run["outcome"], "fp8_share") > 0.0, run["precision"] == "fp8-current");
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

    let table = char_lm.text("comparison/table.md");
    let is_row = |line: &&str| line.starts_with("| f32") || line.starts_with("| fp8");
    assert!(stdout.contains(&table));
    assert_eq!(table.lines().filter(is_row).count(), 6);
    has(&table, &["char-lm compare --size smoke"]);
    let words = ["<svg", "bigram model", "f32, 2 seeds", "fp8-current, 2 seeds"];
    has(&char_lm.text("comparison/loss.svg"), &words);

    let mean = 50.0 * (loss(1) / loss(0) + loss(3) / loss(2)) - 100.0;
    let differences = char_lm.text("comparison/differences.md");
    let row = differences.lines().find(|line| line.contains("| fp8-current")).expect("a row");
    has(row, &["|     2 |", &format!("{mean:+.2}%"), " … "]);
    has(&char_lm.text("comparison/differences.svg"), &["<svg", "fp8-current"]);

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
    for (precision, loss) in [("f32", 2.0), ("fp8-current", 2.1)] {
        let run = format!("out/runs/{precision}-1");
        let train = "train --size smoke --epochs 1 --quiet";
        char_lm.succeeds(&format!("{train} --precision {precision} --out {run}"));
        char_lm.edit(&format!("{run}/outcome.json"), |outcome| {
            outcome["losses"][0]["valid_loss"] = loss.into();
        });
    }
    let compare = "compare --epochs 1 --precision fp8-current --seed 1 --out out";
    has(&char_lm.succeeds(&format!("{compare} --size smoke")).0, &["+5.00%"]);

    // What a run says of itself comes through.
    char_lm.write("out/runs/fp8-current-1/outcome.json", "{\n\"loss\": 1}");
    let words = ["the run in", "fp8-current-1 failed", "outcome.json: unknown field `loss`"];
    char_lm.fails(&format!("{compare} --size smoke --quiet"), &words);

    // Runs of another size are not taken for those asked for.
    let words = ["size \"smoke\" instead of \"tiny\""];
    char_lm.fails(&format!("{compare} --size tiny --quiet"), &words);
}

#[test]
fn a_ranking_has_every_part() {
    let char_lm = char_lm();
    let (stdout, _) = char_lm.succeeds("sensitivity --size smoke --epochs 1 --seed 1 --out out");
    let ranking = char_lm.json("out/sensitivity.json");
    let variants = list(&ranking["variants"]);
    let mut parts: Vec<_> =
        variants.iter().map(|variant| variant["high"].as_str().unwrap_or("")).collect();
    let gains: Vec<f64> = variants.iter().map(|variant| number(variant, "mean_gain")).collect();
    assert!(gains.windows(2).all(|pair| pair[0] >= pair[1]), "ranked: {gains:?}");
    parts.sort_unstable();
    let expected = "block0 block1 down grad_input grad_weight head output projection qkv up";
    assert_eq!(parts.join(" ").trim_start(), expected);
    // Everything in FP8, and nothing.
    assert_eq!(parts.len(), 12);
    let find = |part: Option<&str>, precision: &str| {
        let found =
            variants.iter().find(|v| v["high"].as_str() == part && v["precision"] == precision);
        found.unwrap_or_else(|| panic!("{part:?} is missing"))
    };
    let share = |part: &str| number(find(Some(part), "fp8-current"), "fp8_share");
    let all = number(find(None, "fp8-current"), "fp8_share");
    assert_eq!(number(find(None, "fp8-current"), "mean_gain"), 0.0);
    assert_eq!(number(find(None, "f32"), "fp8_share"), 0.0);
    // What each part takes out of FP8: a third for a role; of 12 parts of a block's linear layers qkv is 3, projection 1, up and down 4 each.
    for role in ["output", "grad_input", "grad_weight"] {
        assert!((share(role) - all * 2.0 / 3.0).abs() < 1e-9, "{role}");
    }
    let one = all - share("projection");
    assert!(one > 0.0);
    for (part, size) in [("qkv", 3.0), ("up", 4.0), ("down", 4.0), ("block0", 6.0), ("block1", 6.0)]
    {
        assert!((all - share(part) - size * one).abs() < 1e-9, "{part}");
    }
    // Each part is another training.
    let mut losses: Vec<u64> =
        variants.iter().map(|v| v["losses"][0].as_f64().expect("a loss").to_bits()).collect();
    losses.sort_unstable();
    losses.dedup();
    assert!(losses.len() == 12);
    // One seed says nothing about noise.
    has(&stdout, &["one seed", "everything (f32)", "grad_weight"]);
    has(&char_lm.text("out/sensitivity.svg"), &["projection"]);
    has(&char_lm.text("out/sensitivity.md"), &["| projection"]);
}

#[test]
fn several_runs_that_cannot_be() {
    let char_lm = char_lm();
    for (precisions, first, second) in [
        ("p=f32,c=f32,o=f32", "f32", "p=f32,c=f32,o=f32"),
        ("bf16,c=bf16,o=f32,m=high", "bf16", "p=f32,c=bf16,o=f32,m=high"),
    ] {
        let words = format!("--precision {second} computes what {first} computes");
        let compare = format!("compare --size smoke --precision {precisions} --out twice");
        char_lm.fails(&compare, &[&words, "name only one"]);
        assert!(!char_lm.has("twice"), "nothing was begun");
    }
    char_lm.fails("sensitivity --precision bf16 --out .", &["bf16", "only FP8"]);
}
