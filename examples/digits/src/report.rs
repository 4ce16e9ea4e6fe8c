//! What the program prints, the trace of a step and the table, and what it writes as JSON.

use std::fmt::Write;

use burn_fp8::Report;
use comfy_table::presets;
use examples_common::{Origin, once};
use serde::{Deserialize, Serialize};

use crate::model::LayerProducts;
use crate::recipe::RecipeName;
use crate::train::Outcome;

/// A run: its row of the table, and its losses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What it trained with.
    pub recipe: RecipeName,
    /// The seed of weights and order.
    pub seed: u64,
    /// The share of the test images that the model gets right, from 0 to 1.
    pub test_accuracy: f64,
    /// The mean training loss of the last epoch.
    pub train_loss: f32,
    /// Seconds of training.
    pub seconds: f64,
    /// The matrix products of a training step that ran in FP8.
    pub fp8_products_per_step: usize,
    /// The mean training loss of each epoch.
    pub losses: Vec<f32>,
}

impl Run {
    /// The run that had this outcome.
    pub fn new(recipe: RecipeName, seed: u64, outcome: Outcome) -> Self {
        Self {
            recipe,
            seed,
            test_accuracy: outcome.test_accuracy,
            train_loss: outcome.losses.last().copied().unwrap_or(f32::NAN),
            seconds: outcome.seconds,
            fp8_products_per_step: outcome.first_step.fp8().count(),
            losses: outcome.losses,
        }
    }
}

/// The recipes of the runs, in the order in which they first ran.
fn recipes(runs: &[Run]) -> Vec<RecipeName> {
    once(runs.iter().map(|run| run.recipe))
}

/// The trace of a step, and why it holds as many FP8 products as it does.
pub fn first_step(recipe: RecipeName, trace: &Report, expected: &[LayerProducts]) -> String {
    let mut text = format!(
        "The matrix products of the first training step of {}:\n\n{trace}\n\n",
        recipe.as_str()
    );
    for (index, layer) in expected.iter().enumerate() {
        let LayerProducts { inputs, outputs, products, rejection } = layer;
        let why = match (products, rejection) {
            (0, Some(rejection)) if recipe == RecipeName::Fp8Layers => {
                format!("left an nn::Linear ({rejection}), whose products are not traced")
            }
            (0, Some(rejection)) => {
                format!(
                    "left in high precision by the filter ({rejection}); its gradients are Autodiff's own and not traced"
                )
            }
            (0, None) => "FP8 is off".into(),
            (2, _) => {
                "output and grad_weight; the pixels need no gradient, so there is no grad_input"
                    .into()
            }
            _ => "output, grad_input and grad_weight".into(),
        };
        let _ =
            writeln!(text, "layer {} ({inputs}→{outputs}): {products} in FP8: {why}", index + 1);
    }
    text.push('\n');
    text
}

/// The number of seeds of each recipe.
fn seeds(runs: &[Run]) -> usize {
    runs.len() / recipes(runs).len().max(1)
}

/// The table of all runs; with several seeds, also the mean accuracy of each recipe.
pub fn table(runs: &[Run]) -> String {
    let header = [
        "recipe",
        "seed",
        "train loss",
        "test accuracy",
        "seconds",
        "speed against f32",
        "FP8 products a step",
    ];
    let rows = runs.iter().map(|run| {
        let is_f32 = |other: &&Run| other.recipe == RecipeName::F32 && other.seed == run.seed;
        let f32_seconds = runs.iter().find(is_f32).map_or(f64::NAN, |f32| f32.seconds);
        [
            run.recipe.as_str().to_owned(),
            run.seed.to_string(),
            format!("{:.5}", run.train_loss),
            format!("{:.2}%", 100.0 * run.test_accuracy),
            format!("{:.2}", run.seconds),
            format!("{:.2}", f32_seconds / run.seconds),
            run.fp8_products_per_step.to_string(),
        ]
    });
    let table = examples_common::table(presets::ASCII_MARKDOWN, header, rows, &[0]);
    let seeds = seeds(runs);
    if seeds == 1 {
        return format!("{table}\n");
    }
    let means = recipes(runs).into_iter().map(|recipe| {
        let of_recipe = runs.iter().filter(|run| run.recipe == recipe);
        let mean = of_recipe.map(|run| run.test_accuracy).sum::<f64>() / seeds as f64;
        format!("{} {:.2}%", recipe.as_str(), 100.0 * mean)
    });
    let means = means.collect::<Vec<_>>().join(", ");
    format!("{table}\n\nmean test accuracy of {seeds} seeds: {means}\n")
}

/// All that is known of all runs, with what they were measured with: `runs.json`.
#[derive(Serialize, Deserialize)]
pub struct Record {
    /// What they were measured with.
    pub origin: Origin,
    /// Epochs of each.
    pub epochs: u32,
    /// The width of the hidden layers.
    pub hidden: u32,
    /// The products of the first step in FP8, as printed; empty where none of the runs was.
    pub first_step: String,
    /// The runs.
    pub runs: Vec<Run>,
}

#[cfg(test)]
mod tests {
    use examples_common::testing::Results;

    use super::*;

    /// How many times as fast as f32 a recipe trained: all seconds in f32 over all seconds of the recipe.
    fn speed(runs: &[Run], recipe: RecipeName) -> f64 {
        let seconds = |recipe| -> f64 {
            runs.iter().filter(|run| run.recipe == recipe).map(|run| run.seconds).sum()
        };
        seconds(RecipeName::F32) / seconds(recipe)
    }

    #[test]
    fn what_is_told_of_narrow_and_wide_models_is_of_their_runs() {
        let results = Results::of(env!("CARGO_MANIFEST_DIR"));
        let record = |name: &str| -> Record {
            let record: Record = results.json(&format!("{name}.json"));
            assert!(record.origin.optimized);
            record
        };
        let [narrow, wide] = ["narrow", "wide"].map(record);
        results.check_part("README.md", "wide", &table(&wide.runs));
        // Equal losses of the same seed, and no product in FP8.
        let of = |recipe| {
            let runs = narrow.runs.iter().filter(move |run| run.recipe == recipe);
            runs.map(|run| (run.seed, run.train_loss.to_bits(), run.fp8_products_per_step))
        };
        assert!(narrow.hidden == 128 && of(RecipeName::Fp8Measured).eq(of(RecipeName::F32)));
        results.say("README.md", "At a width of 128 it takes no product, and is f32 to the bit");
        let measured = |run: &&Run| run.recipe == RecipeName::Fp8Measured;
        assert!(wide.runs.iter().filter(measured).all(|run| run.fp8_products_per_step == 5));
        let [measured, current] = [RecipeName::Fp8Measured, RecipeName::Fp8Current]
            .map(|recipe| speed(&wide.runs, recipe));
        results.say(
            "README.md",
            &format!(
                "At {} it takes all five and trains {measured:.2} times as fast as f32, `fp8-current` {current:.2} times",
                wide.hidden
            ),
        );
    }
}
