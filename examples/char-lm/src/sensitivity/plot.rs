//! The ranking as bars.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Ranking, Variant};

const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const BAR: RGBColor = RGBColor(86, 180, 233);
const WHISKER: RGBColor = RGBColor(213, 94, 0);
const ROW: u32 = 30;

/// A bar for each variant, as long as its mean gain, with a line from the smallest to the largest gain of a seed. As SVG.
///
/// # Errors
/// Where it cannot be drawn.
pub fn bars(ranking: &Ranking) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, ranking).map_err(|error| anyhow!("cannot draw the ranking: {error}"))?;
    Ok(svg)
}

fn draw(svg: &mut String, ranking: &Ranking) -> Result<(), Box<dyn std::error::Error>> {
    // A run that diverged has no bar.
    let drawn = |variant: &&Variant| variant.gains.iter().all(|gain| gain.is_finite());
    let variants: Vec<_> = ranking.variants.iter().filter(drawn).collect();
    let size = (860, 130 + ROW * variants.len() as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let ranges = variants.iter().map(|variant| variant.range());
    let (low, high) =
        ranges.fold((0.0f64, 0.0f64), |(low, high), range| (low.min(range.0), high.max(range.1)));
    let margin = ((high - low) * 0.05).max(1e-4);
    let rows = variants.len().max(1);
    let text = ("sans-serif", 14).into_font().color(&INK);
    let title = format!("What is won where a part stays out of FP8 ({})", ranking.precision);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(170)
        .build_cartesian_2d(low - margin..high + margin, 0.0..rows as f64)?;
    let name = |y: &f64| {
        let row = y.floor();
        let index = rows as f64 - 1.0 - row;
        match (y - row - 0.5).abs() < 1e-6 {
            true => variants.get(index as usize).map(|variant| variant.name()).unwrap_or_default(),
            false => String::new(),
        }
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("validation loss lower by, in nats a character; the line spans the seeds")
        .x_label_formatter(&|gain| format!("{gain:.4}"))
        .y_labels(2 * rows + 1)
        .y_label_formatter(&name)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text)
        .draw()?;
    for (index, variant) in variants.iter().enumerate() {
        let middle = rows as f64 - index as f64 - 0.5;
        let bar = [(0.0, middle - 0.3), (variant.gain(), middle + 0.3)];
        chart.draw_series([Rectangle::new(bar, BAR.filled())])?;
        let (low, high) = variant.range();
        let line = [(low, middle), (high, middle)];
        chart.draw_series([PathElement::new(line, WHISKER.stroke_width(2))])?;
    }
    chart.draw_series([PathElement::new([(0.0, 0.0), (0.0, rows as f64)], INK.stroke_width(1))])?;
    area.present()?;
    Ok(())
}
