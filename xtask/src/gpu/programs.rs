//! The programs that a GPU host runs, and how they are built.

use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Message, TargetKind};

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

const PROGRAMS: [Program; 6] = [
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

/// A program that has been built.
pub struct Built {
    /// What it is called on the host.
    pub name: &'static str,
    /// Where cargo put it.
    pub path: PathBuf,
}

/// Builds all programs in release mode, in one call of cargo: they share their dependencies with the same features.
pub fn build(steps: &mut Steps) -> Result<Vec<Built>> {
    let arguments = arguments(&PROGRAMS);
    let mut built = vec![];
    steps.step("programs for the GPU host", || {
        println!("  cargo {}", arguments.join(" "));
        built = artifacts(&arguments, &PROGRAMS)?;
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
fn artifacts(arguments: &[String], programs: &[Program]) -> Result<Vec<Built>> {
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
        let program = programs.iter().find(|program| {
            artifact.target.name == program.target && artifact.target.kind == [program.kind.clone()]
        });
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
    use super::{PROGRAMS, arguments};

    #[test]
    fn one_call_builds_every_program_with_its_features() {
        let arguments = arguments(&PROGRAMS).join(" ");
        assert!(arguments.contains("-p burn-fp8 --test cuda "), "{arguments}");
        assert!(arguments.contains("-p burn-fp8-bench --bin burn-fp8-gpu "), "{arguments}");
        assert!(arguments.contains("--features burn-fp8/cuda,burn-fp8/fusion,burn-fp8-bench/cuda"));
    }
}
