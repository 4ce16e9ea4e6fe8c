//! The loss curves and the scales as pictures.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use burn_fp8::burn_fp8_core::Operand;

use crate::model::LAYERS;
use crate::recipe::RecipeName;
use crate::report::{Run, recipes};
use crate::scales::LayerScale;

const SIZE: (u32, u32) = (820, 460);
/// Colours and widths: sky blue, vermilion, black, bluish green, orange, reddish purple and blue of Okabe and Ito, told apart by colour-blind readers too.
/// f32 is drawn wide because the others cover it where FP8 changes nothing.
const fn stroke(recipe: RecipeName) -> (RGBColor, u32) {
    match recipe {
        RecipeName::F32 => (RGBColor(86, 180, 233), 7),
        RecipeName::Fp8Current => (RGBColor(213, 94, 0), 2),
        RecipeName::Fp8Delayed => (RGBColor(0, 0, 0), 2),
        RecipeName::Fp8Layers => (RGBColor(0, 158, 115), 2),
        RecipeName::Fp8Row => (RGBColor(0, 114, 178), 2),
        RecipeName::Mxfp8 => (RGBColor(230, 159, 0), 2),
        RecipeName::Fp8Block => (RGBColor(204, 121, 167), 2),
    }
}
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// Makes the directory, so that a wrong one is told before the training, not after it.
///
/// # Errors
/// Where it cannot be made.
pub fn prepare(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))
}

/// Draws the mean training loss of each epoch.
///
/// # Errors
/// Where the plotting library fails.
pub fn loss_curves(runs: &[Run]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, runs).map_err(|error| anyhow!("cannot draw the loss curves: {error}"))?;
    Ok(svg)
}

/// Draws the scales of the first seed's FP8 runs over time.
///
/// # Errors
/// Where the plotting library fails.
pub fn scales(runs: &[Run]) -> Result<String> {
    let mut svg = String::new();
    draw_scales(&mut svg, runs).map_err(|error| anyhow!("cannot draw the scales: {error}"))?;
    Ok(svg)
}

const SCALES_SIZE: (u32, u32) = (1080, 640);

/// A row of panels for each layer, a column for each operand, a line for each recipe.
fn draw_scales(svg: &mut String, runs: &[Run]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SCALES_SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = ("sans-serif", 20).into_font().color(&INK);
    let area = area.titled("Scales in the last step of each epoch (x ≈ code × scale)", title)?;
    let seed = runs.first().map(|run| run.row.seed);
    let of_seed = |run: &&Run| Some(run.row.seed) == seed && run.row.recipe != RecipeName::F32;
    let runs: Vec<_> = runs.iter().filter(of_seed).collect();
    let in_fp8 = |layer: usize| {
        runs.iter().any(|run| run.scales.iter().flatten().any(|scale| scale.layer == layer))
    };
    let layers: Vec<_> = (0..LAYERS.len()).filter(|layer| in_fp8(*layer)).collect();
    if layers.is_empty() {
        let text = ("sans-serif", 16).into_font().color(&INK);
        area.draw_text("No product ran in FP8.", &text, (30, 30))?;
    }
    for (row, layer) in area.split_evenly((layers.len().max(1), 1)).iter().zip(&layers) {
        for (panel, operand) in row.split_evenly((1, 3)).iter().zip(Operand::ALL) {
            draw_panel(panel, &runs, *layer, operand)?;
        }
    }
    area.present()?;
    Ok(())
}

