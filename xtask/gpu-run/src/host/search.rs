//! A search for what a run needs, as it goes on.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::host::folders::Folders;
use crate::host::root::Root;
use crate::process::Environment;

/// What a run needs and the machine lacks.
#[derive(Debug)]
pub struct Missing {
    /// Its name.
    pub what: String,
    /// What it is for or what is there instead, and how to get it.
    pub why: String,
}

/// Where to look, and what has been found to be missing.
pub struct Search {
    pub root: Root,
    pub folders: Folders,
    pub missing: Vec<Missing>,
    /// What is less than it could be.
    pub notes: Vec<String>,
    /// What every program of a run has in its environment.
    pub environment: Environment,
    /// Holds links to what was chosen, so that programs find it and nothing else.
    pub links: TempDir,
}

impl Search {
    /// Nothing has been looked for. `python` knows where pip puts wheels.
    pub fn new(python: &Path) -> Result<Self> {
        let root = Root::from_environment();
        let folders = Folders::find(&root, python);
        let links = tempfile::Builder::new()
            .prefix("burn-fp8-gpu-run-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let (missing, notes, environment) = (vec![], vec![], Environment::default());
        Ok(Self { root, folders, missing, notes, environment, links })
    }

    pub fn need(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.missing.push(Missing { what: what.into(), why: why.into() });
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}
