//! The folder that a GPU host gets: programs, what starts them, data, and where they come from.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::programs::Built;
use crate::repository;

/// What is copied, and to where in the folder.
const FILES: [(&str, &str); 6] = [
    ("xtask/gpu-run/run.sh", "run.sh"),
    (".ci/fetch-cuda", "fetch-cuda"),
    ("benches/peers/gpu_peers.py", "peers/gpu_peers.py"),
    ("benches/peers/gpu_accuracy.py", "peers/gpu_accuracy.py"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
];

/// Files that the tests read; in the repository they find them by their path there.
const GOLDEN: &str = "crates/burn-fp8/tests/golden";

/// Those beside other tests that a GPU needs.
const MORE_GOLDEN: [&str; 2] = [
    "crates/burn-fp8-core/tests/golden/tensor_cores.json",
    "crates/burn-fp8-core/tests/golden/tensor_cores.safetensors",
];

/// Writes the folder anew. `manifest` is what [`manifest`] said before the programs were built.
pub fn write(folder: &Path, programs: &[Built], manifest: &str) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    let root = repository::root();
    for (from, to) in FILES {
        copy(&root.join(from), &folder.join(to))?;
    }
    let golden = root.join(GOLDEN);
    let entries = fs::read_dir(&golden).with_context(|| format!("no {}", golden.display()))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    for path in paths.chain(MORE_GOLDEN.map(|path| Ok(root.join(path)))) {
        let path = path?;
        let name = path.file_name().context("an entry of a folder has a name")?;
        copy(&path, &folder.join("golden").join(name))?;
    }
    for program in programs {
        let to = folder.join("bin").join(program.name);
        copy(&program.path, &to)?;
        strip(&to)?;
        println!("  {}: {:.1} MB", program.name, fs::metadata(&to)?.len() as f64 / 1e6);
    }
    let path = folder.join("MANIFEST");
    fs::write(&path, manifest).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies a file with its permissions, making the folders above it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Removes symbols: more than half of a program. `strip` comes with the linker that Rust needs.
fn strip(program: &Path) -> Result<()> {
    let status = Command::new("strip")
        .arg(program)
        .status()
        .context("cannot start strip, which removes symbols: install binutils")?;
    ensure!(status.success(), "strip {} ended with {status}", program.display());
    Ok(())
}

/// What is about to be built: lines of a name, a tab and a value, which the report of a run takes over.
pub fn manifest() -> String {
    let ask = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(arguments).current_dir(repository::root()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    // A copy of the repository without git has no commit.
    let commit = ask("git", &["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changes = ask("git", &["status", "--porcelain"]).unwrap_or_default();
    let changes = if changes.is_empty() { "" } else { ", with changes" };
    let compiler = ask("rustc", &["--version"]).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    format!("revision\t{commit}{changes}\nburn-fp8\t{version}\ncompiler\t{compiler}\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::super::{NAME, pack};
    use super::{Built, write};

    /// The program that runs the others is found beside the script that starts it, unpacked from an archive, too.
    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn the_script_starts_the_program_that_is_packed_with_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join(NAME);
        fs::create_dir_all(folder.join("of-an-earlier-build")).unwrap();
        // Any program that tells its version will do.
        let path = "/bin/ls".into();
        write(&folder, &[Built { name: "burn-fp8-gpu-run", path }], "revision\tx\n").unwrap();
        let archive = place.path().join("made/later.tar.gz");
        pack(place.path(), &archive).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let unpacked = Command::new("tar").arg("xzf").arg(&archive).current_dir(&place).status();
        assert!(unpacked.unwrap().success());
        let output = Command::new(folder.join("run.sh")).arg("bin").current_dir(&folder).output();
        let output = output.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "burn-fp8-gpu-run\n");
        assert_eq!(fs::read_to_string(folder.join("MANIFEST")).unwrap(), "revision\tx\n");
        assert!(folder.join("peers/gpu_peers.py").exists());
        assert!(fs::read_dir(folder.join("golden")).unwrap().next().is_some());
        assert!(!folder.join("of-an-earlier-build").exists());
    }
}
