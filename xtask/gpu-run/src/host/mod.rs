//! What a machine has, and what it lacks.

mod cuda;
mod device;
mod search;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::process::Environment;
use cuda::Toolkit;
use device::Device;
use search::{Search, Version};

const ASK_TORCH: &str = r#"import torch, numpy; assert torch.cuda.is_available(), "it sees no GPU"; print(torch.__version__)"#;

/// What has been found on a machine.
pub struct Machine {
    pub search: Search,
    /// The GPU that is used.
    pub device: Option<Device>,
    /// The Python that has a torch which sees the GPU, and the torch's version.
    pub torch: Option<(PathBuf, String)>,
    pub sanitizer: Option<PathBuf>,
    /// The newest CUDA that the driver knows.
    driver: Option<Version>,
    toolkit: Option<Toolkit>,
}

impl Machine {
    /// Looks for everything, so that all that is missing is named at once. `python` knows where pip puts wheels.
    ///
    /// # Errors
    /// If links to what was found cannot be made.
    pub fn find(python: &Path) -> Result<Self> {
        let root = std::env::var_os("BURN_FP8_HOST_ROOT").unwrap_or_else(|| "/".into());
        let links = tempfile::Builder::new().prefix("burn-fp8-gpu-run-").tempdir();
        let mut search = Search {
            root: root.into(),
            missing: vec![],
            notes: vec![],
            environment: Environment::default(),
            links: links.context("cannot make a temporary folder")?,
        };
        let system = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
        if system != "linux-x86_64" {
            let why = format!("this is {system}; the programs are built for no other");
            search.need("Linux on x86-64", why);
        }
        let (device, driver) = device::find(&mut search);
        let toolkit = cuda::find(&mut search, driver, python)?;
        let torch = torch(&mut search, python);
        let sanitizer = sanitizer(&mut search);
        Ok(Self { search, device, torch, sanitizer, driver, toolkit })
    }

    /// Lines of a name, a tab and a value: what the report says of the host.
    pub fn facts(&self, command: &str) -> String {
        fn or<T: ToString>(value: Option<T>, other: &str) -> String {
            value.map_or_else(|| other.to_owned(), |value| value.to_string())
        }
        let now = OffsetDateTime::now_utc();
        let now = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let processor =
            fs::read_to_string(self.search.root.join("proc/cpuinfo")).unwrap_or_default();
        let processor =
            processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let visible = self.search.environment.get("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let mut facts = vec![("command", command.to_owned()), ("date", now)];
        if let Some(device) = &self.device {
            facts.extend([
                ("device", device.name.clone()),
                ("device, index and UUID", format!("{}, {}", device.index, device.uuid)),
                ("compute capability", device.capability.clone()),
                ("driver", device.driver.clone()),
            ]);
        }
        facts.extend([
            ("CUDA_VISIBLE_DEVICES", visible.to_string_lossy().into_owned()),
            ("CUDA of the driver", or(self.driver, "unknown")),
            ("CUDA", or(self.toolkit.as_ref(), "unknown")),
            ("torch", or(self.torch.as_ref().map(|(_, version)| version), "none")),
            ("compute-sanitizer", or(self.sanitizer.as_ref().map(|path| path.display()), "none")),
            ("kernel", rustix::system::uname().release().to_string_lossy().into_owned()),
            (
                "processor",
                format!("{}, {cores} cores", processor.map_or("unknown", |(_, name)| name)),
            ),
        ]);
        let line = |(name, value): (&str, String)| {
            format!("{name}\t{}\n", value.replace(['\t', '\n'], " "))
        };
        facts.into_iter().map(line).collect()
    }
}

fn torch(search: &mut Search, python: &Path) -> Option<(PathBuf, String)> {
    let name = python.display();
    let why = match which::which(python) {
        Err(_) => format!("there is no {name}"),
        Ok(python) => {
            let mut command = Command::new(&python);
            match search.environment.output(command.args(["-c", ASK_TORCH]), 120) {
                Ok(output) => {
                    let last = output.text.trim().lines().next_back().unwrap_or_default();
                    if output.ended.is_ok() {
                        return Some((python, last.to_owned()));
                    }
                    let ended = output.ended.to_string();
                    format!(
                        "{name} has no usable torch: {}",
                        if last.is_empty() { &ended } else { last }
                    )
                }
                Err(error) => format!("{name} cannot be started: {error}"),
            }
        }
    };
    let without = "nothing is compared with torch (phases accuracy and peers)";
    search.notes.push(format!("{why}: {without}"));
    None
}

fn sanitizer(search: &mut Search) -> Option<PathBuf> {
    let name = PathBuf::from("compute-sanitizer");
    let of_toolkit = search.environment.get("CUDA_PATH").map(PathBuf::from);
    let of_toolkit = of_toolkit.map(|folder| folder.join("bin").join(&name));
    let mut candidates = std::iter::once(name).chain(of_toolkit);
    let sanitizer = candidates.find_map(|candidate| which::which(candidate).ok());
    if sanitizer.is_none() {
        let what = "no compute-sanitizer: memory accesses are not checked (phase sanitizer)";
        search.notes.push(format!("{what}; it comes with the CUDA toolkit"));
    }
    sanitizer
}
