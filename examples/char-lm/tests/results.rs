//! The committed results: what is said of them is in them, and the comparison reached its goals. That tables and pictures are drawn from them
//! is a test beside the code that draws.

use std::collections::BTreeMap;

use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8_report::{WORTHWHILE, rounding_limit};
use examples_common::charts;
use examples_common::testing::{Results, list, number};
use serde_json::Value;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

fn results() -> Results {
    Results::of(env!("CARGO_MANIFEST_DIR"))
}

fn committed(name: &str) -> Value {
    results().json(name)
}

/// The notes beside the results say this.
#[track_caller]
fn told(sentence: &str) {
    results().say("README.md", sentence);
}

/// The final loss of each run.
fn losses(comparison: &Value) -> impl Fn(&str, u64) -> f64 {
    |precision, seed| {
        let is = |run: &&Value| run["precision"] == precision && run["seed"] == seed;
        number(list(&comparison["runs"]).iter().find(is).expect("a run"), "final_loss")
    }
}

#[test]
fn the_comparison_reached_its_goals_and_what_is_told_of_it_is_in_it() {
    let comparison = committed("comparison.json");
    assert!(comparison["size"] == "tiny" && comparison["origin"]["optimized"] == true);
    let (runs, loss) = (list(&comparison["runs"]), losses(&comparison));
    assert_eq!(runs.len(), 9);
    for outcome in runs.iter().map(|run| &run["outcome"]) {
        assert!(outcome["resumed"] == false && list(&outcome["losses"]).len() == 12);
    }
    let sum =
        |precision, seeds: &[u64]| -> f64 { seeds.iter().map(|seed| loss(precision, *seed)).sum() };
    let bigram = number(&comparison, "bigram_loss");
    assert!(sum("f32", &[1, 2, 3]) / 3.0 <= bigram - 0.5, "clearly below a bigram model");
    let against =
        |precision, seeds: &[u64]| 100.0 * (sum(precision, seeds) / sum("f32", seeds) - 1.0);
    let [current, delayed] = ["fp8-current", "fp8-delayed"].map(|p| against(p, &[1, 2, 3]));
    assert!(current.abs() <= 1.0 && delayed.abs() <= 1.0, "{current} {delayed}");
    let share = runs.iter().map(|run| number(&run["outcome"], "fp8_share")).fold(0.0, f64::max);
    let ends = format!(
        "FP8 ends {current:.2}% (current scaling) and {delayed:.2}% (delayed scaling) above"
    );
    told(&format!("{ends} f32, with {:.1}% of the matrix FLOPs in FP8", 100.0 * share));
    results().say("../README.md", &format!("{ends} the loss of f32"));
    let pairs = ["fp8-current", "fp8-delayed"].map(|p| [1, 2, 3].map(|seed| against(p, &[seed])));
    let (low, high) = range(pairs.into_iter().flatten());
    assert!(low > 0.0, "above f32 in all six pairs of runs");
    told("it ends above f32 in all six pairs of runs");
    told(&format!("in every seed above it, by {low:.1}% to {high:.1}%"));
    let seconds: f64 = runs.iter().map(|run| number(&run["outcome"], "seconds")).sum();
    told(&format!("The nine runs trained for {seconds:.0} s in all, validation not counted"));
}

#[test]
fn what_is_told_of_the_earlier_schedule_is_in_it() {
    let earlier = committed("earlier-schedule.json");
    assert_eq!(list(&earlier["runs"]).len(), 5);
    let loss = losses(&earlier);
    told(&format!("f32 ended at {:.4} and {:.4} (seeds 1 and 2)", loss("f32", 1), loss("f32", 2)));
    let current = [1, 2].map(|seed| loss("fp8-current", seed));
    let [first, second] = [1, 2].map(|s| 100.0 * (current[s as usize - 1] / loss("f32", s) - 1.0));
    told(&format!(
        "Current scaling ended at {:.4} and {:.4}, which is {first:.2}% and {second:.2}% above f32",
        current[0], current[1]
    ));
    told(&format!("Delayed scaling ended at {:.4} (seed 1)", loss("fp8-delayed", 1)));
    results().say("../README.md", &format!("one FP8 run ended {second:.2}% above f32"));
}

