//! The tests that run on the simulated device: built by one command.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::steps::built;

/// Where each test program lies, by package and target, with the folder that it runs in.
pub struct Programs(HashMap<(String, String), (PathBuf, PathBuf)>);

impl Programs {
    /// Builds what `cargo test` would with these arguments. What cargo has to say goes to the terminal.
    pub fn build(tests: &[&str]) -> Result<Self> {
        let mut programs = HashMap::new();
        for artifact in built(&[&["test", "--no-run"], tests].concat())? {
            let Some(executable) = artifact.executable else { continue };
            let folder = artifact.manifest_path.parent().context("a manifest lies in a folder")?;
            let package = folder.file_name().context("a package has a folder")?;
            let key = (package.to_owned(), artifact.target.name);
            programs.insert(key, (executable.into(), folder.into()));
        }
        Ok(Self(programs))
    }

    /// A program, and the folder that it runs in.
    pub fn get(&self, package: &str, target: &str) -> Result<&(PathBuf, PathBuf)> {
        let key = (package.to_owned(), target.to_owned());
        self.0.get(&key).with_context(|| format!("cargo has built no test {target} of {package}"))
    }
}
