//! The driver and the GPU that is used.

use std::fmt::{Display, Formatter};
use std::process::Command;

use crate::host::search::{Search, Version};
use crate::process::Environment;

/// A GPU, as nvidia-smi describes it.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its number.
    pub index: String,
    pub uuid: String,
    pub name: String,
    /// Its compute capability.
    pub capability: String,
    /// The version of its driver.
    pub driver: String,
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
        })
    }

    /// Whether its tensor cores have FP8, which came with Ada and Hopper.
    fn is_fp8(&self) -> bool {
        let capability = Version::parse(&self.capability);
        capability.is_some_and(|version| version >= Version { major: 8, minor: 9 })
    }

    /// Whether an entry of CUDA_VISIBLE_DEVICES names it, by its number or the beginning of its UUID.
    fn is_named(&self, entry: &str) -> bool {
        self.index == entry || (entry.starts_with("GPU-") && self.uuid.starts_with(entry))
    }
}

/// Finds the device and the newest CUDA that its driver knows, and makes the device the only one that programs see.
pub fn find(search: &mut Search) -> (Option<Device>, Option<Version>) {
    // CUDA would number the fastest first, nvidia-smi does not.
    search.environment.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    if which::which("nvidia-smi").is_err() {
        search.need(
            "nvidia-smi",
            "comes with the NVIDIA driver; install it, or give the container access to the GPU (docker: --gpus all)",
        );
        return (None, None);
    }
    let columns = "--query-gpu=index,uuid,name,compute_cap,driver_version";
    let devices = match ask(&search.environment, &[columns, "--format=csv,noheader"]) {
        Ok(text) => text,
        Err(reason) => {
            search.need("an NVIDIA GPU that answers", format!("nvidia-smi says: {reason}"));
            return (None, None);
        }
    };
    let driver = ask(&search.environment, &[]).ok().and_then(|text| driver_of(&text));
    if let Some(version) = driver.filter(|version| version.major < 12) {
        search.need(
            "a driver for CUDA 12 or newer",
            format!("this one knows CUDA {version} at most; cuBLASLt has FP8 from CUDA 12 on"),
        );
    }
    (choose(search, &devices), driver)
}

/// Takes the device that the environment names, or else the first with FP8.
fn choose(search: &mut Search, devices: &str) -> Option<Device> {
    let known: Vec<Device> = devices.lines().filter_map(Device::parse).collect();
    let all = devices.replace('\n', "; ");
    // A part of one device (MIG), or whatever its owner chose, is left as chosen. Of a part, the phase `device` tells the rest.
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let entry = visible.as_deref().map(|visible| visible.split(',').next().unwrap_or(visible));
    let device = match entry {
        Some(entry) if entry.starts_with("MIG-") => return None,
        Some(entry) => known.into_iter().find(|device| device.is_named(entry)),
        None => known.into_iter().find(Device::is_fp8),
    };
    match (&device, visible) {
        (None, Some(visible)) => search.need(
            "a visible GPU",
            format!("CUDA_VISIBLE_DEVICES is '{visible}', and there are: {all}"),
        ),
        // One device only is used, and it is said which.
        (Some(device), None) => search.environment.set("CUDA_VISIBLE_DEVICES", &device.uuid),
        (Some(device), Some(_)) if device.is_fp8() => {}
        (device, _) => {
            let here = device.as_ref().map_or(all, ToString::to_string);
            search.need(
                "a GPU of compute capability 8.9 or higher",
                format!("FP8 tensor cores came with Ada and Hopper; here is: {here}"),
            );
        }
    }
    device
}

/// What nvidia-smi answers, or what it says instead.
fn ask(environment: &Environment, arguments: &[&str]) -> Result<String, String> {
    let output = environment.output(Command::new("nvidia-smi").args(arguments), 60);
    let output = output.map_err(|error| error.to_string())?;
    match output.text.trim() {
        "" => Err(format!("nothing ({})", output.ended)),
        text if output.ended.is_ok() => Ok(text.to_owned()),
        text => Err(text.to_owned()),
    }
}

/// The newest CUDA that the driver knows, in the heading of nvidia-smi, as `CUDA Version: 13.0`.
fn driver_of(heading: &str) -> Option<Version> {
    let (_, rest) = heading.split_once("CUDA Version:")?;
    Version::parse(rest.split_whitespace().next()?)
}

#[cfg(test)]
mod tests {
    use super::{Device, Version, driver_of};

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
    fn the_heading_tells_what_the_driver_knows() {
        let heading = "| NVIDIA-SMI 550.54    Driver Version: 550.54   CUDA Version: 12.4     |";
        assert_eq!(driver_of(heading), Some(Version { major: 12, minor: 4 }));
        assert_eq!(driver_of("CUDA Version: N/A"), None);
    }
}
