//! What messages repeat of files: on one line, escaped, cut to length.

use std::path::Path;

use burn_fp8_core::text::shown;

/// Escaped, and then no longer than this. Nothing is escaped twice.
fn short(text: &str, length: usize) -> String {
    shown(&shown(text, length), length)
}

/// A text of a file.
pub(crate) fn text(text: &str) -> String {
    short(text, 160)
}

/// What a parser says, which may repeat a text of the file beside a name.
pub(crate) fn reason(error: impl ToString) -> String {
    short(&error.to_string(), 360)
}

/// A name of a file, a tensor or a layer.
pub(crate) fn name(name: &str) -> String {
    format!("`{}`", short(name, 120))
}

/// A path. Names of shards come from an index.
pub(crate) fn path(path: &Path) -> String {
    short(&path.to_string_lossy(), 300)
}

/// The first names, and how many more there are.
pub(crate) fn some_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    let mut names = names.into_iter();
    let first: Vec<_> = names.by_ref().take(SHOWN).map(name).collect();
    match (first.len(), names.count()) {
        (0, _) => "none".into(),
        (_, 0) => first.join(", "),
        (_, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// What follows a message where something can be done.
pub(crate) fn advice(advice: &str) -> String {
    match advice {
        "" => String::new(),
        advice => format!("; {advice}"),
    }
}
