//! Generates `crates/burn-fp8/src/backend/delegate/`: `Fp8Backend<B>` forwards every method of burn's backend traits to `B`.
//!
//! Provided methods are forwarded as well: otherwise burn's default would run where `B` has a faster override.

mod file;
mod method;
#[cfg(test)]
mod tests;
mod traits;
mod types;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;

use crate::repository;
use traits::TRAITS;

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
    let generated = generate(&source, &version)?;
    let folder = root.join(FOLDER);

    for (name, delegation) in generated.iter().filter(|(_, delegation)| delegation.methods > 0) {
        println!("  {name:<16} {:>3} methods", delegation.methods);
    }
    println!(
        "  {:<16} {:>3} methods",
        "all",
        generated.values().map(|delegation| delegation.methods).sum::<usize>()
    );
    for (name, delegation) in &generated {
        let path = folder.join(name);
        let present = fs::read_to_string(&path).unwrap_or_default();
        match mode {
            Mode::Check if present != delegation.text => {
                bail!(
                    "{FOLDER}/{name} is not what the generator writes: run `cargo xtask delegate`"
                )
            }
            Mode::Write if present != delegation.text => {
                fs::create_dir_all(&folder)?;
                fs::write(&path, &delegation.text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            _ => {}
        }
    }
    remove_strangers(&folder, &generated, mode)
}

/// A file of a trait that is no longer delegated must not stay behind.
fn remove_strangers(
    folder: &Path,
    generated: &BTreeMap<String, file::Delegation>,
    mode: Mode,
) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if generated.contains_key(&name) {
            continue;
        }
        match mode {
            Mode::Check => bail!(
                "{FOLDER}/{name} is not a generated file: delete it or run `cargo xtask delegate`"
            ),
            Mode::Write => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// All generated files by name.
fn generate(source: &Path, version: &str) -> Result<BTreeMap<String, file::Delegation>> {
    let mut generated = BTreeMap::new();
    let mut methods = BTreeSet::new();
    for spec in TRAITS {
        let item = traits::read(source, spec)?;
        if spec.name == "Backend" {
            traits::check_supertraits(&item)?;
        }
        methods.extend(
            file::methods(&item)
                .map(|method| (spec.name.to_string(), method.sig.ident.to_string())),
        );
        let delegation = file::of_trait(spec, &item, version)?;
        generated.insert(format!("{}.rs", spec.module), delegation);
    }
    traits::check_intercepted(&methods)?;
    generated.insert("mod.rs".to_string(), file::of_modules(TRAITS, version)?);
    Ok(generated)
}

/// Folder and version of the `burn-backend` that this workspace builds with.
fn burn_backend(root: &Path) -> Result<(PathBuf, String)> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).exec()?;
    let mut found = metadata.packages.iter().filter(|package| package.name == "burn-backend");
    let (Some(package), None) = (found.next(), found.next()) else {
        bail!(
            "the workspace must depend on exactly one version of burn-backend: see `cargo tree -i burn-backend`"
        )
    };
    let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
    Ok((folder.as_std_path().to_path_buf(), package.version.to_string()))
}
