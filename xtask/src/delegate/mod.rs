//! Generates `crates/burn-fp8/src/backend/delegate/`: `Fp8Backend<B>` forwards every method of burn's backend traits to `B`.
//!
//! Provided methods are forwarded as well: otherwise burn's default would run where `B` has a faster override.

mod file;
mod method;
#[cfg(test)]
mod tests;
mod traits;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;

use crate::repository;
use file::Delegation;
use traits::{INTERCEPTED, TRAITS};

const FOLDER: &str = "crates/burn-fp8/src/backend/delegate";

/// What to do with the generated files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Write them.
    Write,
    /// Compare them with those in the repository.
    Check,
}

/// Generates the delegation. With [`Mode::Check`] fails, naming the file, where the repository holds something else.
pub fn run(mode: Mode) -> Result<()> {
    let root = repository::root();
    let (source, version) = burn_backend(&root)?;
    let mut generated = generate(&source, &version)?;
    let mut all = 0;
    for (name, Delegation { methods, .. }) in generated.iter().filter(|(_, file)| file.methods > 0)
    {
        println!("  {name:<16} {methods:>3} methods");
        all += methods;
    }
    println!("  {:<16} {all:>3} methods", "all");
    format(&mut generated)?;
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder)?;
    for (name, Delegation { text, .. }) in &generated {
        let path = folder.join(name);
        if fs::read_to_string(&path).unwrap_or_default() == *text {
            continue;
        }
        ensure!(
            mode == Mode::Write,
            "{FOLDER}/{name} is not what the generator writes: run `cargo xtask delegate`"
        );
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // A file of a trait that is no longer delegated must not stay behind.
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !generated.contains_key(&*name) {
            ensure!(
                mode == Mode::Write,
                "{FOLDER}/{name} is not a generated file: delete it or run `cargo xtask delegate`"
            );
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// All generated files by name, not formatted.
fn generate(source: &Path, version: &str) -> Result<BTreeMap<String, Delegation>> {
    let mut generated = BTreeMap::new();
    let mut methods = BTreeSet::new();
    for spec in TRAITS {
        let item = traits::read(source, spec)?;
        if spec.name == "Backend" {
            traits::check_supertraits(&item)?;
        }
        methods
            .extend(file::methods(&item).map(|method| (spec.name, method.sig.ident.to_string())));
        let delegation = file::of_trait(spec, &item, version)?;
        generated.insert(format!("{}.rs", spec.module), delegation);
    }
    for (name, method) in INTERCEPTED {
        ensure!(
            methods.contains(&(name, method.to_string())),
            "{name} has no method {method}; correct `INTERCEPTED` in xtask"
        );
    }
    generated.insert("mod.rs".to_string(), file::of_modules(TRAITS, version));
    Ok(generated)
}

/// Formats files with rustfmt and the repository's settings.
fn format(generated: &mut BTreeMap<String, Delegation>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &String| folder.path().join(name);
    for (name, Delegation { text, .. }) in &*generated {
        fs::write(path(name), text)?;
    }
    let mut command = Command::new("rustfmt");
    command.args(["--edition", "2024", "--config-path"]).arg(repository::root());
    let output = command.args(generated.keys().map(path)).output();
    let output =
        output.context("cannot start rustfmt; install it with `rustup component add rustfmt`")?;
    ensure!(
        output.status.success(),
        "rustfmt refuses the generated code:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for (name, Delegation { text, .. }) in generated {
        *text = fs::read_to_string(path(name))?;
    }
    Ok(())
}

/// Folder and version of the `burn-backend` that burn-fp8 builds with.
fn burn_backend(root: &Path) -> Result<(PathBuf, String)> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).exec()?;
    let packages = &metadata.packages;
    let own = packages
        .iter()
        .find(|package| package.name == "burn-fp8")
        .context("the workspace has no burn-fp8")?;
    let required = own.dependencies.iter().find(|dependency| dependency.name == "burn-backend");
    let required = &required.context("burn-fp8 does not depend on burn-backend")?.req;
    let package = packages
        .iter()
        .find(|package| package.name == "burn-backend" && required.matches(&package.version));
    let package = package.with_context(|| format!("there is no burn-backend {required}"))?;
    let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
    Ok((folder.as_std_path().to_path_buf(), package.version.to_string()))
}
