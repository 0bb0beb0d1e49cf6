//! `cargo xtask kernels`: compiles the kernels for GPUs, and compares what is committed with what the sources make.
//!
//! The compiler is NVRTC, a library that needs no GPU. The same sources, options and library make the same bytes.

mod nvrtc;
mod wheel;

pub(crate) mod image;
pub(crate) mod sources;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::checkout::Checkout;
use image::{Code, Form, Image};
use nvrtc::Nvrtc;
use sources::Sources;

/// Architectures that get machine code: of all GPUs from 2018 on, one for each generation of instructions.
const ARCHITECTURES: [u32; 6] = [75, 80, 89, 90, 100, 120];

/// Architecture of the intermediate code, which drivers compile for GPUs that are newer than the list.
const PORTABLE: u32 = 75;

/// Language of the sources. Every use of registers and stack goes to the log.
const OPTIONS: [&str; 2] = ["--std=c++20", "--ptxas-options=-v"];

/// Registers of a thread, at most. With more, fewer than 1,024 threads of a multiprocessor run at a time.
const REGISTERS_MAX: u32 = 64;

/// Action on the compiled kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Write them to the repository.
    Write,
    /// Compare them with those in the repository.
    Check,
}

/// Fetches the compiler if it is not there.
pub(crate) fn fetch() -> Result<()> {
    if is_supported() {
        wheel::library().map(drop)
    } else {
        println!("kernels: the compiler runs on x86-64 Linux only");
        Ok(())
    }
}

/// Compiles the kernels for every architecture.
pub(crate) fn run(root: &Path, then: Then) -> Result<()> {
    if !is_supported() {
        ensure!(then == Then::Check, "the compiler of the kernels runs on x86-64 Linux only");
        println!("kernels: skipped: the compiler runs on x86-64 Linux only");
        return Ok(());
    }
    let library = wheel::library()?;
    let sources = Sources::of(&Checkout::read(root)?)?;
    let made = compile(&Nvrtc::open(&library)?, &sources)?;
    let path = root.join(image::PATH);
    match then {
        Then::Write => {
            let bytes = made.encode()?;
            std::fs::write(&path, &bytes).with_context(|| format!("write {}", image::PATH))?;
            println!("kernels: {} bytes in {}", bytes.len(), image::PATH);
        }
        Then::Check => {
            let bytes = std::fs::read(&path).with_context(|| format!("read {}", image::PATH))?;
            compare(&Image::decode(&bytes)?, &made)?;
            println!("kernels: ok, {} images are what the sources make", made.codes.len());
        }
    }
    Ok(())
}

fn is_supported() -> bool {
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

fn compile(nvrtc: &Nvrtc, sources: &Sources) -> Result<Image> {
    let mut codes = Vec::new();
    let forms = ARCHITECTURES.map(|architecture| (Form::Cubin, architecture)).into_iter();
    for (form, architecture) in forms.chain([(Form::Ptx, PORTABLE)]) {
        let compiled = nvrtc.compile(sources, form, architecture, &OPTIONS)?;
        let name = form.target(architecture);
        if form == Form::Cubin {
            let used = resources(&compiled.log).with_context(|| format!("the compiler's log for {name}"))?;
            let kernels: Vec<&str> = used.iter().map(|used| used.kernel.as_str()).collect();
            ensure!(kernels == sources.kernels, "{name} has the kernels {kernels:?}, not {:?}", sources.kernels);
            used.iter().try_for_each(|used| used.check(&name))?;
            let listed = used.iter().map(|used| format!("{} {}", used.kernel, used.registers));
            println!("{name}: {} bytes; registers: {}", compiled.code.len(), listed.collect::<Vec<_>>().join(", "));
        } else {
            println!("{name}: {} bytes of intermediate code", compiled.code.len());
        }
        codes.push(Code { form, architecture, bytes: compiled.code });
    }
    let options = OPTIONS.join(" ");
    Ok(Image { sources: sources.checksum.clone(), compiler: wheel::COMPILER.to_owned(), options, codes })
}

fn compare(committed: &Image, made: &Image) -> Result<()> {
    let again = "run `cargo xtask kernels`";
    ensure!(committed.sources == made.sources, "{} is of other sources; {again}", image::PATH);
    ensure!(
        (&committed.compiler, &committed.options) == (&made.compiler, &made.options),
        "{} is of another compiler or of other options; {again}",
        image::PATH
    );
    ensure!(committed.codes.len() == made.codes.len(), "{} has other architectures; {again}", image::PATH);
    for (committed, made) in committed.codes.iter().zip(&made.codes) {
        let name = made.form.target(made.architecture);
        ensure!(committed == made, "the sources do not make the code for {name} that {} has; {again}", image::PATH);
    }
    Ok(())
}

/// Resources of a kernel, as the compiler reports them.
#[derive(Default, PartialEq, Eq, Debug)]
struct Resources {
    kernel: String,
    registers: u32,
    stack: u32,
    spills: u32,
}

impl Resources {
    fn check(&self, target: &str) -> Result<()> {
        let Self { kernel, registers, stack, spills } = self;
        ensure!(*stack == 0 && *spills == 0, "{target}: {kernel} has {stack} bytes of stack, and spills {spills}");
        ensure!(*registers <= REGISTERS_MAX, "{target}: {kernel} uses {registers} registers, at most {REGISTERS_MAX}");
        Ok(())
    }
}

/// Reads the resources of each kernel from the compiler's log, sorted by kernel.
fn resources(log: &str) -> Result<Vec<Resources>> {
    let mut all: Vec<(Resources, usize)> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let (kernel, _) = rest.split_once('\'').context("a kernel without the end of its name")?;
            all.push((Resources { kernel: kernel.to_owned(), ..Resources::default() }, 0));
        } else if line.contains("bytes stack frame") || line.contains("Used ") {
            let (used, lines) = all.last_mut().context("resources before a kernel")?;
            *lines += 1;
            if line.contains("bytes stack frame") {
                used.stack += before(line, " bytes stack frame")?;
                used.spills += before(line, " bytes spill stores")? + before(line, " bytes spill loads")?;
            } else {
                used.registers = before(line, " registers")?;
            }
        } else if line.contains("warning") || line.contains("error") {
            bail!("{line}");
        }
    }
    ensure!(all.iter().all(|(_, lines)| *lines == 2), "not the lines that are known of each kernel:\n{log}");
    let mut all: Vec<Resources> = all.into_iter().map(|(used, _)| used).collect();
    all.sort_by(|one, other| one.kernel.cmp(&other.kernel));
    Ok(all)
}

