//! What is told of the comparisons of recipes is in their files.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{json, number};
use serde_json::Value;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A recipe: its differences from f32 in percent, one for each seed, their mean, and half of its 95% interval.
struct Recipe {
    name: String,
    of_seeds: Vec<f64>,
    mean: f64,
    half: f64,
}

impl Recipe {
    fn row(&self) -> String {
        let Self { name, mean, half, .. } = self;
        format!("| `{name}` | {mean:+.2}% | {:+.2}% … {:+.2}% |", mean - half, mean + half)
    }
}

/// The mean, and half of its 95% interval by Student's t.
fn interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).expect("degrees of freedom").inverse_cdf(0.975);
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, t * (squares / (count - 1.0) / count).sqrt())
}

/// The runs of a committed comparison.
fn runs(folder: &str) -> Vec<Value> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let comparison = json(results.join(folder).join("comparison.json"));
    assert_eq!(comparison["origin"]["optimized"], true);
    comparison["runs"].as_array().expect("runs").clone()
}

/// The recipes of committed comparisons of so many epochs, the smallest mean first. Each has these seeds.
fn recipes(folders: &[&str], seeds: &[u64], epochs: usize) -> Vec<Recipe> {
    let mut losses: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for run in folders.iter().flat_map(|folder| runs(folder)) {
        assert_eq!(run["outcome"]["resumed"], false);
        assert_eq!(run["outcome"]["losses"].as_array().map(Vec::len), Some(epochs));
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
    recipes.iter().map(Recipe::row).collect::<Vec<_>>().join(" ")
}

/// Line breaks are spaces: a sentence may have one anywhere.
#[track_caller]
fn told(document: &str, sentence: &str) {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document));
    let text = text.expect("a document");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(sentence), "{document} does not say: {sentence}");
}

const NOTES: &str = "results/README.md";

/// Seeds that had no say in the choice of the recipe.
const SEEDS: [u64; 4] = [101, 102, 105, 106];

/// Seeds of the longer training.
const LONGER: [u64; 6] = [1, 2, 3, 4, 5, 6];

#[test]
fn what_is_told_of_all_recipes_is_in_the_comparison() {
    let recipes = recipes(&["recipes"], &[1, 2, 3, 4], 12);
    assert_eq!(recipes.len(), 11);
    told(NOTES, &rows(&recipes));
    assert_eq!(recipes.iter().filter(|recipe| recipe.mean <= 0.3).count(), 4);
    assert!(recipes.iter().all(|recipe| recipe.mean + recipe.half > 0.3));
    told(NOTES, "Four recipes reach it in the mean. None reaches it with its whole interval");
    let extent = |recipe: &Recipe| {
        let ends = recipe
            .of_seeds
            .iter()
            .fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
        ends.1 - ends.0
    };
    told(NOTES, &format!("lie up to {:.1}% apart", recipes.iter().map(extent).fold(0.0, f64::max)));
    let above = recipes.iter().flat_map(|recipe| &recipe.of_seeds).filter(|x| **x > 0.0).count();
    told(NOTES, &format!("{above} of the 44 pairs of runs end above f32"));
    let mean = |name: &str| recipes.iter().find(|recipe| recipe.name == name).expect(name).mean;
    let apart = mean("fp8-block-f32") - mean("fp8-block");
    told(NOTES, &format!("end {apart:.2}% above the same blocks with powers of two"));
    let sentence = format!(
        "from {:.2}% below f32 to {:.2}% above",
        -recipes[0].mean,
        recipes[recipes.len() - 1].mean
    );
    told("README.md", &sentence);
    told("../../docs/which-recipe.md", &sentence);
}

#[test]
fn what_is_told_of_the_best_recipes_is_in_their_comparisons() {
    let best = recipes(&["recipes-best"], &[1, 2, 3, 4, 5, 6, 7, 8], 12);
    told(NOTES, &rows(&best));
    assert!(best.len() == 4 && best[0].name == "fp8-row-e4m3-without-head");
    assert!(best[0].mean + best[0].half < 0.3 && best[3].name == "fp8-block");
    told(NOTES, "with the whole interval below 0.3%");
    let again = recipes(&["confirmed"], &SEEDS, 12);
    assert!(again.len() == 1 && again[0].name == best[0].name);
    assert!(again[0].mean + again[0].half < 0.3);
    told(NOTES, &rows(&again));
}

#[test]
fn what_is_told_of_the_longer_training_is_in_its_comparison() {
    let longer = recipes(&["longer", "longer-more"], &LONGER, 48);
    let [recipe] = &longer[..] else { panic!("one recipe") };
    told(NOTES, &recipe.row());
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
    told(NOTES, &format!("The gap is not seen to grow: from 12 epochs to 48 it changes {changes}"));
}
