//! Whether every dependency may be used under a licence of the list below.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use spdx::{Expression, ParseMode};

use crate::repository;

/// Licences that a dependency may have: permissive ones, and MPL-2.0, whose copyleft ends at the file.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "NCSA",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "WTFPL",
    "Zlib",
];

/// Fails with a list of the packages whose licence is not allowed.
///
/// Looks at what a user's build contains on any platform and with any feature: normal and build dependencies of the crates
/// under `crates/`, not what only tests or this program need.
pub fn run() -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(repository::root().join("Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        .exec()?;
    let packages = dependencies(&metadata)?;
    let refused: Vec<String> = packages.iter().filter_map(|package| refusal(package)).collect();
    ensure!(
        refused.is_empty(),
        "{} of {} packages have a licence that xtask/src/licences.rs does not allow:\n  {}\n\
         Replace the dependency, or add the licence to `ALLOWED` if it is permissive",
        refused.len(),
        packages.len(),
        refused.join("\n  ")
    );
    println!("  {} packages, all under an allowed licence", packages.len());
    Ok(())
}

/// All packages that the crates under `crates/` need to be built, with those crates.
fn dependencies(metadata: &Metadata) -> Result<Vec<&Package>> {
    let resolve = metadata.resolve.as_ref().context("cargo metadata resolved no dependencies")?;
    let crates = metadata.workspace_root.join("crates");
    let mut waiting: Vec<&PackageId> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| package.manifest_path.starts_with(&crates))
        .map(|package| &package.id)
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let node = resolve
            .nodes
            .iter()
            .find(|node| node.id == *id)
            .context("a package is not in the resolution")?;
        let built = node.deps.iter().filter(|dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development)
        });
        waiting.extend(built.map(|dependency| &dependency.pkg));
    }
    Ok(metadata.packages.iter().filter(|package| seen.contains(&package.id)).collect())
}

/// Why a package is not acceptable; `None` if it is.
fn refusal(package: &Package) -> Option<String> {
    let name = format!("{} {}", package.name, package.version);
    let Some(licence) = &package.license else {
        return Some(format!("{name}: names no licence"));
    };
    match is_allowed(licence) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name}: {licence}")),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

/// Whether an SPDX expression can be satisfied with allowed licences. An exception only adds rights, so it changes nothing.
fn is_allowed(licence: &str) -> Result<bool, spdx::ParseError> {
    // Lax: many older packages write `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX)?;
    Ok(expression
        .evaluate(|required| required.license.id().is_some_and(|id| ALLOWED.contains(&id.name))))
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn one_allowed_alternative_is_enough() {
        assert!(is_allowed("MIT OR GPL-3.0-only").unwrap());
        assert!(is_allowed("MIT/Apache-2.0").unwrap());
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception").unwrap());
    }

    #[test]
    fn every_conjunct_must_be_allowed() {
        assert!(!is_allowed("MIT AND GPL-3.0-only").unwrap());
        assert!(!is_allowed("AGPL-3.0-or-later").unwrap());
        assert!(!is_allowed("LicenseRef-proprietary").unwrap());
    }
}
