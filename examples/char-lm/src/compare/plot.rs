//! The validation losses as a picture.

use anyhow::Result;
use burn_fp8::Granularity;
use examples_common::charts::{self, Stroke};
use plotters::prelude::*;

use super::report::Comparison;
use crate::precision::Precision;

const BIGRAM: RGBColor = RGBColor(130, 130, 130);

/// f32 is drawn wide because the others cover it where FP8 changes nothing.
const fn stroke(precision: Precision) -> Stroke {
    match precision {
        Precision::F32 => (charts::SKY_BLUE, 6),
        Precision::Bf16 => (charts::ORANGE, 1),
        Precision::FP8_CURRENT => (charts::VERMILION, 3),
        Precision::FP8_DELAYED => (BLACK, 1),
        Precision::Fp8Layers => (charts::GREEN, 1),
        Precision::Fp8(recipe) => match recipe.granularity() {
            Granularity::Mx(_) => (charts::BLUE, 1),
            Granularity::Blockwise => (charts::YELLOW, 1),
            // Shared, as by several policies: the legend has them in their order.
            _ => (charts::PURPLE, 1),
        },
        Precision::Policy(_) => (charts::PURPLE, 1),
    }
}

/// The validation loss of each epoch: a colour for each precision, a line for each seed, and the bigram model's loss. As SVG.
///
/// # Errors
/// Where it cannot be drawn.
pub fn loss(comparison: &Comparison) -> Result<String> {
    charts::svg("the losses", (860, 520), |area| {
        let bigram = comparison.bigram_loss;
        let losses = comparison.runs.iter().flat_map(|run| &run.outcome.losses);
        let losses = losses.map(|point| point.valid_loss);
        let (low, high) = charts::range((bigram, bigram), losses);
        let epochs = comparison.runs.iter().map(|run| run.outcome.losses.len()).max();
        let epochs = epochs.unwrap_or(1).max(2);
        let title = format!("Validation loss of char-lm, size {}", comparison.size.as_str());
        let mut chart = ChartBuilder::on(area)
            .caption(title, charts::text(20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(1.0..epochs as f64, low - 0.05..high + 0.05)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("epoch").y_desc("nats a character").x_labels(epochs.min(13));
        mesh.x_label_formatter(&|epoch| format!("{epoch:.0}"));
        charts::axes(mesh.y_label_formatter(&|loss| format!("{loss:.2}")), 14)?;
        let line = [(1.0, bigram), (epochs as f64, bigram)];
        chart
            .draw_series(DashedLineSeries::new(line, 6, 5, BIGRAM.stroke_width(2)))?
            .label("bigram model")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], BIGRAM.stroke_width(2)));
        for arm in comparison.means.iter().map(|mean| mean.arm) {
            let label = match comparison.seeds() {
                1 => arm.to_string(),
                seeds => format!("{arm}, {seeds} seeds"),
            };
            for (index, run) in comparison.of_arm(arm).enumerate() {
                // A diverged run has no place in the picture.
                let points = run.outcome.losses.iter().filter(|point| point.valid_loss.is_finite());
                let points = points.map(|point| (point.epoch as f64, point.valid_loss));
                let label = (index == 0).then_some((&label[..], 22));
                charts::line(&mut chart, points, stroke(arm.precision), label)?;
            }
        }
        charts::legend(&mut chart)
    })
}

#[cfg(test)]
mod tests {
    use examples_common::Origin;

    use super::*;
    use crate::compare::Run;
    use crate::run::Outcome;
    use crate::size::Size;

    /// A comparison of runs with these validation losses by epoch.
    fn comparison(runs: &[(Precision, u64, &[f64])], bigram_loss: f64) -> Comparison {
        let run = |&(precision, seed, losses): &(Precision, u64, &[f64])| {
            Run::new(precision.into(), seed, Outcome::made_up(bigram_loss, losses))
        };
        let runs = runs.iter().map(run).collect();
        Comparison::new(Origin::here("made up", &[]), Size::Smoke, vec![], runs)
    }

    /// The lines of a colour, each as its points in pixels, y downwards.
    fn lines(svg: &str, colour: RGBColor) -> Vec<Vec<(i32, i32)>> {
        charts::elements(svg, "polyline", colour).into_iter().map(charts::points).collect()
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
