//! The tests that run on the simulated device: built by one command.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::Message;

use crate::repository::root;
use crate::steps::cargo;

/// Where each test program lies, by package and target, with the folder that it runs in.
pub struct Programs(HashMap<(String, String), (PathBuf, PathBuf)>);

impl Programs {
    /// Builds what `cargo test` would with these arguments. What cargo has to say goes to the terminal.
    pub fn build(tests: &[&str]) -> Result<Self> {
        let mut command = Command::new(cargo());
        command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(tests);
        command.current_dir(root()).stderr(Stdio::inherit());
        let output = command.output().context("cannot start cargo")?;
        ensure!(output.status.success(), "`cargo test --no-run` ended with {}", output.status);
        let mut programs = HashMap::new();
        for message in Message::parse_stream(&output.stdout[..]) {
            let Message::CompilerArtifact(artifact) = message? else { continue };
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
