//! One picture of a training step: how long it takes in f32, in PyTorch's bf16 and in FP8.

use anyhow::{Result, ensure};
use examples_common::{Origin, charts};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::mlp;
use crate::rows::{Row, median};

/// The row of a step whose references are drawn beside it.
const SUBJECT: &str = "FP8, current";

const WIDTH: u32 = 900;
const BAR: i32 = 26;
const LEFT: i32 = 250;
const TOP: i32 = 56;

/// A bar: what ran, on how many threads, and its milliseconds.
struct Bar {
    name: String,
    threads: usize,
    milliseconds: f64,
}

/// The bars of a run, by threads; those of FP8 last.
fn bars(rows: &[Row], unit: &str) -> Vec<Bar> {
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
            bars.push(Bar { name, threads, milliseconds: row.reference_milliseconds });
            own.push(row.milliseconds);
        }
        // Measured once beside each reference.
        let name = format!("burn-fp8 on {unit}");
        bars.push(Bar { name, threads, milliseconds: median(&mut own) });
    }
    bars
}

/// Draws the steps of the group `mlp` as bars.
///
/// # Errors
/// Where there are none.
pub fn draw(rows: &[Row], origin: &Origin) -> Result<String> {
    let bars = bars(rows, origin.unit.as_deref().unwrap_or_default());
    let longest = bars.iter().map(|bar| bar.milliseconds).fold(0.0, f64::max);
    ensure!(longest > 0.0, "there are no steps of the group mlp among the rows");
    let height = TOP + BAR * bars.len() as i32 + 40;
    charts::svg("the steps", (WIDTH, height as u32), |root| {
        let text = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let right = Pos::new(HPos::Right, VPos::Center);
        let left = Pos::new(HPos::Left, VPos::Center);
        let title = "One training step, milliseconds: MLP 1024-4096-1024, batch 256, SGD";
        root.draw(&Text::new(title, (16, 14), text(18)))?;
        let scale = f64::from(WIDTH as i32 - LEFT - 90) / longest;
        for (index, bar) in bars.iter().enumerate() {
            let top = TOP + BAR * index as i32;
            let middle = top + BAR / 2 - 2;
            let end = LEFT + (bar.milliseconds * scale) as i32;
            let is_ours = bar.name.starts_with("burn-fp8");
            let color = if is_ours { RGBColor(214, 90, 30) } else { RGBColor(150, 160, 175) };
            let threads = if bar.threads == 1 { "thread" } else { "threads" };
            let name = format!("{}, {} {threads}", bar.name, bar.threads);
            root.draw(&Text::new(name, (LEFT - 8, middle), text(13).pos(right)))?;
            let corners = [(LEFT, top), (end, top + BAR - 6)];
            root.draw(&Rectangle::new(corners, color.filled()))?;
            let number = format!("{:.0}", bar.milliseconds);
            root.draw(&Text::new(number, (end + 6, middle), text(13).pos(left)))?;
        }
        let machine = format!("{}, {}", origin.cpu, origin.date);
        root.draw(&Text::new(machine, (16, height - 24), text(12)))?;
        Ok(())
    })
}
