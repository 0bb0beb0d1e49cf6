//! Kernels on a device, its memory and its streams: types that free what they hold.
//!
//! The driver has a current context for each thread of the process. Every method makes its context the current one first, so that the types
//! can go from thread to thread.
//!
//! A driver that waits for a device that hangs may wait forever. So a thread asks again and again whether work is done, for [`Driver::answer_max`] at
//! most, and calls functions that wait inside, such as copies and those that free memory, only when nothing is left to wait for. Once a
//! device has not answered, no function of the driver is called any more, and what it may still use is never freed.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::driver::{Driver, Functions, Handle};
use crate::device::Fault;

/// Page-locked memory of any context.
const PORTABLE: c_uint = 1;
/// Pause between two questions whether work is done; the system makes it about twice as long. A batch takes some hundred microseconds at
/// least, and several are in flight.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a thread that waits for a batch asks without a pause, so that one that is nearly done costs none.
pub(super) const BRIEF: Duration = Duration::from_micros(100);
/// How long a thread that runs a single kernel asks without a pause: such kernels are measured.
const EAGER: Duration = Duration::from_millis(5);

/// Kernels on a device, in the context that the process shares.
pub(super) struct Context {
    pub(super) driver: Arc<Driver>,
    device: c_int,
    handle: Handle,
    module: Handle,
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
        let mut opened = Self { driver, device, handle: context, module };
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

    pub(super) fn is_hung(&self) -> bool {
        self.driver.is_hung.load(Ordering::Relaxed)
    }

    /// Makes the context the current one of this thread, and returns the functions that need it. A fault if the device has not answered.
    pub(super) fn enter(&self) -> Result<&Functions, Fault> {
        self.driver.check_hung()?;
        let functions = &self.driver.functions;
        // SAFETY: the context is retained until this is dropped.
        self.check("cuCtxSetCurrent", unsafe { (functions.set_current)(self.handle) })?;
        Ok(functions)
    }

    /// Makes the context the current one if possible, and returns the functions that free what a value holds. `None` if the device has
    /// not answered.
    pub(super) fn enter_to_free(&self) -> Option<&Functions> {
        if self.is_hung() {
            return None;
        }
        // A device that refuses calls uses nothing any more.
        let _entered = self.enter();
        Some(&self.driver.functions)
    }

    /// Asks until the answer is yes, at first without pauses. Work that is known to take long may take so much more time than
    /// [`Driver::answer_max`].
    #[expect(clippy::disallowed_methods, reason = "a device that hangs is found by the clock")]
    pub(super) fn wait(
        &self,
        call: &str,
        (eager, more): (Duration, Duration),
        ask: impl Fn(&Functions) -> c_uint,
    ) -> Result<(), Fault> {
        let functions = self.enter()?;
        let most = self.driver.answer_max + more;
        let start = Instant::now();
        loop {
            // A process that was stopped asks once more.
            let waited = start.elapsed();
            if self.driver.answer(call, ask(functions))? {
                return Ok(());
            }
            if most <= waited {
                return Err(self.driver.hang(most));
            }
            if waited < eager { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
    }

    pub(super) fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
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
        self.synchronize(c"cuMemsetD8")?;
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
            // The bytes may still be on their way from the driver's own memory, for which streams do not wait.
            self.synchronize(c"cuMemcpyHtoD")?;
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
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.launch_long(kernel, (ctas, threads), arguments, Duration::ZERO) }
    }

    /// Runs a kernel to its end that may take so much more time than any other.
    ///
    /// # Safety
    ///
    /// As of `launch`.
    pub(super) unsafe fn launch_long(
        &self,
        kernel: &'static CStr,
        shape: (u32, u32),
        arguments: &[Argument<'_>],
        more: Duration,
    ) -> Result<(), Fault> {
        let found = self.kernel(kernel)?;
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.start(ptr::null_mut(), &found, shape, arguments)? };
        self.synchronize_long(kernel, more)
    }

    /// Waits for everything on the default stream.
    pub(super) fn synchronize(&self, after: &CStr) -> Result<(), Fault> {
        self.synchronize_long(after, Duration::ZERO)
    }

    fn synchronize_long(&self, after: &CStr, more: Duration) -> Result<(), Fault> {
        let call = format!("cuStreamQuery after {}", after.to_string_lossy());
        // SAFETY: null is the default stream.
        self.wait(&call, (EAGER, more), |functions| unsafe { (functions.stream_query)(ptr::null_mut()) })
    }

    /// Starts a kernel on a stream, or on the default one.
    ///
    /// # Safety
    ///
    /// As of `launch`, until the stream is behind the kernel.
    pub(super) unsafe fn start(
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
}

/// A kernel that was found.
#[derive(Debug)]
pub(super) struct Kernel {
    name: &'static CStr,
    function: Handle,
}

// SAFETY: the handle is a constant of its module.
unsafe impl Send for Kernel {}

/// Memory of a device. It is cleared and freed when dropped, unless the device has not answered.
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
            self.context.synchronize(c"the kernels")?;
            let functions = self.context.enter()?;
            // SAFETY: both have that length, and any bytes are a value.
            let code = unsafe { (functions.from_device)(values.as_mut_ptr().cast(), self.address, len) };
            self.context.check("cuMemcpyDtoH", code)?;
        }
        Ok(values)
    }

    pub(super) fn from(&self, at: usize, len: usize) -> u64 {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        self.address + at as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(functions) = self.context.enter_to_free() else { return };
        // It may have had a key. A device that refuses calls has forgotten its memory. SAFETY: the memory has that length.
        unsafe { (functions.fill)(self.address, 0, self.len) };
        let _cleared = self.context.synchronize(c"cuMemsetD8");
        let Some(functions) = self.context.enter_to_free() else { return };
        // SAFETY: the memory is not used after this.
        unsafe { (functions.free)(self.address) };
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
