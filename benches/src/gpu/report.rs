//! One report of a whole run: results.json, table.txt and table.md.
//!
//! A run leaves in its folder: `host.tsv`, lines of a name and a value; `phases.tsv`, lines of phase, status, seconds and log;
//! `rows-*.json`, the rows of a group of benchmarks; and, as far as they ran, `torch.json` and `accuracy.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};
use examples_common::write_json;
use serde::Serialize;
use serde_json::{Value, json};

use crate::library;
use crate::rows::{self, Row};

#[derive(Serialize)]
struct Report {
    /// Device, versions, revision, date, command.
    host: BTreeMap<String, String>,
    phases: Vec<Phase>,
    rows: Vec<Row>,
    /// What makes figures less than they seem, and files that could not be read.
    warnings: Vec<String>,
    /// The cuBLASLt that our programs load; null where that is not known.
    cublaslt: Value,
    /// What gpu_accuracy.py found; null where it did not run.
    accuracy: Value,
    /// What gpu_peers.py measured; null where it did not run.
    torch: Value,
}

#[derive(Serialize)]
struct Phase {
    phase: String,
    /// `ok`, `failed`, `timed out` or `skipped`, and why.
    status: String,
    seconds: f64,
    log: String,
}

pub fn write(folder: &Path) -> Result<()> {
    let mut warnings = vec![];
    let rows = rows_of(folder, &mut warnings)?;
    let mut read = |file| optional(folder, file, &mut warnings);
    let (cublaslt, accuracy, torch) =
        (read("device.json"), read("accuracy.json"), read("torch.json"));
    let peers = [(&torch, "gpu_peers.py"), (&accuracy, "gpu_accuracy.py")];
    warnings.extend(
        peers.into_iter().filter_map(|(peer, script)| library::difference(&cublaslt, peer, script)),
    );
    let report = Report {
        host: lines(folder, "host.tsv")?.into_iter().map(|[name, value]| (name, value)).collect(),
        phases: lines(folder, "phases.tsv")?
            .into_iter()
            .map(|[phase, status, seconds, log]| {
                let seconds = seconds.parse().with_context(|| format!("seconds of {phase}"))?;
                Ok(Phase { phase, status, seconds, log })
            })
            .collect::<Result<_>>()?,
        rows,
        warnings,
        cublaslt,
        accuracy,
        torch,
    };
    write_json(&folder.join("results.json"), &report)?;
    for (file, preset) in [("table.txt", UTF8_FULL_CONDENSED), ("table.md", ASCII_MARKDOWN)] {
        let path = folder.join(file);
        fs::write(&path, text(&report, preset))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", text(&report, UTF8_FULL_CONDENSED));
    Ok(())
}

fn text(report: &Report, preset: &str) -> String {
    let mut host = Table::new();
    host.load_preset(preset).set_header(["host", ""]);
    host.add_rows(report.host.iter().map(|(name, value)| [name, value]));
    let mut phases = Table::new();
    phases.load_preset(preset).set_header(["phase", "status", "seconds", "log"]);
    for phase in &report.phases {
        let seconds = format!("{:.0}", phase.seconds);
        phases.add_row([&phase.phase, &phase.status, &seconds, &phase.log]);
    }
    if let Some(seconds) = phases.column_mut(2) {
        seconds.set_cell_alignment(CellAlignment::Right);
    }
    let warnings: String =
        report.warnings.iter().map(|text| format!("warning: {text}\n\n")).collect();
    format!("{warnings}{host}\n\n{phases}\n\n{}\n", rows::table(&report.rows, preset))
}

/// The lines of a file of `N` columns each, separated by tabs.
fn lines<const N: usize>(folder: &Path, file: &str) -> Result<Vec<[String; N]>> {
    let path = folder.join(file);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            let columns: Vec<String> = line.splitn(N, '\t').map(str::to_owned).collect();
            let count = columns.len();
            columns.try_into().ok().with_context(|| {
                format!("{}:{}: {count} columns instead of {N}", path.display(), index + 1)
            })
        })
        .collect()
}

