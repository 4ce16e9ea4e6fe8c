//! The CUDA context that everything lives in, and the workspace.
#![allow(unsafe_code, reason = "owns a reference to a CUDA context, and device memory")]

use std::ptr;
use std::sync::Arc;

use crate::error::{ContextError, Error};
use crate::library;
use crate::raw::driver::{self, Device, DevicePointer, Driver};
use crate::raw::written;

/// A reference to the primary context of a device: the context lives at least as long as this.
#[derive(Debug)]
pub(crate) struct PrimaryContext {
    driver: &'static Driver,
    device: Device,
    raw: driver::Context,
}

// SAFETY: a context may be used from any thread; the driver API is thread-safe.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// The context that is current to the calling thread.
    pub(crate) fn current() -> Result<Arc<Self>, Error> {
        let driver = library::driver()?;
        let current = driver.current_context()?;
        if current.is_null() {
            return Err(ContextError::NoneCurrent.into());
        }
        // SAFETY: each writes one handle.
        let device = written(0, |device| unsafe { driver.c.cuCtxGetDevice(device) })?;
        // SAFETY: as above.
        let raw = written(ptr::null_mut(), |context| unsafe {
            driver.c.cuDevicePrimaryCtxRetain(context, device)
        })?;
        // Dropped, and so released, if it is not the right one.
        let context = Self { driver, device, raw };
        if raw == current { Ok(Arc::new(context)) } else { Err(ContextError::NotPrimary.into()) }
    }

    /// Fails unless this context is current to the calling thread.
    pub(crate) fn check_current(&self) -> Result<(), Error> {
        match self.driver.current_context()? {
            current if current == self.raw => Ok(()),
            current if current.is_null() => Err(ContextError::NoneCurrent.into()),
            _ => Err(ContextError::Other.into()),
        }
    }

    /// The driver.
    pub(crate) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The device.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The C handle, which lives as long as this value.
    pub(crate) fn raw(&self) -> driver::Context {
        self.raw
    }

    /// Runs `work` with this context current, whatever was current before. Does nothing if the driver refuses, as it does while a
    /// process ends: then the driver has freed everything itself.
    pub(crate) fn enter(&self, work: impl FnOnce(&Driver)) {
        // SAFETY: this value holds a reference to the context.
        if unsafe { self.driver.c.cuCtxPushCurrent_v2(self.raw) }.is_ok() {
            work(self.driver);
            // SAFETY: pops what was pushed above; a failure leaves the context current, which harms nobody.
            let mut popped = ptr::null_mut();
            let _ = unsafe { self.driver.c.cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: undoes the retain of `current`; everything that lives in the context holds an Arc of this value.
        let _ = unsafe { self.driver.c.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Device memory that algorithms write intermediate results to. Used on one stream, so never by two products at a time.
#[derive(Debug)]
pub(crate) struct Workspace {
    context: Arc<PrimaryContext>,
    pointer: DevicePointer,
    bytes: usize,
}

/// The alignment that cuBLASLt asks of a workspace.
const WORKSPACE_ALIGNMENT: u64 = 256;

impl Workspace {
    /// Allocates; none for 0 bytes. The context must be current.
    pub(crate) fn new(context: Arc<PrimaryContext>, bytes: usize) -> Result<Self, Error> {
        context.check_current()?;
        let pointer = match bytes {
            0 => 0,
            // SAFETY: writes one address.
            _ => written(0, |to| unsafe { context.driver.c.cuMemAlloc_v2(to, bytes) })?,
        };
        let workspace = Self { context, pointer, bytes };
        // cuMemAlloc documents "suitably aligned for any kind of variable"; in practice 512.
        if !pointer.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Err(Error::Alignment { pointer });
        }
        Ok(workspace)
    }

    /// Address and bytes.
    pub(crate) fn raw(&self) -> (DevicePointer, usize) {
        (self.pointer, self.bytes)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.pointer != 0 {
            self.context.enter(|driver| {
                // SAFETY: allocated in this context, freed once; cuMemFree waits for work that uses it.
                let _ = unsafe { driver.c.cuMemFree_v2(self.pointer) };
            });
        }
    }
}
