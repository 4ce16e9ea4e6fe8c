//! Figures in documents are those of the JSON beside them.
//!
//! A line `<!-- figures: FILE.json | GROUP | REFERENCE -->` stands before a table of benchmarks: the rows of that group whose reference's name
//! begins so. A line `<!-- figures: FOLDER -->` stands before what the CPUs reached, one beside the other. Paths are named from the document. The table is compared with what the JSON gives, or written anew where `RENDER_FIGURES` is set.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::markdown::{read, root};
use crate::readme;

const RENDER: &str = "RENDER_FIGURES";
const MARK: &str = "<!-- figures: ";
const BENCHES: &str = "benches/README.md";

/// What `cargo xtask bench --json` writes.
#[derive(Deserialize)]
struct Results {
    origin: Origin,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Origin {
    command: String,
    commit: String,
    date: String,
    cpu: String,
    cores: usize,
    optimized: bool,
}

#[derive(Deserialize)]
struct Row {
    group: String,
    name: String,
    threads: usize,
    milliseconds: f64,
    gigabytes_per_second: Option<f64>,
    reference: String,
    reference_milliseconds: f64,
    ratio: f64,
    target: Option<f64>,
}

fn results(path: impl AsRef<Path>) -> Results {
    let path = path.as_ref();
    serde_json::from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of a group whose reference begins so.
fn selected(results: Results, group: &str, reference: &str) -> Vec<Row> {
    let rows = results.rows.into_iter();
    rows.filter(|row| row.group == group && row.reference.starts_with(reference)).collect()
}

/// A table in Markdown: its titles with their alignments, and its rows.
pub fn table(header: &[(&str, &str)], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut table = line(header.iter().map(|(title, _)| *title).collect());
    let rule: Vec<_> = header.iter().map(|(_, rule)| *rule).collect();
    writeln!(table, "|{}|", rule.join("|")).expect("into a string");
    for row in rows {
        table += &line(row.iter().map(String::as_str).collect());
    }
    table
}

/// Rows of benchmarks as a table. All are measured in bytes a second, or all in runs a second: one column holds one kind of ratio.
fn benchmarks(rows: &[Row]) -> String {
    let in_bytes = rows.iter().all(|row| row.gigabytes_per_second.is_some());
    let in_runs = rows.iter().all(|row| row.gigabytes_per_second.is_none());
    assert!(!rows.is_empty() && (in_bytes || in_runs), "no rows, or rows of two kinds");
    let has_target = rows.iter().any(|row| row.target.is_some());
    let references: BTreeSet<_> = rows.iter().map(|row| row.reference.as_str()).collect();
    let only = references.first().filter(|_| references.len() == 1);
    let unit = if in_bytes { "GB/s" } else { "speed" };
    let relative = format!("{unit} relative to {}", only.unwrap_or(&"the reference"));
    let reference_time = only.map_or("its ms".to_owned(), |only| format!("{only}, ms"));

    let mut header = vec![("function", "---"), ("threads", "---:"), ("ms", "---:")];
    header.extend(in_bytes.then_some(("GB/s", "---:")));
    header.extend(only.is_none().then_some(("reference", "---")));
    header.extend([(reference_time.as_str(), "---:"), (relative.as_str(), "---:")]);
    header.extend(has_target.then_some(("target", "---:")));
    let cells = rows.iter().map(|row| {
        let mut cells =
            vec![row.name.clone(), row.threads.to_string(), format!("{:.2}", row.milliseconds)];
        cells.extend(row.gigabytes_per_second.map(|speed| format!("{speed:.1}")));
        cells.extend(only.is_none().then(|| row.reference.clone()));
        cells.push(format!("{:.2}", row.reference_milliseconds));
        cells.push(format!("{:.2}", row.ratio));
        let target = row.target.map_or_else(String::new, |target| format!("≥ {target:.2}"));
        cells.extend(has_target.then_some(target));
        cells
    });
    table(&header, cells)
}

/// What a mark stands for.
fn drawn(document: &str, mark: &str) -> String {
    let parts: Vec<_> = mark.split('|').map(str::trim).collect();
    let folder = Path::new(document).parent().expect("a document lies in a folder");
    match parts[..] {
        [file, group, reference] => {
            benchmarks(&selected(results(folder.join(file)), group, reference))
        }
        [results] => readme::compared(&folder.join(results)),
        _ => panic!("{document}: {mark} is neither FOLDER nor FILE | GROUP | REFERENCE"),
    }
}

/// The document with every marked table drawn anew, and how many there are.
fn redrawn(document: &str) -> (String, usize) {
    let (mut text, mut tables, mut is_old) = (String::new(), 0, false);
    for line in read(document).lines() {
        is_old &= line.starts_with('|');
        if !is_old {
            text = text + line + "\n";
        }
        if let Some(mark) = line.strip_prefix(MARK) {
            text += &drawn(document, mark.strip_suffix(" -->").expect("a mark is one line"));
            tables += 1;
            is_old = true;
        }
    }
    (text, tables)
}

#[test]
fn tables_are_what_their_json_gives() {
    for (document, expected) in [(BENCHES, 52), ("README.md", 1)] {
        let (new, tables) = redrawn(document);
        assert_eq!(tables, expected, "tables of figures in {document}");
        if std::env::var_os(RENDER).is_some() {
            fs::write(root().join(document), new).expect("written");
            continue;
        }
        let old = read(document);
        let differing = new.lines().zip(old.lines()).find(|(new, old)| new != old);
        assert!(
            new == old,
            "{document} is not what its JSON gives; the first line that differs: {differing:?}; {RENDER}=1 cargo test -p xtask writes it"
        );
    }
}

#[test]
fn every_table_of_figures_is_marked() {
    let text = read(BENCHES);
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.windows(2) {
        let begins = pair[1].starts_with("| function");
        assert!(!begins || pair[0].starts_with(MARK), "a table without its file: {}", pair[1]);
    }
}

#[test]
fn every_result_names_its_origin_and_is_told_of() {
    let text = read(BENCHES);
    let mut count = 0;
    for entry in fs::read_dir(root().join("benches/results")).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        // Pictures are drawn with the JSON of the same name.
        if name.ends_with(".svg") {
            continue;
        }
        let Results { origin, rows } = results(format!("benches/results/{name}"));
        let Origin { command, commit, date, cpu, cores, optimized } = origin;
        assert!(command.starts_with("cargo xtask bench"), "{name}: {command}");
        let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_commit, "{name} was measured on {commit}: commit first, then measure");
        assert!(date.len() == 10 && name.starts_with(&date), "{name}: {date}");
        assert!(!cpu.is_empty() && cores > 0 && !rows.is_empty(), "{name}");
        assert!(optimized, "{name} was measured without optimizations");
        assert!(text.contains(&format!("(results/{name})")), "{BENCHES} has no link to {name}");
        count += 1;
    }
    assert!(count >= 4, "{count} files");
}