#[test]
fn what_is_told_of_the_block_is_in_it() {
    let block = committed("block.json");
    let rows = list(&block["rows"]);
    let [f32_time, bf16, fp8 @ ..] =
        &rows.iter().map(|row| number(row, "forward_backward_ms")).collect::<Vec<_>>()[..]
    else {
        panic!("{rows:?}");
    };
    let (low, high) = range(fp8.iter().copied());
    told(&format!(
        "forward and backward take {f32_time:.0} ms in f32, {bf16:.0} ms in mixed bf16 and {low:.0} to {high:.0} ms in mixed bf16 with FP8"
    ));
    let block = committed("unit/block.json");
    let time = |name: &str| {
        let row = list(&block["rows"]).iter().find(|row| row["name"] == name);
        number(row.unwrap_or_else(|| panic!("no {name}")), "forward_backward_ms")
    };
    told(&format!(
        "there they take {:.0} ms in f32, {:.0} ms in mixed bf16 and {:.0} ms in that with FP8 and current scaling; {:.0} ms in f32 with products and attention in bf16, and {:.0} ms with products in FP8",
        time("f32"),
        time("mixed bf16"),
        time("mixed bf16 + FP8, current scaling"),
        time("f32, products and attention in bf16"),
        time("f32, products in FP8, attention in bf16"),
    ));
}

#[test]
fn what_is_told_of_how_well_fp8_fits_is_in_it() {
    let page = committed("fp8-current.json");
    let products = list(&page["products"]);
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
    let variants = list(&ranking["variants"]);
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
    charts::range((f64::INFINITY, f64::NEG_INFINITY), values)
}

/// A recipe: its differences from f32 in percent, one for each seed, their mean, and half of its 95% interval.
struct Recipe {
    name: String,
    of_seeds: Vec<f64>,
    mean: f64,
    half: f64,
}

impl Recipe {
    /// Its row of a table, where it is called so.
    fn row(&self, name: &str) -> String {
        let Self { mean, half, .. } = self;
        format!("| {name} | {mean:+.2}% | {:+.2}% … {:+.2}% |", mean - half, mean + half)
    }
}

/// The mean, and half of its 95% interval by Student's t.
fn interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).expect("degrees of freedom").inverse_cdf(0.975);
    (values.mean(), t * values.std_dev() / count.sqrt())
}

/// The runs of a committed comparison.
fn runs(folder: &str) -> Vec<Value> {
    let comparison = committed(&format!("{folder}/comparison.json"));
    assert_eq!(comparison["origin"]["optimized"], true);
    list(&comparison["runs"]).to_vec()
}

/// The recipes of committed comparisons of so many epochs, the smallest mean first. Each has these seeds.
fn recipes(folders: &[&str], seeds: &[u64], epochs: usize) -> Vec<Recipe> {
    let mut losses: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for run in folders.iter().flat_map(|folder| runs(folder)) {
        assert_eq!(run["outcome"]["resumed"], false);
        assert_eq!(list(&run["outcome"]["losses"]).len(), epochs);
        let precision = run["precision"].as_str().expect("a name").to_owned();
        if precision != "f32" {
            assert!(number(&run["outcome"], "fp8_share") >= 0.9, "{precision}");
        }
        let seed = run["seed"].as_u64().expect("a seed");
        let earlier = losses.entry(precision).or_default().insert(seed, number(&run, "final_loss"));
        assert_eq!(earlier, None, "seed {seed} twice");
    }
    let f32_losses = losses.remove("f32").expect("f32");
    let of = |(name, losses): (String, BTreeMap<u64, f64>)| {
        assert!(losses.keys().eq(seeds) && f32_losses.keys().eq(seeds), "{name}");
        let of_seeds: Vec<_> =
            seeds.iter().map(|seed| 100.0 * (losses[seed] / f32_losses[seed] - 1.0)).collect();
        let (mean, half) = interval(&of_seeds);
        Recipe { name, of_seeds, mean, half }
    };
    let mut recipes: Vec<_> = losses.into_iter().map(of).collect();
    recipes.sort_by(|a, b| a.mean.total_cmp(&b.mean));
    recipes
}

fn rows(recipes: &[Recipe]) -> String {
    let rows = recipes.iter().map(|recipe| recipe.row(&format!("`{}`", recipe.name)));
    rows.collect::<Vec<_>>().join(" ")
}

/// Seeds that had no say in the choice of the recipe.
const SEEDS: [u64; 4] = [101, 102, 105, 106];

/// Seeds of the longer training.
const LONGER: [u64; 6] = [1, 2, 3, 4, 5, 6];

#[test]
fn what_is_told_of_all_recipes_is_in_the_comparison() {
    let recipes = recipes(&["recipes"], &[1, 2, 3, 4], 12);
    assert_eq!(recipes.len(), 11);
    told(&rows(&recipes));
    assert_eq!(recipes.iter().filter(|recipe| recipe.mean <= 0.3).count(), 4);
    assert!(recipes.iter().all(|recipe| recipe.mean + recipe.half > 0.3));
    told("Four recipes reach it in the mean. None reaches it with its whole interval");
    let extent = |recipe: &Recipe| {
        let (least, most) = range(recipe.of_seeds.iter().copied());
        most - least
    };
    told(&format!("lie up to {:.1}% apart", recipes.iter().map(extent).fold(0.0, f64::max)));
    let above = recipes.iter().flat_map(|recipe| &recipe.of_seeds).filter(|x| **x > 0.0).count();
    told(&format!("{above} of the 44 pairs of runs end above f32"));
    let mean = |name: &str| recipes.iter().find(|recipe| recipe.name == name).expect(name).mean;
    let apart = mean("fp8-block-f32") - mean("fp8-block");
    told(&format!("end {apart:.2}% above the same blocks with powers of two"));
    let sentence = format!(
        "from {:.2}% below f32 to {:.2}% above",
        -recipes[0].mean,
        recipes[recipes.len() - 1].mean
    );
    results().say("../README.md", &sentence);
    results().say("../../../docs/which-recipe.md", &sentence);
}

