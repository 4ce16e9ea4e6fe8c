//! The differences from f32 as a picture.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::differences::Differences;
use super::report::Comparison;

const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const SEED: RGBColor = RGBColor(86, 180, 233);
const MEAN: RGBColor = RGBColor(213, 94, 0);
const ROW: u32 = 34;

/// A row for each arm but f32, the smallest mean at the top: a dot for each seed, and the mean with its 95% interval. As SVG.
///
/// # Errors
/// Where it cannot be drawn.
pub fn differences(comparison: &Comparison) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, comparison).map_err(|error| anyhow!("cannot draw the differences: {error}"))?;
    Ok(svg)
}

fn draw(svg: &mut String, comparison: &Comparison) -> Result<(), Box<dyn std::error::Error>> {
    // An arm of which a run diverged has no place in the picture.
    let mut arms = Differences::all(comparison);
    arms.retain(|arm| arm.mean().is_finite());
    arms.sort_by(|a, b| a.mean().total_cmp(&b.mean()));
    let percents =
        |arm: &Differences| arm.of_seeds.iter().map(|share| 100.0 * share).collect::<Vec<_>>();
    let interval =
        |arm: &Differences| arm.interval().map(|(low, high)| (100.0 * low, 100.0 * high));
    let ends = arms.iter().flat_map(|arm| {
        let (low, high) = interval(arm).unwrap_or((0.0, 0.0));
        percents(arm).into_iter().chain([low, high])
    });
    let (low, high) = ends.fold((0.0f64, 0.1f64), |(low, high), end| (low.min(end), high.max(end)));
    let margin = (high - low) * 0.04;
    let size = (860, 130 + ROW * arms.len() as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let rows = arms.len().max(1);
    let text = ("sans-serif", 14).into_font().color(&INK);
    let title = format!("Final validation loss against f32, size {}", comparison.size.as_str());
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(230)
        .build_cartesian_2d(low - margin..high + margin, 0.0..rows as f64)?;
    let name = |y: &f64| {
        let row = y.floor();
        match (y - row - 0.5).abs() < 1e-6 {
            true => arms
                .get((rows as f64 - 1.0 - row) as usize)
                .map(|arm| arm.arm.to_string())
                .unwrap_or_default(),
            false => String::new(),
        }
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("difference in %: a dot for each seed, the mean with its 95% interval")
        .x_label_formatter(&|percent| match percent.abs() < 0.05 {
            true => "0".into(),
            false => format!("{percent:+.1}"),
        })
        .y_labels(2 * rows + 1)
        .y_label_formatter(&name)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text)
        .draw()?;
    chart.draw_series([PathElement::new([(0.0, 0.0), (0.0, rows as f64)], INK.stroke_width(1))])?;
    for (index, arm) in arms.iter().enumerate() {
        let middle = rows as f64 - index as f64 - 0.5;
        if let Some((low, high)) = interval(arm) {
            let line = [(low, middle), (high, middle)];
            chart.draw_series([PathElement::new(line, MEAN.stroke_width(3))])?;
        }
        let mean = 100.0 * arm.mean();
        let bar = [(mean, middle - 0.28), (mean, middle + 0.28)];
        chart.draw_series([PathElement::new(bar, MEAN.stroke_width(3))])?;
        chart.draw_series(
            percents(arm).into_iter().map(|x| Circle::new((x, middle), 4, SEED.filled())),
        )?;
    }
    area.present()?;
    Ok(())
}
