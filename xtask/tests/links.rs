//! The links of the Markdown files lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What follows each `](`, up to the closing bracket, outside of code blocks.
fn links(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code
    });
    lines
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

#[test]
fn links_to_files_lead_to_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed =
        Command::new("git").args(["ls-files", "*.md"]).current_dir(&root).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().count() > 5, "{listed}");
    let mut checked = 0;
    for file in listed.lines().map(PathBuf::from) {
        let text = fs::read_to_string(root.join(&file)).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, _) = link.split_once('#').unwrap_or((link, ""));
            let target = root.join(file.parent().unwrap()).join(path);
            assert!(target.exists(), "{}: {link} leads nowhere", file.display());
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} links");
}
