//! A folder with all of CUDA that programs use: NVRTC, cuBLASLt, and the headers that CubeCL's kernels include.

use std::fmt::{Display, Formatter};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::search::{Search, Version};
use crate::process::Environment;

/// Where pip puts NVIDIA's wheels, one line each.
const WHEELS: &str = "import importlib.util
spec = importlib.util.find_spec('nvidia')
print(*(spec.submodule_search_locations if spec else []), sep='\\n')";
/// Where a toolkit has its libraries.
const PLACES: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"];
/// What tells a toolkit's version.
const RUNTIME: &str = "cuda_runtime_api.h";
/// What kernels include, one of each of NVIDIA's packages. Since CUDA 13 those of CCCL lie deeper.
const HEADERS: [&str; 3] = ["cuda_fp8.h", "crt/host_defines.h", "cuda/barrier"];

/// A folder that has all.
pub struct Toolkit {
    folder: PathBuf,
    version: Version,
    nvrtc: PathBuf,
    cublaslt: PathBuf,
}

impl Display for Toolkit {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}, CUDA {}", self.folder.display(), self.version)
    }
}

impl Toolkit {
    /// What is at a folder, or why it is of no use to a driver.
    fn at(folder: PathBuf, driver: Option<Version>) -> Result<Self, String> {
        let name = folder.display();
        let include = folder.join("include");
        let version =
            fs::read_to_string(include.join(RUNTIME)).ok().and_then(|text| version(&text));
        let version = version.ok_or_else(|| format!("{name} lacks include/{RUNTIME}"))?;
        if let Some(driver) = driver.filter(|driver| version > *driver) {
            return Err(format!(
                "{name} is of CUDA {version}, and the driver knows CUDA {driver} at most, which does not load what a newer NVRTC makes"
            ));
        }
        let mut lacks = vec![];
        let mut find = |name: String, places: &[&str]| {
            let found = places.iter().map(|place| folder.join(place).join(&name));
            let found = found.into_iter().find(|path| path.exists());
            lacks.extend(found.is_none().then_some(name));
            found.unwrap_or_default()
        };
        let library = |name: &str| format!("{name}.so.{}", version.major);
        let nvrtc = find(library("libnvrtc"), &PLACES);
        let cublaslt = find(library("libcublasLt"), &PLACES);
        for header in HEADERS {
            find(header.to_owned(), &["include", "include/cccl"]);
        }
        if lacks.is_empty() {
            return Ok(Self { folder, version, nvrtc, cublaslt });
        }
        Err(format!("{name} lacks {}", lacks.join(" ")))
    }
}

/// Finds a toolkit that the driver can use, and makes programs use it.
pub fn find(
    search: &mut Search,
    driver: Option<Version>,
    python: &Path,
) -> Result<Option<Toolkit>> {
    let mut reasons = vec![];
    for folder in toolkits(&search.root, python) {
        let toolkit = match Toolkit::at(folder, driver) {
            Ok(toolkit) => toolkit,
            Err(reason) => {
                reasons.push(reason);
                continue;
            }
        };
        let links = search.links.path().to_path_buf();
        for (name, library) in
            [("libcublasLt.so", &toolkit.cublaslt), ("libnvrtc.so", &toolkit.nvrtc)]
        {
            search.environment.load_from(library.parent().unwrap_or(Path::new("/")));
            symlink(library, links.join(name)).context("cannot link a library")?;
        }
        // Programs ask for libraries without a version first: what lies elsewhere under that name would go before these.
        search.environment.load_from(&links);
        search.environment.set("CUDA_PATH", &toolkit.folder);
        return Ok(Some(toolkit));
    }
    let there = if reasons.is_empty() { "there is none".to_owned() } else { reasons.join("; ") };
    let driver = driver.map(|driver| format!(", of CUDA {driver} or older")).unwrap_or_default();
    search.need(
        format!("NVRTC, cuBLASLt and the CUDA headers in one folder{driver}"),
        format!(
            "CubeCL compiles its kernels with them, cuBLASLt multiplies in FP8: {there}; install the CUDA toolkit, or fetch what is \
             needed of CUDA 13.0 with the script fetch-cuda (beside run.sh; in the repository .ci/fetch-cuda); set CUDA_PATH to its \
             folder"
        ),
    );
    Ok(None)
}

/// Folders that may be toolkits, the best first: the one that is chosen, installed ones, pip's wheels of CUDA 13 and later.
fn toolkits(root: &Path, python: &Path) -> Vec<PathBuf> {
    let environment = Environment::default();
    let chosen = environment.get("CUDA_PATH").map(PathBuf::from);
    // Programs are started in another folder.
    let chosen = chosen.map(|path| std::path::absolute(&path).unwrap_or(path));
    let installed = ["usr/local/cuda", "opt/cuda", "usr"].map(|path| root.join(path));
    let versions = begin(&root.join("usr/local"), "cuda-");
    let asked = environment.output(Command::new(python).args(["-c", WHEELS]), 60);
    let places = asked.ok().filter(|asked| asked.ended.is_ok()).map(|asked| asked.text);
    let places = places.unwrap_or_default();
    let wheels = places.lines().flat_map(|place| begin(Path::new(place), "cu1"));
    let found = installed.into_iter().chain(versions).chain(wheels);
    let found = found.filter(|folder| folder.join("include").join(RUNTIME).exists());
    chosen.into_iter().chain(found).collect()
}

/// The entries of a folder whose names begin so, sorted.
fn begin(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
    let mut entries: Vec<_> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// What a toolkit's header says of it, as 12040 for 12.4.
fn version(text: &str) -> Option<Version> {
    let number = text.lines().find_map(|line| line.strip_prefix("#define CUDART_VERSION"))?;
    let number: u32 = number.trim().parse().ok()?;
    Some(Version { major: number / 1000, minor: number % 1000 / 10 })
}
