//! A stream beside those of a framework that keeps its own to itself, ordered with all of them by events.
//!
//! CubeCL's streams are private and non-blocking, so work of ours cannot be enqueued on them. Instead:
//!
//! ```text
//! all streams of the context ──┐ cuCtxRecordEvent(arrive)        ┌── all streams of the context
//!                              └─ cuStreamWaitEvent ─ work ─ cuEventRecord(leave) ─ cuCtxWaitEvent ─┘
//! ```
//!
//! What the documentation of the driver API (13.0, "Context Management", "Event Management") says, and what follows:
//!
//! - `cuCtxRecordEvent` "captures in hEvent all the activities of the context hCtx at the time of this call"; for a primary context its
//!   green contexts too. Event and context must be of one context. So the work waits for all streams, not only for those that made its
//!   inputs: work that the framework meant to overlap does not overlap with it.
//! - `cuCtxWaitEvent` makes "all future work submitted to context hCtx wait", that of streams made later too. Both return at once on the
//!   host.
//! - Both fail with `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and invalidate the capture, while a stream of the context is being captured into a
//!   graph. The error is returned.
//! - One pair of events serves all calls: `cuEventRecord` "can be called multiple times on the same event and will overwrite the previously
//!   captured state. Other APIs such as cuStreamWaitEvent() use the most recently captured state at the time of the API call, and are not
//!   affected by later calls".
//! - Launches that a framework has not submitted yet are not captured: it must have enqueued what makes the inputs.
#![allow(unsafe_code, reason = "owns a stream and events, passes them to the driver")]

use std::ptr;
use std::sync::Arc;

use crate::context::PrimaryContext;
use crate::error::Error;
use crate::raw::constants as c;
use crate::raw::driver::{Driver, DriverError, Event, Stream};
use crate::raw::written;

/// How products are ordered with the other streams of their context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ordering {
    /// By events, on the device. Drivers since CUDA 12.5. The host does not wait for the device, but in two cases: an algorithm runs for
    /// the first time, since loading its kernels "might require context synchronization" (CUDA C++ Programming Guide, "Lazy
    /// Loading"); and ordering fails, see `SideStream::before_context`.
    Events,
    /// The host waits for the context before each product, and for the product itself.
    Synchronize,
}

/// An own non-blocking stream with a pair of events without timing.
#[derive(Debug)]
pub(crate) struct SideStream {
    context: Arc<PrimaryContext>,
    stream: Stream,
    arrive: OwnedEvent,
    leave: OwnedEvent,
    ordering: Ordering,
}

// SAFETY: stream and events may be used from any thread; the driver API is thread-safe.
unsafe impl Send for SideStream {}
// SAFETY: as above.
unsafe impl Sync for SideStream {}

impl SideStream {
    /// Makes a stream in `context`, which must be current.
    pub(crate) fn new(context: Arc<PrimaryContext>) -> Result<Self, Error> {
        context.check_current()?;
        let arrive = OwnedEvent::new(&context)?;
        let leave = OwnedEvent::new(&context)?;
        let driver = context.driver();
        // SAFETY: the context is current; writes one handle.
        let stream = written(ptr::null_mut(), |stream| unsafe {
            driver.c.cuStreamCreate(stream, c::CU_STREAM_NON_BLOCKING)
        })?;
        let ordering = match driver.context_events {
            Some(_) => Ordering::Events,
            None => Ordering::Synchronize,
        };
        Ok(Self { context, stream, arrive, leave, ordering })
    }

    /// Orders as drivers older than CUDA 12.5 have to, which every driver can.
    pub(crate) fn synchronize_always(&mut self) {
        self.ordering = Ordering::Synchronize;
    }

    /// The C handle, which lives as long as this value.
    pub(crate) fn raw(&self) -> Stream {
        self.stream
    }

    /// How [`after_context`](Self::after_context) and [`before_context`](Self::before_context) order: by what the driver can do.
    pub(crate) fn ordering(&self) -> Ordering {
        self.ordering
    }

    /// What is enqueued on this stream from now on runs after everything that was submitted to the context before.
    pub(crate) fn after_context(&self) -> Result<(), Error> {
        self.context.check_current()?;
        let driver = self.driver();
        match (self.ordering, &driver.context_events) {
            (Ordering::Events, Some(events)) => {
                // SAFETY: the context is held alive; the event is ours, alive and of this context, and so is the stream.
                unsafe { events.cuCtxRecordEvent(self.context.raw(), self.arrive.raw) }?;
                // SAFETY: as above.
                unsafe { driver.c.cuStreamWaitEvent(self.stream, self.arrive.raw, 0) }?;
            }
            // SAFETY: takes no argument.
            _ => unsafe { driver.c.cuCtxSynchronize() }?,
        }
        Ok(())
    }

    /// What is submitted to the context from now on runs after everything that was enqueued on this stream before. If ordering by events
    /// fails, the host waits for the stream before this returns.
    pub(crate) fn before_context(&self) -> Result<(), Error> {
        self.context.check_current()?;
        let driver = self.driver();
        let (Ordering::Events, Some(events)) = (self.ordering, &driver.context_events) else {
            return Ok(self.synchronize()?);
        };
        // SAFETY: event and stream are ours, alive and of one context.
        let ordered = unsafe { driver.c.cuEventRecord(self.leave.raw, self.stream) }
            // SAFETY: the context is held alive, the event is ours.
            .and_then(|()| unsafe { events.cuCtxWaitEvent(self.context.raw(), self.leave.raw) });
        if ordered.is_err() {
            self.synchronize()?;
        }
        Ok(ordered?)
    }

    /// The host waits until everything on this stream has run.
    fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is ours and alive.
        unsafe { self.driver().c.cuStreamSynchronize(self.stream) }
    }

    fn driver(&self) -> &'static Driver {
        self.context.driver()
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        self.context.enter(|driver| {
            // SAFETY: made in this context, destroyed once; pending work is finished by the driver.
            let _ = unsafe { driver.c.cuStreamDestroy_v2(self.stream) };
        });
    }
}

/// An event without timing, destroyed with its owner.
#[derive(Debug)]
struct OwnedEvent {
    context: Arc<PrimaryContext>,
    raw: Event,
}

impl OwnedEvent {
    /// The context must be current.
    fn new(context: &Arc<PrimaryContext>) -> Result<Self, DriverError> {
        // SAFETY: writes one handle.
        let raw = written(ptr::null_mut(), |event| unsafe {
            context.driver().c.cuEventCreate(event, c::CU_EVENT_DISABLE_TIMING)
        })?;
        Ok(Self { context: Arc::clone(context), raw })
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        self.context.enter(|driver| {
            // SAFETY: made in this context, destroyed once; pending waits are completed by the driver.
            let _ = unsafe { driver.c.cuEventDestroy_v2(self.raw) };
        });
    }
}
