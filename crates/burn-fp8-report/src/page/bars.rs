//! The exponent histogram of an operand, with what its format can represent.

use maud::{Markup, html};

use super::text::{counted, percent, px};
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
pub(super) fn histogram(stats: &OperandStats) -> Markup {
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

    let zones = [
        ("z-lost", low, flushed, "flushed"),
        ("z-subnormal", flushed, normal, "subnormal"),
        ("z-normal", normal, largest, "normal"),
        ("z-lost", largest, high, "sat."),
    ];
    // With a scale per row, what an exponent becomes depends on its row.
    let zones = zones.into_iter().filter(|_| !stats.per_row);
    let step = if decades > 4.0 { 2 } else { 1 };
    let labels = ((high - low) / 7.0).ceil().max(1.0) as i32;
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) role="img" aria-label="exponent histogram" {
            @for (class, from, to, name) in zones.map(|(class, from, to, name)| (class, x(from), x(to), name)) {
                rect class=(class) x=(px(from)) y=(TOP) width=(px(to - from)) height=(px(floor - TOP)) {}
                @if to - from > 6.0 * name.len() as f64 {
                    text x=(px((from + to) / 2.0)) y=(px(TOP - 4.0)) text-anchor="middle" { (name) }
                }
            }
            @for decade in (0..=decades as i32).step_by(step) {
                @let at = y(10f64.powi(-decade));
                line.axis x1=(LEFT) x2=(WIDTH - RIGHT) y1=(px(at)) y2=(px(at)) {}
                text x=(px(LEFT - 3.0)) y=(px(at + 3.0)) text-anchor="end" { (10f64.powi(2 - decade)) " %" }
            }
            @for (exponent, number) in bins.into_iter().filter(|(_, number)| *number > 0) {
                @let (from, to) = (x(f64::from(exponent)), x(f64::from(exponent + 1)));
                @let share = stats.share(number);
                @let top = y(share).min(floor - 1.0);
                rect.bar x=(px(from + 0.4)) y=(px(top)) width=(px((to - from - 0.8).max(0.6))) height=(px(floor - top)) {
                    title { "2^" (exponent) " to 2^" (exponent + 1) ": " (counted(number, "element")) ", " (percent(share)) }
                }
            }
            @for exponent in (low.ceil() as i32..=high as i32).filter(|exponent| exponent % labels == 0) {
                text x=(px(x(f64::from(exponent)))) y=(px(floor + 14.0)) text-anchor="middle" { "2" tspan dy="-4" font-size="8" { (exponent) } }
            }
            text x=(WIDTH) y=(px(HEIGHT - 1.0)) text-anchor="end" { "|x|" }
        }
    }
}
