//! The validation losses as a picture.

use anyhow::Result;
use burn_fp8::Granularity;
use examples_common::charts::{self, Stroke};
use plotters::prelude::*;

use super::report::Comparison;
use crate::arm::Arm;
use crate::precision::Precision;

const BIGRAM: RGBColor = RGBColor(130, 130, 130);

/// f32 is drawn wide because the others cover it where FP8 changes nothing.
const fn stroke(precision: Precision) -> Stroke {
    match precision {
        Precision::F32 => (charts::SKY_BLUE, 6),
        Precision::F32Joined | Precision::F32Fused => (charts::SKY_BLUE, 2),
        Precision::Bf16 => (charts::ORANGE, 1),
        Precision::FP8_CURRENT => (charts::VERMILION, 3),
        Precision::FP8_DELAYED => (BLACK, 1),
        Precision::Fp8Layers => (charts::GREEN, 1),
        Precision::Fp8(recipe) => match recipe.granularity() {
            Granularity::Mx(_) => (charts::BLUE, 1),
            Granularity::Blockwise => (charts::YELLOW, 1),
            _ => (charts::PURPLE, 1),
        },
        Precision::Policy(_) => (charts::PURPLE, 1),
    }
}

/// For arms whose colour another one has already.
const COLOURS: [RGBColor; 7] = [
    charts::VERMILION,
    BLACK,
    charts::GREEN,
    charts::BLUE,
    charts::ORANGE,
    charts::PURPLE,
    charts::YELLOW,
];

/// The stroke of each arm, and whether it has dots: no two alike. The first arm of a colour has it, others one that is left, or dots.
fn strokes(arms: &[Arm]) -> Vec<(Stroke, bool)> {
    let own: Vec<_> = arms.iter().map(|arm| stroke(arm.precision)).collect();
    let has = |strokes: &[Stroke], colour| strokes.iter().any(|stroke| stroke.0 == colour);
    let left = COLOURS.into_iter().filter(|colour| !has(&own, *colour));
    let mut others = left.map(|colour| (colour, false)).chain(COLOURS.map(|c| (c, true))).cycle();
    let of_arm = |(index, stroke): (usize, &Stroke)| {
        if !has(&own[..index], stroke.0) {
            return (*stroke, false);
        }
        let (colour, has_dots) = others.next().expect("it goes round");
        ((colour, 1), has_dots)
    };
    own.iter().enumerate().map(of_arm).collect()
}

/// The validation loss of each epoch: a stroke for each arm, a line for each seed, and the bigram model's loss. As SVG.
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
        let arms: Vec<_> = comparison.means.iter().map(|mean| mean.arm).collect();
        for (&arm, (stroke, has_dots)) in arms.iter().zip(strokes(&arms)) {
            let label = match comparison.seeds() {
                1 => arm.to_string(),
                seeds => format!("{arm}, {seeds} seeds"),
            };
            for (index, run) in comparison.of_arm(arm).enumerate() {
                // A diverged run has no place in the picture.
                let points = run.outcome.losses.iter().filter(|point| point.valid_loss.is_finite());
                let points = points.map(|point| (point.epoch as f64, point.valid_loss));
                let label = (index == 0).then_some((&label[..], 22));
                match has_dots {
                    true => charts::dotted_line(&mut chart, points, stroke, label)?,
                    false => charts::line(&mut chart, points, stroke, label)?,
                }
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

    /// The largest comparison that is committed.
    #[test]
    fn no_two_arms_look_alike() {
        let results = examples_common::testing::Results::of(env!("CARGO_MANIFEST_DIR"));
        let comparison: Comparison = results.json("recipes/comparison.json");
        let arms: Vec<_> = comparison.means.iter().map(|mean| mean.arm).collect();
        let strokes: Vec<_> =
            strokes(&arms).iter().map(|(stroke, dots)| (stroke.0, *dots)).collect();
        assert_eq!((arms.len(), strokes[0]), (12, (charts::SKY_BLUE, false)));
        for (index, stroke) in strokes.iter().enumerate() {
            assert!(!strokes[..index].contains(stroke), "{}: {strokes:?}", arms[index]);
        }
    }

    #[test]
    fn lines_are_of_their_losses() {
        let run = |(precision, seed, losses): (Precision, u64, &[f64])| {
            Run::new(precision.into(), seed, Outcome::made_up(2.5, losses))
        };
        let runs = [
            (Precision::F32, 1, &[3.0, 2.5, 2.0][..]),
            (Precision::FP8_CURRENT, 1, &[3.0, 2.5, 2.1]),
            (Precision::F32, 2, &[2.75, 2.25, 2.2]),
            (Precision::FP8_CURRENT, 2, &[3.0, f64::NAN, f64::NAN]),
        ];
        let runs = runs.map(run).into();
        let origin = Origin::here("made up", &[]);
        let svg = loss(&Comparison::new(origin, Size::Smoke, vec![], runs)).expect("drawn");
        // The lines of a colour, each as its points in pixels, y downwards. The last one is that of the legend.
        let lines = |colour| -> Vec<Vec<_>> {
            charts::elements(&svg, "polyline", colour).into_iter().map(charts::points).collect()
        };
        let [f32_lines, fp8_lines] =
            [Precision::F32, Precision::FP8_CURRENT].map(|precision| lines(stroke(precision).0));
        assert_eq!(f32_lines.len(), 3, "a line for each seed");
        // What is no number has no place; a point alone is no line.
        assert!(fp8_lines[1..fp8_lines.len() - 1].iter().all(|line| line.len() < 2));
        assert_eq!(fp8_lines[0][..2], f32_lines[0][..2], "equal losses, equal places");
        // As far apart as the numbers are, to a pixel; and so are the epochs.
        let [first, second, third] = f32_lines[0][..] else { panic!("three epochs") };
        let is_middle = |a: i32, b: i32, c: i32| a < b && (c - 2 * b + a).abs() <= 1;
        assert!(is_middle(first.0, second.0, third.0) && is_middle(first.1, second.1, third.1));
        assert!(is_middle(f32_lines[1][2].1, fp8_lines[0][2].1, third.1), "2.2, 2.1, 2.0");
        // The bigram model's dashes lie where f32 has its loss.
        let dashes = lines(BIGRAM);
        let (_, dashes) = dashes.split_last().expect("a legend");
        assert!(dashes.len() > 10 && dashes.iter().flatten().all(|point| point.1 == second.1));
    }
}
