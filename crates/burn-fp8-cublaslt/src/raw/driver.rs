//! The driver API, libcuda: contexts, streams, events, memory.
//!
//! Reference: <https://docs.nvidia.com/cuda/cuda-driver-api/index.html>. All functions but the first few need a context that is
//! current to the calling thread.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use super::table::function_table;

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
    Functions in cudarc::driver::sys::culib();
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut Device, c_int);
    cuDeviceGetName(*mut c_char, c_int, Device);
    cuDeviceGetAttribute(*mut c_int, c_int, Device);
    cuDevicePrimaryCtxRetain(*mut Context, Device);
    cuDevicePrimaryCtxRelease_v2(Device);
    cuCtxGetCurrent(*mut Context);
    cuCtxGetDevice(*mut Device);
    cuCtxPushCurrent_v2(Context);
    cuCtxPopCurrent_v2(*mut Context);
    cuCtxSynchronize();
    cuStreamCreate(*mut Stream, c_uint);
    cuStreamDestroy_v2(Stream);
    cuStreamSynchronize(Stream);
    cuStreamWaitEvent(Stream, Event, c_uint);
    cuEventCreate(*mut Event, c_uint);
    cuEventDestroy_v2(Event);
    cuEventRecord(Event, Stream);
    cuEventSynchronize(Event);
    cuEventElapsedTime(*mut f32, Event, Event);
    cuMemAlloc_v2(*mut DevicePointer, usize);
    cuMemFree_v2(DevicePointer);
}

function_table! {
    /// Functions that drivers have since CUDA 12.5.
    ContextEvents in cudarc::driver::sys::culib();
    cuCtxRecordEvent(Context, Event);
    cuCtxWaitEvent(Context, Event);
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

/// libcuda, loaded.
#[derive(Debug)]
pub struct Driver {
    functions: Functions,
    context_events: Option<ContextEvents>,
}

/// Calls a function of the table and turns its `CUresult` into a `Result`.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the caller keeps the contract of the enclosing wrapper, which is that of the C function.
        let code = unsafe { ($driver.functions.$name)($($argument),*) };
        $driver.check(stringify!($name), code)
    }};
}

