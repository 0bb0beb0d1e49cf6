//! The driver's interface in C, from the library that the driver brings.
//!
//! Results are plain numbers here: a newer driver returns codes that this program does not know.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libloading::Library;

use crate::device::{About, Fault, FaultKind};

/// Names of the library.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The reason if none of them can be loaded.
const MISSING: &str = if cfg!(target_feature = "crt-static") {
    "this program is statically linked, so that it cannot load the driver for NVIDIA GPUs"
} else {
    "there is no driver for NVIDIA GPUs"
};

/// Bytes of a device's name, at most.
const NAME_BYTES: usize = 256;

/// Attributes of a device.
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const MULTIPROCESSORS: c_int = 16;

/// Codes of errors that have a kind of their own.
const OUT_OF_MEMORY: c_uint = 2;
const NO_DEVICE: c_uint = 100;
const NO_SUCH_DEVICE: c_uint = 101;
/// A device of this process has not answered.
static IS_HUNG: AtomicBool = AtomicBool::new(false);
/// How long a device may take for what waits on a stream. Other programs on the same device may take some of it.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// From no code for this device to a PTX that is too new, and a driver that does not fit the kernel's module.
const UNSUITABLE: [c_uint; 6] = [34, 209, 218, 222, 223, 803];

pub(super) type Handle = *mut c_void;

/// Result of a query whose answer is no.
const NOT_READY: c_uint = 600;

macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*);)*) => {
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_uint,)*
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
    error_name "cuGetErrorName" (c_uint, *mut *const c_char);
    host_allocate "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free "cuMemFreeHost" (*mut c_void);
    stream_create "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy "cuStreamDestroy_v2" (Handle);
    stream_query "cuStreamQuery" (Handle);
    event_create "cuEventCreate" (*mut Handle, c_uint);
    event_destroy "cuEventDestroy_v2" (Handle);
    event_record "cuEventRecord" (Handle, Handle);
    event_query "cuEventQuery" (Handle);
    to_device_later "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    from_device_later "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    fill_later "cuMemsetD8Async" (u64, c_uchar, usize, Handle);
}

/// The driver, initialized.
pub(super) struct Driver {
    pub(super) functions: Functions,
    /// How long a device may take until it counts as hung.
    pub(super) answer_max: Duration,
    /// A device has not answered. Everything that is opened later shares its context.
    pub(super) is_hung: &'static AtomicBool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
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
        let library = library.ok_or_else(|| Fault::new(FaultKind::Absent, MISSING))?;
        let functions = Functions::of(library)
            .map_err(|error| Fault::new(FaultKind::Unsuitable, format!("the driver lacks a function: {error}")))?;
        let driver = Self { functions, answer_max: ANSWER_MAX, is_hung: &IS_HUNG };
        driver.check_hung()?;
        // SAFETY: the argument must be 0.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    /// Returns a fault if a device has not answered.
    pub(super) fn check_hung(&self) -> Result<(), Fault> {
        if self.is_hung.load(Ordering::Relaxed) { Err(not_answered(self.answer_max)) } else { Ok(()) }
    }

    /// Gives the device up, and returns the fault.
    pub(super) fn hang(&self, waited: Duration) -> Fault {
        self.is_hung.store(true, Ordering::Relaxed);
        not_answered(waited)
    }

    /// Makes a fault of a code.
    pub(super) fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
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

    /// Makes an answer of the code of a query.
    pub(super) fn answer(&self, call: &str, code: c_uint) -> Result<bool, Fault> {
        if code == NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }

    /// Returns the number of devices.
    pub(super) fn count(&self) -> Result<u32, Fault> {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        self.check("cuDeviceGetCount", unsafe { (self.functions.count)(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the driver's number of a device.
    pub(super) fn device(&self, index: u32) -> Result<c_int, Fault> {
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
        let multiprocessors = attribute(MULTIPROCESSORS)?;
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
        Ok(About { name, architecture, multiprocessors, memory_bytes: memory as u64, driver })
    }
}

fn not_answered(waited: Duration) -> Fault {
    Fault::new(FaultKind::Lost, format!("the device has not answered for {} s", waited.as_secs_f64()))
}
