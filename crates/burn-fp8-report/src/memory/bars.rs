//! Bars of bytes, as a picture.

use maud::html;

use crate::page::text::px;

/// Of Okabe and Ito, told apart by colour-blind readers too; ink before and grey after them.
const COLOURS: [&str; 5] = ["#282828", "#0072b2", "#56b4e9", "#d55e00", "#969696"];

const WIDTH: f64 = 860.0;
const ROW: f64 = 34.0;
/// Right of the names, and above the bars.
const LEFT: f64 = 276.0;
const TOP: f64 = 48.0;
/// Where the longest bar ends: its number and the names of kinds are right of it.
const RIGHT: f64 = 620.0;

/// A bar for each row, made of the bytes of each kind, in MiB, as an SVG of its own.
///
/// `rows` are names, each with as many numbers as there are kinds, or fewer. After five kinds colours repeat.
pub fn bars(title: &str, kinds: &[&str], rows: &[(String, Vec<usize>)]) -> String {
    let total = |parts: &[usize]| parts.iter().sum::<usize>();
    let largest = rows.iter().map(|(_, parts)| total(parts)).max().filter(|largest| *largest > 0);
    let largest = largest.map_or(1.0, mib);
    let floor = TOP + ROW * rows.len().max(kinds.len()) as f64;
    let height = floor + 44.0;
    let x = |mib: f64| LEFT + mib / largest * (RIGHT - LEFT);
    let middle = |row: usize| TOP + ROW * (row as f64 + 0.5);
    let step = step(largest / 6.0);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let ticks = (0..).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= largest);
    let colour = |kind: usize| COLOURS[kind % COLOURS.len()];
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(WIDTH) height=(height) viewBox={ "0 0 " (WIDTH) " " (height) } font-family="sans-serif" font-size="13" fill="#282828" role="img" aria-label=(title) {
            rect width=(WIDTH) height=(height) fill="#fff" {}
            text x=(WIDTH / 2.0) y="28" font-size="17" text-anchor="middle" { (title) }
            @for tick in ticks {
                line x1=(px(x(tick))) x2=(px(x(tick))) y1=(TOP) y2=(px(floor)) stroke="#e1e1e1" {}
                text x=(px(x(tick))) y=(px(floor + 18.0)) text-anchor="middle" { (format_args!("{tick:.decimals$}")) }
            }
            text x=(px((LEFT + RIGHT) / 2.0)) y=(px(floor + 36.0)) text-anchor="middle" { "MiB at the peak" }
            @for (row, (name, parts)) in rows.iter().enumerate() {
                text x=(LEFT - 8.0) y=(px(middle(row) + 4.0)) text-anchor="end" { (name) }
                @for (kind, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0) {
                    @let [from, to] = [kind, kind + 1].map(|kinds| x(mib(total(&parts[..kinds]))));
                    rect x=(px(from)) y=(px(middle(row) - 10.0)) width=(px(to - from)) height="20" fill=(colour(kind)) {
                        title { (kinds.get(kind).copied().unwrap_or_default()) ": " (in_mib(*part)) " MiB" }
                    }
                }
                text x=(px(x(mib(total(parts))) + 6.0)) y=(px(middle(row) + 4.0)) { (in_mib(total(parts))) }
            }
            @for (kind, name) in kinds.iter().enumerate() {
                rect x=(RIGHT + 56.0) y=(px(middle(kind) - 6.0)) width="12" height="12" fill=(colour(kind)) {}
                text x=(RIGHT + 76.0) y=(px(middle(kind) + 4.0)) { (name) }
            }
        }
    };
    picture.into_string() + "\n"
}

/// The next of 1, 2, 5, 10, …, and of their fractions.
fn step(least: f64) -> f64 {
    let power = 10f64.powi(least.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// MiB, with decimals where there are few.
pub(super) fn in_mib(bytes: usize) -> String {
    let mib = mib(bytes);
    let decimals = if mib >= 100.0 || bytes == 0 {
        0
    } else if mib >= 10.0 {
        1
    } else {
        2
    };
    format!("{mib:.decimals$}")
}
