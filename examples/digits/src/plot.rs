//! The loss curves and the scales as pictures.

use anyhow::Result;
use burn_fp8::burn_fp8_core::Operand;
use examples_common::charts::{self, Area, Stroke};
use plotters::prelude::*;

use crate::model::Layers;
use crate::recipe::RecipeName;
use crate::report::{Run, recipes, seeds};
use crate::scales::LayerScale;

/// f32 is drawn wide because the others cover it where FP8 changes nothing.
const fn stroke(recipe: RecipeName) -> Stroke {
    match recipe {
        RecipeName::F32 => (charts::SKY_BLUE, 7),
        RecipeName::Fp8Current => (charts::VERMILION, 2),
        RecipeName::Fp8Delayed => (BLACK, 2),
        RecipeName::Fp8Layers => (charts::GREEN, 2),
        RecipeName::Fp8Measured => (charts::YELLOW, 2),
        RecipeName::Fp8Row => (charts::BLUE, 2),
        RecipeName::Mxfp8 => (charts::ORANGE, 2),
        RecipeName::Fp8Block => (charts::PURPLE, 2),
    }
}

/// Draws the mean training loss of each epoch.
pub fn loss_curves(runs: &[Run]) -> Result<String> {
    charts::svg("the loss curves", (820, 460), |area| {
        let epochs = runs.iter().map(|run| run.losses.len()).max().unwrap_or(1).max(2);
        // A diverged run has no logarithm to draw.
        let drawable = |loss: &f64| loss.is_finite() && *loss > 0.0;
        let curves = recipes(runs).into_iter().map(|recipe| (recipe, mean_losses(runs, recipe)));
        let curves: Vec<_> = curves.collect();
        let losses = curves.iter().flat_map(|(_, losses)| losses.iter().copied().filter(drawable));
        let (low, high) = charts::range((f64::INFINITY, 0.0), losses);
        let range = if low <= high { low / 1.2..high * 1.2 } else { 0.1..1.0 };
        let mut chart = ChartBuilder::on(area)
            .caption("Training loss of the digits classifier", charts::text(20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(1.0..epochs as f64, range.log_scale())?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("epoch").y_desc("mean cross-entropy of the epoch, log scale");
        mesh.x_labels(epochs.min(11)).y_labels(20);
        mesh.x_label_formatter(&|epoch| format!("{epoch:.0}")).y_label_formatter(&loss_label);
        charts::axes(&mut mesh, 14)?;
        for (recipe, losses) in curves {
            let points = (1..).map(f64::from).zip(losses).filter(|(_, loss)| drawable(loss));
            let label = match seeds(runs) {
                1 => recipe.as_str().to_owned(),
                seeds => format!("{}, mean of {seeds} seeds", recipe.as_str()),
            };
            charts::line(&mut chart, points, stroke(recipe), Some((&label, 22)))?;
        }
        charts::legend(&mut chart)
    })
}

/// The label of a grid line: 1, 2 and 5 of each power of ten, and none for the lines between, which lie too close.
fn loss_label(loss: &f64) -> String {
    // The grid's lines are sums, with their rounding errors: 0.6000000000000001 is one of them.
    let exponent = (loss.log10() + 1e-9).floor() as i32;
    let digit = (loss / 10f64.powi(exponent)).round();
    match digit {
        1.0 | 2.0 | 5.0 => format!("{loss:.*}", (-exponent).max(0) as usize),
        _ => String::new(),
    }
}

/// The mean over the seeds of a recipe, for each epoch.
fn mean_losses(runs: &[Run], recipe: RecipeName) -> Vec<f64> {
    let of_recipe: Vec<_> = runs.iter().filter(|run| run.recipe == recipe).collect();
    let epochs = of_recipe.first().map_or(0, |run| run.losses.len());
    let mean = |epoch| {
        let total: f64 = of_recipe.iter().map(|run: &&Run| f64::from(run.losses[epoch])).sum();
        total / of_recipe.len() as f64
    };
    (0..epochs).map(mean).collect()
}

/// Draws the scales of the first seed's FP8 runs over time: a row of panels for each layer, a column for each operand, a line for each recipe.
pub fn scales(runs: &[Run], of: Layers) -> Result<String> {
    charts::svg("the scales", (1080, 640), |area| {
        let title = "Scales in the last step of each epoch (x ≈ code × scale)";
        let area = area.titled(title, charts::text(20))?;
        let seed = runs.first().map(|run| run.seed);
        let of_seed = |run: &&Run| Some(run.seed) == seed && run.recipe != RecipeName::F32;
        let runs: Vec<_> = runs.iter().filter(of_seed).collect();
        let in_fp8 = |layer: usize| {
            runs.iter().any(|run| run.scales.iter().flatten().any(|scale| scale.layer == layer))
        };
        let layers: Vec<_> = (0..of.len()).filter(|layer| in_fp8(*layer)).collect();
        if layers.is_empty() {
            area.draw_text("No product ran in FP8.", &charts::text(16), (30, 30))?;
        }
        for (row, layer) in area.split_evenly((layers.len().max(1), 1)).iter().zip(&layers) {
            for (panel, operand) in row.split_evenly((1, 3)).iter().zip(Operand::ALL) {
                draw_panel(panel, &runs, (*layer, of[*layer]), operand)?;
            }
        }
        Ok(())
    })
}

fn draw_panel(
    panel: &Area,
    runs: &[&Run],
    (layer, (inputs, outputs)): (usize, (usize, usize)),
    operand: Operand,
) -> Result<()> {
    let name = operand.to_string();
    let line = |run: &Run| -> Vec<(f64, f64)> {
        let of_epoch = |scales: &Vec<LayerScale>| {
            let found = scales.iter().find(|s| s.layer == layer && s.operand == name);
            found.map(|found| f64::from(found.scale).log2())
        };
        let epochs = run.scales.iter().enumerate();
        epochs.filter_map(|(epoch, s)| Some(((epoch + 1) as f64, of_epoch(s)?))).collect()
    };
    let points = runs.iter().flat_map(|run| line(run)).map(|(_, scale)| scale);
    let (low, high) = charts::range((f64::INFINITY, f64::NEG_INFINITY), points);
    let range = if low <= high { (low - 0.5).floor()..(high + 0.5).ceil() } else { -1.0..1.0 };
    let powers = (range.end - range.start) as usize;
    let epochs = runs.iter().map(|run| run.scales.len()).max().unwrap_or(1).max(2);
    let caption = format!("layer {} ({inputs}→{outputs}), {operand}", layer + 1);
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, charts::text(15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(66)
        .build_cartesian_2d(1.0..epochs as f64, range)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("epoch").x_labels(epochs.min(7)).y_labels((powers + 1).min(8));
    mesh.x_label_formatter(&|epoch| format!("{epoch:.0}")).y_label_formatter(&power_of_two);
    charts::axes(&mut mesh, 13)?;
    for run in runs {
        let label = Some((run.recipe.as_str(), 18));
        charts::line(&mut chart, line(run), stroke(run.recipe), label)?;
    }
    if layer == 0 && operand == Operand::Input {
        charts::panel_legend(&mut chart)?;
    }
    Ok(())
}

/// The label of a grid line of scales: `2⁻⁹`.
fn power_of_two(exponent: &f64) -> String {
    if exponent.fract() != 0.0 {
        return String::new();
    }
    let digit = |character| match character {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32('⁰' as u32 + digit as u32 - '0' as u32).unwrap_or(digit),
    };
    format!("2{}", format!("{exponent:.0}").chars().map(digit).collect::<String>())
}
