//! Generates `src/backend/delegate/` of burn-fp8 and of burn-fp8-next: `Fp8Backend<B>` forwards every method of burn's backend traits to `B`.
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
use traits::{Burn, HOUSES, House};

/// What to do with the generated files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Write them.
    Write,
    /// Compare them with those in the repository.
    Check,
}

/// Generates the delegations. With [`Mode::Check`] fails, naming the file, where the repository holds something else.
pub fn run(mode: Mode) -> Result<()> {
    HOUSES.iter().try_for_each(|house| run_in(house, mode))
}

fn run_in(house: &House, mode: Mode) -> Result<()> {
    let root = repository::root();
    let name = house.folder;
    let mut generated = generate(house, &sources(house, &root)?)?;
    let methods: usize = generated.values().map(|file| file.methods).sum();
    println!("  {name}: {methods} methods");
    format(&mut generated)?;
    let folder = root.join(name);
    fs::create_dir_all(&folder)?;
    for (file, Delegation { text, .. }) in &generated {
        let path = folder.join(file);
        if fs::read_to_string(&path).unwrap_or_default() == *text {
            continue;
        }
        ensure!(
            mode == Mode::Write,
            "{name}/{file} is not what the generator writes: run `cargo xtask delegate`"
        );
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // A file of a trait that is no longer delegated must not stay behind.
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if !generated.contains_key(&*file) {
            ensure!(
                mode == Mode::Write,
                "{name}/{file} is not a generated file: delete it or run `cargo xtask delegate`"
            );
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// All generated files by name, not formatted.
fn generate(house: &House, sources: &[Source]) -> Result<BTreeMap<String, Delegation>> {
    let versions: Vec<_> = sources.iter().map(|source| source.version.as_str()).collect();
    let header = file::header(&versions);
    let mut generated = BTreeMap::new();
    let mut methods = BTreeSet::new();
    for spec in house.traits() {
        let mut items = Vec::new();
        for source in sources {
            let newer = spec.feature.is_some_and(|feature| match source.burn.cfg {
                Some(cfg) => cfg != format!("#[cfg(feature = \"{feature}\")]"),
                None => false,
            });
            if newer {
                continue;
            }
            let item = traits::read(&source.folder, spec)?;
            if spec.name == "Backend" {
                traits::check_supertraits(house, &item)?;
            }
            methods.extend(
                file::methods(&item).map(|method| (spec.name, method.sig.ident.to_string())),
            );
            items.push((item, source.burn.cfg));
        }
        let delegation = file::of_trait(house, spec, &items, &header)?;
        generated.insert(format!("{}.rs", spec.module), delegation);
    }
    for (name, method) in house.intercepted() {
        ensure!(
            methods.contains(&(*name, method.to_string())),
            "{name} has no method {method}; correct xtask/src/delegate/traits.rs"
        );
    }
    generated.insert("mod.rs".to_string(), file::of_modules(house, &header));
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

/// The `burn-backend` of one version of Burn.
struct Source {
    burn: &'static Burn,
    folder: PathBuf,
    version: String,
}

/// What the packages of a decorator build with.
fn sources(house: &House, root: &Path) -> Result<Vec<Source>> {
    house.burns.iter().map(|burn| source(burn, root)).collect()
}

fn source(burn: &'static Burn, root: &Path) -> Result<Source> {
    // Unlocked it would mend a lock file that is stale, and nobody would hear of it.
    let mut command = MetadataCommand::new();
    command.manifest_path(root.join(burn.manifest)).other_options(vec!["--locked".into()]);
    let metadata = command.exec()?;
    let packages = &metadata.packages;
    let own = packages
        .iter()
        .find(|package| package.name == burn.package)
        .with_context(|| format!("{} has no package {}", burn.manifest, burn.package))?;
    let required = own.dependencies.iter().find(|dependency| dependency.name == "burn-backend");
    let required =
        required.with_context(|| format!("{} does not depend on burn-backend", burn.package))?;
    let required = &required.req;
    let package = packages
        .iter()
        .find(|package| package.name == "burn-backend" && required.matches(&package.version));
    let package = package.with_context(|| format!("there is no burn-backend {required}"))?;
    let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
    Ok(Source {
        burn,
        folder: folder.as_std_path().to_path_buf(),
        version: package.version.to_string(),
    })
}
