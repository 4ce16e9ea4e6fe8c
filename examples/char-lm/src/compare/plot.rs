//! The validation losses as a picture.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::Comparison;
use crate::precision::Precision;

const SIZE: (u32, u32) = (860, 520);
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const BIGRAM: RGBColor = RGBColor(130, 130, 130);

/// Colours and widths: of Okabe and Ito, told apart by colour-blind readers too. f32 is drawn wide because the others cover it where FP8
/// changes nothing.
const fn stroke(precision: Precision) -> (RGBColor, u32) {
    match precision {
        Precision::F32 => (RGBColor(86, 180, 233), 6),
        Precision::Bf16 => (RGBColor(230, 159, 0), 1),
        Precision::Fp8Current => (RGBColor(213, 94, 0), 3),
        Precision::Fp8Delayed => (RGBColor(0, 0, 0), 1),
        Precision::Fp8Layers => (RGBColor(0, 158, 115), 1),
        // Several policies share it: the legend has them in their order.
        Precision::Policy(_) => (RGBColor(204, 121, 167), 1),
    }
}

/// The validation loss of each epoch: a colour for each precision, a line for each seed, and the bigram model's loss. As SVG.
///
/// # Errors
/// Where it cannot be drawn.
pub fn loss(comparison: &Comparison) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, comparison).map_err(|error| anyhow!("cannot draw the losses: {error}"))?;
    Ok(svg)
}

fn draw(svg: &mut String, comparison: &Comparison) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let bigram = comparison.bigram_loss();
    let losses = comparison.runs.iter().flat_map(|run| &run.outcome.losses);
    // A diverged run has no place in the picture.
    let finite = losses.map(|point| point.valid_loss).filter(|loss| loss.is_finite());
    let (low, high) =
        finite.fold((bigram, bigram), |(low, high), loss| (low.min(loss), high.max(loss)));
    let epochs =
        comparison.runs.iter().map(|run| run.outcome.losses.len()).max().unwrap_or(1).max(2);
    let title = format!("Validation loss of char-lm, size {}", comparison.size.as_str());
    let text = ("sans-serif", 14).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(1.0..epochs as f64, low - 0.05..high + 0.05)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc("nats a character")
        .x_labels(epochs.min(13))
        .x_label_formatter(&|epoch| format!("{epoch:.0}"))
        .y_label_formatter(&|loss| format!("{loss:.2}"))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(text.clone())
        .axis_desc_style(text.clone())
        .draw()?;
    let line = [(1.0, bigram), (epochs as f64, bigram)];
    chart
        .draw_series(DashedLineSeries::new(line, 6, 5, BIGRAM.stroke_width(2)))?
        .label("bigram model")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], BIGRAM.stroke_width(2)));
    let seeds = comparison.seeds();
    for precision in comparison.precisions() {
        let (colour, width) = stroke(precision);
        let label = match seeds {
            1 => precision.to_string(),
            seeds => format!("{precision}, {seeds} seeds"),
        };
        let of_precision = comparison.runs.iter().filter(|run| run.precision == precision);
        for (index, run) in of_precision.enumerate() {
            let points = run.outcome.losses.iter().filter(|point| point.valid_loss.is_finite());
            let points = points.map(|point| (point.epoch as f64, point.valid_loss));
            let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(width)))?;
            if index == 0 {
                series.label(label.as_str()).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(width.max(2)))
                });
            }
        }
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
