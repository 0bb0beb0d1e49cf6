//! Streams of a device, on which copies and kernels take place in order, and events in them.

use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Argument, BRIEF, Context, Kernel, Memory, PageLocked};
use super::driver::Handle;
use crate::device::Fault;

/// A stream that does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// An event without a time.
const DISABLE_TIMING: c_uint = 2;

/// An order of copies and kernels on a device.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles can be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// Creates a stream.
    pub(super) fn open(context: &Arc<Context>) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is valid.
        context.check("cuStreamCreate", unsafe { (functions.stream_create)(&raw mut handle, NON_BLOCKING) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Copies bytes to a device.
    ///
    /// # Safety
    ///
    /// Nobody may change or free the bytes until the stream is behind the copy.
    pub(super) unsafe fn send(&self, bytes: &[u8], to: &Memory, at: usize) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (functions, address) = (self.context.enter()?, to.from(at, bytes.len()));
        // SAFETY: both have that length; the caller keeps the bytes.
        let code = unsafe { (functions.to_device_later)(address, bytes.as_ptr().cast(), bytes.len(), self.handle) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies the first `len` bytes of a device's memory.
    ///
    /// # Safety
    ///
    /// Nobody may use the bytes until the stream is behind the copy.
    pub(super) unsafe fn fetch(&self, from: &Memory, len: usize, to: &mut PageLocked) -> Result<(), Fault> {
        let (functions, address) = (self.context.enter()?, from.from(0, len));
        assert!(len <= to.len(), "{len} of {} bytes", to.len());
        // SAFETY: both have that length; the caller keeps the bytes.
        let code = unsafe { (functions.from_device_later)(to.as_mut_ptr().cast(), address, len, self.handle) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Fills the first `len` bytes of a device's memory.
    pub(super) fn fill(&self, memory: &Memory, byte: u8, len: usize) -> Result<(), Fault> {
        let (functions, address) = (self.context.enter()?, memory.from(0, len));
        // SAFETY: the memory has that length.
        let code = unsafe { (functions.fill_later)(address, byte, len, self.handle) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// Starts a kernel.
    ///
    /// # Safety
    ///
    /// The arguments must be what the kernel takes, and the memory must be as large as it uses, until the stream is behind the kernel.
    pub(super) unsafe fn launch(
        &self,
        kernel: &Kernel,
        shape: (u32, u32),
        arguments: &[Argument<'_>],
    ) -> Result<(), Fault> {
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.context.start(self.handle, kernel, shape, arguments) }
    }

    /// Returns true if the device has not answered and may still use what was on the stream.
    pub(super) fn is_hung(&self) -> bool {
        self.context.is_hung()
    }

    /// Waits for everything on the stream.
    pub(super) fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: the stream exists.
        self.context.wait("cuStreamQuery", (BRIEF, Duration::ZERO), |functions| unsafe {
            (functions.stream_query)(self.handle)
        })
    }

    /// Places an event behind everything on the stream so far.
    pub(super) fn record(&self, event: &Event) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: both exist.
        self.context.check("cuEventRecord", unsafe { (functions.event_record)(event.handle, self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(functions) = self.context.enter_to_free() else { return };
        // SAFETY: the stream is not used after this.
        unsafe { (functions.stream_destroy)(self.handle) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles can be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// Creates an event.
    pub(super) fn open(context: &Arc<Context>) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is valid.
        context.check("cuEventCreate", unsafe { (functions.event_create)(&raw mut handle, DISABLE_TIMING) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Returns true if the stream is behind the event.
    pub(super) fn is_behind(&self) -> Result<bool, Fault> {
        let functions = self.context.enter()?;
        // SAFETY: the event exists.
        self.context.driver.answer("cuEventQuery", unsafe { (functions.event_query)(self.handle) })
    }

    /// Waits until the stream is behind the event.
    pub(super) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the event exists.
        self.context
            .wait("cuEventQuery", (BRIEF, Duration::ZERO), |functions| unsafe { (functions.event_query)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(functions) = self.context.enter_to_free() else { return };
        // SAFETY: the event is not used after this.
        unsafe { (functions.event_destroy)(self.handle) };
    }
}
