//! The ranking as bars.

use anyhow::Result;
use examples_common::charts::{self, Rows};
use plotters::prelude::*;

use super::ranking::{Ranking, Variant};

const BAR: RGBColor = charts::SKY_BLUE;
const WHISKER: RGBColor = charts::VERMILION;

/// A bar for each variant, as long as its mean gain, with a line from the smallest to the largest gain of a seed. As SVG.
pub fn bars(ranking: &Ranking) -> Result<String> {
    // A run that diverged has no bar.
    let drawn = |variant: &&Variant| variant.gains.iter().all(|gain| gain.is_finite());
    let variants: Vec<_> = ranking.variants.iter().filter(drawn).collect();
    let ends = variants.iter().map(|variant| variant.range());
    let (low, high) = charts::range((0.0, 0.0), ends.flat_map(|(low, high)| [low, high]));
    let margin = ((high - low) * 0.05).max(1e-4);
    let rows = Rows {
        title: format!("What is won where a part stays out of FP8 ({})", ranking.precision),
        names: variants.iter().map(|variant| variant.name()).collect(),
        name_width: 170,
        height: 30,
        range: low - margin..high + margin,
        axis: "validation loss lower by, in nats a character; the line spans the seeds",
        number: |gain| format!("{gain:.4}"),
    };
    rows.svg("the ranking", |chart| {
        for (index, variant) in variants.iter().enumerate() {
            let middle = rows.middle(index);
            let bar = [(0.0, middle - 0.3), (variant.mean_gain, middle + 0.3)];
            chart.draw_series([Rectangle::new(bar, BAR.filled())])?;
            let (low, high) = variant.range();
            let line = [(low, middle), (high, middle)];
            chart.draw_series([PathElement::new(line, WHISKER.stroke_width(2))])?;
        }
        rows.zero(chart)
    })
}

#[cfg(test)]
mod tests {
    use examples_common::Origin;

    use super::*;
    use crate::arm::Arm;
    use crate::precision::Precision;
    use crate::size::Size;

    #[test]
    fn bars_are_as_long_as_the_mean_gains_and_lines_span_the_seeds() {
        let variant = |(high, gains): (&str, [f64; 2])| {
            let high = Some(high.parse().expect("a part"));
            let arm = Arm { precision: Precision::FP8_CURRENT, high };
            Variant::new(arm, vec![2.0, 2.0], gains.into(), 0.5)
        };
        let gains = [
            ("qkv", [0.04, 0.04]),
            ("up", [0.01, 0.03]),
            ("head", [-0.02, 0.0]),
            ("down", [f64::NAN; 2]),
        ];
        let ranking = Ranking {
            origin: Origin::here("made up", &[]),
            precision: Precision::FP8_CURRENT,
            size: Size::Smoke,
            seeds: vec![1, 2],
            epochs: 1,
            variants: gains.map(variant).into(),
        };
        let svg = bars(&ranking).expect("drawn");
        let number = |bar, name| charts::attribute(bar, name).parse::<i32>().expect("a number");
        let bars = charts::elements(&svg, "rect", BAR).into_iter();
        let bars: Vec<_> =
            bars.map(|bar| ["x", "y", "width"].map(|name| number(bar, name))).collect();
        // Not that of what diverged.
        let [qkv, up, head] = bars[..] else { panic!("three bars: {bars:?}") };
        assert!(qkv[1] < up[1] && up[1] < head[1], "the first at the top");
        let (zero, longest) = (qkv[0], qkv[2]);
        // Means of 0.04, 0.02 and -0.01, to a pixel.
        assert!(longest > 100 && up[0] == zero && (longest - 2 * up[2]).abs() <= 1, "{bars:?}");
        assert!((longest - 4 * head[2]).abs() <= 4 && (head[0] + head[2] - zero).abs() <= 1);
        let lines = charts::elements(&svg, "polyline", WHISKER).into_iter().map(charts::points);
        let [qkv, up, _] = &lines.collect::<Vec<_>>()[..] else { panic!("three lines") };
        assert_eq!(qkv[0], qkv[1], "seeds that agree to the bit");
        // From 0.01 to 0.03: a quarter and three quarters of the longest bar.
        assert!((4 * (up[0].0 - zero) - longest).abs() <= 4, "{up:?}");
        assert!((4 * (up[1].0 - zero) - 3 * longest).abs() <= 4, "{up:?}");
    }
}
