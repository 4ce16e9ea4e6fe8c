//! The programs that a GPU host runs, and how they are built.

use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Artifact, Message, Metadata, TargetKind};

use crate::steps::Steps;

/// A program of the workspace.
struct Program {
    package: &'static str,
    target: &'static str,
    kind: TargetKind,
    /// Of its package.
    features: &'static [&'static str],
    /// What it is called on the host. What ends in `-tests` is run as tests there.
    name: &'static str,
}

/// The target of burn-fp8-kernels that has its tests on CUDA.
const KERNEL_TESTS: &str = "gpu";

const PROGRAMS: [Program; 8] = [
    Program {
        package: "burn-fp8-gpu-run",
        target: "burn-fp8-gpu-run",
        kind: TargetKind::Bin,
        features: &[],
        name: "burn-fp8-gpu-run",
    },
    Program {
        package: "burn-fp8",
        target: "cuda",
        kind: TargetKind::Test,
        features: &["cuda", "fusion"],
        name: "burn-fp8-tests",
    },
    Program {
        package: "burn-fp8-cublaslt",
        target: "gpu",
        kind: TargetKind::Test,
        features: &[],
        name: "burn-fp8-cublaslt-tests",
    },
    Program {
        package: "burn-fp8-kernels",
        target: KERNEL_TESTS,
        kind: TargetKind::Test,
        features: &["cuda"],
        name: "burn-fp8-kernels-tests",
    },
    Program {
        package: "burn-fp8-bench",
        target: "burn-fp8-gpu",
        kind: TargetKind::Bin,
        features: &["cuda"],
        name: "burn-fp8-gpu",
    },
    Program {
        package: "digits",
        target: "digits",
        kind: TargetKind::Bin,
        features: &["cuda"],
        name: "digits",
    },
    Program {
        package: "char-lm",
        target: "char-lm",
        kind: TargetKind::Bin,
        features: &["cuda"],
        name: "char-lm",
    },
    Program {
        package: "fused_matmul",
        target: "fused_matmul",
        kind: TargetKind::Bin,
        features: &["cuda"],
        name: "fused_matmul",
    },
];

impl Program {
    /// Whether cargo has made it. Packages have targets of the same name.
    fn is(&self, artifact: &Artifact, metadata: &Metadata) -> bool {
        let package = metadata.packages.iter().find(|package| package.name == self.package);
        package.is_some_and(|package| package.manifest_path == artifact.manifest_path)
            && artifact.target.name == self.target
            && artifact.target.kind == [self.kind.clone()]
    }
}

/// A program that has been built.
pub struct Built {
    /// What it is called on the host.
    pub name: &'static str,
    /// Where cargo put it.
    pub path: PathBuf,
}

/// Builds all programs in release mode, in one call of cargo: they share their dependencies with the same features.
pub fn build(steps: &mut Steps, metadata: &Metadata) -> Result<Vec<Built>> {
    let arguments = arguments(&PROGRAMS);
    let mut built = vec![];
    steps.step("programs for the GPU host", || {
        println!("  cargo {}", arguments.join(" "));
        built = artifacts(&arguments, &PROGRAMS, metadata)?;
        Ok(())
    })?;
    Ok(built)
}

fn arguments(programs: &[Program]) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["build", "--release", "--locked", "--message-format=json-render-diagnostics"]
            .map(String::from)
            .into();
    let mut features = vec![];
    for program in programs {
        let kind = if program.kind == TargetKind::Test { "--test" } else { "--bin" };
        arguments.extend(["-p", program.package, kind, program.target].map(String::from));
        let of_package = program.features.iter().map(|name| format!("{}/{name}", program.package));
        features.extend(of_package);
    }
    arguments.extend([String::from("--features"), features.join(",")]);
    arguments
}

/// Runs cargo and collects the executables that it names.
fn artifacts(
    arguments: &[String],
    programs: &[Program],
    metadata: &Metadata,
) -> Result<Vec<Built>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let mut child = Command::new(&cargo)
        .args(arguments)
        .current_dir(crate::repository::root())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {cargo}"))?;
    let output = child.stdout.take().context("cargo's output is piped")?;
    let mut built = vec![];
    for message in Message::parse_stream(BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message.context("cannot read cargo's output")?
        else {
            continue;
        };
        let program = programs.iter().find(|program| program.is(&artifact, metadata));
        if let (Some(program), Some(path)) = (program, artifact.executable) {
            built.push(Built { name: program.name, path: path.into_std_path_buf() });
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "`cargo {}` ended with {status}", arguments.join(" "));
    for program in programs {
        ensure!(
            built.iter().any(|built| built.name == program.name),
            "cargo built no executable for {} of {}",
            program.target,
            program.package
        );
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use cargo_metadata::Artifact;

    use super::super::metadata;
    use super::{PROGRAMS, arguments};

    #[test]
    fn one_call_builds_every_program_with_its_features() {
        let arguments = arguments(&PROGRAMS).join(" ");
        assert!(arguments.contains("-p burn-fp8 --test cuda "), "{arguments}");
        assert!(arguments.contains("-p burn-fp8-bench --bin burn-fp8-gpu "), "{arguments}");
        assert!(arguments.contains("-p burn-fp8-kernels --test gpu "), "{arguments}");
        let features = "--features burn-fp8/cuda,burn-fp8/fusion,burn-fp8-kernels/cuda,";
        assert!(arguments.contains(features), "{arguments}");
    }

    #[test]
    fn programs_are_of_packages_of_the_workspace() {
        let metadata = metadata().unwrap();
        for program in &PROGRAMS {
            let known = metadata.packages.iter().any(|package| package.name == program.package);
            assert!(known, "{}", program.package);
        }
    }

    /// Two packages have a test target of one name, and it is two programs.
    #[test]
    fn a_program_is_told_by_its_package_too() {
        let metadata = metadata().unwrap();
        for (package, name) in [
            ("burn-fp8-cublaslt", "burn-fp8-cublaslt-tests"),
            ("burn-fp8-kernels", "burn-fp8-kernels-tests"),
        ] {
            let manifest = format!("{}/crates/{package}/Cargo.toml", metadata.workspace_root);
            let artifact: Artifact = serde_json::from_value(serde_json::json!({
                "package_id": format!("path+file:///{package}#0.1.0"),
                "manifest_path": manifest,
                "target": {
                    "kind": ["test"],
                    "crate_types": ["bin"],
                    "name": "gpu",
                    "src_path": "/main.rs",
                },
                "profile": {
                    "opt_level": "3",
                    "debug_assertions": false,
                    "overflow_checks": false,
                    "test": true,
                },
                "features": [],
                "filenames": [],
                "executable": null,
                "fresh": false,
            }))
            .unwrap();
            let names: Vec<_> = PROGRAMS
                .iter()
                .filter(|program| program.is(&artifact, &metadata))
                .map(|program| program.name)
                .collect();
            assert_eq!(names, [name]);
        }
    }
}
