//! Links lead to files that exist, and anchors to headings.

use std::fs;
use std::path::Path;

use crate::markdown::{Document, files, parse, read, root};

/// Why a link of a file leads nowhere; nothing where it leads somewhere.
fn fault(file: &Path, link: &str) -> Option<String> {
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link, None),
    };
    let target = match path {
        "" => file.to_owned(),
        path => file.parent().expect("a file lies in a folder").join(path),
    };
    // Without `..`, which GitHub does not follow out of the repository.
    let Ok(found) = fs::canonicalize(root().join(&target)) else {
        return Some("there is no such file".into());
    };
    if !found.starts_with(fs::canonicalize(root()).expect("the root exists")) {
        return Some("it lies outside of the repository".into());
    }
    let anchor = anchor?;
    if target.extension().is_none_or(|extension| extension != "md") {
        return Some("only Markdown files have anchors that last".into());
    }
    let Document { anchors, .. } = parse(&read(&target));
    let is_known = anchors.iter().any(|known| known == anchor);
    (!is_known).then(|| format!("the headings there are {anchors:?}"))
}

#[test]
fn links_lead_to_files_and_headings() {
    let (mut checked, mut faults) = (0, vec![]);
    for file in files() {
        for link in parse(&read(&file)).links {
            if link.contains("://") {
                continue;
            }
            checked += 1;
            let fault = fault(&file, &link);
            faults.extend(fault.map(|fault| format!("{}: {link}: {fault}", file.display())));
        }
    }
    assert!(checked > 20, "{checked} links");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_chapter_is_in_the_index() {
    let index = parse(&read("docs/README.md")).links;
    let mut chapters = 0;
    for file in files() {
        let Ok(chapter) = file.strip_prefix("docs") else { continue };
        if chapter != Path::new("README.md") {
            chapters += 1;
            let is_listed = index.iter().any(|link| Path::new(link) == chapter);
            assert!(is_listed, "docs/README.md does not list {}", chapter.display());
        }
    }
    assert!(chapters > 5, "{chapters} chapters");
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let readme = Path::new("README.md");
    assert_eq!(fault(readme, "CONTRIBUTING.md"), None);
    assert_eq!(fault(readme, "CONTRIBUTING.md#style"), None);
    assert_eq!(fault(Path::new("docs/README.md"), "../README.md"), None);
    for (link, expected) in [
        ("CONTRIBUTIN.md", "no such file"),
        ("../", "outside"),
        ("CONTRIBUTING.md#styles", "the headings there are"),
        ("#no-such-heading", "the headings there are"),
        ("LICENSE-MIT#L1", "only Markdown files"),
    ] {
        let fault = fault(readme, link).unwrap_or_default();
        assert!(fault.contains(expected), "{link}: {fault}");
    }
}

#[test]
fn links_and_headings_are_found_where_they_are() {
    let text = "# One `code` & more\n\n```\n[not](a.md)\n# not\n```\n\n## Twice\n\n[one](b.md#x) ![two](c.svg)\n\n## Twice\n\n| a |\n|---|\n| [three](d.md) |\n";
    let expected = Document {
        links: ["b.md#x", "c.svg", "d.md"].map(String::from).into(),
        anchors: ["one-code--more", "twice", "twice-1"].map(String::from).into(),
    };
    assert_eq!(parse(text), expected);
}
