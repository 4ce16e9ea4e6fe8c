//! The exponent histogram of an operand, with what its format can represent.

use core::fmt::Write;

use super::text::{count, percent};
use crate::sample::OperandStats;

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 150.0;
/// The longest label is 0.0001 %.
const LEFT: f64 = 54.0;
/// Half the label of an exponent, which is below the end of the axis.
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 26.0;
/// The most decades of shares shown.
const MAX_DECADES: f64 = 6.0;

/// Shares of elements by exponent on a logarithmic axis; behind them, where they have one scale, the ranges that are flushed, subnormal,
/// normal and saturated.
pub(super) fn histogram(stats: &OperandStats) -> String {
    let (format, scale) = (stats.format, f64::from(stats.scale));
    let log2 = |x: f32| (f64::from(x) * scale).log2();
    let largest = log2(format.max());
    let normal = log2(format.min_positive_normal());
    // Half of the smallest number rounds to zero.
    let flushed = log2(format.min_positive_subnormal()) - 1.0;

    let bins: Vec<_> = stats.histogram.bins().collect();
    let ends = bins.first().zip(bins.last()).map(|(first, last)| [first.0, last.0 + 1]);
    let [low, high] = ends.unwrap_or([normal as i32, largest as i32]).map(f64::from);
    let low = low.min(flushed.floor() - 1.0);
    let high = high.max(largest.ceil() + 1.0);
    let x = |exponent: f64| LEFT + (exponent - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let floor = HEIGHT - BOTTOM;
    let decades = (stats.sampled.max(10) as f64).log10().ceil().min(MAX_DECADES);
    let y = |share: f64| TOP + (-share.log10() / decades).clamp(0.0, 1.0) * (floor - TOP);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"exponent histogram\">"
    );
    let zones = [
        ("z-lost", low, flushed, "flushed"),
        ("z-subnormal", flushed, normal, "subnormal"),
        ("z-normal", normal, largest, "normal"),
        ("z-lost", largest, high, "sat."),
    ];
    // With a scale per row, what an exponent becomes depends on its row.
    for (class, from, to, name) in zones.into_iter().filter(|_| !stats.per_row) {
        let (from, to) = (x(from), x(to));
        let (width, middle) = (to - from, (from + to) / 2.0);
        let height = floor - TOP;
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
        if width > 6.0 * name.len() as f64 {
            let _ = write!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
                TOP - 4.0
            );
        }
    }
    let step = if decades > 4.0 { 2 } else { 1 };
    for decade in (0..=decades as i32).step_by(step) {
        let at = y(10f64.powi(-decade));
        let label = match decade {
            0 => "100 %".into(),
            1 => "10 %".into(),
            decade => format!("{} %", 10f64.powi(2 - decade)),
        };
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 3.0,
            at + 3.0
        );
    }
    for (exponent, number) in bins.iter().filter(|(_, number)| *number > 0) {
        let (from, to) = (x(f64::from(*exponent)), x(f64::from(exponent + 1)));
        let share = stats.share(*number);
        let top = y(share).min(floor - 1.0);
        let _ = write!(
            svg,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
             <title>2^{exponent} to 2^{}: {} elements, {}</title></rect>",
            from + 0.4,
            (to - from - 0.8).max(0.6),
            floor - top,
            exponent + 1,
            count(*number),
            percent(share)
        );
    }
    let labels = ((high - low) / 7.0).ceil().max(1.0) as i32;
    for exponent in (low.ceil() as i32..=high as i32).filter(|exponent| exponent % labels == 0) {
        let at = x(f64::from(exponent));
        let _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">2<tspan dy=\"-4\" font-size=\"8\">{exponent}</tspan></text>",
            floor + 14.0
        );
    }
    let _ =
        write!(svg, "<text x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">|x|</text>", HEIGHT - 1.0);
    svg + "</svg>"
}
