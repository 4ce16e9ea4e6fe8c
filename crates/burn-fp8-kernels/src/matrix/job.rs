//! What a kernel over tiles does.

use crate::bits::Encoding;
use crate::element::Element;

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Job {
    pub(super) element: Element,
    pub(super) encoding: Encoding,
    /// Whether the codes of what is read as columns are wanted.
    pub(super) transposed: bool,
    pub(super) measure: bool,
}
