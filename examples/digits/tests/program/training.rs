//! The program does what it is for: it trains in FP8 as well as in f32.

use std::process::Stdio;

use examples_common::testing::{Program, has, list, number};
use serde_json::Value;

use crate::digits;

const FP8: [&str; 3] = ["fp8-current", "fp8-delayed", "fp8-layers"];
/// What is trained with where nothing else is asked for.
const ALL: [&str; 4] = ["f32", "fp8-current", "fp8-delayed", "fp8-layers"];

/// Runs it with these arguments, and returns what it writes: all runs.
fn json(arguments: &str) -> Value {
    json_of(&digits(), arguments)
}

fn json_of(digits: &Program, arguments: &str) -> Value {
    digits.prints(&format!("{arguments} --out out"));
    digits.json("out/runs.json")
}

/// The same with a configuration.
fn configured(config: &str, arguments: &str) -> Value {
    let digits = digits();
    digits.write("config.json", config);
    json_of(&digits, &format!("--config config.json {arguments}"))
}

fn runs<'a>(report: &'a Value, recipe: &str) -> Vec<&'a Value> {
    list(&report["runs"]).iter().filter(|run| run["recipe"] == recipe).collect()
}

/// The bits of the training loss of the first run of a recipe.
fn loss(report: &Value, recipe: &str) -> u64 {
    number(runs(report, recipe)[0], "train_loss").to_bits()
}

fn accuracies(report: &Value, recipe: &str) -> Vec<f64> {
    runs(report, recipe).into_iter().map(|run| number(run, "test_accuracy")).collect()
}

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
    let report = json("--seed 1,2,3");
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

