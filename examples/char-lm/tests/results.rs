//! The committed results: what is said of them is in them, and the comparison reached its goals. That tables and pictures are drawn from them
//! is a test beside the code that draws.

mod common;

use std::path::Path;

use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8_report::{WORTHWHILE, rounding_limit};
use common::{json, number};
use serde_json::Value;

/// What is told, each line break a space: a sentence may have one anywhere.
fn readme(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = std::fs::read_to_string(path).expect("a note");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn committed(name: &str) -> Value {
    json(Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(name))
}

#[track_caller]
fn told(sentence: &str) {
    let notes = readme("results/README.md");
    assert!(notes.contains(sentence), "results/README.md does not say: {sentence}");
}

#[test]
fn the_committed_comparison_reached_its_goals() {
    let comparison = committed("comparison.json");
    assert_eq!(comparison["size"], "tiny");
    assert_eq!(comparison["origin"]["optimized"], true);
    let runs = comparison["runs"].as_array().expect("runs");
    let mean = |precision: &str| {
        let losses: Vec<f64> = runs
            .iter()
            .filter(|run| run["precision"] == precision)
            .map(|run| {
                assert_eq!(run["outcome"]["resumed"], false);
                assert_eq!(run["outcome"]["losses"].as_array().map(Vec::len), Some(12));
                number(run, "final_loss")
            })
            .collect();
        assert_eq!(losses.len(), 3, "three seeds of {precision}");
        losses.iter().sum::<f64>() / 3.0
    };
    let f32_loss = mean("f32");
    assert!(f32_loss <= number(&comparison, "bigram_loss") - 0.5, "clearly below a bigram model");
    for precision in ["fp8-current", "fp8-delayed"] {
        let difference = mean(precision) / f32_loss - 1.0;
        assert!(difference.abs() <= 0.01, "{precision}: {difference}");
    }
    // What the README tells.
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).expect("README.md");
    for precision in ["f32", "fp8-current", "fp8-delayed"] {
        let told = format!("{:.4}", mean(precision));
        assert!(readme.contains(&told), "README says {told} of {precision}");
    }
}

#[test]
fn what_is_told_of_the_comparison_is_in_it() {
    let comparison = committed("comparison.json");
    let runs = comparison["runs"].as_array().expect("runs");
    let loss = |precision: &str, seed: u64| {
        let run = runs.iter().find(|run| run["precision"] == precision && run["seed"] == seed);
        number(run.expect("a run"), "final_loss")
    };
    let against = |precision, seeds: &[u64]| {
        let sum = |precision| seeds.iter().map(|seed| loss(precision, *seed)).sum::<f64>();
        100.0 * (sum(precision) / sum("f32") - 1.0)
    };
    let [current, delayed] = ["fp8-current", "fp8-delayed"].map(|p| against(p, &[1, 2, 3]));
    let share = runs.iter().map(|run| number(&run["outcome"], "fp8_share")).fold(0.0, f64::max);
    told(&format!(
        "FP8 ends {current:.2}% (current scaling) and {delayed:.2}% (delayed scaling) above f32, with {:.1}% of the matrix FLOPs in FP8",
        100.0 * share
    ));
    let short = format!(
        "FP8 ends {current:.2}% (current scaling) and {delayed:.2}% (delayed scaling) above the loss of f32"
    );
    assert!(readme("README.md").contains(&short), "README.md does not say: {short}");
    let pairs = ["fp8-current", "fp8-delayed"].map(|p| [1, 2, 3].map(|seed| against(p, &[seed])));
    let (low, high) = range(pairs.into_iter().flatten());
    assert!(low > 0.0, "above f32 in all six pairs of runs");
    told("it ends above f32 in all six pairs of runs");
    told(&format!("in every seed above it, by {low:.1}% to {high:.1}%"));
    let seconds: f64 = runs.iter().map(|run| number(&run["outcome"], "seconds")).sum();
    assert_eq!(runs.len(), 9);
    told(&format!("The nine runs trained for {seconds:.0} s in all, validation not counted"));
}

