//! Kernels on a device, its memory and its streams: types that free what they hold.
//!
//! The driver has a current context for each thread of the process. Every method makes its context the current one first, so that the types
//! can go from thread to thread.
//!
//! A driver that waits for a device that hangs may wait forever. So nothing here waits in the driver: a thread asks again and again,
//! for [`Driver::answer_max`] at most. Once a device has not answered, no function of the driver is called any more, and what it may
//! still use is never freed.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::driver::{Driver, Functions, Handle};
use crate::device::{Fault, FaultKind};

/// Page-locked memory of any context.
const PORTABLE: c_uint = 1;
/// A stream that does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// An event without a time.
const DISABLE_TIMING: c_uint = 2;
/// Pause between two questions whether work is done. A batch takes some hundred microseconds at least, and several are in flight.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a thread that runs a single kernel asks without a pause: such kernels are measured.
const EAGER: Duration = Duration::from_millis(5);

/// Kernels on a device, in the context that the process shares.
pub(super) struct Context {
    driver: Arc<Driver>,
    device: c_int,
    handle: Handle,
    module: Handle,
    /// The device has not answered.
    is_hung: AtomicBool,
}

// SAFETY: the driver's functions can be called from any thread once the context is the current one there, which each method ensures.
unsafe impl Send for Context {}
// SAFETY: as above; the driver serializes calls.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_hung() {
            // Unloading the library could wait, too.
            std::mem::forget(Arc::clone(&self.driver));
            return;
        }
        let functions = &self.driver.functions;
        // SAFETY: nothing of the context is used after this. Errors leave nothing to do.
        unsafe {
            (functions.set_current)(self.handle);
            if !self.module.is_null() {
                (functions.unload)(self.module);
            }
            (functions.set_current)(ptr::null_mut());
            (functions.release)(self.device);
        }
    }
}

