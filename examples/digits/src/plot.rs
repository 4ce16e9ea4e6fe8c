//! The loss curves as a picture.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use crate::report::{Run, recipes};

const SIZE: (u32, u32) = (820, 460);
/// Colours and widths of f32 and FP8: sky blue and vermilion of Okabe and Ito, told apart by colour-blind readers too. The
/// first curve is wide because the second one covers it where FP8 changes nothing.
const STROKES: [(RGBColor, u32); 2] = [(RGBColor(86, 180, 233), 7), (RGBColor(213, 94, 0), 2)];
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

/// Draws the mean training loss of each epoch into `loss.svg` and returns its path.
///
/// # Errors
/// Where the file cannot be written.
pub fn loss_curves(directory: &Path, runs: &[Run]) -> Result<PathBuf> {
    let path = directory.join("loss.svg");
    let mut svg = String::new();
    draw(&mut svg, runs).map_err(|error| anyhow!("cannot draw the loss curves: {error}"))?;
    fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
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
    for (recipe, (colour, width)) in recipes(runs).into_iter().zip(STROKES) {
        let points = (1..).map(f64::from).zip(mean_losses(runs, recipe));
        // A diverged run has no logarithm to draw.
        let points = points.filter(|(_, loss)| drawable(*loss));
        let label = match seeds {
            1 => recipe.to_owned(),
            seeds => format!("{recipe}, mean of {seeds} seeds"),
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
fn mean_losses(runs: &[Run], recipe: &str) -> Vec<f64> {
    let of_recipe: Vec<_> = runs.iter().filter(|run| run.recipe == recipe).collect();
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