impl Driver {
    /// Finds the functions, or names the one that is missing.
    ///
    /// # Safety
    ///
    /// libcuda must be present: cudarc panics otherwise.
    pub(crate) unsafe fn load() -> Result<Self, &'static str> {
        // SAFETY: the caller vouches for the library.
        let functions = unsafe { Functions::load() }?;
        // SAFETY: as above.
        let context_events = unsafe { ContextEvents::load() }.ok();
        Ok(Self { functions, context_events })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: writes a pointer to a static string, or null for a code that it does not know.
        let known = unsafe { (self.functions.cuGetErrorName)(code, &raw mut name) } == 0;
        let name = if known && !name.is_null() {
            // SAFETY: the driver returned a static, nul-terminated string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown".to_owned()
        };
        Err(DriverError { call, code, name })
    }

    /// [`cuInit`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html). May be called again.
    pub fn init(&self) -> Result<(), DriverError> {
        call!(self, cuInit(0))
    }

    /// `cuDriverGetVersion`: the newest CUDA that the driver supports, as 1000 · major + 10 · minor.
    pub fn version(&self) -> Result<i32, DriverError> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&raw mut version))?;
        Ok(version)
    }

    /// `cuDeviceGetCount`. Needs [`init`](Self::init).
    pub fn device_count(&self) -> Result<i32, DriverError> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&raw mut count))?;
        Ok(count)
    }

    /// [`cuDeviceGet`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html). Needs [`init`](Self::init).
    pub fn device(&self, ordinal: i32) -> Result<Device, DriverError> {
        let mut device = 0;
        call!(self, cuDeviceGet(&raw mut device, ordinal))?;
        Ok(device)
    }

    /// `cuDeviceGetName`.
    pub fn device_name(&self, device: Device) -> Result<String, DriverError> {
        let mut name = [0 as c_char; 256];
        call!(self, cuDeviceGetName(name.as_mut_ptr(), 255, device))?;
        // SAFETY: the array was zeroed and the driver wrote at most 255 bytes, so a nul ends the string within it.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// `cuDeviceGetAttribute`.
    pub fn device_attribute(&self, device: Device, attribute: i32) -> Result<i32, DriverError> {
        let mut value = 0;
        call!(self, cuDeviceGetAttribute(&raw mut value, attribute, device))?;
        Ok(value)
    }

    /// [`cuDevicePrimaryCtxRetain`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PRIMARY__CTX.html): the context
    /// stays alive until it is released as often as retained.
    pub fn retain_primary(&self, device: Device) -> Result<Context, DriverError> {
        let mut context = ptr::null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        Ok(context)
    }

    /// `cuDevicePrimaryCtxRelease`.
    ///
    /// # Safety
    ///
    /// Undoes one `retain_primary` of the same device; nothing that lives in the context is used afterwards on its account.
    pub unsafe fn release_primary(&self, device: Device) -> Result<(), DriverError> {
        call!(self, cuDevicePrimaryCtxRelease_v2(device))
    }

    /// `cuCtxGetCurrent`: null if no context is current.
    pub fn current_context(&self) -> Result<Context, DriverError> {
        let mut context = ptr::null_mut();
        call!(self, cuCtxGetCurrent(&raw mut context))?;
        Ok(context)
    }

    /// `cuCtxGetDevice`: the device of the current context.
    pub fn current_device(&self) -> Result<Device, DriverError> {
        let mut device = 0;
        call!(self, cuCtxGetDevice(&raw mut device))?;
        Ok(device)
    }

    /// `cuCtxPushCurrent`.
    ///
    /// # Safety
    ///
    /// `context` is alive.
    pub unsafe fn push(&self, context: Context) -> Result<(), DriverError> {
        call!(self, cuCtxPushCurrent_v2(context))
    }

    /// `cuCtxPopCurrent`.
    pub fn pop(&self) -> Result<(), DriverError> {
        let mut context = ptr::null_mut();
        call!(self, cuCtxPopCurrent_v2(&raw mut context))
    }

    /// `cuCtxSynchronize`: waits for all work of the current context.
    pub fn synchronize_context(&self) -> Result<(), DriverError> {
        call!(self, cuCtxSynchronize())
    }

    /// Whether the driver has `cuCtxRecordEvent` and `cuCtxWaitEvent` (CUDA 12.5).
    pub fn has_context_events(&self) -> bool {
        self.context_events.is_some()
    }

    /// [`cuCtxRecordEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html). `None` on an older driver.
    ///
    /// # Safety
    ///
    /// `context` and `event` are alive, and `event` was made in `context`.
    pub unsafe fn context_record_event(
        &self,
        context: Context,
        event: Event,
    ) -> Option<Result<(), DriverError>> {
        let events = self.context_events.as_ref()?;
        // SAFETY: the caller vouches for both handles.
        let code = unsafe { (events.cuCtxRecordEvent)(context, event) };
        Some(self.check("cuCtxRecordEvent", code))
    }

    /// [`cuCtxWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html). `None` on an older driver.
    ///
    /// # Safety
    ///
    /// `context` and `event` are alive.
    pub unsafe fn context_wait_event(
        &self,
        context: Context,
        event: Event,
    ) -> Option<Result<(), DriverError>> {
        let events = self.context_events.as_ref()?;
        // SAFETY: the caller vouches for both handles.
        let code = unsafe { (events.cuCtxWaitEvent)(context, event) };
        Some(self.check("cuCtxWaitEvent", code))
    }

    /// [`cuStreamCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) in the current context.
    pub fn create_stream(&self, flags: u32) -> Result<Stream, DriverError> {
        let mut stream = ptr::null_mut();
        call!(self, cuStreamCreate(&raw mut stream, flags))?;
        Ok(stream)
    }

    /// `cuStreamDestroy`: returns at once, the stream's work is finished first.
    ///
    /// # Safety
    ///
    /// `stream` is alive and not used afterwards.
    pub unsafe fn destroy_stream(&self, stream: Stream) -> Result<(), DriverError> {
        call!(self, cuStreamDestroy_v2(stream))
    }

    /// `cuStreamSynchronize`.
    ///
    /// # Safety
    ///
    /// `stream` is alive.
    pub unsafe fn synchronize_stream(&self, stream: Stream) -> Result<(), DriverError> {
        call!(self, cuStreamSynchronize(stream))
    }

    /// `cuStreamWaitEvent`.
    ///
    /// # Safety
    ///
    /// `stream` and `event` are alive.
    pub unsafe fn stream_wait_event(
        &self,
        stream: Stream,
        event: Event,
    ) -> Result<(), DriverError> {
        call!(self, cuStreamWaitEvent(stream, event, 0))
    }

    /// [`cuEventCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) in the current context.
    pub fn create_event(&self, flags: u32) -> Result<Event, DriverError> {
        let mut event = ptr::null_mut();
        call!(self, cuEventCreate(&raw mut event, flags))?;
        Ok(event)
    }

    /// `cuEventDestroy`: may be called while waits for the event are pending.
    ///
    /// # Safety
    ///
    /// `event` is alive and not used afterwards.
    pub unsafe fn destroy_event(&self, event: Event) -> Result<(), DriverError> {
        call!(self, cuEventDestroy_v2(event))
    }

    /// `cuEventRecord`.
    ///
    /// # Safety
    ///
    /// `event` and `stream` are alive and of one context.
    pub unsafe fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        call!(self, cuEventRecord(event, stream))
    }

    /// `cuEventSynchronize`.
    ///
    /// # Safety
    ///
    /// `event` is alive.
    pub unsafe fn synchronize_event(&self, event: Event) -> Result<(), DriverError> {
        call!(self, cuEventSynchronize(event))
    }

    /// `cuEventElapsedTime`, in milliseconds.
    ///
    /// # Safety
    ///
    /// Both events are alive, were made with timing and have completed.
    pub unsafe fn elapsed_ms(&self, start: Event, end: Event) -> Result<f32, DriverError> {
        let mut ms = 0.0;
        call!(self, cuEventElapsedTime(&raw mut ms, start, end))?;
        Ok(ms)
    }

    /// [`cuMemAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html) in the current context: aligned for any
    /// type, in practice to 256 bytes or more; `bytes` must not be 0.
    pub fn allocate(&self, bytes: usize) -> Result<DevicePointer, DriverError> {
        let mut pointer = MaybeUninit::zeroed();
        call!(self, cuMemAlloc_v2(pointer.as_mut_ptr(), bytes))?;
        // SAFETY: zeroed, and written by the call that succeeded.
        Ok(unsafe { pointer.assume_init() })
    }

    /// `cuMemFree`: waits for the device.
    ///
    /// # Safety
    ///
    /// `pointer` comes from [`allocate`](Self::allocate) in the current context and is not used afterwards.
    pub unsafe fn free(&self, pointer: DevicePointer) -> Result<(), DriverError> {
        call!(self, cuMemFree_v2(pointer))
    }
}
