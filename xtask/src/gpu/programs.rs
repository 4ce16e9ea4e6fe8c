//! The programs that a GPU host runs, how they are built, and what they need of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::steps;

/// What GPU hosts have at least: glibc of August 2021, as on Ubuntu 22.04 or Rocky Linux 9.
const NEWEST: [u32; 2] = [2, 34];

/// Programs of the workspace: package, `bin` or `test`, target, features of the package, and what it is called on the host. What ends in
/// `-tests` is run as tests there.
const PROGRAMS: [[&str; 5]; 8] = [
    ["burn-fp8-gpu-run", "bin", "burn-fp8-gpu-run", "", "burn-fp8-gpu-run"],
    ["burn-fp8", "test", "cuda", "cuda fusion", "burn-fp8-tests"],
    ["burn-fp8-cublaslt", "test", "gpu", "", "burn-fp8-cublaslt-tests"],
    ["burn-fp8-kernels", "test", "gpu", "cuda", "burn-fp8-kernels-tests"],
    ["burn-fp8-bench", "bin", "burn-fp8-gpu", "cuda", "burn-fp8-gpu"],
    ["digits", "bin", "digits", "cuda", "digits"],
    ["char-lm", "bin", "char-lm", "cuda", "char-lm"],
    ["fused_matmul", "bin", "fused_matmul", "cuda", "fused_matmul"],
];

/// A program that has been built.
pub struct Built {
    /// What it is called on the host.
    pub name: &'static str,
    /// Where cargo put it.
    pub path: PathBuf,
}

/// Builds all programs in release mode, in one call of cargo: they share their dependencies with the same features.
pub fn build() -> Result<Vec<Built>> {
    let arguments = arguments();
    println!("  cargo {}", arguments.join(" "));
    let mut built = vec![];
    for artifact in steps::built(&Vec::from_iter(arguments.iter().map(String::as_str)))? {
        // Packages have test targets of the same name, and lie in folders that are called as they are.
        let folder = artifact.manifest_path.parent().and_then(|folder| folder.file_name());
        let is_of = |[package, kind, target, ..]: &&[&str; 5]| {
            artifact.target.name == *target
                && artifact.target.kind.iter().all(|known| known.to_string() == *kind)
                && (*kind == "bin" || folder == Some(package))
        };
        let program = PROGRAMS.iter().find(is_of);
        if let (Some([.., name]), Some(path)) = (program, artifact.executable) {
            built.push(Built { name, path: path.into() });
        }
    }
    for [package, _, target, _, name] in PROGRAMS {
        let is_built = built.iter().any(|built| built.name == name);
        ensure!(is_built, "cargo built no executable for {target} of {package}");
    }
    Ok(built)
}

fn arguments() -> Vec<String> {
    let mut arguments: Vec<String> = ["build", "--release", "--locked"].map(String::from).into();
    let mut features = vec![];
    for [package, kind, target, of_package, _] in PROGRAMS {
        arguments.extend(["-p", package, &format!("--{kind}"), target].map(String::from));
        let of_package = of_package.split_whitespace();
        features.extend(of_package.map(|feature| format!("{package}/{feature}")));
    }
    arguments.extend([String::from("--features"), features.join(",")]);
    arguments
}

/// Fails, naming them, if a program imports symbols that the C library of a GPU host may not have.
pub fn check_symbols(program: &Path) -> Result<()> {
    let output = Command::new("objdump").arg("-T").arg(program).output();
    let output = output.context("cannot start objdump: install binutils")?;
    let name = program.display();
    ensure!(
        output.status.success(),
        "objdump cannot read which symbols {name} imports: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let newer = newer(&String::from_utf8_lossy(&output.stdout));
    let [major, minor] = NEWEST;
    ensure!(
        newer.is_empty(),
        "{name} needs symbols that are newer than GLIBC_{major}.{minor}: {}. A GPU host may not have them: build on a system with an \
         older glibc, or do without the dependency that imports them",
        newer.join(", ")
    );
    Ok(())
}

/// What is imported of a glibc that is too new, as `arc4random of GLIBC_2.36`, of what objdump lists.
fn newer(listed: &str) -> Vec<String> {
    let import = |line: &str| {
        let (before, symbol) = line.rsplit_once(' ')?;
        let version = before.split_whitespace().next_back()?.trim_matches(['(', ')']);
        // A third number, as in `GLIBC_2.2.5`, is of versions long past.
        let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
        let numbers = [numbers.next()?.ok()?, numbers.next()?.ok()?];
        (line.contains("*UND*") && numbers > NEWEST).then(|| format!("{symbol} of {version}"))
    };
    listed.lines().filter_map(import).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{packages, root};

    #[test]
    fn one_call_builds_every_program_with_its_features() {
        let arguments = arguments().join(" ");
        assert!(arguments.contains("-p burn-fp8 --test cuda "), "{arguments}");
        assert!(arguments.contains("-p burn-fp8-bench --bin burn-fp8-gpu "), "{arguments}");
        assert!(arguments.contains("-p burn-fp8-kernels --test gpu "), "{arguments}");
        let features = "--features burn-fp8/cuda,burn-fp8/fusion,burn-fp8-kernels/cuda,";
        assert!(arguments.contains(features), "{arguments}");
    }

    #[test]
    fn programs_are_targets_of_packages_of_the_workspace() {
        let packages = packages().unwrap();
        for [package, kind, target, ..] in PROGRAMS {
            let found = packages.iter().find(|found| found.name == package).unwrap();
            let folder = found.manifest_path.parent().and_then(|folder| folder.file_name());
            assert!(kind == "bin" || folder == Some(package), "{package} lies in {folder:?}");
            let mut known =
                found.targets.iter().map(|known| (&*known.name, known.kind[0].to_string()));
            assert!(known.any(|known| known == (target, kind.to_string())), "{package}: {target}");
        }
    }

    /// As objdump lists them: versions of what is imported stand in parentheses, or not.
    #[test]
    fn newer_symbols_are_named_with_their_version() {
        let listed = "
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.14) memcpy
0000000000000000      DF *UND*  0000000000000000  GLIBC_2.34  __libc_start_main
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.2.5) free
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.36) arc4random
0000000000000000      DF *UND*  0000000000000000 (GCC_3.0)    _Unwind_Resume
0000000000000000  w   DF *UND*  0000000000000000  GLIBC_3.0   later
0000000000001000 g    DF .text  0000000000000000  GLIBC_3.0   own
0000000000000000  w   D  *UND*  0000000000000000  Base        __gmon_start__
";
        assert_eq!(newer(listed), ["arc4random of GLIBC_2.36", "later of GLIBC_3.0"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn symbols_of_this_program_are_read() {
        let program = std::env::current_exe().unwrap();
        let output = Command::new("objdump").arg("-T").arg(program).output().unwrap();
        let listed = String::from_utf8_lossy(&output.stdout);
        assert!(listed.contains("*UND*") && listed.contains("GLIBC_2."), "{listed}");
        let error = check_symbols(&root().join("Cargo.toml")).unwrap_err().to_string();
        assert!(error.contains("cannot read which symbols"), "{error}");
    }
}
