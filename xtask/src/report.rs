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
