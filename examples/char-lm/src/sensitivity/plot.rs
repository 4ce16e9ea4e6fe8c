//! The ranking as bars.

use anyhow::Result;
use examples_common::charts::{self, Rows};
use plotters::prelude::*;

use super::ranking::{Ranking, Variant};

const BAR: RGBColor = charts::SKY_BLUE;
const WHISKER: RGBColor = charts::VERMILION;

/// A bar for each variant, as long as its mean gain, with a line from the smallest to the largest gain of a seed. As SVG.
///
/// # Errors
/// Where it cannot be drawn.
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

    /// A ranking of FP8 as a whole, and of each kind of layer with the gains of two seeds.
    fn ranking(gains: &[(&str, [f64; 2])]) -> Ranking {
        let variant = |high: Option<&str>, gains: [f64; 2]| {
            let high = high.map(|high| high.parse().expect("a part"));
            let arm = Arm { precision: Precision::FP8_CURRENT, high };
            Variant::new(arm, vec![2.0, 2.0], gains.to_vec(), 0.5)
        };
        let parts = gains.iter().map(|&(high, gains)| variant(Some(high), gains));
        Ranking {
            origin: Origin::here("made up", &[]),
            precision: Precision::FP8_CURRENT,
            size: Size::Smoke,
            seeds: vec![1, 2],
            epochs: 1,
            variants: parts.chain([variant(None, [0.0; 2])]).collect(),
        }
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
        let number = |bar, name| charts::attribute(bar, name).parse::<i32>().expect("a number");
        let bars = charts::elements(&svg, "rect", BAR).into_iter();
        let bars: Vec<_> =
            bars.map(|bar| ["x", "y", "width"].map(|name| number(bar, name))).collect();
        // Not that of what diverged.
        let [qkv, up, head, all] = bars[..] else { panic!("four bars: {bars:?}") };
        assert!(bars.windows(2).all(|pair| pair[0][1] < pair[1][1]), "the first at the top");
        let zero = qkv[0];
        assert_eq!([up[0], all[0]], [zero, zero]);
        // Means of 0.04, 0.02, -0.01 and 0, to a pixel.
        assert!(qkv[2] > 100 && (qkv[2] - 2 * up[2]).abs() <= 1, "{bars:?}");
        assert!((qkv[2] - 4 * head[2]).abs() <= 4 && (head[0] + head[2] - zero).abs() <= 1);
        assert!(all[2] <= 1, "{bars:?}");

        let lines = charts::elements(&svg, "polyline", WHISKER).into_iter().map(charts::points);
        let lines: Vec<_> = lines.map(|line| [line[0].0, line[1].0]).collect();
        assert_eq!(lines.len(), 4);
        // From 0.01 to 0.03: a quarter and three quarters of the longest bar.
        let [start, end] = lines[1];
        assert!((4 * (start - zero) - qkv[2]).abs() <= 4, "{lines:?}");
        assert!((4 * (end - zero) - 3 * qkv[2]).abs() <= 4, "{lines:?}");
        assert_eq!(lines[0][0], lines[0][1], "seeds that agree to the bit");
    }
}
