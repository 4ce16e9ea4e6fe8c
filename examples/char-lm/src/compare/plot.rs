//! The validation losses as a picture.

use anyhow::{Result, anyhow};
use burn_fp8::Granularity;
use plotters::prelude::*;

use super::report::Comparison;
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
        Precision::FP8_CURRENT => (RGBColor(213, 94, 0), 3),
        Precision::FP8_DELAYED => (RGBColor(0, 0, 0), 1),
        Precision::Fp8Layers => (RGBColor(0, 158, 115), 1),
        Precision::Fp8(recipe) => match recipe.granularity() {
            Granularity::Mx(_) => (RGBColor(0, 114, 178), 1),
            Granularity::Blockwise => (RGBColor(240, 228, 66), 1),
            // Shared, as by several policies: the legend has them in their order.
            Granularity::PerTensor | Granularity::PerRow => (RGBColor(204, 121, 167), 1),
        },
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
    for arm in comparison.arms() {
        let (colour, width) = stroke(arm.precision);
        let label = match seeds {
            1 => arm.to_string(),
            seeds => format!("{arm}, {seeds} seeds"),
        };
        let of_arm = comparison.runs.iter().filter(|run| run.arm == arm);
        for (index, run) in of_arm.enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Run;
    use crate::curve::Point;
    use crate::run::Outcome;
    use crate::size::Size;
    use examples_common::Origin;

    /// A comparison of runs with these validation losses by epoch.
    fn comparison(runs: &[(Precision, u64, &[f64])], bigram_loss: f64) -> Comparison {
        let point = |(index, &valid_loss): (usize, &f64)| Point {
            epoch: index + 1,
            train_loss: 9.0,
            valid_loss,
        };
        let run = |&(precision, seed, losses): &(Precision, u64, &[f64])| {
            let outcome = Outcome {
                losses: losses.iter().enumerate().map(point).collect(),
                bigram_loss,
                unigram_loss: 9.0,
                tokens_per_second: None,
                seconds: 1.0,
                peak_memory: None,
                fp8_share: 0.0,
                resumed: false,
                weights_crc32: None,
                origin: None,
            };
            Run { arm: precision.into(), seed, outcome }
        };
        let origin = Origin {
            commit: None,
            command: "char-lm compare".into(),
            date: "2026-11-21".into(),
            cpu: "made up".into(),
            cores: 2,
            backend: "flex".into(),
            optimized: true,
        };
        let runs = runs.iter().map(run).collect();
        Comparison { origin, size: Size::Smoke, goals: vec![], runs }
    }

    /// The lines of a colour, each as its points in pixels, y downwards.
    fn lines(svg: &str, colour: RGBColor) -> Vec<Vec<(i32, i32)>> {
        let RGBColor(red, green, blue) = colour;
        let stroke = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"");
        let lines = svg.lines().filter(|l| l.starts_with("<polyline") && l.contains(&stroke));
        let points = lines.map(|line| {
            let points = line.split_once("points=\"").and_then(|(_, end)| end.split_once('"'));
            let points = points.expect("points").0.split_whitespace().map(|point| {
                let (x, y) = point.split_once(',').expect("a point");
                (x.parse().expect("x"), y.parse().expect("y"))
            });
            points.collect()
        });
        points.collect()
    }

    #[test]
    fn lines_are_of_their_losses() {
        const F32: &[f64] = &[3.0, 2.5, 2.0];
        let runs: [(Precision, u64, &[f64]); 4] = [
            (Precision::F32, 1, F32),
            (Precision::FP8_CURRENT, 1, &[3.0, 2.5, 2.1]),
            (Precision::F32, 2, &[2.75, 2.25, 2.2]),
            (Precision::FP8_CURRENT, 2, &[3.0, f64::NAN, f64::NAN]),
        ];
        let svg = loss(&comparison(&runs, 2.5)).expect("drawn");
        // The last line of a colour is that of the legend.
        let of = |precision: Precision| {
            let mut lines = lines(&svg, stroke(precision).0);
            let legend = lines.pop().expect("a legend");
            assert!(legend.len() == 2 && legend[0].1 == legend[1].1, "{legend:?}");
            lines
        };
        let (f32_lines, fp8_lines) = (of(Precision::F32), of(Precision::FP8_CURRENT));
        assert_eq!(f32_lines.len(), 2, "a line for each seed");
        let epochs = |lines: &[Vec<_>]| lines.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(epochs(&f32_lines), [3, 3]);
        // What is no number has no place; a point alone is no line.
        assert_eq!(epochs(&fp8_lines)[0], 3);
        assert!(fp8_lines[1..].iter().all(|line| line.len() < 2), "{fp8_lines:?}");
        assert_eq!(fp8_lines[0][..2], f32_lines[0][..2], "equal losses, equal places");

        let end = |line: &[(i32, i32)]| line.last().expect("an end").1;
        // 2.2, 2.1, 2.0 from above: y grows downwards.
        let ends = [end(&f32_lines[1]), end(&fp8_lines[0]), end(&f32_lines[0])];
        assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}");
        // As far apart as the numbers are, to a pixel; and so are the epochs.
        assert!((ends[2] - 2 * ends[1] + ends[0]).abs() <= 1, "{ends:?}");
        let [first, second, third] = [0, 1, 2].map(|epoch: usize| f32_lines[0][epoch]);
        assert!((third.1 - 2 * second.1 + first.1).abs() <= 1 && first.1 < second.1);
        assert!((third.0 - 2 * second.0 + first.0).abs() <= 1 && first.0 < second.0);
        // The bigram model's dashes lie where f32 has its loss.
        let dashes = lines(&svg, BIGRAM);
        let (_, dashes) = dashes.split_last().expect("a legend");
        assert!(dashes.len() > 10 && dashes.iter().flatten().all(|point| point.1 == second.1));
    }
}
