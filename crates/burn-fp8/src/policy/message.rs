//! Error messages about policies.

use burn_fp8_core::text::shown;

use crate::error::Fp8Error;

/// The most characters of a text that an error repeats.
const MAX_QUOTED: usize = 40;

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "policy", reason }
}

/// A text as an error repeats it.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", shown(text, MAX_QUOTED))
}
