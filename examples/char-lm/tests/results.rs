//! The committed comparison: what README says of it is in it, and it reached its goals.

mod common;

use std::path::Path;

use common::{json, number};

#[test]
fn the_committed_comparison_reached_its_goals() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let comparison = json(results.join("comparison.json"));
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