#[test]
fn what_is_told_of_the_best_recipes_is_in_their_comparisons() {
    let best = recipes(&["recipes-best"], &[1, 2, 3, 4, 5, 6, 7, 8], 12);
    told(&rows(&best));
    assert!(best.len() == 4 && best[0].name == "fp8-row-e4m3-without-head");
    assert!(best[0].mean + best[0].half < 0.3 && best[3].name == "fp8-block");
    told("with the whole interval below 0.3%");
    let again = recipes(&["confirmed"], &SEEDS, 12);
    assert!(again.len() == 1 && again[0].name == best[0].name);
    assert!(again[0].mean + again[0].half < 0.3);
    told(&rows(&again));
}

/// The precisions of these comparisons with f32 that drops the same elements: differences from `f32-fused`, whose run is of the same comparison. No seed is in
/// two of them.
fn against_fused(folders: &[&str]) -> Vec<Recipe> {
    let mut differences: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for folder in folders {
        let comparison = committed(&format!("{folder}/comparison.json"));
        let loss = losses(&comparison);
        for run in runs(folder) {
            let name = run["precision"].as_str().expect("a name").to_owned();
            let seed = run["seed"].as_u64().expect("a seed");
            let difference = 100.0 * (loss(&name, seed) / loss("f32-fused", seed) - 1.0);
            if name != "f32-fused" {
                let earlier = differences.entry(name).or_default().insert(seed, difference);
                assert_eq!(earlier, None, "seed {seed} twice");
            }
        }
    }
    let recipe = |(name, of_seeds): (String, BTreeMap<u64, f64>)| {
        let of_seeds: Vec<_> = of_seeds.into_values().collect();
        let (mean, half) = interval(&of_seeds);
        Recipe { name, of_seeds, mean, half }
    };
    differences.into_iter().map(recipe).collect()
}

#[test]
fn what_is_told_of_seeds_is_in_their_comparisons() {
    let tiny = against_fused(&["seeds", "seeds-more", "seeds-bf16"]);
    let medium = against_fused(&["medium"]);
    for recipe in tiny.iter().chain(&medium) {
        told(&recipe.row(&format!("`{}`, {} seeds", recipe.name, recipe.of_seeds.len())));
    }
    let name = "p=f32,c=f32,o=f32,m=fp8_rowwise_e4m3,a=high-without-head";
    let best = tiny.iter().find(|recipe| recipe.name == name).expect("it is there");
    let (mean, half) = (best.mean, best.half);
    let (least, most) = (mean - half, mean + half);
    let readme = |sentence: &str| results().say("../../../README.md", sentence);
    readme(&format!("{mean:+.2}% from the loss of f32 (95% interval {least:+.2}% … {most:+.2}%)"));
    readme(&format!("Over {} seeds", best.of_seeds.len()));
    let runs = runs("seeds-more");
    let run = runs.iter().find(|run| run["precision"] == name).expect("it is there");
    let share = 100.0 * number(&run["outcome"], "fp8_share");
    readme(&format!("with {share:.1}% of its matrix FLOPs in FP8"));
}

#[test]
fn what_is_told_of_the_longer_training_is_in_its_comparison() {
    let longer = recipes(&["longer", "longer-more"], &LONGER, 48);
    let [recipe] = &longer[..] else { panic!("one recipe") };
    told(&rows(&longer));
    let of_12 = recipes(&["recipes-best"], &[1, 2, 3, 4, 5, 6, 7, 8], 12);
    let same = of_12.iter().find(|other| other.name == recipe.name).expect("it was the best");
    let growth: Vec<_> = LONGER
        .iter()
        .zip(&recipe.of_seeds)
        .map(|(seed, after_48)| after_48 - same.of_seeds[*seed as usize - 1])
        .collect();
    let (mean, half) = interval(&growth);
    let (least, most) = (mean - half, mean + half);
    let changes =
        format!("by {mean:+.2} percentage points (95% interval {least:+.2} … {most:+.2})");
    assert!(least < 0.0 && most > 0.0);
    told(&format!("The gap is not seen to grow: from 12 epochs to 48 it changes {changes}"));
}
