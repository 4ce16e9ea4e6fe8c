//! What is told of the comparison of all recipes is in its file.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{json, number};
use statrs::distribution::{ContinuousCDF, StudentsT};

const SEEDS: [u64; 4] = [1, 2, 3, 4];

#[test]
fn what_is_told_of_the_recipes_is_in_the_comparison() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let notes = std::fs::read_to_string(results.join("README.md")).expect("notes");
    let notes = notes.split_whitespace().collect::<Vec<_>>().join(" ");
    let comparison = json(results.join("recipes/comparison.json"));
    assert_eq!(comparison["origin"]["optimized"], true);
    let mut losses = BTreeMap::new();
    for run in comparison["runs"].as_array().expect("runs") {
        assert_eq!(run["outcome"]["resumed"], false);
        assert_eq!(run["outcome"]["losses"].as_array().map(Vec::len), Some(12));
        let precision = run["precision"].as_str().expect("a name").to_owned();
        if precision != "f32" {
            assert!(number(&run["outcome"], "fp8_share") >= 0.9, "{precision}");
        }
        let seed = run["seed"].as_u64().expect("a seed");
        losses.insert((precision, seed), number(run, "final_loss"));
    }
    let f32_loss = |seed| losses[&("f32".to_owned(), seed)];
    let t = StudentsT::new(0.0, 1.0, 3.0).expect("three degrees").inverse_cdf(0.975);
    let (mut rows, mut reached, mut above, mut widest) = (vec![], 0, 0, 0f64);
    let mut names: Vec<_> = losses.keys().map(|(name, _)| name.clone()).collect();
    names.dedup();
    for name in names.into_iter().filter(|name| name != "f32") {
        let share =
            SEEDS.map(|seed| 100.0 * (losses[&(name.clone(), seed)] / f32_loss(seed) - 1.0));
        let mean = share.iter().sum::<f64>() / 4.0;
        let deviation = (share.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 3.0).sqrt();
        let half = t * deviation / 2.0;
        let (least, most) =
            share.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        widest = widest.max(most - least);
        reached += usize::from(mean <= 0.3);
        assert!(mean + half > 0.3, "{name}: no interval ends below");
        above += share.iter().filter(|x| **x > 0.0).count();
        let row =
            format!("| `{name}` | {mean:+.2}% | {:+.2}% … {:+.2}% |", mean - half, mean + half);
        rows.push((mean, row));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ends = [rows[0].0, rows[rows.len() - 1].0].map(f64::abs);
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    assert_eq!((rows.len(), reached), (11, 4));
    for told in [
        rows.join(" "),
        "Four recipes reach it in the mean".into(),
        format!("lie up to {widest:.1}% apart"),
        format!("{above} of the 44 pairs of runs end above f32"),
    ] {
        assert!(notes.contains(&told), "results/README.md does not say: {told}");
    }
    let told = format!("from {:.2}% below f32 to {:.2}% above", ends[0], ends[1]);
    for document in ["README.md", "../../docs/which-recipe.md"] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document));
        let text = text.expect("a document");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&told), "{document} does not say: {told}");
    }
}
