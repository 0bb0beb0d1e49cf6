//! `kernels.bin`: compiled kernels for every architecture.
//!
//! The file begins with lines of text, then has a frame of Zstandard for each code, in the order of the lines:
//!
//! ```text
//! onefold kernels 1
//! sources BLAKE3
//! compiler NAME
//! options OPTIONS
//! code FORM ARCHITECTURE BYTES COMPRESSED_BYTES BLAKE3
//! end
//! ```

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

/// Path of the file in the repository.
pub(crate) const PATH: &str = "crates/accel/kernels/kernels.bin";

const FIRST_LINE: &str = "onefold kernels 1";
const LAST_LINE: &str = "end";

/// Bytes of a code, at most: about four times the largest one.
const CODE_BYTES_MAX: usize = 2 << 20;

/// Codes, at most.
const CODES_MAX: usize = 32;

/// The highest level before those that need much memory.
const LEVEL: i32 = 19;

/// Machine code, or intermediate code that drivers compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Machine code of one architecture.
    Cubin,
    /// Intermediate code, as text.
    Ptx,
}

impl Form {
    /// Returns the name that the compiler has for the target.
    pub(crate) fn target(self, architecture: u32) -> String {
        match self {
            Self::Cubin => format!("sm_{architecture}"),
            Self::Ptx => format!("compute_{architecture}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cubin => "cubin",
            Self::Ptx => "ptx",
        }
    }
}

/// The kernels for an architecture.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Code {
    pub(crate) form: Form,
    /// Ten times the compute capability.
    pub(crate) architecture: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The kernels for all architectures.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Image {
    /// Checksum of the sources.
    pub(crate) sources: String,
    /// Name and version of the compiler.
    pub(crate) compiler: String,
    /// Its options, apart from the target.
    pub(crate) options: String,
    pub(crate) codes: Vec<Code>,
}

impl Image {
    /// Returns the file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let Self { sources, compiler, options, codes } = self;
        let mut text = format!("{FIRST_LINE}\nsources {sources}\ncompiler {compiler}\noptions {options}\n");
        let mut frames = Vec::new();
        for Code { form, architecture, bytes } in codes {
            let frame = zstd::bulk::compress(bytes, LEVEL).context("compress")?;
            let (form, checksum) = (form.name(), blake3::hash(bytes).to_hex());
            writeln!(text, "code {form} {architecture} {} {} {checksum}", bytes.len(), frame.len())?;
            frames.extend_from_slice(&frame);
        }
        text.push_str(LAST_LINE);
        text.push('\n');
        Ok([text.into_bytes(), frames].concat())
    }

    /// Reads the file, and checks it.
    pub(crate) fn decode(mut file: &[u8]) -> Result<Self> {
        ensure!(line(&mut file)? == FIRST_LINE, "{PATH} does not begin with `{FIRST_LINE}`");
        let sources = field(line(&mut file)?, "sources")?.to_owned();
        let compiler = field(line(&mut file)?, "compiler")?.to_owned();
        let options = field(line(&mut file)?, "options")?.to_owned();
        let mut listed = Vec::new();
        loop {
            let next = line(&mut file)?;
            if next == LAST_LINE {
                break;
            }
            ensure!(listed.len() < CODES_MAX, "{PATH} lists more than {CODES_MAX} codes");
            listed.push(field(next, "code")?);
        }
        let codes = listed.into_iter().map(|words| code(words, &mut file)).collect::<Result<_>>()?;
        ensure!(file.is_empty(), "{PATH} has {} bytes behind its codes", file.len());
        Ok(Self { sources, compiler, options, codes })
    }

    /// Reads the checksum of the sources alone.
    pub(crate) fn sources_of(mut file: &[u8]) -> Result<&str> {
        ensure!(line(&mut file)? == FIRST_LINE, "{PATH} does not begin with `{FIRST_LINE}`");
        field(line(&mut file)?, "sources")
    }
}

/// Takes a line from the front.
fn line<'a>(file: &mut &'a [u8]) -> Result<&'a str> {
    let end = file.iter().position(|byte| *byte == b'\n').with_context(|| format!("{PATH} ends in its text"))?;
    let (text, rest) = file.split_at(end);
    *file = rest.get(1..).unwrap_or_default();
    std::str::from_utf8(text).with_context(|| format!("{PATH} has a line that is no text"))
}

fn field<'a>(line: &'a str, name: &str) -> Result<&'a str> {
    let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
    value.with_context(|| format!("{PATH} has `{line}` where `{name}` belongs"))
}

/// Takes the frame of a code from the front.
fn code(words: &str, file: &mut &[u8]) -> Result<Code> {
    let words: Vec<&str> = words.split(' ').collect();
    let [form, architecture, len, frame_len, checksum] = words[..] else {
        bail!("{PATH} has a code with {} words", words.len());
    };
    let form = match form {
        "cubin" => Form::Cubin,
        "ptx" => Form::Ptx,
        _ => bail!("{PATH} has a code of the form `{form}`"),
    };
    let architecture = architecture.parse().context("the architecture of a code")?;
    let (len, frame_len): (usize, usize) = (len.parse()?, frame_len.parse()?);
    let name = form.target(architecture);
    ensure!(len <= CODE_BYTES_MAX, "{PATH} has {len} bytes for {name}, at most {CODE_BYTES_MAX}");
    let (frame, rest) = file.split_at_checked(frame_len).with_context(|| format!("{PATH} ends before {name}"))?;
    *file = rest;
    let bytes = zstd::bulk::decompress(frame, len).with_context(|| format!("decompress {name}"))?;
    ensure!(
        bytes.len() == len && blake3::hash(&bytes).to_hex().as_str() == checksum,
        "{PATH} has other bytes for {name} than its checksum"
    );
    Ok(Code { form, architecture, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        let code = |form, architecture, byte| Code { form, architecture, bytes: vec![byte; 5000] };
        Image {
            sources: "0123".to_owned(),
            compiler: "NVRTC 1".to_owned(),
            options: "--one --two".to_owned(),
            codes: vec![code(Form::Cubin, 75, 1), code(Form::Cubin, 120, 2), code(Form::Ptx, 75, 3)],
        }
    }

    #[test]
    fn an_image_is_read_as_it_was_written() {
        let bytes = image().encode().unwrap();
        assert_eq!(Image::decode(&bytes).unwrap(), image());
        assert_eq!(Image::sources_of(&bytes).unwrap(), "0123");
    }

    #[test]
    fn an_image_that_ends_early_is_refused_and_no_changed_byte_makes_other_code() {
        let bytes = image().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Image::decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        let text = bytes.windows(5).position(|window| window == b"\nend\n").unwrap() + 5;
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                // Some bits of a frame do not matter, such as the offset of a match among equal bytes.
                let is_same = Image::decode(&changed).map(|decoded| decoded == image());
                let allowed = is_same.is_err() || is_same.is_ok_and(|same| same == (text <= at));
                assert!(allowed, "bit {bit} of byte {at}, text until {text}");
            }
        }
        assert!(Image::decode(&[&bytes[..], b"x"].concat()).is_err());
    }
}
