//! The simulated libraries, built by the host's compiler, and the program that tests them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::repository::{root, target};

/// How a process ends that the simulation has complained of: see `xtask/sim/driver/report.cpp`.
pub const COMPLAINED: i32 = 86;

/// Scenarios of `xtask/sim/self_test.cpp`, and what must be complained of.
const SCENARIOS: [(&str, Option<&str>); 10] = [
    ("ordered", None),
    ("ordered-by-the-host", None),
    ("read-too-early", Some("is not ordered after the ")),
    ("overwritten-too-early", Some("read by the kernel mirror")),
    ("freed-too-early", Some("free")),
    ("used-after-it-was-freed", Some("the memory has been freed")),
    ("out-of-bounds", Some("out of bounds")),
    ("never-written", Some("read by a copy to the host")),
    ("never-written-and-read-by-a-kernel", Some("read by the kernel mirror")),
    ("used-before-it-is-there", Some("write by a fill")),
];

/// Orders in which streams run: a self test must end alike in all.
const SEEDS: u32 = 4;

/// Where things lie.
pub struct Folders {
    sources: PathBuf,
    /// The libraries, and the program that tests them.
    libraries: PathBuf,
    /// Compiled kernels.
    cache: PathBuf,
    /// CUDA's headers are in its `include`.
    toolkit: PathBuf,
    /// What jobs have printed.
    logs: PathBuf,
}

impl Folders {
    pub fn new() -> Result<Self> {
        let target = target()?;
        let fetched = Command::new(root().join(".ci/fetch-cuda")).arg(target.join("cuda")).output();
        let fetched = fetched.context("cannot start .ci/fetch-cuda")?;
        ensure!(
            fetched.status.success(),
            ".ci/fetch-cuda: {}",
            String::from_utf8_lossy(&fetched.stderr)
        );
        let toolkit = PathBuf::from(String::from_utf8(fetched.stdout)?.trim());
        let folders = Self {
            sources: root().join("xtask/sim"),
            libraries: target.join("sim/lib"),
            cache: target.join("sim/kernels"),
            toolkit,
            logs: target.join("sim/logs"),
        };
        fs::create_dir_all(&folders.libraries)?;
        fs::create_dir_all(&folders.cache)?;
        fs::create_dir_all(&folders.logs)?;
        Ok(folders)
    }

    /// What programs on the simulation are given.
    pub fn variables(&self) -> Result<[(&'static str, &str); 5]> {
        fn of(folder: &Path) -> Result<&str> {
            folder.to_str().context("the repository's path is not UTF-8")
        }
        Ok([
            ("SIM_HOME", of(&self.sources)?),
            ("SIM_LIBRARIES", of(&self.libraries)?),
            ("SIM_CACHE", of(&self.cache)?),
            ("LD_LIBRARY_PATH", of(&self.libraries)?),
            ("CUDA_PATH", of(&self.toolkit)?),
        ])
    }

    /// Builds the libraries, and the program that tests them.
    pub fn build(&self) -> Result<()> {
        let own = |name: &str| vec![self.sources.join(name)];
        let shared = ["-shared", "-fPIC", "-fvisibility=hidden"];
        let here = format!("-L{}", self.libraries.display());
        let driver = [&shared[..], &["-Wl,-soname,libcuda.so.1", "-pthread", "-ldl"]].concat();
        self.compile(&self.sources_in("driver")?, "libcuda.so.1", &driver)?;
        let link = self.libraries.join("libcuda.so");
        if !link.exists() {
            std::os::unix::fs::symlink("libcuda.so.1", link)?;
        }
        self.compile(&own("compiler.cpp"), "libnvrtc.so", &shared)?;
        let cublaslt =
            [&shared[..], &["-O3", "-march=native", "-ffp-contract=off", &here, "-lcuda"]].concat();
        self.compile(&self.sources_in("cublaslt")?, "libcublasLt.so.13", &cublaslt)?;
        self.compile(&own("self_test.cpp"), "self_test", &[&here, "-lcuda", "-lnvrtc"])
    }

    fn sources_in(&self, folder: &str) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.sources.join(folder))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "cpp"));
        Ok(paths)
    }

    fn compile(&self, sources: &[PathBuf], output: &str, options: &[&str]) -> Result<()> {
        let mut command = Command::new("g++");
        command.args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
        command.arg(self.toolkit.join("include")).args(sources).args(options);
        command.arg("-o").arg(self.libraries.join(output));
        let status = command.status().context("cannot start g++: install it (Debian: g++)")?;
        ensure!(status.success(), "g++ ended with {status} for {output}");
        Ok(())
    }

    /// Where a job's output goes.
    pub fn log(&self, job: &str) -> PathBuf {
        self.logs.join(format!("{job}.log"))
    }

    /// Runs each scenario: what is wrong must be complained of, and nothing else.
    pub fn self_test(&self) -> Result<()> {
        for (scenario, complaint) in SCENARIOS {
            for seed in 1..=SEEDS {
                let mut command = Command::new(self.libraries.join("self_test"));
                command.arg(scenario).arg(self.toolkit.join("include"));
                command.envs(self.variables()?).env("SIM_SEED", seed.to_string());
                let output = command.output().context("cannot start the self test")?;
                let said = String::from_utf8_lossy(&output.stderr);
                let expected = if complaint.is_some() { COMPLAINED } else { 0 };
                let is_said = complaint.is_none_or(|complaint| said.contains(complaint));
                if output.status.code() != Some(expected) || !is_said {
                    bail!(
                        "the scenario {scenario}, seed {seed}, ended with {}:\n{said}",
                        output.status
                    );
                }
            }
        }
        println!("{} scenarios, {SEEDS} orders of streams each", SCENARIOS.len());
        Ok(())
    }
}
