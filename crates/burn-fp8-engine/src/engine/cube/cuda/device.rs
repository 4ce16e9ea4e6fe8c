//! What CUDA devices can do: asked of the driver once for each.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::cubecl::cuda::CudaDevice;
use burn_cubecl::cubecl::cuda::install::cuda_path;
use burn_fp8_cublaslt::CublasLt;

use crate::engine::capability::{Capability, Fallback, NativeDevice};

static CAPABILITIES: Mutex<Option<HashMap<usize, Capability>>> = Mutex::new(None);

/// What a device can do in FP8.
pub(in crate::engine::cube) fn capability(device: &CudaDevice) -> Capability {
    let mut known = CAPABILITIES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    known.entry(device.index).or_insert_with(|| probe(device.index)).clone()
}

fn probe(index: usize) -> Capability {
    let ordinal = u32::try_from(index).unwrap_or(u32::MAX);
    if burn_fp8_cublaslt::require_device(ordinal).is_ok()
        && let Err(reason) = require_compiler()
    {
        return Capability::Unusable { reason };
    }
    match burn_fp8_cublaslt::Capability::probe(ordinal) {
        Ok(found) => {
            let device = NativeDevice {
                name: name(index).unwrap_or_else(|| "a device without a name".into()),
                compute_capability: (found.compute.major, found.compute.minor),
                driver: (found.driver.major, found.driver.minor),
                cublaslt: found.library.to_string(),
            };
            Capability::Native(Arc::new(device))
        }
        Err(unavailable) => Capability::FakeQuantized { reason: unavailable.to_string().into() },
    }
}

/// Whether CubeCL can compile kernels. Where it cannot, its thread panics at each of them, and tensors are read as if they had been computed.
fn require_compiler() -> Result<(), Cow<'static, str>> {
    burn_fp8_cublaslt::library::require_nvrtc().map_err(|missing| missing.to_string())?;
    const HEADER: &str = "include/cuda_runtime.h";
    const REMEDY: &str = "install the CUDA toolkit, or set CUDA_PATH to the folder that has it";
    let folder = match cuda_path() {
        Some(folder) if folder.join(HEADER).is_file() => return Ok(()),
        Some(folder) => format!("there is no {HEADER} in {}", folder.display()),
        None => format!("no {HEADER} was found"),
    };
    Err(format!("the headers of CUDA, which kernels include, are missing: {folder}; {REMEDY}")
        .into())
}

fn name(index: usize) -> Option<String> {
    let driver = burn_fp8_cublaslt::library::driver().ok()?;
    driver.device_name(driver.device(i32::try_from(index).ok()?).ok()?).ok()
}

/// cuBLASLt on a device, or why it cannot be set up.
type Library = Result<Arc<CublasLt>, Arc<str>>;

static LIBRARIES: Mutex<Option<HashMap<usize, Library>>> = Mutex::new(None);

/// cuBLASLt for the context that is current to this thread, which is that of the device.
///
/// Set up once, by the first product: one that failed, for want of memory perhaps, is not tried again.
pub(super) fn cublaslt(device: usize) -> Result<Arc<CublasLt>, Fallback> {
    let mut known = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let library = known.get_or_insert_default().entry(device).or_insert_with(|| {
        CublasLt::current().map(Arc::new).map_err(|error| error.to_string().into())
    });
    library.clone().map_err(Fallback::Setup)
}
