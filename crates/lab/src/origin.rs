//! Machine, program and date of a measurement.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::findings::Origin;

/// Lines that are read of a file of the kernel.
const LINES_MAX: usize = 4096;

impl Origin {
    /// Asks the machine. `version` is that of the program, `time` now, in UTC, as in RFC 3339.
    pub fn of_this_machine(version: &str, time: String) -> Self {
        let kernel = rustix::system::uname();
        Self {
            version: version.to_owned(),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: crate::together::processors(),
            memory: memory().unwrap_or(0),
            kernel: format!("{} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy()),
            time,
        }
    }
}

/// Returns the memory of this machine in bytes; the most there can be where the kernel does not say.
pub fn memory_of_this_machine() -> u64 {
    memory().unwrap_or(u64::MAX)
}

fn memory() -> Option<u64> {
    field("/proc/meminfo", "MemTotal").as_deref().and_then(kibibytes)
}

/// Returns what a file of the kernel says of a name, at the first place that it does.
fn field(path: &str, name: &str) -> Option<String> {
    let lines = BufReader::new(File::open(path).ok()?).lines().take(LINES_MAX);
    let of_name = |line: String| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    };
    lines.map_while(Result::ok).find_map(of_name)
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known() {
        let origin = Origin::of_this_machine("1", "now".to_owned());
        assert!(origin.kernel.starts_with("Linux ") && 1 << 28 < origin.memory && !origin.processor.is_empty());
        assert_eq!((field("/proc/nothing", "x"), kibibytes("12 kB"), kibibytes("x kB")), (None, Some(12288), None));
    }
}
