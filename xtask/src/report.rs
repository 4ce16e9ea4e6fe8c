//! Renders a log of the FP8 observatory as a page.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn_fp8_report::log;

/// Writes the page of a log beside it, with the extension html, or to `out`. Says where.
pub fn run(log: &Path, out: Option<PathBuf>) -> Result<()> {
    let observations = log::read(log)?;
    let out = out.unwrap_or_else(|| log.with_extension("html"));
    ensure!(out != log, "{} is the log itself; name another file with --out", out.display());
    let page = observations.to_html();
    std::fs::write(&out, page).with_context(|| format!("cannot write {}", out.display()))?;
    if let Some(line) = observations.cut_line {
        println!("the last line of the log, {line}, was cut off and left out");
    }
    println!(
        "{} sites in {} sampled steps: {}",
        observations.sites.len(),
        observations.steps,
        out.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::run;

    #[test]
    fn a_page_is_written_beside_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("run.jsonl");
        fs::write(&log, "{\"fp8_observatory\":1,\"every\":10,\"max_elements\":256}\n").unwrap();
        run(&log, None).unwrap();
        let page = fs::read_to_string(folder.path().join("run.html")).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Nothing was sampled"));
        let out = folder.path().join("other.html");
        run(&log, Some(out.clone())).unwrap();
        assert_eq!(fs::read_to_string(out).unwrap(), page);
        let error = run(&log, Some(log.clone())).unwrap_err().to_string();
        assert!(error.contains("is the log itself"), "{error}");
    }

    #[test]
    fn what_is_no_log_gets_one_line_and_no_page() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("run.jsonl");
        fs::write(&log, "step,loss\n0,1.5\n").unwrap();
        let error = format!("{:#}", run(&log, None).unwrap_err());
        assert!(
            error.contains("run.jsonl, line 1: no header") && error.lines().count() == 1,
            "{error}"
        );
        assert!(!folder.path().join("run.html").exists());
    }
}
