//! The driver and the GPU that is used.

use std::fmt::{Display, Formatter};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::host::libraries;
use crate::host::search::Search;
use crate::host::version::Version;
use crate::process::{self, Environment};

/// A GPU, as nvidia-smi describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub index: String,
    pub uuid: String,
    pub name: String,
    /// Its compute capability.
    pub capability: String,
    /// The version of its driver.
    pub driver: String,
    line: String,
}

impl Display for Device {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { index, name, capability, driver, .. } = self;
        write!(formatter, "{index}: {name}, compute capability {capability}, driver {driver}")
    }
}

impl Device {
    fn parse(line: &str) -> Option<Self> {
        let mut columns = line.split(',').map(|column| column.trim().to_owned());
        Some(Self {
            index: columns.next()?,
            uuid: columns.next()?,
            name: columns.next()?,
            capability: columns.next()?,
            driver: columns.next()?,
            line: line.to_owned(),
        })
    }

    /// Whether its tensor cores have FP8, which came with Ada and Hopper.
    fn is_fp8(&self) -> bool {
        Version::parse(&self.capability)
            .is_some_and(|version| version >= Version { major: 8, minor: 9 })
    }
}

/// The GPU that is used, and what its driver knows.
#[derive(Default)]
pub struct Gpu {
    pub device: Option<Device>,
    /// The newest CUDA.
    pub driver: Option<Version>,
}

/// Finds driver and device, and makes the device the only one that programs see.
pub fn find(search: &mut Search) -> Gpu {
    match libraries::candidates(search, "libcuda", 1).into_iter().next() {
        None => search.need(
            "libcuda.so.1",
            "the NVIDIA driver; install it, or give the container access to the GPU (docker: --gpus all)",
        ),
        // The loader does not look there by itself.
        Some(library) if library.starts_with(search.root.at("usr/local/nvidia")) => {
            let folder = library.parent().unwrap_or(Path::new("/"));
            search.environment.append("LD_LIBRARY_PATH", folder);
        }
        Some(_) => {}
    }
    // CUDA would number the fastest first, nvidia-smi does not.
    search.environment.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    if which::which("nvidia-smi").is_err() {
        search.need("nvidia-smi", "comes with the NVIDIA driver; tells which GPU this is");
        return Gpu::default();
    }
    let query = ["--query-gpu=index,uuid,name,compute_cap,driver_version", "--format=csv,noheader"];
    let devices = match ask(&search.environment, &query) {
        Ok(text) => text,
        Err(reason) => {
            search.need("an NVIDIA GPU that answers", format!("nvidia-smi says: {reason}"));
            return Gpu::default();
        }
    };
    let driver = ask(&search.environment, &[]).ok().and_then(|text| driver_of(&text));
    if let Some(version) = driver.filter(|version| version.major < 12) {
        search.need(
            "a driver for CUDA 12 or newer",
            format!("this one knows CUDA {version} at most; cuBLASLt has FP8 from CUDA 12 on"),
        );
    }
    Gpu { device: choose(search, &devices), driver }
}

/// Takes the device that the environment names, or else the first with FP8.
fn choose(search: &mut Search, devices: &str) -> Option<Device> {
    let known: Vec<Device> = devices.lines().filter_map(Device::parse).collect();
    let all = devices.replace('\n', "; ");
    let what = "a GPU of compute capability 8.9 or higher";
    let lacking =
        |here: &str| format!("FP8 tensor cores came with Ada and Hopper; here is: {here}");
    // A part of one device, or whatever its owner chose, is left as chosen.
    if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
        let device = visible_device(&search.environment, &visible, &known);
        match &device {
            None => search.need(
                "a visible GPU",
                format!("CUDA_VISIBLE_DEVICES is '{visible}', and there are: {all}"),
            ),
            Some(device) if !device.is_fp8() => search.need(what, lacking(&device.line)),
            Some(_) => {}
        }
        return device;
    }
    let device = known.into_iter().find(Device::is_fp8);
    match &device {
        None => search.need(what, lacking(&all)),
        // One device only is used, and it is said which.
        Some(Device { index, uuid, .. }) => {
            let name = if uuid.is_empty() { index } else { uuid };
            search.environment.set("CUDA_VISIBLE_DEVICES", name);
        }
    }
    device
}

/// What the first entry of CUDA_VISIBLE_DEVICES names: an index, the beginning of a UUID, or the UUID of a part (MIG) of a device.
fn visible_device(environment: &Environment, visible: &str, devices: &[Device]) -> Option<Device> {
    let mut entry = visible.split(',').next().filter(|entry| !entry.is_empty())?.to_owned();
    if entry.starts_with("MIG-") {
        entry = device_of_part(&ask(environment, &["-L"]).ok()?, &entry)?;
    }
    let is_named = |device: &&Device| {
        device.index == entry || (entry.starts_with("GPU-") && device.uuid.starts_with(&entry))
    };
    devices.iter().find(is_named).cloned()
}

/// The index of the device that has a part of this UUID, in what `nvidia-smi -L` lists.
fn device_of_part(list: &str, part: &str) -> Option<String> {
    let mut device = None;
    for line in list.lines() {
        if let Some(rest) = line.strip_prefix("GPU ") {
            device = rest.split(':').next();
        }
        if line.contains(&format!("UUID: {part}")) {
            return device.map(str::to_owned);
        }
    }
    None
}

/// The newest CUDA that the driver knows, in the heading of nvidia-smi, as `CUDA Version: 13.0`.
fn driver_of(heading: &str) -> Option<Version> {
    let (_, rest) = heading.split_once("CUDA Version:")?;
    Version::parse(rest.split_whitespace().next()?)
}

/// What nvidia-smi answers, or what it says instead.
fn ask(environment: &Environment, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("nvidia-smi");
    command.args(arguments);
    environment.apply(&mut command);
    let output = process::output(&mut command, Duration::from_secs(60))
        .map_err(|error| error.to_string())?;
    let text = output.text.trim();
    match text.is_empty() {
        false if output.ended.is_ok() => Ok(text.to_owned()),
        false => Err(text.to_owned()),
        true => Err(format!("nothing ({})", output.ended)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Device, Version, device_of_part, driver_of};

    #[test]
    fn fp8_begins_with_compute_capability_8_9() {
        for (capability, is_fp8) in
            [("8.6", false), ("8.9", true), ("9.0", true), ("12.1", true), ("[N/A]", false)]
        {
            let device = Device::parse(&format!("0, GPU-0, Some, {capability}, 580.1")).unwrap();
            assert_eq!(device.is_fp8(), is_fp8, "{capability}");
        }
    }

    #[test]
    fn the_device_of_a_part_is_found() {
        let list = "GPU 0: NVIDIA H100 (UUID: GPU-aa)\n\
            \x20 MIG 1g.10gb     Device  0: (UUID: MIG-11)\n\
            GPU 1: NVIDIA H100 (UUID: GPU-bb)\n\
            \x20 MIG 1g.10gb     Device  0: (UUID: MIG-22)\n";
        assert_eq!(device_of_part(list, "MIG-22").as_deref(), Some("1"));
        assert_eq!(device_of_part(list, "MIG-33"), None);
    }

    #[test]
    fn the_heading_tells_what_the_driver_knows() {
        let heading = "| NVIDIA-SMI 550.54    Driver Version: 550.54   CUDA Version: 12.4     |";
        assert_eq!(driver_of(heading), Some(Version { major: 12, minor: 4 }));
        assert_eq!(driver_of("CUDA Version: N/A"), None);
    }
}
