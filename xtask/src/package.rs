//! Whether the crates can be packed for crates.io, and each archive holds all that its sources ask for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::repository;
use crate::steps::cargo;

/// Packs every crate that is published: cargo refuses a dependency that crates.io would not take. Nothing is compiled; what the files
/// name is looked for in the archives instead, where no link leads out of a folder any more.
pub fn run() -> Result<()> {
    let (root, target) = (repository::root(), repository::target()?);
    let packages = repository::packages()?;
    let published = packages.iter().filter(|package| package.publish.is_none());
    let published: Vec<_> = published.collect();
    let mut command = Command::new(cargo());
    // The lock file is the workspace's, and would be resolved anew without the packages that are not published.
    command.args(["package", "--quiet", "--no-verify", "--exclude-lockfile", "--allow-dirty"]);
    command.args(published.iter().flat_map(|package| ["-p", package.name.as_str()]));
    let output = command.current_dir(&root).output().context("cannot start cargo")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`cargo package` ended with {}:\n{error}", output.status);

    for package in &published {
        let name = format!("{}-{}", package.name, package.version);
        let folder = tempfile::tempdir()?;
        let archive = target.join("package").join(format!("{name}.crate"));
        let mut tar = Command::new("tar");
        let status = tar.arg("-xzf").arg(archive).arg("-C").arg(folder.path()).status();
        ensure!(status.context("cannot start tar")?.success(), "cannot unpack {name}.crate");
        let here = package.manifest_path.parent().context("a manifest lies in a folder")?;
        let missing = missing(here.as_std_path(), &folder.path().join(&name))?;
        ensure!(missing.is_empty(), "{name}.crate lacks:\n  {}", missing.join("\n  "));
    }
    println!("  {} crates", published.len());
    Ok(())
}

/// What an unpacked crate lacks: sources of the package, and what they include.
fn missing(package: &Path, unpacked: &Path) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for file in files(&package.join("src"))? {
        let file = unpacked.join(file.strip_prefix(package)?);
        // Cargo puts files in the place of links.
        if !fs::symlink_metadata(&file).is_ok_and(|file| file.is_file()) {
            missing.push(file.strip_prefix(unpacked)?.display().to_string());
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let folder = file.parent().context("a file lies in a folder")?;
        for path in included(&text) {
            let found = folder.join(path).canonicalize();
            if !found.is_ok_and(|found| found.starts_with(unpacked)) {
                missing.push(format!("{path}, of {}", file.strip_prefix(unpacked)?.display()));
            }
        }
    }
    Ok(missing)
}

/// Every file below a folder, through links.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(self::files(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

/// The paths that a source file names before its tests: of texts that it includes, and of modules that lie elsewhere.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    ["include_str!(\"", "include_bytes!(\"", "#[path = \""].into_iter().flat_map(|before| {
        text.split(before).skip(1).filter_map(|after| after.split_once('"').map(|(path, _)| path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_archive_lacks_is_named() {
        let (package, unpacked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |folder: &Path, name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let text = "#[path = \"there.rs\"]\nmod a;\nconst B: &str = include_str!(\"../b.md\");\n\
            const C: &[u8] = include_bytes!(\"../../c\");\n#[cfg(test)]\nconst D: &str = include_str!(\"d\");";
        for name in ["src/lib.rs", "src/there.rs", "src/of/other.rs"] {
            write(package.path(), name, text);
        }
        let unpacked = unpacked.path().canonicalize().unwrap();
        write(&unpacked.join("x"), "src/lib.rs", text);
        write(&unpacked.join("x"), "src/there.rs", "");
        write(&unpacked, "c", "outside");
        let mut lacks = missing(package.path(), &unpacked.join("x")).unwrap();
        lacks.sort();
        assert_eq!(lacks, ["../../c, of src/lib.rs", "../b.md, of src/lib.rs", "src/of/other.rs"]);
    }
}
