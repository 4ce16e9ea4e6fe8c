//! The committed results: what is said of them is in them, and the comparison reached its goals. That the picture is drawn from them is a test
//! beside the code that draws.

use std::collections::BTreeMap;

use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8_report::{LEAST_GAIN, rounding_limit};
use char_lm::Arm;
use examples_common::testing::{Results, list, number};
use serde_json::Value;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

fn results() -> Results {
    Results::of(env!("CARGO_MANIFEST_DIR"))
}

/// The notes beside the results say this.
#[track_caller]
fn told(sentence: &str) {
    results().say("README.md", sentence);
}

#[track_caller]
fn readme_tells(sentence: &str) {
    results().say("../../../README.md", sentence);
}

/// The runs of a committed comparison.
fn runs(file: &str) -> Vec<Value> {
    let comparison: Value = results().json(file);
    assert_eq!(comparison["origin"]["optimized"], true);
    list(&comparison["runs"]).to_vec()
}

/// What a run computed with, as it is called today.
fn arm(run: &Value) -> String {
    let arm: Arm = serde_json::from_value(run["precision"].clone()).expect("an arm");
    arm.to_string()
}

fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    values.into_iter().fold(start, |(low, high), value| (low.min(value), high.max(value)))
}

/// An arm: its differences from the reference in percent, by seed, their mean, and half of its 95% interval by Student's t.
struct Recipe {
    name: String,
    of_seeds: BTreeMap<u64, f64>,
    mean: f64,
    half: f64,
}

impl Recipe {
    fn new(name: String, of_seeds: BTreeMap<u64, f64>) -> Self {
        let (mean, half) = interval(&of_seeds.values().copied().collect::<Vec<_>>());
        Self { name, of_seeds, mean, half }
    }

    /// Its row of a table, where it is called so.
    fn row(&self, name: &str) -> String {
        let Self { mean, half, .. } = self;
        format!("| {name} | {mean:+.2}% | {:+.2}% … {:+.2}% |", mean - half, mean + half)
    }
}

fn interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).expect("degrees of freedom").inverse_cdf(0.975);
    (values.mean(), t * values.std_dev() / count.sqrt())
}

/// The arms of committed comparisons with one reference, the smallest mean first. A seed is compared within its file, and is in one file alone.
fn against(reference: &str, files: &[&str]) -> Vec<Recipe> {
    let mut differences: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for file in files {
        let runs = runs(file);
        let seed = |run: &Value| run["seed"].as_u64().expect("a seed");
        for run in runs.iter().filter(|run| arm(run) != reference) {
            let is_its = |other: &&Value| arm(other) == reference && seed(other) == seed(run);
            let other = runs.iter().find(is_its).expect("the reference");
            let difference =
                100.0 * (number(run, "final_loss") / number(other, "final_loss") - 1.0);
            let earlier = differences.entry(arm(run)).or_default().insert(seed(run), difference);
            assert_eq!(earlier, None, "seed {} twice", seed(run));
        }
    }
    let mut recipes: Vec<_> =
        differences.into_iter().map(|(name, of_seeds)| Recipe::new(name, of_seeds)).collect();
    recipes.sort_by(|a, b| a.mean.total_cmp(&b.mean));
    recipes
}

/// The recipes of comparisons with f32 of so many epochs. Each has these seeds, and nine tenths of the FLOPs in FP8.
fn recipes(
    files: &[&str],
    seeds: impl IntoIterator<Item = u64> + Clone,
    epochs: usize,
) -> Vec<Recipe> {
    for run in files.iter().flat_map(|file| runs(file)) {
        assert_eq!(run["outcome"]["resumed"], false);
        assert_eq!(list(&run["outcome"]["losses"]).len(), epochs);
        assert!(arm(&run) == "f32" || number(&run["outcome"], "fp8_share") >= 0.9, "{}", arm(&run));
    }
    let recipes = against("f32", files);
    for Recipe { name, of_seeds, .. } in &recipes {
        assert!(of_seeds.keys().copied().eq(seeds.clone()), "{name}");
    }
    recipes
}

fn share(runs: &[Value]) -> f64 {
    100.0 * range(runs.iter().map(|run| number(&run["outcome"], "fp8_share"))).1
}

#[test]
fn the_comparison_reached_its_goals_and_what_is_told_of_it_is_in_it() {
    let file = "comparison.json";
    let comparison: Value = results().json(file);
    assert_eq!(comparison["size"], "tiny");
    let runs = runs(file);
    assert_eq!(runs.len(), 9);
    let mean = |name: &str| {
        let of = runs.iter().filter(|run| arm(run) == name);
        of.map(|run| number(run, "final_loss")).sum::<f64>() / 3.0
    };
    let bigram = number(&comparison, "bigram_loss");
    assert!(mean("f32") <= bigram - 0.5, "clearly below a bigram model");
    let [current, delayed] = ["m=fp8,fused=off", "m=fp8_delayed,fused=off"]
        .map(|name| 100.0 * (mean(name) / mean("f32") - 1.0));
    assert!(current.abs() <= 1.0 && delayed.abs() <= 1.0, "{current} {delayed}");
    let ends = format!("{current:.2}% (current scaling) and {delayed:.2}% (delayed scaling) above");
    told(&format!("{ends} f32, with {:.1}% of the matrix FLOPs in FP8", share(&runs)));
    results().say("../README.md", &format!("{ends} the loss of f32"));
    let pairs = against("f32", &[file]);
    let (low, high) = range(pairs.iter().flat_map(|recipe| recipe.of_seeds.values().copied()));
    assert!(low > 0.0 && pairs.iter().all(|recipe| recipe.of_seeds.len() == 3));
    told(&format!("in every seed above it, by {low:.1}% to {high:.1}%"));
}

