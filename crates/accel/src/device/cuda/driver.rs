//! The driver's interface in C, from the library that the driver brings, and types that free what they hold.
//!
//! Results are plain numbers here: a newer driver returns codes that this program does not know.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;

use libloading::Library;

use crate::device::{About, Fault, FaultKind};

/// Names of the library.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Bytes of a device's name, at most.
const NAME_BYTES: usize = 256;

/// Attributes of a device.
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Codes of errors that have a kind of their own.
const OUT_OF_MEMORY: c_uint = 2;
const NO_DEVICE: c_uint = 100;
const NO_SUCH_DEVICE: c_uint = 101;
/// From no code for this device to a PTX that is too new, and a driver that does not fit the kernel's module.
const UNSUITABLE: [c_uint; 6] = [34, 209, 218, 222, 223, 803];

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_uint,)*
            /// The functions above are in it.
            _library: Library,
        }

        impl Functions {
            fn of(library: Library) -> Result<Self, libloading::Error> {
                // SAFETY: these are the types of the functions in the documentation of the driver.
                unsafe {
                    Ok(Self { $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)* _library: library })
                }
            }
        }
    };
}

functions! {
    init "cuInit" (c_uint);
    version "cuDriverGetVersion" (*mut c_int);
    count "cuDeviceGetCount" (*mut c_int);
    device "cuDeviceGet" (*mut c_int, c_int);
    name "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    total_memory "cuDeviceTotalMem_v2" (*mut usize, c_int);
    retain "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current "cuCtxSetCurrent" (Handle);
    load "cuModuleLoadData" (*mut Handle, *const c_void);
    unload "cuModuleUnload" (Handle);
    function "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    allocate "cuMemAlloc_v2" (*mut u64, usize);
    free "cuMemFree_v2" (u64);
    to_device "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    from_device "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    fill "cuMemsetD8_v2" (u64, c_uchar, usize);
    launch "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    synchronize "cuCtxSynchronize" ();
    error_name "cuGetErrorName" (c_uint, *mut *const c_char);
}

/// The driver, initialized.
pub(super) struct Driver {
    functions: Functions,
}

impl Driver {
    /// Loads and initializes the driver.
    pub(super) fn open() -> Result<Self, Fault> {
        Self::open_any(&LIBRARIES)
    }

    /// Loads and initializes the first of some libraries that is there.
    pub(super) fn open_any(names: &[&str]) -> Result<Self, Fault> {
        // SAFETY: the library is that of the driver; its initialization has no conditions.
        let library = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library = library.ok_or_else(|| Fault::new(FaultKind::Absent, "there is no driver for NVIDIA GPUs"))?;
        let functions = Functions::of(library)
            .map_err(|error| Fault::new(FaultKind::Unsuitable, format!("the driver lacks a function: {error}")))?;
        let driver = Self { functions };
        // SAFETY: the argument must be 0.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
        if code == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the function sets the pointer to a constant text, or to null.
        let known = unsafe { (self.functions.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        // SAFETY: as above.
        let name = if known { unsafe { CStr::from_ptr(name) }.to_string_lossy() } else { "unknown".into() };
        let kind = match code {
            OUT_OF_MEMORY => FaultKind::OutOfMemory,
            NO_DEVICE | NO_SUCH_DEVICE => FaultKind::Absent,
            _ if UNSUITABLE.contains(&code) => FaultKind::Unsuitable,
            _ => FaultKind::Lost,
        };
        Err(Fault::new(kind, format!("{call}: {name} ({code})")))
    }

    /// Returns the number of devices.
    pub(super) fn count(&self) -> Result<u32, Fault> {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        self.check("cuDeviceGetCount", unsafe { (self.functions.count)(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn device(&self, index: u32) -> Result<c_int, Fault> {
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        let mut device = 0;
        // SAFETY: the pointer is valid.
        self.check("cuDeviceGet", unsafe { (self.functions.device)(&raw mut device, index) })?;
        Ok(device)
    }

    /// Describes a device.
    pub(super) fn about(&self, index: u32) -> Result<About, Fault> {
        let functions = &self.functions;
        let device = self.device(index)?;
        let (mut version, mut memory) = (0, 0usize);
        let mut name: [c_char; NAME_BYTES] = [0; NAME_BYTES];
        let attribute = |number| {
            let mut value = 0;
            // SAFETY: the pointer is valid.
            let code = unsafe { (functions.attribute)(&raw mut value, number, device) };
            self.check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
        };
        let architecture = attribute(CAPABILITY_MAJOR)? * 10 + attribute(CAPABILITY_MINOR)?;
        // SAFETY: the pointers are valid, and the name has that much memory; its last byte stays 0.
        unsafe {
            self.check("cuDriverGetVersion", (functions.version)(&raw mut version))?;
            self.check("cuDeviceTotalMem", (functions.total_memory)(&raw mut memory, device))?;
            let len = c_int::try_from(NAME_BYTES - 1).unwrap_or(0);
            self.check("cuDeviceGetName", (functions.name)(name.as_mut_ptr(), len, device))?;
        }
        // SAFETY: the last byte is 0.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let driver = u32::try_from(version).unwrap_or(0);
        Ok(About { name, architecture, memory_bytes: memory as u64, driver })
    }

    /// Loads kernels on a device.
    pub(super) fn session(&self, index: u32, code: &[u8]) -> Result<Session<'_>, Fault> {
        let functions = &self.functions;
        let device = self.device(index)?;
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is valid.
        self.check("cuDevicePrimaryCtxRetain", unsafe { (functions.retain)(&raw mut context, device) })?;
        let mut session = Session { driver: self, device, module: ptr::null_mut(), not_send: PhantomData };
        // Intermediate code is a text, which ends with a zero byte.
        let code = [code, &[0]].concat();
        // SAFETY: the context is retained until the session is dropped; the code is whole.
        unsafe {
            self.check("cuCtxSetCurrent", (functions.set_current)(context))?;
            self.check("cuModuleLoadData", (functions.load)(&raw mut session.module, code.as_ptr().cast()))?;
        }
        Ok(session)
    }
}

/// Kernels on a device. Its context is the current one of this thread, so it stays there.
pub(super) struct Session<'a> {
    driver: &'a Driver,
    device: c_int,
    module: Handle,
    not_send: PhantomData<*mut ()>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing of the session is used after this. Errors leave nothing to do.
        unsafe {
            if !self.module.is_null() {
                (self.driver.functions.unload)(self.module);
            }
            (self.driver.functions.set_current)(ptr::null_mut());
            (self.driver.functions.release)(self.device);
        }
    }
}

/// An argument of a kernel: the address of memory, or a number.
pub(super) enum Argument<'a> {
    Memory(&'a Memory<'a>),
    /// Memory from a byte on.
    From(&'a Memory<'a>, usize),
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

impl Session<'_> {
    fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
        self.driver.check(call, code)
    }

    /// Takes memory of the device, each byte of which is `byte`. 1 byte at least, because the driver gives no less.
    pub(super) fn memory(&self, len: usize, byte: u8) -> Result<Memory<'_>, Fault> {
        let len = len.max(1);
        let mut address = 0;
        // SAFETY: the pointer is valid.
        self.check("cuMemAlloc", unsafe { (self.driver.functions.allocate)(&raw mut address, len) })?;
        let memory = Memory { session: self, address, len };
        // SAFETY: the memory has that length.
        self.check("cuMemsetD8", unsafe { (self.driver.functions.fill)(address, byte, len) })?;
        Ok(memory)
    }

