//! The README is read to its end, and its table compares like with like.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::figures::table;
use crate::markdown::{files, read, root};

/// The CPUs that the README compares, and the word that their result files have in common.
const CPUS: [(&str, &str); 3] = [
    ("AMD EPYC of Zen 4, AVX-512 BF16", "epyc-zen4"),
    ("Intel Xeon, AMX", "xeon-amx"),
    ("Intel Xeon without AMX, emulated", "xeon-avx512"),
];

/// What FP8 is measured by: products in FP8, attention in f32 as on the other side.
const FP8: &str = "m=fp8,a=high";

/// What fills a row.
enum Figures {
    /// How many times as fast [`FP8`] is as this function of `lm`, by the medians of all rows of both.
    Against(&'static str),
    /// How many times as fast a function of a group is as a reference, which has this word, that it was measured in turns with.
    InTurns { group: &'static str, function: &'static str, reference: &'static str },
    /// How many times as fast rows of a group are as a reference that begins so: the least and the most.
    Range { group: &'static str, reference: &'static str, takes: fn(&str) -> bool },
    /// The memory of one training over that of another, by the names of `docs/figures/memory.json`, which is of the first CPU.
    Peak(&'static str, &'static str),
}

use Figures::{Against, InTurns, Peak, Range};

const ROWS: [(&str, Figures); 11] = [
    (
        "step of `medium`: type swapped, against PyTorch's bf16",
        InTurns {
            group: "lm",
            function: "medium, 2048 characters, m=fp8,a=high",
            reference: "bf16",
        },
    ),
    (
        "step of Burn's `TransformerEncoder`: type swapped, against Burn's f32",
        InTurns { group: "encoder", function: "Burn's encoder, type swapped", reference: "f32" },
    ),
    ("step of `medium`: FP8 against bf16 on the same unit", Against("m=bf16,a=high")),
    ("step of `medium`: FP8 against f32, both fused", Against("f32-fused")),
    ("memory of a step of `medium`: type swapped, over Burn's f32", Peak("m=fp8", "f32")),
    (
        "the same with saved activations and moments in FP8",
        Peak("m=fp8,saved=fp8, moments in FP8", "f32"),
    ),
    (
        "the same: FP8 over bf16 on the same unit, both as by default",
        Peak("m=fp8", "m=bf16,a=high"),
    ),
    (
        "frozen layers, one row: FP8 against f32, of four times the bytes",
        Range { group: "serving", reference: "nn::Linear", takes: |name| frozen(name, 1) },
    ),
    (
        "frozen layers, 256 rows: FP8 against f32",
        Range { group: "serving", reference: "nn::Linear", takes: |name| frozen(name, 256) },
    ),
    (
        "tokens of Qwen3-0.6B's shapes: FP8 against llama.cpp in Q8_0",
        Range {
            group: "generate",
            reference: "llama.cpp",
            takes: |name| name.starts_with("decode"),
        },
    ),
    (
        "*without FP8*, step of `medium`: fused and joined, against Burn's f32",
        InTurns { group: "lm", function: "medium, 2048 characters, f32-fused", reference: "f32" },
    ),
];

/// Whether a row is of frozen layers with a scale of each input, for so many rows.
fn frozen(name: &str, rows: usize) -> bool {
    name.contains(&format!("batch {rows},")) && name.ends_with("current")
}

fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&read(path)).expect("JSON")
}

