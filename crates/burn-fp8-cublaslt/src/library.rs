//! Loading of libcuda and libcublasLt, and whether NVRTC is there: once per process, with a typed error where one is missing.
#![allow(unsafe_code, reason = "loads C libraries; presence is checked first, since cudarc panics")]

use std::sync::OnceLock;

use crate::raw::driver::Driver;
use crate::raw::lt::Lt;
use crate::unavailable::Unavailable;

/// libcuda, initialized.
///
/// # Errors
///
/// [`Unavailable::NoDriver`] or [`Unavailable::MissingFunction`] where it cannot be loaded, [`Unavailable::Driver`] where
/// `cuInit` fails: no device, or a driver that does not match its kernel module.
pub fn driver() -> Result<&'static Driver, Unavailable> {
    static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    let loaded = DRIVER.get_or_init(|| {
        // SAFETY: opens and closes libcuda, whose initializers may run at any time.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(Unavailable::NoDriver { tried: candidates(&["cuda", "nvcuda"]) });
        }
        // SAFETY: just found to be present.
        let driver = unsafe { Driver::load() }
            .map_err(|function| Unavailable::MissingFunction { library: "libcuda", function })?;
        // SAFETY: takes a number.
        unsafe { driver.c.cuInit(0) }?;
        Ok(driver)
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// libcublasLt. Needs no driver: descriptors can be built without one.
///
/// # Errors
///
/// [`Unavailable::NoCublasLt`] or [`Unavailable::MissingFunction`].
pub fn cublaslt() -> Result<&'static Lt, Unavailable> {
    static LT: OnceLock<Result<Lt, Unavailable>> = OnceLock::new();
    let loaded = LT.get_or_init(|| {
        // SAFETY: opens and closes libcublasLt, whose initializers may run at any time.
        if !unsafe { cudarc::cublaslt::sys::is_culib_present() } {
            return Err(Unavailable::NoCublasLt { tried: candidates(&["cublasLt"]) });
        }
        // SAFETY: just found to be present.
        unsafe { Lt::load() }
            .map_err(|function| Unavailable::MissingFunction { library: "libcublasLt", function })
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// Checks that NVRTC is there, which compiles CubeCL's kernels. Products need none.
///
/// # Errors
///
/// [`Unavailable::NoNvrtc`].
pub fn require_nvrtc() -> Result<(), Unavailable> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens and closes libnvrtc, whose initializers may run at any time.
    match PRESENT.get_or_init(|| unsafe { cudarc::nvrtc::sys::is_culib_present() }) {
        true => Ok(()),
        false => Err(Unavailable::NoNvrtc { tried: candidates(&["nvrtc"]) }),
    }
}

/// The file names that cudarc looks for, in its order.
fn candidates(names: &[&str]) -> Vec<String> {
    let mut candidates: Vec<String> = Vec::new();
    for candidate in names.iter().flat_map(|name| cudarc::get_lib_name_candidates(name)) {
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    candidates
}
