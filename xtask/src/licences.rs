//! Whether every dependency may be used under a licence of the list below.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
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
    let refused: Vec<&String> = packages.iter().filter(|line| !is_allowed(line)).collect();
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
    let ours = repository::packages()?.into_iter();
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

/// Whether the SPDX expression of a package can be satisfied with allowed licences: not where it names none. An exception only adds
/// rights, so it changes nothing.
fn is_allowed(line: &str) -> bool {
    let Some((_, licence)) = line.rsplit_once(": ") else { return false };
    // Lax: many older packages write `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX);
    expression.is_ok_and(|expression| {
        expression.evaluate(|required| {
            required.license.id().is_some_and(|id| ALLOWED.split(' ').any(|known| known == id.name))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{is_allowed, packages};

    #[test]
    fn one_alternative_is_enough_and_every_conjunct_must_be_allowed() {
        for (licence, expected) in [
            ("MIT OR GPL-3.0-only", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT AND GPL-3.0-only", false),
            ("AGPL-3.0-or-later", false),
            ("LicenseRef-proprietary", false),
            ("", false),
            ("a licence of its own", false),
        ] {
            assert_eq!(is_allowed(&format!("some v1.0.0 (/some/path): {licence}")), expected);
        }
    }

    #[test]
    fn what_only_tests_need_is_not_listed() {
        let packages = packages().unwrap();
        let has = |name: &str| packages.iter().any(|line| line.starts_with(&format!("{name} v")));
        assert!(has("burn-fp8") && has("burn-backend") && has("cudarc"), "{packages:?}");
        assert!(!has("proptest") && !has("xtask"), "{packages:?}");
    }
}