#[test]
fn what_is_told_of_the_earlier_schedule_is_in_it() {
    let earlier = committed("earlier-schedule.json");
    let runs = earlier["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 5);
    let loss = |precision: &str, seed: u64| {
        let run = runs.iter().find(|run| run["precision"] == precision && run["seed"] == seed);
        number(run.expect("a run"), "final_loss")
    };
    told(&format!("f32 ended at {:.4} and {:.4} (seeds 1 and 2)", loss("f32", 1), loss("f32", 2)));
    let current = [1, 2].map(|seed| loss("fp8-current", seed));
    let [first, second] = [1, 2].map(|s| 100.0 * (current[s as usize - 1] / loss("f32", s) - 1.0));
    told(&format!(
        "Current scaling ended at {:.4} and {:.4}, which is {first:.2}% and {second:.2}% above f32",
        current[0], current[1]
    ));
    told(&format!("Delayed scaling ended at {:.4} (seed 1)", loss("fp8-delayed", 1)));
    let short = format!("one FP8 run ended {second:.2}% above f32");
    assert!(readme("README.md").contains(&short), "README.md does not say: {short}");
}

#[test]
fn what_is_told_of_the_block_is_in_it() {
    let block = committed("block.json");
    let rows = block["rows"].as_array().expect("rows");
    let [f32_time, bf16, fp8 @ ..] =
        &rows.iter().map(|row| number(row, "forward_backward_ms")).collect::<Vec<_>>()[..]
    else {
        panic!("{rows:?}");
    };
    let (low, high) = range(fp8.iter().copied());
    told(&format!(
        "forward and backward take {f32_time:.0} ms in f32, {bf16:.0} ms in mixed bf16 and {low:.0} to {high:.0} ms in mixed bf16 with FP8"
    ));
}

#[test]
fn what_is_told_of_how_well_fp8_fits_is_in_it() {
    let page = committed("fp8-current.json");
    let products = page["products"].as_array().expect("products");
    let limit = |product: &Value| {
        let forward = product["role"] == "output";
        rounding_limit([if forward { E4M3 } else { E5M2 }, E4M3]) - WORTHWHILE
    };
    let (fit, others): (Vec<_>, Vec<_>) =
        products.iter().partition(|product| number(product, "last_db") >= limit(product));
    assert!(fit.iter().all(|product| product["advice"] == "fits"), "{fit:?}");
    let [worst] = others[..] else { panic!("not one that does not fit: {others:?}") };
    assert_eq!((&worst["site"], &worst["role"]), (&"head".into(), &"grad_weight".into()));
    told(&format!(
        "Of the {} products {} fit in the last sample, of step {}",
        products.len(),
        fit.len(),
        page["last_step"]
    ));
    let mut earlier: Vec<_> =
        fit.into_iter().filter(|p| number(p, "lowest_db") < limit(p)).collect();
    assert_eq!(earlier.len(), 4);
    earlier.sort_by(|a, b| number(a, "lowest_db").total_cmp(&number(b, "lowest_db")));
    let list = earlier.iter().map(|product| {
        let [site, role] = ["site", "role"].map(|name| product[name].as_str().expect("text"));
        format!("`{role}` of `{site}` ({:.1} dB)", number(product, "lowest_db"))
    });
    told(&format!(
        "Four of these {} did not fit in an earlier sample: {}.",
        products.len() - 1,
        list.collect::<Vec<_>>().join(", ")
    ));
    told(&format!("The weight gradient of the head has {:.1} dB", number(worst, "last_db")));
    told(&format!("It is {:.1}% of the FLOPs in FP8", number(worst, "flops_percent")));
    let advice = worst["advice"].as_str().expect("text");
    let instead = advice.strip_prefix("E4M3 × E4M3: ").expect("another format");
    told(&format!("would have {instead} with its output gradient in E4M3"));
}

#[test]
fn what_is_told_of_the_sensitivity_is_in_it() {
    let ranking = committed("sensitivity.json");
    let variants = ranking["variants"].as_array().expect("variants");
    let losses = |precision: &str, high: Option<&str>| {
        let named = |v: &&Value| v["precision"] == precision && v["high"].as_str() == high;
        let losses = &variants.iter().find(named).expect("a variant")["losses"];
        [0, 1].map(|seed| losses[seed].as_f64().expect("two seeds"))
    };
    let (all, none) = (losses("fp8-current", None), losses("f32", None));
    let gains = |losses: [f64; 2]| [all[0] - losses[0], all[1] - losses[1]];
    let mean = |[a, b]: [f64; 2]| (a + b) / 2.0;
    let parts: Vec<_> = variants.iter().filter_map(|variant| variant["high"].as_str()).collect();
    let of_parts: Vec<_> =
        parts.iter().map(|part| gains(losses("fp8-current", Some(part)))).collect();
    assert_eq!(parts.len(), 10);
    let (low, high) = range(of_parts.iter().map(|gains| mean(*gains)));
    let apart = of_parts.iter().map(|[a, b]| (a - b).abs()).fold(0.0, f64::max);
    told(&format!(
        "the ten parts gain {low:.4} to {high:.4} nats in the mean, but the two seeds of one part are up to {apart:.4} apart"
    ));
    // Ranks from 0, the largest gain first; Spearman's correlation of those without ties.
    let rank = |seed: usize, part: usize| {
        of_parts.iter().filter(|gains| gains[seed] > of_parts[part][seed]).count() as f64
    };
    let squares: f64 = (0..10).map(|part| (rank(0, part) - rank(1, part)).powi(2)).sum();
    let correlation = 1.0 - 6.0 * squares / (10.0 * 99.0);
    told(&format!("the rank correlation between them is {correlation:.2}"));
    let up = parts.iter().position(|part| *part == "up").expect("up");
    assert_eq!((rank(0, up), rank(1, up)), (1.0, 9.0));
    told("`up` is second with one seed and last with the other");
    assert!(of_parts.iter().flatten().all(|gain| *gain > 0.0), "all gains are positive");
    let (qkv, all_out) = (mean(gains(losses("fp8-current", Some("qkv")))), mean(gains(none)));
    told(&format!("`qkv` alone gains {qkv:.4}, f32 {all_out:.4}"));
    let share = 100.0 * all_out / mean(none);
    told(&format!("FP8 as a whole costs {all_out:.4} nats here, {share:.1}% of the loss"));
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let fold = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    values.fold((f64::INFINITY, f64::NEG_INFINITY), fold)
}