/// An argument of a kernel: the address of memory, or a number.
pub(super) enum Argument<'a> {
    Memory(&'a Memory),
    /// Memory from a byte on.
    From(&'a Memory, usize),
    Word(u32),
    Long(u64),
}

/// A type without padding for which any bytes are a value.
///
/// # Safety
///
/// Both must be true.
pub(super) unsafe trait Plain: Copy + Default {}
// SAFETY: numbers are.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

impl Context {
    /// Loads kernels on a device.
    pub(super) fn open(driver: &Arc<Driver>, index: u32, code: &[u8]) -> Result<Arc<Self>, Fault> {
        let device = driver.device(index)?;
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is valid.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.functions.retain)(&raw mut context, device) })?;
        let (driver, module) = (Arc::clone(driver), ptr::null_mut());
        let mut opened = Self { driver, device, handle: context, module, is_hung: AtomicBool::new(false) };
        // Intermediate code is a text, which ends with a zero byte.
        let code = [code, &[0]].concat();
        let functions = opened.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the context is the current one; the code is whole.
        let loaded = unsafe { (functions.load)(&raw mut module, code.as_ptr().cast()) };
        opened.check("cuModuleLoadData", loaded)?;
        opened.module = module;
        Ok(Arc::new(opened))
    }

    fn is_hung(&self) -> bool {
        self.is_hung.load(Ordering::Relaxed)
    }

    fn hung(&self) -> Fault {
        let seconds = self.driver.answer_max.as_secs_f64();
        Fault::new(FaultKind::Lost, format!("the device has not answered for {seconds} s"))
    }

    /// Makes the context the current one of this thread, and returns the functions that need it. A fault if the device has not answered.
    fn enter(&self) -> Result<&Functions, Fault> {
        if self.is_hung() {
            return Err(self.hung());
        }
        let functions = &self.driver.functions;
        // SAFETY: the context is retained until this is dropped.
        self.check("cuCtxSetCurrent", unsafe { (functions.set_current)(self.handle) })?;
        Ok(functions)
    }

    /// Makes the context the current one if possible, and returns the functions that free what a value holds. `None` if the device has
    /// not answered.
    fn enter_to_free(&self) -> Option<&Functions> {
        if self.is_hung() {
            return None;
        }
        // A device that refuses calls uses nothing any more.
        let _entered = self.enter();
        Some(&self.driver.functions)
    }

    /// Asks until the answer is yes, at first without pauses.
    #[expect(clippy::disallowed_methods, reason = "a device that hangs is found by the clock")]
    fn wait(&self, call: &str, eager: Duration, ask: impl Fn(&Functions) -> c_uint) -> Result<(), Fault> {
        let functions = self.enter()?;
        let start = Instant::now();
        while !self.driver.answer(call, ask(functions))? {
            let waited = start.elapsed();
            if self.driver.answer_max <= waited {
                self.is_hung.store(true, Ordering::Relaxed);
                return Err(self.hung());
            }
            if waited < eager { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
        Ok(())
    }

    fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
        self.driver.check(call, code)
    }

    /// Takes memory of the device, each byte of which is `byte`. 1 byte at least, because the driver gives no less.
    pub(super) fn memory(self: &Arc<Self>, len: usize, byte: u8) -> Result<Memory, Fault> {
        let len = len.max(1);
        let functions = self.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is valid.
        self.check("cuMemAlloc", unsafe { (functions.allocate)(&raw mut address, len) })?;
        let memory = Memory { context: Arc::clone(self), address, len };
        // SAFETY: the memory has that length.
        self.check("cuMemsetD8", unsafe { (functions.fill)(address, byte, len) })?;
        Ok(memory)
    }

    /// Takes memory of the device with values in it.
    pub(super) fn upload<T: Plain>(self: &Arc<Self>, values: &[T]) -> Result<Memory, Fault> {
        let len = size_of_val(values);
        let memory = self.memory(len, 0)?;
        if len != 0 {
            let functions = self.enter()?;
            // SAFETY: both have that length.
            let code = unsafe { (functions.to_device)(memory.address, values.as_ptr().cast(), len) };
            self.check("cuMemcpyHtoD", code)?;
        }
        Ok(memory)
    }

    /// Finds a kernel.
    pub(super) fn kernel(&self, name: &'static CStr) -> Result<Kernel, Fault> {
        let functions = self.enter()?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero byte.
        let found = unsafe { (functions.function)(&raw mut function, self.module, name.as_ptr()) };
        self.check(&format!("cuModuleGetFunction of {}", name.to_string_lossy()), found)?;
        Ok(Kernel { name, function })
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    ///
    /// The arguments must be what the kernel takes, and the memory must be as large as it uses.
    pub(super) unsafe fn launch(
        &self,
        kernel: &'static CStr,
        ctas: u32,
        threads: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), Fault> {
        let found = self.kernel(kernel)?;
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.start(ptr::null_mut(), &found, (ctas, threads), arguments)? };
        self.synchronize(kernel)
    }

    /// Waits for everything on the default stream.
    pub(super) fn synchronize(&self, after: &CStr) -> Result<(), Fault> {
        let call = format!("cuStreamQuery after {}", after.to_string_lossy());
        // SAFETY: null is the default stream.
        self.wait(&call, EAGER, |functions| unsafe { (functions.stream_query)(ptr::null_mut()) })
    }

    /// Starts a kernel on a stream, or on the default one.
    ///
    /// # Safety
    ///
    /// As of `launch`, until the stream is behind the kernel.
    unsafe fn start(
        &self,
        stream: Handle,
        kernel: &Kernel,
        (ctas, threads): (u32, u32),
        arguments: &[Argument<'_>],
    ) -> Result<(), Fault> {
        // A number of 32 bits is the lower half of one of 64 on the processors that have such devices.
        let value = |argument: &Argument<'_>| match argument {
            Argument::Memory(memory) => memory.address,
            Argument::From(memory, byte) => memory.address + *byte as u64,
            Argument::Word(word) => u64::from(*word).to_le(),
            Argument::Long(long) => *long,
        };
        let mut values: Vec<u64> = arguments.iter().map(value).collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let functions = self.enter()?;
        // SAFETY: the caller vouches for the arguments, whose values live until the call returns.
        let launched = unsafe {
            let pointers = pointers.as_mut_ptr();
            (functions.launch)(kernel.function, ctas, 1, 1, threads, 1, 1, 0, stream, pointers, ptr::null_mut())
        };
        self.check(&format!("cuLaunchKernel of {}", kernel.name.to_string_lossy()), launched)
    }

    /// Takes page-locked memory: zeros, which the processor caches as any other memory.
    pub(super) fn page_locked(self: &Arc<Self>, len: usize) -> Result<PageLocked, Fault> {
        let len = len.max(1);
        let functions = self.enter()?;
        let mut start = ptr::null_mut();
        // SAFETY: the pointer is valid. Memory that the device writes combined would be slow to read.
        self.check("cuMemHostAlloc", unsafe { (functions.host_allocate)(&raw mut start, len, PORTABLE) })?;
        let start: *mut u8 = start.cast();
        // SAFETY: the driver has allocated so many bytes.
        unsafe { start.write_bytes(0, len) };
        Ok(PageLocked { context: Arc::clone(self), start, len })
    }

    /// Creates a stream.
    pub(super) fn stream(self: &Arc<Self>) -> Result<Stream, Fault> {
        let functions = self.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is valid.
        self.check("cuStreamCreate", unsafe { (functions.stream_create)(&raw mut handle, NON_BLOCKING) })?;
        Ok(Stream { context: Arc::clone(self), handle })
    }

    /// Creates an event.
    pub(super) fn event(self: &Arc<Self>) -> Result<Event, Fault> {
        let functions = self.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is valid.
        self.check("cuEventCreate", unsafe { (functions.event_create)(&raw mut handle, DISABLE_TIMING) })?;
        Ok(Event { context: Arc::clone(self), handle })
    }
}

