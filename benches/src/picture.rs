//! One picture of a run: how long a training step takes in f32, in PyTorch's bf16 and in FP8; or how fast text is written.

use anyhow::{Result, ensure};
use examples_common::{Origin, charts};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::rows::{Row, median};
use crate::{generate, mlp};

/// The row of a step whose references are drawn beside it.
const SUBJECT: &str = "FP8, current";

const WIDTH: u32 = 900;
const BAR: i32 = 26;
const LEFT: i32 = 290;
const TOP: i32 = 56;

/// What the bars of training steps stand for.
const STEPS: &str = "One training step, milliseconds: MLP 1024-4096-1024, batch 256, SGD";

/// What the bars of text stand for.
const TEXT: &str = "Tokens a second";

/// A bar: what ran, on how many threads, its milliseconds or tokens a second, and whether it is ours.
struct Bar {
    name: String,
    threads: usize,
    value: f64,
    is_ours: bool,
}

/// The bars of text beside llama.cpp, by threads.
fn bars_of_text(rows: &[Row]) -> Vec<Bar> {
    let peer = "llama.cpp Q8_0";
    let beside =
        rows.iter().filter(|row| row.group == generate::GROUP && row.reference.starts_with(peer));
    let bars = beside.flat_map(|row| {
        let bar = |who, milliseconds, is_ours| Bar {
            name: format!("{}: {who}", row.name.split(" after").next().unwrap_or_default()),
            threads: row.threads,
            value: generate::tokens(&row.name) as f64 * 1000.0 / milliseconds,
            is_ours,
        };
        [bar(peer, row.reference_milliseconds, false), bar("burn-fp8", row.milliseconds, true)]
    });
    bars.collect()
}

/// The bars of training steps, by threads; those of FP8 last.
fn bars_of_steps(rows: &[Row], unit: &str) -> Vec<Bar> {
    let steps: Vec<_> =
        rows.iter().filter(|row| row.group == mlp::GROUP && row.name == SUBJECT).collect();
    let mut threads: Vec<_> = steps.iter().map(|row| row.threads).collect();
    threads.dedup();
    let mut bars = Vec::new();
    for threads in threads {
        let steps = steps.iter().filter(|row| row.threads == threads);
        let mut own = Vec::new();
        for row in steps {
            let name = match row.reference.as_str() {
                "f32" => "Burn f32, with AVX-512".to_owned(),
                "f32, AVX2" => "Burn f32, as it is built".to_owned(),
                other => other.replace(": ", " "),
            };
            bars.push(Bar { name, threads, value: row.reference_milliseconds, is_ours: false });
            own.push(row.milliseconds);
        }
        // Measured once beside each reference.
        let name = format!("burn-fp8 on {unit}");
        bars.push(Bar { name, threads, value: median(&mut own), is_ours: true });
    }
    bars
}

/// Draws the steps of the group `mlp` as bars, or where there are none what the group `generate` has beside llama.cpp.
///
/// # Errors
/// Where there is neither.
pub fn draw(rows: &[Row], origin: &Origin) -> Result<String> {
    let steps = bars_of_steps(rows, origin.unit.as_deref().unwrap_or_default());
    let (title, bars) = match steps.is_empty() {
        true => (TEXT, bars_of_text(rows)),
        false => (STEPS, steps),
    };
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    ensure!(
        longest > 0.0,
        "there is nothing to draw: neither steps of the group mlp nor, beside llama.cpp, text of the group generate"
    );
    let height = TOP + BAR * bars.len() as i32 + 40;
    charts::svg("the steps", (WIDTH, height as u32), |root| {
        let text = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let right = Pos::new(HPos::Right, VPos::Center);
        let left = Pos::new(HPos::Left, VPos::Center);
        root.draw(&Text::new(title, (16, 14), text(18)))?;
        let scale = f64::from(WIDTH as i32 - LEFT - 90) / longest;
        for (index, bar) in bars.iter().enumerate() {
            let top = TOP + BAR * index as i32;
            let middle = top + BAR / 2 - 2;
            let end = LEFT + (bar.value * scale) as i32;
            let color = if bar.is_ours { RGBColor(214, 90, 30) } else { RGBColor(150, 160, 175) };
            let threads = if bar.threads == 1 { "thread" } else { "threads" };
            let name = format!("{}, {} {threads}", bar.name, bar.threads);
            root.draw(&Text::new(name, (LEFT - 8, middle), text(13).pos(right)))?;
            let corners = [(LEFT, top), (end, top + BAR - 6)];
            root.draw(&Rectangle::new(corners, color.filled()))?;
            let number = format!("{:.0}", bar.value);
            root.draw(&Text::new(number, (end + 6, middle), text(13).pos(left)))?;
        }
        let machine = format!("{}, {}", origin.cpu, origin.date);
        root.draw(&Text::new(machine, (16, height - 24), text(12)))?;
        Ok(())
    })
}