/// The rows of a group on a CPU, of its newest file, whose reference begins so; none where it was not measured.
fn rows(folder: &Path, cpu: usize, group: &str, reference: &str) -> Option<Vec<Value>> {
    let name = format!("-{}-2-cores-{group}.json", CPUS[cpu].1);
    let files = fs::read_dir(root().join(folder)).expect("a folder");
    let files = files.map(|entry| entry.expect("an entry").path());
    let mut newest = json(files.filter(|path| path.to_string_lossy().ends_with(&name)).max()?);
    let rows = newest["rows"].as_array_mut().expect("rows");
    rows.retain(|row| text(row, "reference").starts_with(reference));
    Some(std::mem::take(rows))
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().expect("a text")
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().expect("a number")
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

/// Of one thread and of two, where both were measured.
fn of_threads(of: impl Fn(usize) -> Option<f64>) -> Option<String> {
    Some(format!("{:.2} / {:.2}", of(1)?, of(2)?))
}

/// The row of a function of `lm`, at so many threads.
fn is(row: &Value, function: &str, threads: usize) -> bool {
    row["name"] == format!("medium, 2048 characters, {function}") && row["threads"] == threads
}

/// What the README says of a CPU in a row; nothing where it was not measured.
fn cell(folder: &Path, figures: &Figures, cpu: usize) -> Option<String> {
    let rows = |group: &str, reference: &str| rows(folder, cpu, group, reference);
    match figures {
        Against(other) => {
            let rows = rows("lm", "")?;
            let time = |function: &str, threads| {
                let taken = rows.iter().filter(|row| is(row, function, threads));
                middle(taken.map(|row| number(row, "milliseconds")).collect())
            };
            of_threads(|threads| Some(time(other, threads)? / time(FP8, threads)?))
        }
        InTurns { group, function, reference } => {
            let rows = rows(group, "")?;
            // That of Burn is called f32 alone.
            let is_it = |name: &str| match *reference {
                "f32" => name == "f32",
                word => name.ends_with(word),
            };
            of_threads(|threads| {
                let row = rows.iter().find(|row| {
                    row["name"] == *function
                        && row["threads"] == threads
                        && is_it(text(row, "reference"))
                })?;
                Some(number(row, "ratio"))
            })
        }
        Range { group, reference, takes } => {
            let rows = rows(group, reference)?;
            let taken = rows.iter().filter(|row| takes(text(row, "name")));
            let mut ratios: Vec<_> = taken.map(|row| number(row, "ratio")).collect();
            ratios.sort_by(f64::total_cmp);
            let mut ends =
                [ratios.first()?, ratios.last()?].map(|end| format!("{end:.1}")).to_vec();
            ends.dedup();
            Some(ends.join(" – "))
        }
        Peak(of, over) => {
            let rows = json("docs/figures/memory.json");
            let rows = rows["rows"].as_array().expect("rows");
            let peak = |name: &str| {
                let row = rows.iter().find(|row| row["name"] == name);
                number(row.unwrap_or_else(|| panic!("no memory of {name}")), "peak")
            };
            (cpu == 0).then(|| format!("{:.2}", peak(of) / peak(over)))
        }
    }
}

/// The README's table, by CPU.
pub fn compared(folder: &Path) -> String {
    let header: Vec<_> = [("speed, of one thread / two; memory", "---")]
        .into_iter()
        .chain(CPUS.map(|(cpu, _)| (cpu, "---:")))
        .collect();
    let cells = ROWS.iter().map(|(words, figures)| {
        let cells = (0..CPUS.len()).map(|cpu| cell(folder, figures, cpu));
        let cells = cells.map(|cell| cell.unwrap_or_else(|| "–".to_owned()));
        [(*words).to_owned()].into_iter().chain(cells).collect()
    });
    table(&header, cells)
}

/// What is too long to be read: lines, words, and the lines outside of tables and links that are wider than a window.
fn too_long(text: &str) -> Vec<String> {
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let mut faults = vec![];
    faults.extend((lines > 100).then(|| format!("{lines} lines, at most 100")));
    faults.extend((words > 900).then(|| format!("{words} words, at most 900")));
    let wide = text.lines().filter(|line| !line.starts_with('|') && line.chars().count() > 160);
    faults.extend(wide.map(|line| format!("more than 160 characters: {line}")));
    faults
}

#[test]
fn the_readme_is_short() {
    let faults = too_long(&read("README.md"));
    assert!(faults.is_empty(), "move into docs/ what is not for everybody: {faults:?}");
}

fn words(files: &[PathBuf]) -> usize {
    files.iter().map(|file| read(file).split_whitespace().count()).sum()
}

#[test]
fn other_documents_are_short() {
    let of = |is: &dyn Fn(&str) -> bool| -> Vec<_> {
        let all = files().into_iter();
        all.filter(|file| is(file.to_str().expect("UTF-8"))).collect()
    };
    let chapters = words(&of(&|file| file.starts_with("docs/")));
    assert!(chapters <= 10_000, "docs/ has {chapters} words");
    let benches = words(&of(&|file| file == "benches/README.md"));
    assert!(benches <= 1_500, "benches/README.md has {benches} words");
    let contributing = words(&of(&|file| file == "CONTRIBUTING.md"));
    assert!(contributing <= 1_200, "CONTRIBUTING.md has {contributing} words");
    let crates = of(&|file| file.starts_with("crates/") && file.ends_with("/README.md"));
    assert!(crates.len() >= 8, "{crates:?}");
    for file in crates {
        let words = words(std::slice::from_ref(&file));
        assert!(words <= 300, "{} has {words} words", file.display());
    }
}

#[test]
fn what_is_too_long_is_told() {
    assert_eq!(too_long(&"a line\n".repeat(100)), [""; 0]);
    assert!(too_long(&"a\n".repeat(101))[0].contains("101 lines"));
    assert!(too_long(&"a ".repeat(901))[0].contains("901 words"));
    assert!(too_long(&"a".repeat(161))[0].contains("160 characters"));
    assert_eq!(too_long(&format!("|{}", "a".repeat(161))), [""; 0]);
}