#[test]
fn what_is_told_of_how_well_fp8_fits_is_in_it() {
    let page: Value = results().json("fp8-current.json");
    let products = list(&page["products"]);
    let limit = |product: &Value| {
        let forward = product["role"] == "output";
        rounding_limit([if forward { E4M3 } else { E5M2 }, E4M3]) - LEAST_GAIN
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
    let advice = worst["advice"].as_str().expect("text");
    let instead = advice.strip_prefix("E4M3 × E4M3: ").expect("another format");
    told(&format!(
        "The weight gradient of the head has {:.1} dB, and would have {instead} with its output gradient in E4M3",
        number(worst, "last_db")
    ));
}

#[test]
fn what_is_told_of_all_recipes_is_in_the_comparison() {
    let recipes = recipes(&["recipes/comparison.json"], 1..=4, 12);
    let [best, .., worst] = &recipes[..] else { panic!("several recipes") };
    assert_eq!(recipes.len(), 11);
    let [below, above] = [-best.mean, worst.mean];
    told(&format!(
        "from {below:.2}% below f32 (`{}`) to {above:.2}% above (`{}`)",
        best.name, worst.name
    ));
    let extents = recipes.iter().map(|recipe| range(recipe.of_seeds.values().copied()));
    let apart = extents.map(|(least, most)| most - least).fold(0.0, f64::max);
    told(&format!("lie up to {apart:.1}% apart"));
    let all = recipes.iter().flat_map(|recipe| recipe.of_seeds.values());
    told(&format!("{} of the 44 pairs of runs end above f32", all.filter(|x| **x > 0.0).count()));
    let sentence = format!("from {below:.2}% below f32 to {above:.2}% above");
    results().say("../README.md", &sentence);
    results().say("../../../docs/which-recipe.md", &sentence);
}

#[test]
fn what_is_told_of_the_best_recipes_is_in_their_comparisons() {
    let best = recipes(&["recipes-best/comparison.json"], 1..=8, 12);
    let confirmed = "confirmed/comparison.json";
    // Seeds that had no say in the choice of the recipe.
    let again = recipes(&[confirmed], [101, 102, 105, 106], 12);
    let longer = recipes(&["longer/comparison.json", "longer-more/comparison.json"], 1..=6, 48);
    for recipe in best.iter().chain(&again).chain(&longer) {
        told(&recipe.row(&format!("`{}`", recipe.name)));
    }
    let name = "m=fp8_rowwise_e4m3,fused=off-without-head";
    assert!(best.len() == 4 && [&best[0], &again[0], &longer[0]].iter().all(|r| r.name == name));
    let growth = longer[0].of_seeds.iter().map(|(seed, after)| after - best[0].of_seeds[seed]);
    let (mean, half) = interval(&growth.collect::<Vec<_>>());
    let (least, most) = (mean - half, mean + half);
    assert!(least < 0.0 && most > 0.0);
    told(&format!(
        "from 12 epochs to 48 it changes by {mean:+.2} percentage points (95% interval {least:+.2} … {most:+.2})"
    ));
}

#[test]
fn what_is_told_of_the_noise_is_in_the_comparisons() {
    let noise = against("f32", &["noise/comparison.json"]);
    let of = |name: &str| {
        let recipe = noise.iter().find(|recipe| recipe.name == name).expect(name);
        range(recipe.of_seeds.values().copied())
    };
    let (low, high) = of("join=on");
    assert!(low.abs().max(high.abs()) < 1e-4, "a millionth, in percent: {low} {high}");
    let (low, high) = of("a=high");
    told(&format!("ends from {:.2}% below f32 to {high:.2}% above", -low));

    let files = ["seeds", "seeds-more", "seeds-bf16"].map(|name| format!("{name}/comparison.json"));
    let fused = against("a=high", &files.each_ref().map(String::as_str));
    for recipe in &fused {
        told(&recipe.row(&format!("`{}`, {} seeds", recipe.name, recipe.of_seeds.len())));
    }
    let name = "m=fp8_rowwise_e4m3,a=high-without-head";
    let best = fused.iter().find(|recipe| recipe.name == name).expect("it is there");
    let (least, most) = (best.mean - best.half, best.mean + best.half);
    readme_tells(&format!(
        "{:+.2}% from the loss of f32 (95% interval {least:+.2}% … {most:+.2}%)",
        best.mean
    ));
    readme_tells(&format!("Over {} seeds", best.of_seeds.len()));
    let mut of_best = runs("seeds-more/comparison.json");
    of_best.retain(|run| arm(run) == name);
    let of_best = share(&of_best);
    readme_tells(&format!("with {of_best:.1}% of its matrix FLOPs in FP8"));
    let apart = ["sums/comparison.json", "saved/comparison.json"];
    for recipe in apart.into_iter().flat_map(|file| against("a=high", &[file])) {
        told(&recipe.row(&format!("`{}`, {} seeds", recipe.name, recipe.of_seeds.len())));
    }
    let medium = against("a=high", &["medium/comparison.json"]);
    let ends = ["bf16", "high", "fp8"].map(|attention| {
        let name = format!("m=fp8_rowwise_e4m3,a={attention}-without-head");
        let recipe = medium.iter().find(|recipe| recipe.name == name).expect("it is there");
        assert_eq!(recipe.of_seeds.len(), 4);
        format!("{:+.2}%", recipe.mean)
    });
    let [bf16, high, fp8] = ends;
    told(&format!(
        "ends {bf16} from `a=high` with attention in bf16, {high} in f32 and {fp8} in FP8"
    ));
}
