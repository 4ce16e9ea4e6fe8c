//! What the Markdown files say is so: their links lead somewhere, and their figures are those of the JSON beside them.

mod figures;
mod links;
mod markdown;
mod snippets;

/// It stays one that is read to its end.
#[test]
fn the_readme_has_at_most_150_lines() {
    let lines = markdown::read("README.md").lines().count();
    assert!(lines <= 150, "README.md has {lines} lines: move what is not for everybody into docs/");
}
