//! What the sums of tensor cores lose: the error of products of FP8 codes against f64, by the length of the sum.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_core::sums::{Accumulation, Accumulator};
use burn_fp8_core::{Overflow, Recipe, scale};
use burn_fp8_cpu::sums::{LineScales, Order, matmul};
use burn_fp8_test_support::Random;
use clap::Parser;
use examples_common::charts::{BLUE, INK, SKY_BLUE, VERMILION, axes, legend, line, svg, text};
use examples_common::{Origin, check_place, print, write, write_json};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

/// Lengths of sums.
const LENGTHS: [usize; 5] = [256, 1024, 4096, 16_384, 65_536];

/// Rows and columns of each product.
const SIDE: usize = 64;

/// Measures, prints a table, and draws it.
#[derive(Parser)]
struct Arguments {
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the picture into this file
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
    /// Seed of the operands
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What operands hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Numbers {
    /// Of a normal distribution.
    Normal,
    /// Of Student's t with three degrees of freedom: outliers.
    StudentT,
    /// Uniform in 0..1: all terms have one sign.
    Positive,
}

impl Numbers {
    const ALL: [Self; 3] = [Self::Normal, Self::StudentT, Self::Positive];

    const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::StudentT => "Student's t, 3",
            Self::Positive => "uniform in 0..1",
        }
    }
}

/// Whose sums: a name and how they add; f32 adds one product after the other.
const SUMS: [(&str, Option<(Accumulator, Accumulation)>); 6] = [
    ("f32", None),
    ("Blackwell", Some((Accumulator::BLACKWELL, Accumulation::Fast))),
    ("Hopper, split", Some((Accumulator::HOPPER, Accumulation::Split))),
    ("Ada, split", Some((Accumulator::ADA, Accumulation::Split))),
    ("Hopper, fast", Some((Accumulator::HOPPER, Accumulation::Fast))),
    ("Ada, fast", Some((Accumulator::ADA, Accumulation::Fast))),
];

/// Errors, each the norm of the difference over the norm of the exact product.
#[derive(Serialize, Deserialize)]
struct Row {
    numbers: Numbers,
    k: usize,
    /// Of rounding both operands to E4M3 with one scale each, summed in f64.
    rounding: f64,
    /// Of the sum of the very codes, as in [`SUMS`].
    sums: Vec<(String, f64)>,
}

#[derive(Serialize)]
struct Results {
    origin: Origin,
    seed: u64,
    rows: Vec<Row>,
}

fn main() -> ExitCode {
    examples_common::main(|arguments: Arguments| run(&arguments).map(|()| ExitCode::SUCCESS))
}

fn run(arguments: &Arguments) -> Result<()> {
    let places = [&arguments.json, &arguments.picture];
    places.into_iter().flatten().try_for_each(|path| check_place(path))?;
    let mut random = Random(arguments.seed);
    let each = Numbers::ALL.into_iter().flat_map(|numbers| LENGTHS.map(|k| (numbers, k)));
    let rows: Vec<_> = each.map(|(numbers, k)| measure(numbers, k, &mut random)).collect();
    print(&table(&rows))?;
    if let Some(path) = &arguments.picture {
        write(path, picture(&rows)?)?;
    }
    if let Some(path) = &arguments.json {
        let origin = Origin::here(
            "cargo run --release -p burn-fp8-bench --bin sum-error --",
            &["--json", "--picture"],
        );
        write_json(path, &Results { origin, seed: arguments.seed, rows })?;
    }
    Ok(())
}

fn measure(numbers: Numbers, k: usize, random: &mut Random) -> Row {
    let operands = [(); 2]
        .map(|()| -> Vec<f32> { (0..SIDE * k).map(|_| number(random, numbers) as f32).collect() });
    let quantized = operands.each_ref().map(|x| {
        let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        let scale = scale::from_amax(amax, E4M3, Recipe::current());
        let codes = x.iter().map(|x| E4M3.encode(x / scale, Overflow::Saturate));
        (codes.collect::<Vec<u8>>(), scale)
    });
    let [(a, of_a), (b, of_b)] = &quantized;
    let numbers_of = |codes: &[u8]| -> Vec<f64> {
        codes.iter().map(|code| f64::from(E4M3.decode(*code))).collect()
    };
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().copied().map(f64::from).collect() };
    let exact = product(&wide(&operands[0]), &wide(&operands[1]), k);
    let of_codes = product(&numbers_of(a), &numbers_of(b), k);
    let scales = f64::from(*of_a) * f64::from(*of_b);
    let scaled: Vec<f64> = of_codes.iter().map(|y| y * scales).collect();
    let sums = SUMS.map(|(name, order)| {
        let mut y = vec![0f32; SIDE * SIDE];
        match order {
            Some((accumulator, accumulation)) => {
                let order = Order { accumulator, accumulation, split: None };
                let one = LineScales::Whole { lhs: &[1.0], rhs: &[1.0] };
                matmul(&order, [a, b], [E4M3; 2], [SIDE, SIDE, k], one, &mut y);
            }
            None => {
                let [a, b] = [a, b].map(|codes| numbers_of(codes));
                for (at, y) in y.iter_mut().enumerate() {
                    let terms = a[at / SIDE * k..][..k].iter().zip(&b[at % SIDE * k..]);
                    *y = terms.fold(0.0, |sum, (a, b)| sum + (a * b) as f32);
                }
            }
        }
        (name.to_owned(), error(&wide(&y), &of_codes))
    });
    Row { numbers, k, rounding: error(&scaled, &exact), sums: sums.to_vec() }
}

