//! `kernels.bin`, which `cargo xtask kernels` writes: lines of text, then a frame of Zstandard for each code.

use crate::device::{Fault, FaultKind};

/// The compiled kernels.
const FILE: &[u8] = include_bytes!("../../../kernels/kernels.bin");

/// Bytes of a code, at most; `xtask` has the same limit.
const CODE_BYTES_MAX: usize = 2 << 20;

/// Returns the code for an architecture, ten times the compute capability: machine code of the same generation, the newest one
/// that is not newer than the device, or else intermediate code.
pub(super) fn code_for(architecture: u32) -> Result<Vec<u8>, Fault> {
    code_in(FILE, architecture)
}

fn code_in(file: &[u8], architecture: u32) -> Result<Vec<u8>, Fault> {
    let damaged = || Fault::new(FaultKind::Unsuitable, "the kernels in this program are damaged");
    let (text, mut frames) = split(file).ok_or_else(damaged)?;
    let mut best: Option<(u32, &[u8], usize, &str)> = None;
    for line in text.lines() {
        let Some(words) = line.strip_prefix("code ") else { continue };
        let words: Vec<&str> = words.split(' ').collect();
        let [form, number, len, frame_len, checksum] = words[..] else { return Err(damaged()) };
        let parse = |word: &str| word.parse::<usize>().ok();
        let (number, len) = (number.parse::<u32>().ok().ok_or_else(damaged)?, parse(len).ok_or_else(damaged)?);
        let (frame, rest) = frames.split_at_checked(parse(frame_len).ok_or_else(damaged)?).ok_or_else(damaged)?;
        frames = rest;
        // Intermediate code counts less than any machine code.
        let rank = match form {
            "cubin" if number / 10 == architecture / 10 && number <= architecture => number,
            "ptx" if number <= architecture => 0,
            _ => continue,
        };
        if best.is_none_or(|(other, ..)| other < rank) {
            best = Some((rank, frame, len, checksum));
        }
    }
    let (_, frame, len, checksum) = best.ok_or_else(|| {
        let (major, minor) = (architecture / 10, architecture % 10);
        Fault::new(FaultKind::Unsuitable, format!("compute capability {major}.{minor} is too old for the kernels"))
    })?;
    if CODE_BYTES_MAX < len {
        return Err(damaged());
    }
    let code = zstd::bulk::decompress(frame, len).map_err(|_| damaged())?;
    let is_whole = code.len() == len && blake3::hash(&code).to_hex().as_str() == checksum;
    is_whole.then_some(code).ok_or_else(damaged)
}

/// Returns the text and what follows it.
fn split(file: &[u8]) -> Option<(&str, &[u8])> {
    const END: &[u8] = b"\nend\n";
    let end = file.windows(END.len()).position(|window| window == END)?;
    let text = std::str::from_utf8(file.get(..end)?).ok()?;
    Some((text, file.get(end + END.len()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_from_7_5_on_gets_code_that_it_can_run() {
        let is_machine_code = |architecture| code_for(architecture).unwrap().starts_with(b"\x7fELF");
        for architecture in [75, 80, 86, 87, 89, 90, 100, 103, 120, 121] {
            assert!(is_machine_code(architecture), "{architecture}");
        }
        for architecture in [110, 130, 200] {
            assert!(!is_machine_code(architecture), "{architecture}");
            assert!(String::from_utf8(code_for(architecture).unwrap()).unwrap().contains(".target sm_75"));
        }
        assert_eq!(code_for(86).unwrap(), code_for(80).unwrap());
        for architecture in [0, 35, 61, 70, 72] {
            assert_eq!(code_for(architecture).unwrap_err().kind, FaultKind::Unsuitable);
        }
    }

    #[test]
    fn damaged_kernels_are_refused_and_never_used() {
        let codes = [75, 80, 89, 90, 100, 120, 200].map(|architecture| code_for(architecture).unwrap());
        let text = split(FILE).unwrap().0.len();
        for len in (0..text + 5).step_by(7).chain([FILE.len() / 3]) {
            assert!(code_in(&FILE[..len], 90).is_err(), "{len} bytes");
        }
        for at in (0..text).chain((text..FILE.len()).step_by(9973)) {
            let mut changed = FILE.to_vec();
            changed[at] ^= 1 << (at % 8);
            let code = code_in(&changed, 90);
            // Another architecture in the text chooses another code; the driver refuses it if it does not fit.
            assert!(code.is_err() || code.is_ok_and(|code| codes.contains(&code)), "byte {at}");
        }
    }
}