/// The text of a document, each line break a space: a sentence may have one anywhere.
#[track_caller]
fn told(document: &str, sentence: &str) {
    let text = read(document).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(sentence), "{document} does not say: {sentence}");
}

/// The least and the greatest ratio of the rows that are taken, with so many decimals.
fn range(rows: &[Row], decimals: usize, takes: impl Fn(&Row) -> bool) -> [String; 2] {
    let ratios = rows.iter().filter(|row| takes(row)).map(|row| row.ratio);
    let ends = ratios.fold([f64::INFINITY, f64::NEG_INFINITY], |[least, greatest], ratio| {
        [least.min(ratio), greatest.max(ratio)]
    });
    assert!(ends[0].is_finite(), "no row is taken");
    ends.map(|end| format!("{end:.decimals$}"))
}

#[test]
fn what_is_told_of_serving_is_measured() {
    let file = "benches/results/2026-11-21-epyc-2-cores-recipes-serving.json";
    let [least, greatest] = range(&selected(results(file), "serving", "nn::Linear"), 1, |_| true);
    told("docs/serving.md", &format!("{least} to {greatest} times where FP8 is emulated"));
    let on_unit = "benches/results/2026-11-22-epyc-zen4-2-cores-serving.json";
    let [least, greatest] =
        range(&selected(results(on_unit), "serving", "nn::Linear"), 1, |_| true);
    told("docs/serving.md", &format!("{least} to {greatest} times the speed of f32 on a CPU"));

    let xeon = "benches/results/2026-11-27-xeon-avx512-2-cores-serving.json";
    let rows = selected(results(xeon), "serving", "nn::Linear");
    let of_batch = |batch: usize, decimals| {
        range(&rows, decimals, |row| row.name.contains(&format!("batch {batch},"))).join(" – ")
    };
    let cells = [of_batch(1, 1), of_batch(8, 1), of_batch(64, 1), of_batch(256, 2)];
    told("docs/serving.md", &format!("| times the speed of f32 | {} |", cells.join(" | ")));

    let floor = selected(results(file), "serving", "reading the weights");
    for (layer, name) in [("f32", "nn::Linear"), ("frozen", "static")] {
        let [[a, b], [c, d]] = [1, 2].map(|threads| {
            range(&floor, 2, |row| row.threads == threads && row.name.contains(name))
        });
        let reached = format!("{a} to {b} of that speed on one thread and {c} to {d} on two");
        let sentences = read(BENCHES).split_whitespace().collect::<Vec<_>>().join(" ");
        let mut sentences = sentences.split(". ");
        let is_told = |sentence: &str| {
            sentence.starts_with(&format!("The {layer} layer")) && sentence.contains(&reached)
        };
        assert!(sentences.any(is_told), "{BENCHES} does not say of the {layer} layer: {reached}");
    }
}

#[test]
fn what_is_told_of_training_steps_is_measured() {
    let files = ["recipes-serving", "per-row"];
    let rows: Vec<_> = files
        .iter()
        .flat_map(|name| {
            let file = format!("benches/results/2026-11-21-epyc-2-cores-{name}.json");
            selected(results(file), "mlp", "f32")
        })
        .collect();
    let [least, greatest] = range(&rows, 2, |_| true);
    told("docs/hardware.md", &format!("{least} to {greatest} times the speed of f32"));
}