/// Guessing is right at one of ten.
fn trains_with_each_recipe(arguments: &str, accuracy: f64) {
    let report = json(arguments);
    assert_eq!(not_in_fp8(&report), [""; 0]);
    for recipe in ALL {
        assert!(accuracies(&report, recipe)[0] > accuracy, "{recipe}: {report}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
fn cuda_trains_in_fp8() {
    trains_with_each_recipe("--backend cuda --epochs 2", 0.5);
}

#[test]
fn ndarray_trains_as_well() {
    trains_with_each_recipe("--backend ndarray --epochs 3", 0.85);
    assert_eq!(json("--backend ndarray --epochs 1 --recipe f32")["origin"]["backend"], "ndarray");
}

/// With FP8 off, every recipe is as accurate as f32: the tests above must not take that for FP8.
#[test]
fn fp8_that_is_off_is_not_taken_for_fp8() {
    let report = configured(r#"{"enabled": false}"#, "--epochs 1");
    assert_eq!(not_in_fp8(&report).len(), FP8.len(), "{report}");
}

#[test]
fn runs_json_holds_every_run() {
    let digits = digits();
    let report = json_of(&digits, "--seed 7 --seed 8 --epochs 1");
    assert_eq!(report["origin"]["command"], "digits --seed 7 --seed 8 --epochs 1");
    assert_eq!(list(&report["runs"]).len(), 8);
    for recipe in ALL {
        let seeds: Vec<_> = runs(&report, recipe).iter().map(|run| run["seed"].as_u64()).collect();
        assert_eq!(seeds, [Some(7), Some(8)]);
        for run in runs(&report, recipe) {
            assert!((0.0..=1.0).contains(&number(run, "test_accuracy")));
            assert!(number(run, "train_loss") > 0.0 && number(run, "seconds") > 0.0);
            // Two of layer 1, whose input needs no gradient, three of layer 2, none of layer 3 with its ten outputs.
            let products = if recipe == "f32" { 0 } else { 5 };
            assert_eq!(run["fp8_products_per_step"], products);
            assert_eq!(run["losses"], Value::from(vec![run["train_loss"].clone()]));
        }
    }
}

#[test]
fn recipes_are_chosen_and_f32_is_always_there() {
    for (chosen, expected) in [
        ("fp8-delayed", &["f32", "fp8-delayed"][..]),
        ("fp8-layers,f32,fp8-layers", &["f32", "fp8-layers"]),
        ("f32", &["f32"]),
    ] {
        // A seed given twice runs once.
        let report = json(&format!("--epochs 1 --recipe {chosen} --seed 3,3"));
        let recipes = list(&report["runs"]).iter().map(|run| run["recipe"].as_str());
        assert_eq!(recipes.flatten().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let losses = |seed| {
        let report = json(&format!("--epochs 1 --seed {seed}"));
        ALL.map(|recipe| loss(&report, recipe))
    };
    let first = losses(5);
    assert_eq!(first, losses(5));
    assert_ne!(first, losses(6));
    for (index, loss) in first.iter().enumerate() {
        assert!(!first[..index].contains(loss), "two recipes are the same: {first:?}");
    }
}

#[test]
fn trace_and_table_are_printed() {
    let told = ["grad_weight", "E5M2", "high precision: N = 10 < 16", "5 of 6 products in FP8"];
    let rows = ["| recipe", "| f32", "| fp8-current", "| fp8-delayed", "| fp8-layers"];
    let more = ["FP8 products a step"];
    has(&digits().prints("--epochs 1"), &[&told[..], &rows, &more].concat());
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let digits = digits();
    let mut command = digits.command("--epochs 1");
    let mut program =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(program.stdout.take());
    let output = program.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn config_decides_what_runs_in_fp8() {
    let products = |config: &str| {
        let report = configured(config, "--epochs 1 --recipe fp8-current,fp8-delayed");
        let [current, delayed] = ["fp8-current", "fp8-delayed"]
            .map(|recipe| runs(&report, recipe)[0]["fp8_products_per_step"].as_u64());
        assert_eq!(current, delayed);
        (current, loss(&report, "fp8-current"))
    };
    assert_eq!(products(r#"{"filter": {"min_n": 1}}"#).0, Some(8));
    let (default, scaled) = products(r#"{"recipe": {"power_of_two": true}}"#);
    assert_eq!(default, Some(5));
    assert_ne!(scaled, products("{}").1);
    let (none, off) = products(r#"{"enabled": false}"#);
    assert_eq!(none, Some(0));
    // With FP8 off the decorated backend is the plain one, bit for bit.
    assert_eq!(off, loss(&json("--epochs 1"), "f32"));
}

/// The gains are made up: of a machine on which FP8 doubles the speed of all products, or halves it.
#[test]
fn measured_products_run_in_fp8_where_they_gain() {
    let products = |percent: u32, hidden: u32| {
        let gains = format!(
            r#"{{"measured_on": "nowhere", "sizes": [16], "forward": [{percent}], "training": [{percent}]}}"#
        );
        let config = format!(r#"{{"filter": {{"gains": {gains}}}}}"#);
        let arguments = format!("--epochs 1 --recipe fp8-measured --hidden {hidden}");
        let report = configured(&config, &arguments);
        assert_eq!(report["hidden"], hidden);
        let is_f32 = loss(&report, "fp8-measured") == loss(&report, "f32");
        (runs(&report, "fp8-measured")[0]["fp8_products_per_step"].as_u64(), is_f32)
    };
    assert_eq!(products(200, 128), (Some(5), false));
    assert_eq!(products(200, 80), (Some(5), false));
    assert_eq!(products(50, 128), (Some(0), true));
}

#[test]
fn the_config_of_delayed_scaling_reaches_layers_and_decorator() {
    let losses = |history: usize| {
        let config = format!(
            r#"{{"recipe": {{"scaling": {{"delayed": {{"history_length": {history}}}}}}}}}"#
        );
        let report = configured(&config, "--epochs 2");
        FP8.map(|recipe| loss(&report, recipe))
    };
    let (short, long) = (losses(1), losses(64));
    assert_eq!(short[0], long[0], "current scaling knows no history");
    assert_ne!(short[1], long[1]);
    assert_ne!(short[2], long[2]);
}

#[test]
fn a_run_that_diverges_is_reported() {
    // Scales 2^64 too large flush every operand to zero, 2^64 too small ones saturate.
    for margin in [64, -64] {
        let config = format!(r#"{{"recipe": {{"margin": {margin}}}}}"#);
        let report = configured(&config, "--epochs 1 --recipe fp8-current");
        // No number, or one that shows that nothing was learned.
        let loss = |recipe| runs(&report, recipe)[0]["train_loss"].as_f64();
        let f32 = loss("f32").expect("f32 does not diverge");
        assert!(loss("fp8-current").is_none_or(|loss| loss > 1.05 * f32), "{report}");
    }
}
