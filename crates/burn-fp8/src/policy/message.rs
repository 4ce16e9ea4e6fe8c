//! Error messages about policies.

use crate::error::Fp8Error;

/// The most characters of a text that an error repeats.
const MAX_QUOTED: usize = 40;

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "policy", reason }
}

/// A text as an error repeats it: on one line, and not all of it if it is long.
pub(super) fn quoted(text: &str) -> String {
    let mut start: String = text.chars().take(MAX_QUOTED).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("`{}`", start.escape_debug())
}
