//! Energy that the processor counts, where the kernel lets it be read.
//!
//! Linux shows the counters of RAPL (running average power limit) as files: a directory for each package, and below it one for its memory.

use std::path::{Path, PathBuf};

use crate::counts::float;

/// Directory of the counters.
pub const POWERCAP: &str = "/sys/class/powercap";
/// Most counters: packages of one machine, and the memory of each.
const COUNTERS_MAX: usize = 64;

/// A counter.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Counter {
    file: PathBuf,
    /// The largest number of microjoules, after which it begins with 0.
    most: u64,
}

/// The counters of a machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Meter {
    counters: Vec<Counter>,
}

/// Values of the counters, in microjoules; none for one that could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading(Vec<Option<u64>>);

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Meter {
    /// Looks for counters that can be read in a directory such as [`POWERCAP`]: those of packages and of memory. The cores are a part of
    /// their package and do not count again.
    pub fn in_directory(directory: &Path) -> Self {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut counters: Vec<_> = entries.filter_map(|entry| counter(&entry.path())).collect();
        counters.sort_by(|one, other| one.file.cmp(&other.file));
        counters.truncate(COUNTERS_MAX);
        Self { counters }
    }

    /// Returns true if nothing can be read.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Reads all.
    pub fn read(&self) -> Reading {
        Reading(self.counters.iter().map(|counter| number(&counter.file)).collect())
    }

    /// Returns the joules since a reading; none if a counter could not be read. A counter that begins with 0 again does so once at most: that
    /// takes minutes at full power.
    pub fn joules_since(&self, before: &Reading) -> Option<f64> {
        let now = self.read();
        let mut microjoules = 0;
        for ((counter, before), now) in self.counters.iter().zip(&before.0).zip(&now.0) {
            let (before, now) = ((*before)?, (*now)?);
            microjoules +=
                now.checked_sub(before).unwrap_or_else(|| counter.most.saturating_sub(before).saturating_add(now));
        }
        (!self.is_empty()).then(|| float(microjoules) / 1e6)
    }
}

fn counter(directory: &Path) -> Option<Counter> {
    let name = std::fs::read_to_string(directory.join("name")).ok()?;
    if !name.starts_with("package") && name.trim() != "dram" {
        return None;
    }
    let file = directory.join("energy_uj");
    let most = number(&directory.join("max_energy_range_uj"))?;
    number(&file).map(|_| Counter { file, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_and_memory_count_and_a_counter_that_begins_again_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let write = |counter: &str, file: &str, text: &str| {
            std::fs::create_dir_all(dir.path().join(counter)).unwrap();
            std::fs::write(dir.path().join(counter).join(file), text).unwrap();
        };
        for (counter, name, energy) in [
            ("intel-rapl:0", "package-0", "9000000\n"),
            ("intel-rapl:0:0", "core", "5\n"),
            ("intel-rapl:0:1", "dram", "1000000\n"),
            ("intel-rapl", "intel-rapl", "1\n"),
        ] {
            write(counter, "name", &format!("{name}\n"));
            write(counter, "energy_uj", energy);
            write(counter, "max_energy_range_uj", "10000000\n");
        }
        let meter = Meter::in_directory(dir.path());
        assert_eq!(meter.counters.len(), 2);
        let before = meter.read();
        write("intel-rapl:0", "energy_uj", "2000000\n");
        write("intel-rapl:0:1", "energy_uj", "1500000\n");
        assert_eq!(meter.joules_since(&before), Some(3.5));
        write("intel-rapl:0:1", "energy_uj", "?\n");
        assert_eq!(meter.joules_since(&before), None);
        let none = Meter::in_directory(&dir.path().join("nothing"));
        assert!(none.is_empty() && none.joules_since(&none.read()).is_none());
    }
}
