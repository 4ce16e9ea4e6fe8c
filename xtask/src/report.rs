//! Renders a log of the FP8 observatory as a page.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn_fp8_report::log;

/// Writes the page of a log beside it, with the extension html, or to `out`. Says where.
pub fn run(log: &Path, out: Option<PathBuf>) -> Result<()> {
    let observations = log::read(log)?;
    let out = out.unwrap_or_else(|| log.with_extension("html"));
    // The log itself, by whatever name, is no page either.
    ensure!(
        is_free(&out)?,
        "{} is there already, and no page of the observatory; name another file with --out",
        out.display()
    );
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

/// Whether there is nothing that writing a page would destroy: no file, or an older page.
fn is_free(out: &Path) -> Result<bool> {
    let mut start = Vec::new();
    let start = match File::open(out) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        file => file.and_then(|file| file.take(256).read_to_end(&mut start)).map(|_| start),
    };
    let start = start.with_context(|| format!("cannot read {}", out.display()))?;
    Ok(start.is_empty()
        || String::from_utf8_lossy(&start).contains("<title>FP8 observatory</title>"))
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
        assert!(error.contains("no page of the observatory"), "{error}");
        let other = folder.path().join("../").join(folder.path().file_name().unwrap());
        let error = run(&log, Some(other.join("run.jsonl"))).unwrap_err().to_string();
        assert!(error.contains("no page of the observatory"), "{error}");
        assert!(fs::read_to_string(&log).unwrap().starts_with("{\"fp8_observatory\""));
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
