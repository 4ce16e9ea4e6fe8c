//! The program does what it is for: it trains in FP8 as well as in f32.

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::{csv, digits, directory, file, gzip, json, rows};
use serde_json::Value;

fn runs<'a>(report: &'a Value, recipe: &str) -> Vec<&'a Value> {
    let runs = report["runs"].as_array().expect("a list of runs");
    runs.iter().filter(|run| run["recipe"] == recipe).collect()
}

fn number(run: &Value, field: &str) -> f64 {
    run[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {run}"))
}

fn accuracies(report: &Value, recipe: &str) -> Vec<f64> {
    runs(report, recipe).into_iter().map(|run| number(run, "test_accuracy")).collect()
}

const FP8: [&str; 3] = ["fp8-current", "fp8-delayed", "fp8-layers"];

/// What is wrong with a report whose FP8 runs are to have trained in FP8: the products of each step, and a loss that f32 does not have.
fn not_in_fp8(report: &Value) -> Vec<String> {
    let f32 = runs(report, "f32");
    let pairs = FP8.iter().flat_map(|recipe| runs(report, recipe).into_iter().zip(&f32));
    pairs
        .filter(|(fp8, f32)| {
            fp8["fp8_products_per_step"] != 5 || fp8["train_loss"] == f32["train_loss"]
        })
        .map(|(fp8, _)| fp8.to_string())
        .collect()
}

#[test]
fn fp8_is_as_accurate_as_f32() {
    // 30 epochs of 23 steps.
    let report = json("accuracy", &["--seed", "1,2,3"]);
    assert_eq!(not_in_fp8(&report), [""; 0]);
    let f32 = accuracies(&report, "f32");
    assert!(f32.iter().all(|&accuracy| accuracy >= 0.95), "f32: {f32:?}");
    let mean = |accuracies: &[f64]| accuracies.iter().sum::<f64>() / 3.0;
    for recipe in FP8 {
        let fp8 = accuracies(&report, recipe);
        println!("test accuracy with the seeds 1, 2, 3: f32 {f32:.4?}, {recipe} {fp8:.4?}");
        assert_eq!((f32.len(), fp8.len()), (3, 3));
        assert!((mean(&f32) - mean(&fp8)).abs() <= 0.01, "f32 {f32:?}, {recipe} {fp8:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
fn cuda_trains_in_fp8() {
    let report = json("cuda", &["--backend", "cuda", "--epochs", "2"]);
    assert_eq!(not_in_fp8(&report), [""; 0]);
    for recipe in ["f32"].iter().chain(&FP8) {
        // Guessing is right at one of ten.
        let accuracy = accuracies(&report, recipe)[0];
        assert!(accuracy > 0.5, "{recipe}: {accuracy}");
    }
}

/// With FP8 off, every recipe is as accurate as f32: the test above must not take that for FP8.
#[test]
fn fp8_that_is_off_is_not_taken_for_fp8() {
    let path = file("off", "off.json", br#"{"enabled": false}"#);
    let report = json("off", &["--epochs", "1", "--config", &path]);
    assert_eq!(not_in_fp8(&report).len(), FP8.len(), "{report}");
}

#[test]
fn json_holds_every_run() {
    let report = json("json", &["--seed", "7", "--seed", "8", "--epochs", "1"]);
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(8));
    for recipe in ["f32", "fp8-current", "fp8-delayed", "fp8-layers"] {
        let seeds: Vec<_> = runs(&report, recipe).iter().map(|run| run["seed"].as_u64()).collect();
        assert_eq!(seeds, [Some(7), Some(8)]);
        for run in runs(&report, recipe) {
            assert!((0.0..=1.0).contains(&number(run, "test_accuracy")));
            assert!(number(run, "train_loss") > 0.0);
            assert!(number(run, "seconds") > 0.0);
            // Two of layer 1, whose input needs no gradient, three of layer 2, none of layer 3 with its ten outputs.
            let products = if recipe == "f32" { 0 } else { 5 };
            assert_eq!(run["fp8_products_per_step"], products);
            assert_eq!(run.as_object().map(|fields| fields.len()), Some(6));
        }
    }
    let written = |name| fs::read_to_string(directory("json").join(name)).expect("it is written");
    // The same numbers, with what the pictures show and what they were measured with.
    let record: Value = serde_json::from_str(&written("runs.json")).expect("JSON");
    assert_eq!(record["origin"]["command"], "digits --seed 7 --seed 8 --epochs 1 --json");
    let recorded = record["runs"].as_array().expect("a list of runs");
    for (recorded, run) in recorded.iter().zip(report["runs"].as_array().expect("a list")) {
        let same = |(name, value): (&String, &Value)| recorded[name] == *value;
        assert!(run.as_object().expect("a run").iter().all(same), "{recorded}");
        assert_eq!(recorded["losses"], Value::from(vec![run["train_loss"].clone()]));
    }
    assert_eq!(recorded.len(), 8);
    let loss = written("loss.svg");
    assert!(loss.starts_with("<svg") && loss.contains("fp8-current, mean of 2 seeds"));
    let scales = written("scales.svg");
    for words in FP8.iter().chain(&["layer 1 (64→128), input", "layer 2 (128→128), output_grad"])
    {
        assert!(scales.contains(words), "`{words}` is missing in scales.svg");
    }
}

#[test]
fn recipes_are_chosen_and_f32_is_always_there() {
    for (test, chosen, expected) in [
        ("recipe_one", "fp8-delayed", vec!["f32", "fp8-delayed"]),
        ("recipe_two", "fp8-layers,f32,fp8-layers", vec!["f32", "fp8-layers"]),
        ("recipe_f32", "f32", vec!["f32"]),
    ] {
        // A seed given twice runs once.
        let report = json(test, &["--epochs", "1", "--recipe", chosen, "--seed", "3,3"]);
        let recipes: Vec<_> = report["runs"].as_array().expect("a list").iter().collect();
        let recipes: Vec<_> =
            recipes.iter().map(|run| run["recipe"].as_str().expect("a name")).collect();
        assert_eq!(recipes, expected);
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let losses = |test, seed| {
        let report = json(test, &["--epochs", "1", "--seed", seed]);
        ["f32", "fp8-current", "fp8-delayed", "fp8-layers"]
            .map(|recipe| number(runs(&report, recipe)[0], "train_loss").to_bits())
    };
    let first = losses("equal_1", "5");
    assert_eq!(first, losses("equal_2", "5"));
    assert_ne!(first, losses("equal_3", "6"));
    for (index, loss) in first.iter().enumerate() {
        assert!(!first[..index].contains(loss), "two recipes are the same: {first:?}");
    }
}

#[test]
fn without_json_trace_and_table_are_printed() {
    let output = digits("table", &["--epochs", "1"]);
    assert!(output.status.success() && output.stderr.is_empty());
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    for words in [
        "grad_weight",
        "E5M2",
        "high precision: N = 10 < 16",
        "5 of 6 products in FP8",
        "| recipe",
        "| f32",
        "| fp8-current",
        "| fp8-delayed",
        "| fp8-layers",
        "FP8 products a step",
        "loss.svg",
        "scales.svg",
    ] {
        assert!(stdout.contains(words), "`{words}` is missing in:\n{stdout}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
    command.args(["--epochs", "1", "--out"]).arg(directory("pipe"));
    let mut program =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(program.stdout.take());
    let output = program.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn config_decides_what_runs_in_fp8() {
    let products = |test: &str, config: &str| {
        let path = file(test, "config.json", config.as_bytes());
        let report = json(
            test,
            &["--epochs", "1", "--config", &path, "--recipe", "fp8-current,fp8-delayed"],
        );
        let [current, delayed] =
            ["fp8-current", "fp8-delayed"].map(|recipe| runs(&report, recipe)[0].clone());
        let products = current["fp8_products_per_step"].as_u64();
        assert_eq!(delayed["fp8_products_per_step"].as_u64(), products);
        (products, number(&current, "train_loss").to_bits())
    };
    let (every, _) = products("config_every", r#"{"filter": {"min_n": 1}}"#);
    assert_eq!(every, Some(8));
    let (default, scaled) = products("config_power", r#"{"recipe": {"power_of_two": true}}"#);
    assert_eq!(default, Some(5));
    assert_ne!(scaled, products("config_default", "{}").1);
    let (none, off) = products("config_off", r#"{"enabled": false}"#);
    assert_eq!(none, Some(0));
    // With FP8 off the decorated backend is the plain one, bit for bit.
    let report = json("config_f32", &["--epochs", "1"]);
    assert_eq!(off, number(runs(&report, "f32")[0], "train_loss").to_bits());
}

#[test]
fn the_config_of_delayed_scaling_reaches_layers_and_decorator() {
    let losses = |test: &str, history: usize| {
        let config = format!(
            r#"{{"recipe": {{"scaling": {{"delayed": {{"history_length": {history}}}}}}}}}"#
        );
        let path = file(test, "config.json", config.as_bytes());
        let report = json(test, &["--epochs", "2", "--config", &path]);
        FP8.map(|recipe| number(runs(&report, recipe)[0], "train_loss").to_bits())
    };
    let (short, long) = (losses("history_1", 1), losses("history_64", 64));
    assert_eq!(short[0], long[0], "current scaling knows no history");
    assert_ne!(short[1], long[1]);
    assert_ne!(short[2], long[2]);
}

#[test]
fn ndarray_trains_as_well() {
    let report = json("ndarray", &["--backend", "ndarray", "--epochs", "3"]);
    assert_eq!(report["backend"], "ndarray");
    assert_eq!(runs(&report, "fp8-current")[0]["fp8_products_per_step"], 5);
    for recipe in ["f32", "fp8-current", "fp8-delayed", "fp8-layers"] {
        let accuracy = accuracies(&report, recipe)[0];
        assert!(accuracy > 0.85, "{recipe}: {accuracy}");
    }
}

#[test]
fn tiny_data_trains_without_fp8() {
    // One image a step: M is below the filter's 16.
    let path = file("tiny", "tiny.csv.gz", &gzip(&csv(&rows())));
    let report = json("tiny", &["--data", &path, "--epochs", "2"]);
    assert_eq!(runs(&report, "fp8-current")[0]["fp8_products_per_step"], 0);
}

#[test]
fn a_run_that_diverges_is_reported() {
    // Scales 2^64 too large flush every operand to zero, 2^64 too small ones saturate.
    for (test, margin) in [("diverge_up", 64), ("diverge_down", -64)] {
        let config = format!(r#"{{"recipe": {{"margin": {margin}}}}}"#);
        let path = file(test, "config.json", config.as_bytes());
        let report = json(test, &["--epochs", "1", "--config", &path, "--recipe", "fp8-current"]);
        // No number, or one that shows that nothing was learned.
        let loss = |recipe| runs(&report, recipe)[0]["train_loss"].as_f64();
        let f32 = loss("f32").expect("f32 does not diverge");
        assert!(loss("fp8-current").is_none_or(|loss| loss > 1.05 * f32), "{report}");
    }
}