/// Returns the number that ends before `words`.
fn before(line: &str, words: &str) -> Result<u32> {
    let (start, _) = line.split_once(words).with_context(|| format!("no `{words}` in: {line}"))?;
    let number = start.rsplit(' ').next().unwrap_or_default();
    number.parse().with_context(|| format!("no number before `{words}` in: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 8 bytes gmem\n\
        ptxas info    : Compiling entry function 'sha1' for 'sm_90'\n\
        ptxas info    : Function properties for sha1\n\
        ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 40 registers, used 0 barriers\n\
        ptxas info    : Compiling entry function 'join' for 'sm_90'\n\
        ptxas         .     16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n\
        ptxas info    : Used 65 registers, used 0 barriers, 16 bytes cumulative stack size\n";

    #[test]
    fn spills_stack_and_too_many_registers_are_refused() {
        let used = resources(LOG).unwrap();
        let join = Resources { kernel: "join".to_owned(), registers: 65, stack: 16, spills: 44 };
        let sha1 = Resources { kernel: "sha1".to_owned(), registers: 40, stack: 0, spills: 0 };
        assert_eq!(used, [join, sha1]);
        assert!(used[0].check("sm_90").is_err());
        assert!(used[1].check("sm_90").is_ok());
        assert!(Resources { registers: REGISTERS_MAX + 1, ..Resources::default() }.check("sm_90").is_err());
        assert!(Resources { registers: REGISTERS_MAX, ..Resources::default() }.check("sm_90").is_ok());
    }

    #[test]
    fn a_log_with_a_warning_or_without_a_known_line_is_refused() {
        assert!(resources(&format!("{LOG}gear.h(1): warning: unused\n")).is_err());
        assert!(resources(&LOG.replace("Used 40 registers", "Took 40 registers")).is_err());
        assert!(resources(&LOG.replace("0 bytes spill loads", "")).is_err());
    }

    #[test]
    fn any_difference_from_the_committed_image_is_found() {
        let image = |sources: &str, compiler: &str, options: &str, architecture, bytes: &[u8]| Image {
            sources: sources.to_owned(),
            compiler: compiler.to_owned(),
            options: options.to_owned(),
            codes: vec![Code { form: Form::Cubin, architecture, bytes: bytes.to_vec() }],
        };
        let committed = image("a", "b", "c", 75, b"code");
        assert!(compare(&committed, &committed).is_ok());
        let others = [
            image("x", "b", "c", 75, b"code"),
            image("a", "x", "c", 75, b"code"),
            image("a", "b", "x", 75, b"code"),
            image("a", "b", "c", 80, b"code"),
            image("a", "b", "c", 75, b"mode"),
            Image { codes: Vec::new(), ..image("a", "b", "c", 75, b"code") },
        ];
        assert!(others.iter().all(|made| compare(&committed, made).is_err()));
    }
}