fn draw_panel(
    panel: &DrawingArea<SVGBackend, plotters::coord::Shift>,
    runs: &[&Run],
    layer: usize,
    operand: Operand,
) -> Result<(), Box<dyn std::error::Error>> {
    let name = operand.to_string();
    let line = |run: &Run| -> Vec<(f64, f64)> {
        let of_epoch = |scales: &Vec<LayerScale>| {
            let found = scales.iter().find(|s| s.layer == layer && s.operand == name);
            found.map(|found| f64::from(found.scale).log2())
        };
        let epochs = run.scales.iter().enumerate();
        epochs.filter_map(|(epoch, s)| Some(((epoch + 1) as f64, of_epoch(s)?))).collect()
    };
    let points: Vec<_> = runs.iter().flat_map(|run| line(run)).collect();
    let (low, high) = points
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p.1), high.max(p.1)));
    let range = if low <= high { (low - 0.5).floor()..(high + 0.5).ceil() } else { -1.0..1.0 };
    let powers = (range.end - range.start) as usize;
    let epochs = runs.iter().map(|run| run.scales.len()).max().unwrap_or(1).max(2);
    let (inputs, outputs) = LAYERS[layer];
    let caption = format!("layer {} ({inputs}→{outputs}), {operand}", layer + 1);
    let text = ("sans-serif", 13).into_font().color(&INK);
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", 15).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(66)
        .build_cartesian_2d(1.0..epochs as f64, range)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .x_labels(epochs.min(7))
        .y_labels((powers + 1).min(8))
        .x_label_formatter(&|epoch| format!("{epoch:.0}"))
        .y_label_formatter(&power_of_two)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text.clone())
        .draw()?;
    for run in runs {
        let (colour, width) = stroke(run.row.recipe);
        chart
            .draw_series(LineSeries::new(line(run), colour.stroke_width(width)))?
            .label(run.row.recipe.as_str())
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(width))
            });
    }
    if layer == 0 && operand == Operand::Input {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(GRID)
            .legend_area_size(24)
            .label_font(text)
            .draw()?;
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

fn draw(svg: &mut String, runs: &[Run]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let epochs = runs.iter().map(|run| run.losses.len()).max().unwrap_or(1).max(2);
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "Training loss of the digits classifier",
            ("sans-serif", 20).into_font().color(&INK),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(1.0..epochs as f64, loss_range(runs).log_scale())?;
    let text = ("sans-serif", 14).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc("mean cross-entropy of the epoch, log scale")
        .x_labels(epochs.min(11))
        .y_labels(20)
        .x_label_formatter(&|epoch| format!("{epoch:.0}"))
        .y_label_formatter(&loss_label)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text.clone())
        .draw()?;

    let seeds = runs.len() / recipes(runs).len().max(1);
    for recipe in recipes(runs) {
        let (colour, width) = stroke(recipe);
        let points = (1..).map(f64::from).zip(mean_losses(runs, recipe));
        // A diverged run has no logarithm to draw.
        let points = points.filter(|(_, loss)| drawable(*loss));
        let label = match seeds {
            1 => recipe.as_str().to_owned(),
            seeds => format!("{}, mean of {seeds} seeds", recipe.as_str()),
        };
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(width)))?
            .label(label)
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(width))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(GRID)
        .legend_area_size(30)
        .margin(10)
        .label_font(text)
        .draw()?;
    area.present()?;
    Ok(())
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
    let of_recipe: Vec<_> = runs.iter().filter(|run| run.row.recipe == recipe).collect();
    let epochs = of_recipe.first().map_or(0, |run| run.losses.len());
    let mean = |epoch| {
        let total: f64 = of_recipe.iter().map(|run: &&Run| f64::from(run.losses[epoch])).sum();
        total / of_recipe.len() as f64
    };
    (0..epochs).map(mean).collect()
}

fn drawable(loss: f64) -> bool {
    loss.is_finite() && loss > 0.0
}

/// A range that holds every loss that can be drawn, never empty.
fn loss_range(runs: &[Run]) -> Range<f64> {
    let losses = recipes(runs).into_iter().flat_map(|recipe| mean_losses(runs, recipe));
    let (low, high) = losses
        .filter(|&loss| drawable(loss))
        .fold((f64::INFINITY, 0.0f64), |(low, high), loss| (low.min(loss), high.max(loss)));
    match low <= high {
        true => low / 1.2..high * 1.2,
        false => 0.1..1.0,
    }
}