/// Rows of the one with rows of the other.
fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    let row = |a| b.chunks(k).map(move |b| dot(a, b));
    a.chunks(k).flat_map(row).collect()
}

fn error(y: &[f64], exact: &[f64]) -> f64 {
    let power = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let of_error = power(&mut y.iter().zip(exact).map(|(y, exact)| y - exact));
    (of_error / power(&mut exact.iter().copied())).sqrt()
}

fn table(rows: &[Row]) -> String {
    let mut names = vec!["operands", "K", "rounding"];
    names.extend(SUMS.map(|(name, _)| name));
    let mut text = format!("| {} |\n|---|{}\n", names.join(" | "), "---:|".repeat(names.len() - 1));
    for Row { numbers, k, rounding, sums } in rows {
        let errors = [*rounding].into_iter().chain(sums.iter().map(|(_, error)| *error));
        let errors: Vec<_> = errors.map(|error| format!("{error:.1e}")).collect();
        text += &format!("| {} | {k} | {} |\n", numbers.name(), errors.join(" | "));
    }
    text
}

/// Two panels: numbers of both signs, and of one.
fn picture(rows: &[Row]) -> Result<String> {
    svg("the errors of sums", (960, 420), |area| {
        let panels = area.split_evenly((1, 2));
        for (panel, numbers) in panels.iter().zip([Numbers::Normal, Numbers::Positive]) {
            let of: Vec<&Row> = rows.iter().filter(|row| row.numbers == numbers).collect();
            let title = match numbers {
                Numbers::Positive => "All terms of one sign",
                _ => "Normal numbers",
            };
            let mut chart = ChartBuilder::on(panel)
                .caption(title, text(18))
                .margin(12)
                .x_label_area_size(44)
                .y_label_area_size(60)
                .build_cartesian_2d((200f64..80_000f64).log_scale(), (1e-8..3e3f64).log_scale())?;
            let mut mesh = chart.configure_mesh();
            mesh.x_desc("K, the products of a sum").y_desc("error / exact result");
            mesh.x_label_formatter(&|k| format!("{k:.0}"));
            axes(mesh.y_label_formatter(&|error| format!("{error:.0e}")), 13)?;
            let of_sum = |at: usize| of.iter().map(move |row| (row.k as f64, row.sums[at].1));
            let rounding = of.iter().map(|row| (row.k as f64, row.rounding));
            line(&mut chart, rounding, (INK, 3), Some(("rounding to E4M3", 24)))?;
            for (at, colour) in [(4, VERMILION), (2, BLUE), (1, SKY_BLUE)] {
                line(&mut chart, of_sum(at), (colour, 2), Some((SUMS[at].0, 24)))?;
            }
            line(&mut chart, of_sum(0), (INK, 1), Some(("f32", 24)))?;
            legend(&mut chart)?;
        }
        Ok(())
    })
}

/// One number.
fn number(random: &mut Random, numbers: Numbers) -> f64 {
    match numbers {
        Numbers::Normal => random.normal(),
        Numbers::StudentT => {
            let chi: f64 = (0..3).map(|_| random.normal().powi(2)).sum();
            random.normal() / (chi / 3.0).sqrt()
        }
        Numbers::Positive => f64::from(random.between(0.0, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn committed(path: &str) -> String {
        let path = format!("{}/../docs/{path}", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[derive(Deserialize)]
    struct Written {
        rows: Vec<Row>,
    }

    #[test]
    fn the_chapter_has_the_figures_and_the_picture_of_the_json_beside_it() {
        let Written { rows } = serde_json::from_str(&committed("figures/sum-error.json")).unwrap();
        assert_eq!(picture(&rows).unwrap(), committed("figures/sum-error.svg"));
        let chapter = committed("what-a-gpu-computes.md");
        let lines = chapter.lines().filter(|line| {
            Numbers::ALL.iter().any(|numbers| line.starts_with(&format!("| {} |", numbers.name())))
        });
        let table = table(&rows);
        let lines: Vec<_> = lines.collect();
        assert!(lines.len() >= 4 && lines.iter().all(|line| table.contains(line)), "{table}");
    }
}
