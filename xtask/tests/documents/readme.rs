//! The README stays one that is read to its end.

use crate::markdown::read;

#[test]
fn the_readme_has_at_most_150_lines() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 150, "README.md has {lines} lines: move what is not for everybody into docs/");
}