/// Of all groups; what cannot be read is a warning, so that one file does not cost the others.
fn rows_of(folder: &Path, warnings: &mut Vec<String>) -> Result<Vec<Row>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("rows-") && name.ends_with(".json")
    });
    files.sort();
    let mut rows = vec![];
    for path in files {
        let of_group = fs::read(&path)
            .map_err(anyhow::Error::from)
            .and_then(|json| Ok(serde_json::from_slice::<Vec<Row>>(&json)?));
        match of_group {
            Ok(of_group) => rows.extend(of_group),
            Err(error) => warnings.push(format!("{} holds no rows: {error}", path.display())),
        }
    }
    Ok(rows)
}

/// A JSON file that is there only if its phase ran. Why it cannot be read stands for what cannot.
fn optional(folder: &Path, file: &str, warnings: &mut Vec<String>) -> Value {
    let error = match fs::read(folder.join(file)) {
        Ok(json) => match serde_json::from_slice(&json) {
            Ok(value) => return value,
            Err(error) => format!("{file} is no JSON: {error}"),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Value::Null,
        Err(error) => format!("cannot read {file}: {error}"),
    };
    warnings.push(error.clone());
    json!({ "error": error })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::write;
    use crate::rows::Row;

    #[test]
    fn what_the_phases_left_is_combined() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("host.tsv"), "device\tNVIDIA H200\nrevision\tabc\n").unwrap();
        fs::write(
            path("phases.tsv"),
            "cuda-codes\tok\t12.5\tcuda-codes.log\npeers\tskipped: no torch\t0\t\n",
        )
        .unwrap();
        let row = Row {
            teraflops_per_second: Some(700.0),
            ..Row::timed(("gpu-gemm", 1, Some(0.97)), ("some", 2.0), ("other", 1.0))
        };
        fs::write(path("rows-gpu-gemm.json"), serde_json::to_string(&[row]).unwrap()).unwrap();
        write(folder.path()).unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(path("results.json")).unwrap()).unwrap();
        assert_eq!(json["host"]["device"], "NVIDIA H200");
        assert_eq!(json["phases"][1]["status"], "skipped: no torch");
        assert_eq!(json["rows"][0]["teraflops_per_second"], 700.0);
        assert!(json["torch"].is_null());
        let table = fs::read_to_string(path("table.md")).unwrap();
        assert!(table.contains("MISSED") && table.contains("700.0"), "{table}");
    }

    #[test]
    fn a_file_that_is_no_json_costs_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("host.tsv"), "device\tNVIDIA H200\n").unwrap();
        fs::write(path("phases.tsv"), "accuracy\tfailed: status 1\t3\taccuracy.log\n").unwrap();
        fs::write(path("accuracy.json"), "{\"rows\": [{\"error\": Infinity}]}").unwrap();
        fs::write(path("rows-gpu-gemm.json"), "[").unwrap();
        fs::write(path("device.json"), "{\"path\": \"/a\", \"version\": \"13.4.1\"}").unwrap();
        fs::write(path("torch.json"), "{\"cublaslt\": {\"path\": \"/b\", \"version\": 120804}}")
            .unwrap();
        write(folder.path()).unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(path("results.json")).unwrap()).unwrap();
        let error = json["accuracy"]["error"].as_str().unwrap();
        assert!(error.starts_with("accuracy.json is no JSON"), "{error}");
        let table = fs::read_to_string(path("table.txt")).unwrap();
        for warning in
            ["holds no rows", "is no JSON", "warning: cuBLASLt differs: 13.4.1 (/a) here"]
        {
            assert!(table.contains(warning), "{table}");
        }
    }

    #[test]
    fn a_broken_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("host.tsv"), "no tab\n").unwrap();
        let error = write(folder.path()).unwrap_err().to_string();
        assert!(error.contains("host.tsv:1: 1 columns instead of 2"), "{error}");
    }
}
