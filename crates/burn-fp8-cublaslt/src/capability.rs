//! What a device and the installed libraries can do, as far as plans depend on it.
#![allow(unsafe_code, reason = "asks the library for its version")]

use crate::library;
use crate::raw::constants as c;
use crate::raw::driver::{Device, Driver};
use crate::raw::lt::Lt;
use crate::raw::written;
use crate::unavailable::Unavailable;
use crate::version::{ComputeCapability, DriverVersion, LibraryVersion};

impl LibraryVersion {
    /// Of the loaded library. Needs no device.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if the library cannot be loaded or asked.
    pub fn loaded() -> Result<Self, Unavailable> {
        Self::of(library::cublaslt()?)
    }

    pub(crate) fn of(lt: &Lt) -> Result<Self, Unavailable> {
        let part = |property| {
            // SAFETY: writes one number.
            let value = written(0, |value| unsafe { lt.cublasLtGetProperty(property, value) });
            value.map(|value| u32::try_from(value).unwrap_or(0))
        };
        Ok(Self {
            major: part(c::MAJOR_VERSION)?,
            minor: part(c::MINOR_VERSION)?,
            patch: part(c::PATCH_LEVEL)?,
        })
    }
}

/// All of the machine that a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// Of the device.
    pub compute: ComputeCapability,
    /// Of libcublasLt.
    pub library: LibraryVersion,
    /// Of libcuda.
    pub driver: DriverVersion,
}

/// The oldest cuBLASLt that is used on devices before Blackwell.
///
/// FP8 exists since 11.8, on Ada since 12.1 update 1, with beta since 12.0. But by NVIDIA's release notes FP8 products with GELU in
/// place were wrong until 12.3 update 1, and batches of products with activation and a bias each in 12.2.
pub const OLDEST_LIBRARY: LibraryVersion = LibraryVersion::new(12, 4);

/// The oldest cuBLASLt for Blackwell (compute capability 10.0 and up), which came with CUDA 12.8.
pub const OLDEST_LIBRARY_FOR_BLACKWELL: LibraryVersion = LibraryVersion::new(12, 8);

impl Capability {
    /// Asks the driver and libcublasLt about the device with this ordinal. Makes no context.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], naming what is missing and how to get it: a library, the device, FP8 tensor cores (sm_89), a
    /// cuBLASLt that is new enough, a driver for it.
    pub fn probe(ordinal: u32) -> Result<Self, Unavailable> {
        let (driver, device) = find_device(ordinal)?;
        Self::of_device(driver, device)
    }

    pub(crate) fn of_device(driver: &Driver, device: Device) -> Result<Self, Unavailable> {
        let attribute = |attribute| {
            driver
                .device_attribute(device, attribute)
                .map(|value| u32::try_from(value).unwrap_or(0))
        };
        let compute = ComputeCapability {
            major: attribute(c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(c::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        };
        if compute < ComputeCapability::SM_89 {
            return Err(Unavailable::NoFp8 { name: driver.device_name(device)?, compute });
        }
        let library = LibraryVersion::of(library::cublaslt()?)?;
        let oldest = oldest_library(compute);
        if library < oldest {
            return Err(Unavailable::OldCublasLt { library, oldest, compute });
        }
        let driver = DriverVersion::from_number(u32::try_from(driver.version()?).unwrap_or(0));
        // CUDA is compatible within a major version: a library of the next one cannot make a handle.
        if library.major > driver.major {
            return Err(Unavailable::OldDriver { library, driver });
        }
        Ok(Self { compute, library, driver })
    }
}

/// Checks that there is a device with this ordinal, whatever it can do: without one CubeCL panics, so a program asks before.
///
/// # Errors
///
/// [`Unavailable`]: no driver, or no such device, and what to do about it.
pub fn require_device(ordinal: u32) -> Result<(), Unavailable> {
    find_device(ordinal).map(|_| ())
}

fn find_device(ordinal: u32) -> Result<(&'static Driver, Device), Unavailable> {
    let driver = library::driver()?;
    let count = driver.device_count()?;
    match i32::try_from(ordinal) {
        Ok(ordinal) if ordinal < count => Ok((driver, driver.device(ordinal)?)),
        _ => Err(Unavailable::NoSuchDevice { ordinal, count }),
    }
}

/// The oldest cuBLASLt that this crate uses on a device.
pub(crate) fn oldest_library(compute: ComputeCapability) -> LibraryVersion {
    if compute >= ComputeCapability::SM_100 { OLDEST_LIBRARY_FOR_BLACKWELL } else { OLDEST_LIBRARY }
}
