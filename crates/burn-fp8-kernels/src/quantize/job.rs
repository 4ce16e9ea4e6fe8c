//! What a quantizing kernel does.

use crate::bits::Encoding;
use crate::element::Element;
use crate::unit::Values;

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) element: Element,
    pub(crate) encoding: Encoding,
    pub(crate) codes: bool,
    pub(crate) values: Option<Values>,
    pub(crate) measure: bool,
}
