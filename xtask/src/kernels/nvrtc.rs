//! NVRTC's interface in C, through the loaded library.
#![expect(unsafe_code, reason = "calls the functions of a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};
use libloading::Library;

use super::image::Form;
use super::sources::Sources;

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// Bytes of an output, at most: several times the largest one.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// The loaded compiler.
pub(super) struct Nvrtc {
    create: Create,
    compile: Compile,
    log: (Size, Get),
    cubin: (Size, Get),
    ptx: (Size, Get),
    destroy: Destroy,
    error_string: ErrorString,
    /// The functions above are in it.
    _library: Library,
}

/// Code and log of a compilation.
pub(super) struct Compiled {
    pub(super) code: Vec<u8>,
    pub(super) log: String,
}

impl Nvrtc {
    /// Loads the library.
    pub(super) fn open(path: &Path) -> Result<Self> {
        // SAFETY: the caller has compared the library with its checksum; its initialization has no conditions.
        let library = unsafe { Library::new(path) }.with_context(|| format!("load {}", path.display()))?;
        // SAFETY: these are the types of the functions in the header of this version.
        unsafe {
            Ok(Self {
                create: *library.get(b"nvrtcCreateProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                log: (*library.get(b"nvrtcGetProgramLogSize\0")?, *library.get(b"nvrtcGetProgramLog\0")?),
                cubin: (*library.get(b"nvrtcGetCUBINSize\0")?, *library.get(b"nvrtcGetCUBIN\0")?),
                ptx: (*library.get(b"nvrtcGetPTXSize\0")?, *library.get(b"nvrtcGetPTX\0")?),
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                error_string: *library.get(b"nvrtcGetErrorString\0")?,
                _library: library,
            })
        }
    }

    /// Compiles the sources for an architecture.
    pub(super) fn compile(
        &self,
        sources: &Sources,
        form: Form,
        architecture: u32,
        options: &[&str],
    ) -> Result<Compiled> {
        let text = |text: &str| CString::new(text).context("a source with a zero byte");
        let names = sources.files.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>>>()?;
        let texts = sources.files.iter().map(|(_, source)| text(source)).collect::<Result<Vec<_>>>()?;
        let headers: Vec<_> = texts[1..].iter().map(|text| text.as_ptr()).collect();
        let header_names: Vec<_> = names[1..].iter().map(|name| name.as_ptr()).collect();
        let target = format!("--gpu-architecture={}", form.target(architecture));
        let options = [&[target.as_str()], options].concat();
        let options = options.into_iter().map(text).collect::<Result<Vec<_>>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let (header_count, option_count) = (c_int::try_from(headers.len())?, c_int::try_from(options.len())?);
        let mut program = ptr::null_mut();
        // SAFETY: all texts end with a zero byte and live until the call returns; both lists have that many headers.
        let created = unsafe {
            let (headers, header_names) = (headers.as_ptr(), header_names.as_ptr());
            (self.create)(&raw mut program, texts[0].as_ptr(), names[0].as_ptr(), header_count, headers, header_names)
        };
        self.check("create a program", created)?;
        // SAFETY: the program was created, and there are that many options.
        let outcome = unsafe { (self.compile)(program, option_count, options.as_ptr()) };
        let log = self.output("log", program, self.log);
        let (size, get) = if form == Form::Cubin { self.cubin } else { self.ptx };
        let code = if outcome == 0 { self.output("code", program, (size, get)) } else { Ok(Vec::new()) };
        // SAFETY: the program was created and is not used after this.
        unsafe { (self.destroy)(&raw mut program) };
        let log = String::from_utf8_lossy(&log?).trim_end_matches('\0').to_owned();
        self.check("compile", outcome).with_context(|| log.clone())?;
        Ok(Compiled { code: code?, log })
    }

    /// Returns an output of a program.
    fn output(&self, name: &str, program: Program, (size, get): (Size, Get)) -> Result<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program exists.
        self.check(name, unsafe { size(program, &raw mut len) })?;
        ensure!(len <= OUTPUT_BYTES_MAX, "{name} of {len} bytes, at most {OUTPUT_BYTES_MAX}");
        let mut bytes = vec![0; len];
        // SAFETY: there is memory for as many bytes as the output has.
        self.check(name, unsafe { get(program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a constant text for every code.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        anyhow::bail!("NVRTC: {what}: {}", text.to_string_lossy());
    }
}
