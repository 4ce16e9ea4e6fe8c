//! Figures in documents are those of the JSON beside them.
//!
//! A line `<!-- figures: GROUP -->` stands before a table of benchmarks: its rows name a function and a reference, its columns kinds of
//! machines. A line `<!-- figures: FOLDER -->` stands before what the CPUs reached, one beside the other. The table is compared with what the
//! JSON gives, or written anew where `RENDER_FIGURES` is set.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::markdown::{read, root};
use crate::readme;

const RENDER: &str = "RENDER_FIGURES";
const MARK: &str = "<!-- figures: ";
const BENCHES: &str = "benches/README.md";
const RESULTS: &str = "benches/results";

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
    reference: String,
    ratio: f64,
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

/// The columns of the benchmarks' tables, and the word that their result files have in common.
const MACHINES: [(&str, &str); 5] = [
    ("Zen 4", "epyc-zen4"),
    ("AMX", "xeon-amx"),
    ("Xeon", "xeon-avx512"),
    ("AVX2", "epyc-avx2"),
    ("EPYC", "epyc"),
];

/// The newest result file of a group on a kind of machine.
fn newest(folder: &Path, machine: &str, group: &str) -> Option<PathBuf> {
    let files = fs::read_dir(root().join(folder)).expect("a folder");
    let files = files.map(|file| file.expect("an entry").path());
    let end = format!("-{machine}-2-cores-{group}.json");
    // Names begin with ten characters of date.
    let is_of =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy()[10..] == end);
    files.filter(is_of).max()
}

/// The ratios of a function beside a reference in a file, one for each number of threads; both are the shortest of those whose names hold all
/// words of these.
fn ratios(file: &Path, function: &str, reference: &str) -> Option<String> {
    let holds = |name: &str, words: &str| words.split(' ').all(|word| name.contains(word));
    let mut rows = results(file).rows;
    rows.retain(|row| holds(&row.name, function) && holds(&row.reference, reference));
    let shortest = rows.iter().map(|row| (row.name.len(), row.reference.len())).min()?;
    rows.retain(|row| (row.name.len(), row.reference.len()) == shortest);
    let threads: Vec<_> = rows.iter().map(|row| row.threads).collect();
    let is_one = threads.is_sorted_by(|a, b| a < b);
    assert!(is_one, "{}: {function} against {reference} is several rows", file.display());
    let ratios: Vec<_> = rows.iter().map(|row| format!("{:.2}", row.ratio)).collect();
    Some(ratios.join(", "))
}

/// A table of a group of benchmarks with its header and the first two columns of this one.
fn by_machine(group: &str, old: &[&str]) -> String {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let [header, _, rows @ ..] = old else { panic!("a table of {group} has no header") };
    let header = cells(header);
    let machines = header[2..].iter().map(|title| {
        let known = MACHINES.into_iter().find(|(name, _)| name == title);
        let (_, word) = known.unwrap_or_else(|| panic!("{title} is no machine"));
        newest(Path::new(RESULTS), word, group)
            .unwrap_or_else(|| panic!("no results of {group} on {title}"))
    });
    let machines: Vec<_> = machines.collect();
    let row = |line: &&str| {
        let [function, reference, ..] = &cells(line)[..] else { panic!("{line}") };
        let found: Vec<_> = machines.iter().map(|file| ratios(file, function, reference)).collect();
        assert!(found.iter().any(Option::is_some), "{group}: nobody has {line}");
        let found = found.into_iter().map(|ratios| ratios.unwrap_or("–".into()));
        [function.clone(), reference.clone()].into_iter().chain(found).collect()
    };
    let titles = header
        .iter()
        .enumerate()
        .map(|(index, title)| (title.as_str(), if index < 2 { "---" } else { "---:" }));
    table(&titles.collect::<Vec<_>>(), rows.iter().map(row))
}

/// The document with every marked table drawn anew, and how many there are.
fn redrawn(document: &str) -> (String, usize) {
    let text = read(document);
    let folder = Path::new(document).parent().expect("a document lies in a folder");
    let (mut new, mut tables, mut lines) = (String::new(), 0, text.lines().peekable());
    while let Some(line) = lines.next() {
        new = new + line + "\n";
        let Some(mark) = line.strip_prefix(MARK) else { continue };
        let mark = mark.strip_suffix(" -->").expect("a mark is one line");
        let mut old = vec![];
        while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
            old.push(line);
        }
        new += &match mark.contains('/') {
            true => readme::compared(&folder.join(mark.trim())),
            false => by_machine(mark, &old),
        };
        tables += 1;
    }
    (new, tables)
}

#[test]
fn tables_are_what_their_json_gives() {
    for (document, expected) in [(BENCHES, 11), ("README.md", 1)] {
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
    let on_unit = "benches/results/2026-11-29-epyc-zen4-2-cores-serving.json";
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
