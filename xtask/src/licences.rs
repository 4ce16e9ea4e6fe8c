//! Whether every dependency may be used under a licence of the list below.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;
use spdx::{Expression, ParseMode};

use crate::repository;
use crate::steps::cargo;

/// Licences that a dependency may have: permissive ones, and MPL-2.0, whose copyleft ends at the file.
const ALLOWED: &str = "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CDLA-Permissive-2.0 ISC MIT MIT-0 MPL-2.0 NCSA \
    Unicode-3.0 Unicode-DFS-2016 Unlicense WTFPL Zlib";

/// Fails with a list of the packages whose licence is not allowed.
///
/// Looks at what a user's build contains on any platform and with any feature: normal and build dependencies of the crates
/// under `crates/`, not what only tests or this program need.
pub fn run() -> Result<()> {
    let packages = packages()?;
    let refused: Vec<&String> = packages.iter().filter(|line| !is_allowed_line(line)).collect();
    ensure!(
        refused.is_empty(),
        "{} of {} packages have a licence that xtask/src/licences.rs does not allow:\n  {}\n\
         Replace the dependency, or add the licence to `ALLOWED` if it is permissive",
        refused.len(),
        packages.len(),
        refused.into_iter().cloned().collect::<Vec<_>>().join("\n  ")
    );
    println!("  {} packages, all under an allowed licence", packages.len());
    Ok(())
}

/// All packages that the crates under `crates/` need to be built, with those crates: a line each, its licence after a colon.
fn packages() -> Result<BTreeSet<String>> {
    let root = repository::root();
    let manifest = root.join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let ours = metadata.workspace_packages().into_iter();
    let ours = ours.filter(|package| package.manifest_path.starts_with(root.join("crates")));
    let mut command = Command::new(cargo());
    command.args(["tree", "--all-features", "--target", "all", "--edges", "normal,build"]);
    command.args(["--prefix", "none", "--format", "{p}: {l}"]).current_dir(&root);
    let output =
        command.args(ours.flat_map(|package| ["-p".into(), package.name.to_string()])).output();
    let output = output.context("cannot start cargo")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`cargo tree` ended with {}: {error}", output.status);
    let lines = String::from_utf8(output.stdout)?;
    // What has been listed before is marked.
    let lines = lines.lines().map(|line| line.trim_end_matches(" (*)"));
    Ok(lines.filter(|line| !line.is_empty()).map(String::from).collect())
}

/// Whether a package is acceptable; one that names no licence is not.
fn is_allowed_line(line: &str) -> bool {
    line.rsplit_once(": ").is_some_and(|(_, licence)| is_allowed(licence).unwrap_or(false))
}

/// Whether an SPDX expression can be satisfied with allowed licences. An exception only adds rights, so it changes nothing.
fn is_allowed(licence: &str) -> Result<bool, spdx::ParseError> {
    // Lax: many older packages write `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX)?;
    Ok(expression.evaluate(|required| {
        required.license.id().is_some_and(|id| ALLOWED.split(' ').any(|known| known == id.name))
    }))
}

#[cfg(test)]
mod tests {
    use super::{is_allowed, is_allowed_line, packages};

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
    #[test]
    fn what_names_no_licence_is_refused() {
        assert!(is_allowed_line("serde v1.0.0: MIT OR Apache-2.0"));
        assert!(!is_allowed_line("some v1.0.0 (/some/path): "));
        assert!(!is_allowed_line("some v1.0.0: a licence of its own"));
    }

    #[test]
    fn what_only_tests_need_is_not_listed() {
        let packages = packages().unwrap();
        let has = |name: &str| packages.iter().any(|line| line.starts_with(&format!("{name} v")));
        assert!(has("burn-fp8") && has("burn-backend") && has("cudarc"), "{packages:?}");
        assert!(!has("proptest") && !has("xtask"), "{packages:?}");
    }
}