    /// Takes memory with values in it.
    pub(super) fn upload<T: Plain>(&self, values: &[T]) -> Result<Memory<'_>, Fault> {
        let len = size_of_val(values);
        let memory = self.memory(len, 0)?;
        if len != 0 {
            // SAFETY: both have that length.
            let code = unsafe { (self.driver.functions.to_device)(memory.address, values.as_ptr().cast(), len) };
            self.check("cuMemcpyHtoD", code)?;
        }
        Ok(memory)
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    ///
    /// The arguments must be what the kernel takes, and the memory must be as large as it uses.
    pub(super) unsafe fn launch(
        &self,
        kernel: &CStr,
        ctas: u32,
        threads: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), Fault> {
        let functions = &self.driver.functions;
        let name = kernel.to_string_lossy();
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero byte.
        let found = unsafe { (functions.function)(&raw mut function, self.module, kernel.as_ptr()) };
        self.check(&format!("cuModuleGetFunction of {name}"), found)?;
        // A number of 32 bits is the lower half of one of 64 on the processors that have such devices.
        let value = |argument: &Argument<'_>| match argument {
            Argument::Memory(memory) => memory.address,
            Argument::From(memory, byte) => memory.address + *byte as u64,
            Argument::Word(word) => u64::from(*word).to_le(),
            Argument::Long(long) => *long,
        };
        let mut values: Vec<u64> = arguments.iter().map(value).collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let (stream, extra) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the caller vouches for the arguments, whose values live until the call returns.
        let launched =
            unsafe { (functions.launch)(function, ctas, 1, 1, threads, 1, 1, 0, stream, pointers.as_mut_ptr(), extra) };
        self.check(&format!("cuLaunchKernel of {name}"), launched)?;
        // SAFETY: it has no arguments.
        self.check(&format!("cuCtxSynchronize after {name}"), unsafe { (functions.synchronize)() })
    }
}

/// Memory of a device.
pub(super) struct Memory<'a> {
    session: &'a Session<'a>,
    address: u64,
    len: usize,
}

impl Memory<'_> {
    /// Returns the first values.
    pub(super) fn download<T: Plain>(&self, count: usize) -> Result<Vec<T>, Fault> {
        let len = count * size_of::<T>();
        assert!(len <= self.len, "{len} of {} bytes", self.len);
        let mut values = vec![T::default(); count];
        if len != 0 {
            let functions = &self.session.driver.functions;
            // SAFETY: both have that length, and any bytes are a value.
            let code = unsafe { (functions.from_device)(values.as_mut_ptr().cast(), self.address, len) };
            self.session.check("cuMemcpyDtoH", code)?;
        }
        Ok(values)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let functions = &self.session.driver.functions;
        // It may have had a key. SAFETY: the memory has that length and is not used after this.
        unsafe {
            (functions.fill)(self.address, 0, self.len);
            (functions.free)(self.address);
        }
    }
}
