//! Numbers over time.

use std::collections::BTreeSet;

use burn_fp8_core::{GemmRole, Operand};
use maud::{Markup, html};

use super::text::{count, magnitude, points, px};
use crate::{Point, SiteSeries};

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 130.0;
/// Labels of up to nine characters: 0.00123 %.
const LEFT: f64 = 58.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 18.0;

/// One curve: a value for each point in time, where there is one.
struct Curve {
    class: String,
    values: Vec<Option<f64>>,
}

/// Curves over steps. `label` prints a value of the vertical axis.
fn chart(steps: &[u64], curves: &[Curve], name: &str, label: impl Fn(f64) -> String) -> Markup {
    let values = curves.iter().flat_map(|curve| curve.values.iter().flatten().copied());
    let finite: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return html! {} };
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if finite.is_empty() {
        return html! { p.faint { "nothing finite to show" } };
    }
    // A flat line lies in the middle, also where it is flat but for the rounding of f32.
    let margin = ((high - low) * 0.06).max(if high - low < 1e-6 { 0.5 } else { 0.0 });
    let (low, high) = (low - margin, high + margin);
    let floor = HEIGHT - BOTTOM;
    let span = (last - first).max(1) as f64;
    let x = |step: u64| LEFT + (step - first) as f64 / span * (WIDTH - LEFT - 8.0);
    let y = |value: f64| floor - (value.clamp(low, high) - low) / (high - low) * (floor - TOP);

    let base = HEIGHT - 4.0;
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) role="img" aria-label=(name) {
            @for value in (0..=3).map(|part| low + (high - low) * f64::from(part) / 3.0) {
                @let at = y(value);
                line.axis x1=(LEFT) x2=(WIDTH) y1=(px(at)) y2=(px(at)) {}
                text x=(px(LEFT - 3.0)) y=(px(at + 3.0)) text-anchor="end" { (label(value)) }
            }
            @for Curve { class, values } in curves {
                @for run in runs(steps, values, WIDTH) {
                    @match &run[..] {
                        [(step, value)] => circle class=(class) cx=(px(x(*step))) cy=(px(y(*value))) r="2.5" {},
                        run => polyline class={ "line " (class) } points=(points(run.iter().map(|(step, value)| (x(*step), y(*value))))) {},
                    }
                }
            }
            text x=(LEFT) y=(base) { "step " (count(*first)) }
            @if last != first { text x=(WIDTH) y=(base) text-anchor="end" { "step " (count(*last)) } }
        }
    }
}

/// Stretches of consecutive values, in as many points as `width` pixels show. An infinite one is drawn at the edge of the chart.
fn runs(steps: &[u64], values: &[Option<f64>], width: f64) -> Vec<Vec<(u64, f64)>> {
    let mut runs = vec![Vec::new()];
    for index in drawn(values, width) {
        match values[index] {
            Some(value) => runs.last_mut().expect("never empty").push((steps[index], value)),
            None => runs.push(Vec::new()),
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// Which values to draw: of each of `width / 4` equal parts the lowest, the highest and a missing one, so that spikes and gaps are
/// seen; and both ends.
fn drawn(values: &[Option<f64>], width: f64) -> BTreeSet<usize> {
    let value = |index: &usize| values[*index].unwrap_or_default();
    let lower = |a: &usize, b: &usize| value(a).total_cmp(&value(b));
    let part = values.len().div_ceil((width / 4.0) as usize).max(1);
    let mut drawn = BTreeSet::new();
    for start in (0..values.len()).step_by(part) {
        let part = start..(start + part).min(values.len());
        let (there, missing): (Vec<_>, Vec<_>) = part.partition(|index| values[*index].is_some());
        drawn.extend(there.iter().copied().min_by(lower));
        drawn.extend(there.iter().copied().max_by(lower));
        drawn.extend(missing.first());
    }
    let last = values.len().checked_sub(1);
    drawn.extend(last.into_iter().flat_map(|last| [0, last]));
    drawn
}

fn steps(site: &SiteSeries) -> Vec<u64> {
    site.points.iter().map(|point| point.step).collect()
}

fn curve(
    site: &SiteSeries,
    class: impl Into<String>,
    value: impl Fn(&Point) -> Option<f64>,
) -> Curve {
    Curve { class: class.into(), values: site.points.iter().map(value).collect() }
}

/// The SQNR of the products of a site.
pub(super) fn sqnr(site: &SiteSeries) -> Markup {
    let curves: Vec<_> = (0..GemmRole::ALL.len())
        .map(|role| curve(site, format!("c{role}"), move |point| point.products[role]))
        .collect();
    chart(&steps(site), &curves, "SQNR over time", |value| format!("{value:.0} dB"))
}

/// The amax of an operand, and the largest number that its scale can represent, on a logarithmic axis.
pub(super) fn amax(site: &SiteSeries, operand: Operand) -> Markup {
    let index = operand as usize;
    let Some(stats) = site.last.operands.of(operand) else { return html! {} };
    let max = f64::from(stats.format.max());
    let positive = |x: f64| (x > 0.0).then(|| x.log2());
    let curves = [
        curve(site, "c0", |point| positive(point.operands[index]?.amax)),
        curve(site, "c1 dash", |point| positive(point.operands[index]?.scale * max)),
    ];
    chart(&steps(site), &curves, "amax and scale over time", |value| magnitude(value.exp2()))
}

/// Shares of flushed and saturated elements of an operand, in percent.
pub(super) fn shares(site: &SiteSeries, operand: Operand) -> Markup {
    let index = operand as usize;
    let curves = [
        curve(site, "c0", |point| Some(100.0 * point.operands[index]?.flushed)),
        curve(site, "c1", |point| Some(100.0 * point.operands[index]?.saturated)),
        curve(site, "c2", |point| Some(100.0 * point.operands[index]?.non_finite)),
    ];
    chart(&steps(site), &curves, "shares over time", |value| {
        format!("{} %", magnitude(value.max(0.0)))
    })
}

/// The SQNR of one product, small.
pub(super) fn sparkline(site: &SiteSeries, role: GemmRole) -> Markup {
    const SIZE: [f64; 2] = [110.0, 24.0];
    let index = role as usize;
    let values: Vec<_> = site.points.iter().map(|point| point.products[index]).collect();
    let finite: Vec<f64> =
        values.iter().flatten().copied().filter(|value| value.is_finite()).collect();
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if finite.len() < 2 {
        return html! {};
    }
    // At least 6 dB high, so that noise does not look like a change.
    let (middle, half) = ((low + high) / 2.0, ((high - low) / 2.0).max(3.0));
    let steps = steps(site);
    let first = steps[0];
    let span = (steps[steps.len() - 1] - first).max(1) as f64;
    let at = |(step, value): &(u64, f64)| {
        let value = value.clamp(middle - half, middle + half);
        let y = SIZE[1] / 2.0 - (value - middle) / half * (SIZE[1] / 2.0 - 2.0);
        ((step - first) as f64 / span * (SIZE[0] - 2.0) + 1.0, y)
    };
    html! {
        svg viewBox={ "0 0 " (SIZE[0]) " " (SIZE[1]) } width=(SIZE[0]) height=(SIZE[1]) role="img" aria-label="SQNR over time" {
            title { (format_args!("{low:.1} to {high:.1} dB")) }
            @for run in runs(&steps, &values, SIZE[0]) { polyline class={ "line c" (index) } points=(points(run.iter().map(at))) {} }
        }
    }
}
