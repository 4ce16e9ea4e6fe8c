//! The driver API, libcuda: contexts, streams, events, memory.
//!
//! Reference: <https://docs.nvidia.com/cuda/cuda-driver-api/index.html>. All functions but the first few need a context that is
//! current to the calling thread.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;

use super::{function_table, written};

/// `CUcontext`.
pub type Context = *mut c_void;
/// `CUstream`, the same as `cudaStream_t`.
pub type Stream = *mut c_void;
/// `CUevent`.
pub type Event = *mut c_void;
/// `CUdevice`.
pub type Device = c_int;
/// `CUdeviceptr`: an address on the device.
pub type DevicePointer = u64;

function_table! {
    /// Functions that every driver since CUDA 11 has.
    Functions in cudarc::driver::sys::culib(), failing with DriverError;
    /// May be called again.
    cuInit(flags: c_uint);
    /// The newest CUDA that the driver supports, as 1000 · major + 10 · minor.
    cuDriverGetVersion(version: *mut c_int);
    /// A static string, or null for a code that the driver does not know.
    cuGetErrorName(code: c_int, name: *mut *const c_char);
    /// Needs `cuInit`.
    cuDeviceGetCount(count: *mut c_int);
    /// Needs `cuInit`.
    cuDeviceGet(device: *mut Device, ordinal: c_int);
    /// At most `length` bytes.
    cuDeviceGetName(name: *mut c_char, length: c_int, device: Device);
    /// An attribute of a device.
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: Device);
    /// The context stays alive until it is released as often as retained.
    cuDevicePrimaryCtxRetain(context: *mut Context, device: Device);
    /// Undoes one `cuDevicePrimaryCtxRetain`.
    cuDevicePrimaryCtxRelease_v2(device: Device);
    /// Null if no context is current.
    cuCtxGetCurrent(context: *mut Context);
    /// The device of the current context.
    cuCtxGetDevice(device: *mut Device);
    /// Makes a context current.
    cuCtxPushCurrent_v2(context: Context);
    /// Makes the context current that was so before.
    cuCtxPopCurrent_v2(context: *mut Context);
    /// Waits for all work of the current context.
    cuCtxSynchronize();
    /// A stream in the current context.
    cuStreamCreate(stream: *mut Stream, flags: c_uint);
    /// Returns at once, the stream's work is finished first.
    cuStreamDestroy_v2(stream: Stream);
    /// Waits for all work of a stream.
    cuStreamSynchronize(stream: Stream);
    /// What is enqueued later waits for what the event has captured.
    cuStreamWaitEvent(stream: Stream, event: Event, flags: c_uint);
    /// An event in the current context.
    cuEventCreate(event: *mut Event, flags: c_uint);
    /// May be called while waits for the event are pending.
    cuEventDestroy_v2(event: Event);
    /// Event and stream are of one context.
    cuEventRecord(event: Event, stream: Stream);
    /// Aligned for any type, in practice to 256 bytes or more; `bytes` must not be 0.
    cuMemAlloc_v2(pointer: *mut DevicePointer, bytes: usize);
    /// Waits for the device.
    cuMemFree_v2(pointer: DevicePointer);
}

function_table! {
    /// Functions that drivers have since CUDA 12.5.
    ContextEvents in cudarc::driver::sys::culib(), failing with DriverError;
    /// As in [`Functions`].
    cuGetErrorName(code: c_int, name: *mut *const c_char);
    /// The event, which was made in this context, captures all work of the context.
    cuCtxRecordEvent(context: Context, event: Event);
    /// All future work of the context waits for what the event has captured.
    cuCtxWaitEvent(context: Context, event: Event);
}

impl Functions {
    fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        DriverError::check(self.cuGetErrorName, call, code)
    }
}

impl ContextEvents {
    fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        DriverError::check(self.cuGetErrorName, call, code)
    }
}

/// A call of the driver API that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({code})")]
pub struct DriverError {
    /// The function.
    pub call: &'static str,
    /// Its `CUresult`.
    pub code: i32,
    /// The name of that result, as the driver gives it.
    pub name: String,
}

impl DriverError {
    fn check(
        name_of: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
        call: &'static str,
        code: c_int,
    ) -> Result<(), Self> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: writes a pointer to a static string, or null for a code that it does not know.
        let known = unsafe { name_of(code, &raw mut name) } == 0;
        let name = if known && !name.is_null() {
            // SAFETY: the driver returned a static, nul-terminated string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown".to_owned()
        };
        Err(Self { call, code, name })
    }
}

/// libcuda, loaded.
#[derive(Debug)]
pub struct Driver {
    /// What every driver has.
    pub c: Functions,
    /// What drivers have since CUDA 12.5.
    pub context_events: Option<ContextEvents>,
}

impl Driver {
    /// Finds the functions, or names the one that is missing.
    ///
    /// # Safety
    ///
    /// libcuda must be present: cudarc panics otherwise.
    pub(crate) unsafe fn load() -> Result<Self, &'static str> {
        // SAFETY: the caller vouches for the library.
        unsafe { Ok(Self { c: Functions::load()?, context_events: ContextEvents::load().ok() }) }
    }

    /// `cuDriverGetVersion`: the newest CUDA that the driver supports, as 1000 · major + 10 · minor.
    pub fn version(&self) -> Result<i32, DriverError> {
        // SAFETY: writes one number.
        written(0, |version| unsafe { self.c.cuDriverGetVersion(version) })
    }

    /// `cuDeviceGetCount`.
    pub fn device_count(&self) -> Result<i32, DriverError> {
        // SAFETY: writes one number.
        written(0, |count| unsafe { self.c.cuDeviceGetCount(count) })
    }

    /// `cuDeviceGet`.
    pub fn device(&self, ordinal: i32) -> Result<Device, DriverError> {
        // SAFETY: writes one number.
        written(0, |device| unsafe { self.c.cuDeviceGet(device, ordinal) })
    }

    /// `cuDeviceGetName`.
    pub fn device_name(&self, device: Device) -> Result<String, DriverError> {
        // SAFETY: the driver writes at most 255 bytes.
        let name = written([0 as c_char; 256], |name| unsafe {
            self.c.cuDeviceGetName(name.cast(), 255, device)
        })?;
        // SAFETY: the array was zeroed and 255 bytes of it may have been written, so a nul ends the string within it.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// `cuDeviceGetAttribute`.
    pub fn device_attribute(&self, device: Device, attribute: i32) -> Result<i32, DriverError> {
        // SAFETY: writes one number.
        written(0, |value| unsafe { self.c.cuDeviceGetAttribute(value, attribute, device) })
    }

    /// `cuCtxGetCurrent`: null if no context is current.
    pub fn current_context(&self) -> Result<Context, DriverError> {
        // SAFETY: writes one handle.
        written(ptr::null_mut(), |context| unsafe { self.c.cuCtxGetCurrent(context) })
    }
}
