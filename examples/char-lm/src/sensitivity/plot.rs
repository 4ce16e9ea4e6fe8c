//! The ranking as bars.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::ranking::{Ranking, Variant};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precision::Precision;
    use examples_common::Origin;

    /// A ranking of FP8 as a whole, and of each kind of layer with the gains of two seeds.
    fn ranking(gains: &[(&str, [f64; 2])]) -> Ranking {
        let variant = |high: Option<&str>, gains: [f64; 2]| Variant {
            precision: Precision::FP8_CURRENT,
            high: high.map(|high| high.parse().expect("a part")),
            losses: vec![2.0, 2.0],
            gains: gains.to_vec(),
            fp8_share: 0.5,
        };
        let parts = gains.iter().map(|&(high, gains)| variant(Some(high), gains));
        Ranking {
            origin: Origin {
                commit: None,
                command: "char-lm sensitivity".into(),
                date: "2026-11-21".into(),
                cpu: "made up".into(),
                cores: 2,
                backend: "flex".into(),
                optimized: true,
            },
            precision: Precision::FP8_CURRENT,
            size: "smoke".into(),
            seeds: vec![1, 2],
            epochs: 1,
            variants: parts.chain([variant(None, [0.0; 2])]).collect(),
        }
    }

    /// The number of an attribute.
    fn number(element: &str, name: &str) -> i32 {
        let start = element.split_once(&format!(" {name}=\"")).expect("the attribute").1;
        start.split_once('"').and_then(|(number, _)| number.parse().ok()).expect("a number")
    }

    /// The elements of this name and colour.
    fn elements<'a>(svg: &'a str, name: &str, colour: RGBColor) -> Vec<&'a str> {
        let RGBColor(red, green, blue) = colour;
        let colour = format!("=\"#{red:02X}{green:02X}{blue:02X}\"");
        svg.lines().filter(|l| l.starts_with(&format!("<{name} ")) && l.contains(&colour)).collect()
    }

    #[test]
    fn bars_are_as_long_as_the_mean_gains_and_lines_span_the_seeds() {
        let gains = [
            ("qkv", [0.04, 0.04]),
            ("up", [0.01, 0.03]),
            ("head", [-0.02, 0.0]),
            ("down", [f64::NAN; 2]),
        ];
        let svg = bars(&ranking(&gains)).expect("drawn");
        let bars: Vec<_> = elements(&svg, "rect", BAR)
            .into_iter()
            .map(|bar| ["x", "y", "width"].map(|name| number(bar, name)))
            .collect();
        // Not that of what diverged.
        let [qkv, up, head, all] = bars[..] else { panic!("four bars: {bars:?}") };
        assert!(bars.windows(2).all(|pair| pair[0][1] < pair[1][1]), "the first at the top");
        let zero = qkv[0];
        assert_eq!([up[0], all[0]], [zero, zero]);
        // Means of 0.04, 0.02, -0.01 and 0, to a pixel.
        assert!(qkv[2] > 100 && (qkv[2] - 2 * up[2]).abs() <= 1, "{bars:?}");
        assert!((qkv[2] - 4 * head[2]).abs() <= 4 && (head[0] + head[2] - zero).abs() <= 1);
        assert!(all[2] <= 1, "{bars:?}");

        let lines: Vec<_> = elements(&svg, "polyline", WHISKER)
            .into_iter()
            .map(|line| {
                let points = line.split_once("points=\"").expect("points").1;
                let x = |point: &str| point.split_once(',').expect("a point").0.parse::<i32>();
                let mut ends = points.split_whitespace().take(2).map(|point| x(point).expect("x"));
                [ends.next().expect("a start"), ends.next().expect("an end")]
            })
            .collect();
        assert_eq!(lines.len(), 4);
        // From 0.01 to 0.03: a quarter and three quarters of the longest bar.
        let [start, end] = lines[1];
        assert!((4 * (start - zero) - qkv[2]).abs() <= 4, "{lines:?}");
        assert!((4 * (end - zero) - 3 * qkv[2]).abs() <= 4, "{lines:?}");
        assert_eq!(lines[0][0], lines[0][1], "seeds that agree to the bit");
    }
}