/// A kernel that was found.
#[derive(Debug)]
pub(super) struct Kernel {
    name: &'static CStr,
    function: Handle,
}

// SAFETY: the handle is a constant of its module.
unsafe impl Send for Kernel {}

/// Memory of a device. It is cleared and freed when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    context: Arc<Context>,
    address: u64,
    len: usize,
}

impl Memory {
    /// Returns the first values.
    pub(super) fn download<T: Plain>(&self, count: usize) -> Result<Vec<T>, Fault> {
        let len = count * size_of::<T>();
        assert!(len <= self.len, "{len} of {} bytes", self.len);
        let mut values = vec![T::default(); count];
        if len != 0 {
            let functions = self.context.enter()?;
            // SAFETY: both have that length, and any bytes are a value.
            let code = unsafe { (functions.from_device)(values.as_mut_ptr().cast(), self.address, len) };
            self.context.check("cuMemcpyDtoH", code)?;
        }
        Ok(values)
    }

    fn from(&self, at: usize, len: usize) -> u64 {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        self.address + at as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(functions) = self.context.enter_to_free() else { return };
        // It may have had a key. A device that refuses calls has forgotten its memory. SAFETY: the memory has that length and is not used
        // after this.
        unsafe {
            (functions.fill)(self.address, 0, self.len);
            (functions.free)(self.address);
        }
    }
}

/// Page-locked memory of the host. It is not freed once the device has not answered, because the device may still write to it.
pub struct PageLocked {
    context: Arc<Context>,
    start: *mut u8,
    len: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for PageLocked {}
// SAFETY: as above; changing it needs `&mut`.
unsafe impl Sync for PageLocked {}

impl fmt::Debug for PageLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageLocked").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Deref for PageLocked {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: it owns so many initialized bytes, and what a device writes is lent only behind an event.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for PageLocked {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        let Some(functions) = self.context.enter_to_free() else { return };
        // SAFETY: the memory is not used after this. An error leaves nothing to do.
        unsafe { (functions.host_free)(self.start.cast()) };
    }
}

/// An order of copies and kernels on a device.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles can be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
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
        assert!(len <= to.len, "{len} of {} bytes", to.len);
        // SAFETY: both have that length; the caller keeps the bytes.
        let code = unsafe { (functions.from_device_later)(to.start.cast(), address, len, self.handle) };
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

    /// Waits for everything on the stream.
    pub(super) fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: the stream exists.
        self.context.wait("cuStreamQuery", Duration::ZERO, |functions| unsafe { (functions.stream_query)(self.handle) })
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
    /// Returns true if the stream is behind the event.
    pub(super) fn is_behind(&self) -> Result<bool, Fault> {
        let functions = self.context.enter()?;
        // SAFETY: the event exists.
        self.context.driver.answer("cuEventQuery", unsafe { (functions.event_query)(self.handle) })
    }

    /// Waits until the stream is behind the event.
    pub(super) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the event exists.
        self.context.wait("cuEventQuery", Duration::ZERO, |functions| unsafe { (functions.event_query)(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(functions) = self.context.enter_to_free() else { return };
        // SAFETY: the event is not used after this.
        unsafe { (functions.event_destroy)(self.handle) };
    }
}
