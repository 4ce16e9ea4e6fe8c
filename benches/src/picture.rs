//! One picture of a run: how long a training step takes in f32, in PyTorch's bf16 and in FP8; or how fast text is written.

use anyhow::{Result, ensure};
use examples_common::{Origin, charts};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

use crate::rows::{Row, median};
use crate::{generate, mlp};

/// What a file of results holds.
#[derive(Serialize, Deserialize)]
pub struct Results {
    pub origin: Origin,
    /// What the rows of the group `generate` were measured on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub rows: Vec<Row>,
}

/// The row of a step whose references are drawn beside it.
const SUBJECT: &str = "FP8, current";

const WIDTH: u32 = 900;
const BAR: i32 = 26;
/// Of a letter of a name, about: names are placed by it, as the font is the reader's.
const LETTER: i32 = 7;
const TOP: i32 = 56;

/// What the bars of training steps stand for.
const STEPS: &str =
    "One training step, milliseconds, less is better: MLP 1024-4096-1024, batch 256, SGD";

/// What the bars of text stand for.
const TEXT: &str = "Tokens a second";

/// A bar: what ran, on how many threads, its milliseconds or tokens a second, and whether it is ours.
struct Bar {
    name: String,
    threads: usize,
    value: f64,
    is_ours: bool,
}

impl Bar {
    fn label(&self) -> String {
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        format!("{}, {} {threads}", self.name, self.threads)
    }
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
pub fn draw(Results { origin, model, rows }: &Results) -> Result<String> {
    let steps = bars_of_steps(rows, origin.unit.as_deref().unwrap_or_default());
    let (title, bars) = match (steps.is_empty(), model) {
        (false, _) => (STEPS.to_owned(), steps),
        (true, None) => (TEXT.to_owned(), bars_of_text(rows)),
        (true, Some(model)) => (format!("{TEXT}, {model}: more is better"), bars_of_text(rows)),
    };
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    ensure!(
        longest > 0.0,
        "there is nothing to draw: neither steps of the group mlp nor, beside llama.cpp, text of the group generate"
    );
    let names = bars.iter().map(Bar::label).collect::<Vec<_>>();
    let longest_name = names.iter().map(|name| name.len() as i32).fold(0, i32::max);
    let start = 16 + LETTER * longest_name + 8;
    let height = TOP + BAR * bars.len() as i32 + 40;
    charts::svg("the steps", (WIDTH, height as u32), |root| {
        let text = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let right = Pos::new(HPos::Right, VPos::Center);
        let left = Pos::new(HPos::Left, VPos::Center);
        root.draw(&Text::new(title, (16, 14), text(18)))?;
        let scale = f64::from(WIDTH as i32 - start - 90) / longest;
        for (index, (bar, name)) in bars.iter().zip(names).enumerate() {
            let top = TOP + BAR * index as i32;
            let middle = top + BAR / 2 - 2;
            let end = start + (bar.value * scale) as i32;
            let color = if bar.is_ours { RGBColor(214, 90, 30) } else { RGBColor(150, 160, 175) };
            root.draw(&Text::new(name, (start - 8, middle), text(13).pos(right)))?;
            let corners = [(start, top), (end, top + BAR - 6)];
            root.draw(&Rectangle::new(corners, color.filled()))?;
            let number = format!("{:.0}", bar.value);
            root.draw(&Text::new(number, (end + 6, middle), text(13).pos(left)))?;
        }
        let machine = format!("{}, {}", origin.cpu, origin.date);
        root.draw(&Text::new(machine, (16, height - 24), text(12)))?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use examples_common::testing;

    use super::*;

    /// No name begins left of the picture, in a font whose letters are as wide as those of DejaVu Sans; nor is the model left out.
    #[test]
    fn the_committed_picture_of_text_is_whole() {
        let results = testing::Results::of(env!("CARGO_MANIFEST_DIR"));
        let name = "2026-11-27-xeon-avx512-2-cores-generate";
        let svg = draw(&results.json(&format!("{name}.json"))).expect("drawn");
        results.check(&format!("{name}.svg"), &svg);
        assert!(svg.contains("Qwen3-0.6B"), "the model is named");
        let texts: Vec<_> = svg.split("<text ").skip(1).collect();
        let names = texts.iter().filter(|text| text.contains("text-anchor=\"end\""));
        let mut count = 0;
        for text in names {
            let (_, letters) = text.split_once('>').expect("an end of the tag");
            let letters = letters.split('<').next().expect("text").trim().len();
            let end: f64 =
                charts::attribute(&format!("<text {text}"), "x").parse().expect("a number");
            assert!(end - 6.8 * letters as f64 > 0.0, "{text}");
            count += 1;
        }
        assert_eq!(count, 12);
    }
}
