//! What a machine has, and what it lacks.

mod device;
mod folders;
mod headers;
mod libraries;
mod programs;
mod root;
mod search;
mod torch;
mod version;

use std::path::{Path, PathBuf};

use anyhow::Result;
use tempfile::TempDir;

use crate::arguments::Arguments;
use crate::process::Environment;
use device::{Device, Gpu};
use headers::Headers;
use libraries::{Libraries, Library};
pub use root::Root;
pub use search::Missing;
use search::Search;
pub use torch::Torch;
use version::Version;

/// What phases use of a machine.
pub struct Machine {
    /// The GPU that is used.
    pub device: Option<Device>,
    /// The newest CUDA that the driver knows.
    pub driver: Option<Version>,
    pub nvrtc: Option<Library>,
    pub cublaslt: Option<Library>,
    pub headers: Option<Headers>,
    pub torch: Option<Torch>,
    pub sanitizer: Option<PathBuf>,
    /// What every program of a run has in its environment.
    pub environment: Environment,
    /// The environment names it.
    _links: TempDir,
}

/// What was found on a machine.
pub struct Findings {
    pub machine: Machine,
    pub missing: Vec<Missing>,
    /// What is less than it could be.
    pub notes: Vec<String>,
}

/// Looks for everything, so that all that is missing is named at once.
///
/// # Errors
/// If links to what was found cannot be made.
pub fn check(arguments: &Arguments, archive: Option<&Path>) -> Result<Findings> {
    let mut search = Search::new(&arguments.python)?;
    let system = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    if system != "linux-x86_64" {
        search.need(
            "Linux on x86-64",
            format!("this is {system}; the programs are built for no other"),
        );
    }
    if let Some(archive) = archive {
        programs::check(&mut search, archive);
    }
    let Gpu { device, driver } = device::find(&mut search);
    let Libraries { nvrtc, cublaslt } = libraries::find(&mut search, driver)?;
    let headers = headers::find(&mut search, nvrtc.as_ref(), driver)?;
    let torch = torch::find(&mut search, &arguments.python);
    let sanitizer = sanitizer(&mut search);
    let Search { missing, notes, environment, links, .. } = search;
    let machine = Machine {
        device,
        driver,
        nvrtc,
        cublaslt,
        headers,
        torch,
        sanitizer,
        environment,
        _links: links,
    };
    Ok(Findings { machine, missing, notes })
}

fn sanitizer(search: &mut Search) -> Option<PathBuf> {
    let of_toolkits = search.folders.all().flat_map(|folder| {
        ["bin", "compute-sanitizer"].map(|place| folder.join(place).join("compute-sanitizer"))
    });
    let sanitizer = std::iter::once(PathBuf::from("compute-sanitizer"))
        .chain(of_toolkits)
        .find_map(|candidate| which::which(candidate).ok());
    if sanitizer.is_none() {
        search.note(
            "no compute-sanitizer: memory accesses are not checked (phase sanitizer); it comes with the CUDA toolkit",
        );
    }
    sanitizer
}
