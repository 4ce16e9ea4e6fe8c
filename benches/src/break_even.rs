//! Where FP8 is faster than f32 on this machine: measured, shown as tables and as a picture, and kept for `Fp8Config::measured`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use burn::backend::{Autodiff, Flex};
use burn_fp8::{Fp8Backend, Fp8Config, Gains, Gemm, gains};
use burn_fp8_train::policy::Policy;
use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use examples_common::{charts, check_place, write};
use indicatif::{ProgressBar, ProgressStyle};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type B = Fp8Backend<Autodiff<Flex>>;

/// Shows by M, N and K how fast a product in FP8 is in percent of the same in f32, on Flex, and measures it where that was not done before.
#[derive(Parser)]
#[command(name = "cargo xtask break-even")]
struct Arguments {
    /// The recipe, as the key m of a policy: fp8, fp8_rowwise, mxfp8, …
    #[arg(long, value_name = "M", default_value = "fp8")]
    recipe: String,
    /// Measure again what was measured before
    #[arg(long)]
    again: bool,
    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "target/break-even.svg")]
    picture: PathBuf,
}

fn main() -> ExitCode {
    examples_common::main(run)
}

fn run(Arguments { recipe, again, picture }: Arguments) -> Result<ExitCode> {
    let policy = Policy::parse(&format!("p=f32,m={recipe}"))?;
    let config = policy.configure(Fp8Config::default());
    check_place(&picture)?;
    let device = Default::default();
    let kept = gains::kept::<B>(&config, &device).filter(|_| !again);
    let gains = kept.map_or_else(|| measure(&config), Ok)?;
    for k in gains.sizes() {
        println!("{}", of_k(&gains, *k));
    }
    println!(
        "Speed in FP8 ({recipe}) in percent of that in f32: alone / with both gradients. Fp8Config::measured takes those of {}% or more.\n{}",
        Gains::WORTHWHILE,
        gains.measured_on()
    );
    let path = gains::file::<B>(&config, &device);
    match (path, gains::kept::<B>(&config, &device)) {
        (Some(path), Some(_)) => {
            println!("Kept in {}; --again measures again.", path.display());
        }
        (Some(path), None) => eprintln!(
            "Not kept: {} cannot be written; name another folder in BURN_FP8_CACHE.",
            path.display()
        ),
        (None, _) => eprintln!("Not kept: name a folder in BURN_FP8_CACHE."),
    }
    write(&picture, draw(&gains, &recipe)?)?;
    println!("Picture: {}", picture.display());
    Ok(ExitCode::SUCCESS)
}

fn measure(config: &Fp8Config) -> Result<Gains> {
    let style = ProgressStyle::with_template("measuring {bar:40} {pos}/{len} shapes, {elapsed}")?;
    let bar = ProgressBar::new(1).with_style(style);
    let gains = gains::measure::<B>(config, &Default::default(), |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    gains.context("FP8 cannot be measured here")
}

/// The gains with and without gradients, in percent.
fn both(gains: &Gains, m: usize, n: usize, k: usize) -> [u32; 2] {
    [false, true].map(|with_gradients| gains.of(Gemm::matrix(m, n, k), with_gradients))
}

fn of_k(gains: &Gains, k: usize) -> Table {
    let sizes = gains.sizes();
    let first = |name: String| [name].into_iter();
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(first(format!("K = {k}")).chain(sizes.iter().map(|n| format!("N = {n}"))));
    for &m in sizes {
        let cells = sizes.iter().map(|&n| {
            let [forward, training] = both(gains, m, n, k);
            format!("{forward} / {training}")
        });
        table.add_row(first(format!("M = {m}")).chain(cells));
    }
    table
}

const CELL: i32 = 44;
const LEFT: i32 = 70;
const TOP: i32 = 92;
const GAP: i32 = 30;

/// A panel for each K, forward products above and those with gradients below: blue where FP8 is faster, orange where it is slower.
fn draw(gains: &Gains, recipe: &str) -> Result<String> {
    let sizes = gains.sizes();
    let side = CELL * sizes.len() as i32;
    let count = sizes.len() as i32;
    let width = LEFT + count * (side + GAP);
    let height = TOP + 2 * (side + 70) + 10;
    charts::svg("the gains", (width as u32, height as u32), |root| {
        let anchored = |size, h, v| charts::text(size).pos(Pos::new(h, v));
        let title =
            format!("Speed in FP8 ({recipe}) in percent of f32, by M (down), N (across) and K");
        root.draw(&Text::new(title, (16, 12), charts::text(18)))?;
        let machine = gains.measured_on().split(';').next().unwrap_or_default();
        let machine = format!("{machine}. Blue: faster than f32; orange: slower.");
        root.draw(&Text::new(machine, (16, 36), charts::text(12)))?;
        for (row, name) in ["forward", "with both gradients"].into_iter().enumerate() {
            let top = TOP + row as i32 * (side + 70);
            for (panel, &k) in sizes.iter().enumerate() {
                let left = LEFT + panel as i32 * (side + GAP);
                let middle = (left + side / 2, top - 26);
                let style = anchored(13, HPos::Center, VPos::Center);
                root.draw(&Text::new(format!("{name}, K = {k}"), middle, style))?;
                for (line, &m) in sizes.iter().enumerate() {
                    let y = top + line as i32 * CELL;
                    if panel == 0 {
                        let style = anchored(12, HPos::Right, VPos::Center);
                        root.draw(&Text::new(m.to_string(), (left - 6, y + CELL / 2), style))?;
                    }
                    for (column, &n) in sizes.iter().enumerate() {
                        let x = left + column as i32 * CELL;
                        if line == 0 {
                            let style = anchored(11, HPos::Center, VPos::Center);
                            let place = (x + CELL / 2, top - 9);
                            root.draw(&Text::new(n.to_string(), place, style))?;
                        }
                        let percent = both(gains, m, n, k)[row];
                        let corners = [(x, y), (x + CELL - 2, y + CELL - 2)];
                        root.draw(&Rectangle::new(corners, colour(percent).filled()))?;
                        let style = anchored(12, HPos::Center, VPos::Center);
                        let place = (x + CELL / 2 - 1, y + CELL / 2 - 1);
                        root.draw(&Text::new(percent.to_string(), place, style))?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// White at 100%, full colour at half and at twice the speed.
fn colour(percent: u32) -> RGBColor {
    let gain = (f64::from(percent.max(1)) / 100.0).log2().clamp(-1.0, 1.0);
    let RGBColor(r, g, b) = if gain < 0.0 { charts::ORANGE } else { charts::SKY_BLUE };
    let mixed = |channel: u8| (255.0 + (f64::from(channel) - 255.0) * gain.abs()) as u8;
    RGBColor(mixed(r), mixed(g), mixed(b))
}
