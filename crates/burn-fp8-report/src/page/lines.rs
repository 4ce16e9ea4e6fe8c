//! Numbers over time.

use core::fmt::Write;
use std::collections::BTreeSet;

use burn_fp8_core::{GemmRole, Operand};

use super::text::{count, magnitude, points};
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
fn chart(steps: &[u64], curves: &[Curve], name: &str, label: impl Fn(f64) -> String) -> String {
    let values = curves.iter().flat_map(|curve| curve.values.iter().flatten().copied());
    let finite: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return String::new() };
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if finite.is_empty() {
        return "<p class=\"faint\">nothing finite to show</p>".into();
    }
    // A flat line lies in the middle, also where it is flat but for the rounding of f32.
    let margin = ((high - low) * 0.06).max(if high - low < 1e-6 { 0.5 } else { 0.0 });
    let (low, high) = (low - margin, high + margin);
    let floor = HEIGHT - BOTTOM;
    let span = (last - first).max(1) as f64;
    let x = |step: u64| LEFT + (step - first) as f64 / span * (WIDTH - LEFT - 8.0);
    let y = |value: f64| floor - (value.clamp(low, high) - low) / (high - low) * (floor - TOP);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{name}\">"
    );
    for part in 0..=3 {
        let value = low + (high - low) * f64::from(part) / 3.0;
        let at = y(value);
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 3.0,
            at + 3.0,
            label(value)
        );
    }
    for Curve { class, values } in curves {
        for run in runs(steps, values, WIDTH) {
            let at: Vec<_> = run.iter().map(|(step, value)| (x(*step), y(*value))).collect();
            match &at[..] {
                [(x, y)] => {
                    let _ = write!(
                        svg,
                        "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"
                    );
                }
                at => {
                    let _ =
                        write!(svg, "<polyline class=\"line {class}\" points=\"{}\"/>", points(at));
                }
            }
        }
    }
    let base = HEIGHT - 4.0;
    let _ = write!(svg, "<text x=\"{LEFT}\" y=\"{base}\">step {}</text>", count(*first));
    if last != first {
        let _ = write!(
            svg,
            "<text x=\"{WIDTH}\" y=\"{base}\" text-anchor=\"end\">step {}</text>",
            count(*last)
        );
    }
    svg + "</svg>"
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
pub(super) fn sqnr(site: &SiteSeries) -> String {
    let curves: Vec<_> = (0..GemmRole::ALL.len())
        .map(|role| curve(site, format!("c{role}"), move |point| point.products[role]))
        .collect();
    chart(&steps(site), &curves, "SQNR over time", |value| format!("{value:.0} dB"))
}

/// The amax of an operand, and the largest number that its scale can represent, on a logarithmic axis.
pub(super) fn amax(site: &SiteSeries, operand: Operand) -> String {
    let index = operand as usize;
    let Some(stats) = site.last.operands.of(operand) else { return String::new() };
    let max = f64::from(stats.format.max());
    let positive = |x: f64| (x > 0.0).then(|| x.log2());
    let curves = [
        curve(site, "c0", |point| positive(point.operands[index]?.amax)),
        curve(site, "c1 dash", |point| positive(point.operands[index]?.scale * max)),
    ];
    chart(&steps(site), &curves, "amax and scale over time", |value| magnitude(value.exp2()))
}

/// Shares of flushed and saturated elements of an operand, in percent.
pub(super) fn shares(site: &SiteSeries, operand: Operand) -> String {
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
pub(super) fn sparkline(site: &SiteSeries, role: GemmRole) -> String {
    const SIZE: [f64; 2] = [110.0, 24.0];
    let index = role as usize;
    let values: Vec<_> = site.points.iter().map(|point| point.products[index]).collect();
    let finite: Vec<f64> =
        values.iter().flatten().copied().filter(|value| value.is_finite()).collect();
    let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if finite.len() < 2 {
        return String::new();
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
    let mut svg = format!(
        "<svg viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" aria-label=\"SQNR over time\"><title>{low:.1} to {high:.1} dB</title>",
        w = SIZE[0],
        h = SIZE[1]
    );
    for run in runs(&steps, &values, SIZE[0]) {
        let at: Vec<_> = run.iter().map(at).collect();
        let _ = write!(svg, "<polyline class=\"line c{index}\" points=\"{}\"/>", points(&at));
    }
    svg + "</svg>"
}
