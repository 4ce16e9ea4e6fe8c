//! JSON as Python's `json` writes it: numbers that are not finite are the bare words `NaN`, `Infinity` and `-Infinity`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

static WORDS: LazyLock<Regex> = LazyLock::new(|| {
    // Texts are matched, too, so that nothing in them is.
    Regex::new(r#"(?s)"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b"#).expect("an expression")
});

/// JSON with such words as texts, which begin with a mark.
pub(crate) fn marked(json: &str, mark: &str) -> String {
    let replace = |found: &Captures<'_>| match &found[0] {
        text if text.starts_with('"') => text.to_owned(),
        word => format!("\"{mark}{word}\""),
    };
    WORDS.replace_all(json, replace).into_owned()
}

/// The same with the words as they were.
pub(crate) fn unmarked(json: &str, mark: &str) -> String {
    let words = ["NaN", "Infinity", "-Infinity"].into_iter();
    words.fold(json.to_owned(), |json, word| json.replace(&format!("\"{mark}{word}\""), word))
}
