//! A search for what a run needs, as it goes on.

use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use tempfile::TempDir;

use crate::process::Environment;

/// Where to look, and what has been found.
pub struct Search {
    /// What is looked for by an absolute path lies below it; tests make one up. All else is found as the environment says.
    pub root: PathBuf,
    /// What a run needs and the machine lacks: its name, and what it is for or what is there instead, with how to get it.
    pub missing: Vec<(String, String)>,
    /// What is less than it could be.
    pub notes: Vec<String>,
    /// What every program of a run has in its environment.
    pub environment: Environment,
    /// Holds links to the libraries that were chosen, so that programs find these and nothing else.
    pub links: TempDir,
}

impl Search {
    pub fn need(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.missing.push((what.into(), why.into()));
    }
}

/// A version of CUDA: what a driver knows at most, what a library or headers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// The first two numbers of a text like `13.0` or `12.4.127`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split('.').map(|number| number.parse().ok());
        Some(Self { major: numbers.next()??, minor: numbers.next()?? })
    }
}

impl Display for Version {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(Version::parse("12.4.127"), Some(version(12, 4)));
        assert_eq!(Version::parse(" 13.0"), Some(version(13, 0)));
        assert_eq!(Version::parse("13"), None);
        assert_eq!(Version::parse("a.b"), None);
        assert!(version(12, 9) < version(13, 0) && version(12, 10) > version(12, 9));
    }
}
