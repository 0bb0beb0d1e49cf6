//! Model of a device: the cost of a request by a few numbers from a TOML file.
//!
//! The model: requests of a batch are in flight together, up to the depth of the queue. Their latencies add up, divided
//! by how many are in flight, but are never less than the longest of them; their bytes pass one after the other. A request
//! that begins where the one before it ended avoids a share of its latency. Nothing is random, and nothing goes
//! on concurrently, so the same requests always take the same time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_engine::io::DeviceProfile;
use serde::Deserialize;

use crate::counts::float;
use crate::files::{Embedded, embedded, from_toml, names_of};
use crate::mapped;
use crate::mapped::medium::LINE_BYTES;

/// A modeled device.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// Device that it represents.
    pub about: String,
    /// Source of the numbers.
    pub source: String,
    /// Microseconds until a read delivers; of mapped memory, until a line does.
    pub read_latency_us: f64,
    /// Microseconds until a write is taken; mapped memory takes them without being waited for.
    pub write_latency_us: f64,
    /// Microseconds of a sync; of mapped memory, of a fence behind lines that were flushed.
    pub sync_latency_us: f64,
    /// Millions of bytes each second that reads deliver.
    pub read_mb_per_s: f64,
    /// The same of writes.
    pub write_mb_per_s: f64,
    /// Requests that are served together, at most [`QUEUE_DEPTH_MAX`].
    pub queue_depth: u32,
    /// Share of its latency that a request is spared which begins where the one before it ended, 0 to 1.
    pub sequential_discount: f64,
}

/// Longest latency that is taken for one: ten seconds.
const LATENCY_US_MAX: f64 = 1e7;
/// Slowest and fastest of bandwidths, in MB/s.
const BANDWIDTH: std::ops::RangeInclusive<f64> = 1e-3..=1e7;
/// Deepest of queues.
pub const QUEUE_DEPTH_MAX: u32 = 1 << 16;

/// One request as the device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Whether it begins where the one before it ended.
    pub is_sequential: bool,
    /// Bytes to move.
    pub bytes: u64,
}

impl Model {
    /// Reads one; refuses what no device does.
    pub fn parse(text: &str) -> Result<Self> {
        let model: Self = from_toml(text)?;
        model.check()?;
        Ok(model)
    }

    fn check(&self) -> Result<()> {
        let latencies = [
            ("read-latency-us", self.read_latency_us),
            ("write-latency-us", self.write_latency_us),
            ("sync-latency-us", self.sync_latency_us),
        ];
        for (field, value) in latencies {
            ensure!((0.0..=LATENCY_US_MAX).contains(&value), "{field}: 0 to {LATENCY_US_MAX} us, not {value}");
        }
        for (field, value) in [("read-mb-per-s", self.read_mb_per_s), ("write-mb-per-s", self.write_mb_per_s)] {
            let (slowest, fastest) = (BANDWIDTH.start(), BANDWIDTH.end());
            ensure!(BANDWIDTH.contains(&value), "{field}: {slowest} to {fastest} MB/s, not {value}");
        }
        let depth = self.queue_depth;
        ensure!((1..=QUEUE_DEPTH_MAX).contains(&depth), "queue-depth: 1 to {QUEUE_DEPTH_MAX}, not {depth}");
        let discount = self.sequential_discount;
        ensure!((0.0..=1.0).contains(&discount), "sequential-discount is a share, 0 to 1, not {discount}");
        Ok(())
    }

    /// Returns the time that reads take which are submitted together.
    pub fn read(&self, requests: &[Request]) -> Duration {
        self.serve(self.read_latency_us, self.read_mb_per_s, requests)
    }

    /// Returns the time that writes take which are submitted together.
    pub fn write(&self, requests: &[Request]) -> Duration {
        self.serve(self.write_latency_us, self.write_mb_per_s, requests)
    }

    /// Returns the time of a sync.
    pub fn sync(&self) -> Duration {
        micros(self.sync_latency_us)
    }

    fn serve(&self, latency_us: f64, mb_per_s: f64, requests: &[Request]) -> Duration {
        let latency = |request: &Request| {
            if request.is_sequential { latency_us * (1.0 - self.sequential_discount) } else { latency_us }
        };
        let sum: f64 = requests.iter().map(latency).sum();
        let longest = requests.iter().map(latency).fold(0.0, f64::max);
        let bytes: u64 = requests.iter().map(|request| request.bytes).sum();
        micros((sum / f64::from(self.queue_depth)).max(longest) + float(bytes) / mb_per_s)
    }

    /// Returns the time that accesses to mapped memory take: each wait its latency, copies their bytes; lines that are
    /// flushed pass while others are, and a fence waits for the last.
    pub fn mapped(&self, traffic: &mapped::Traffic) -> Duration {
        let flushed = traffic.lines_flushed * LINE_BYTES as u64;
        micros(
            float(traffic.waits()) * self.read_latency_us
                + float(traffic.bytes_copied) / self.read_mb_per_s
                + float(flushed) / self.write_mb_per_s
                + float(traffic.fences) * self.sync_latency_us,
        )
    }

    /// Returns what the engine would measure of such a device.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "rates within the ranges that were checked"
    )]
    pub fn profile(&self) -> DeviceProfile {
        let page = [Request { is_sequential: false, bytes: 4096 }];
        let deep = page.repeat(DeviceProfile::DEPTH as usize);
        let rate = |count: u64, time: Duration| (count as f64 / time.as_secs_f64().max(1e-9)) as u64;
        DeviceProfile {
            random_reads_per_s_single: rate(1, self.read(&page)).max(1),
            random_reads_per_s_deep: rate(DeviceProfile::DEPTH, self.read(&deep)).max(1),
            sequential_bytes_per_s: ((self.read_mb_per_s * 1e6) as u64).max(1),
        }
    }
}

fn micros(micros: f64) -> Duration {
    Duration::from_secs_f64(micros / 1e6)
}

/// The devices that come with the program: name and file.
const KNOWN: Embedded = embedded!["devices": "hdd" "ssd" "nvme" "pm" "cxl" "object-store"];

/// Returns the names of the modeled devices that come with the program.
pub fn names() -> impl Iterator<Item = &'static str> {
    names_of(KNOWN)
}

/// Returns one of them; `None` if none has the name.
pub fn known(name: &str) -> Option<Result<Model>> {
    let (_, text) = KNOWN.iter().find(|(known, _)| *known == name)?;
    Some(Model::parse(text).with_context(|| format!("device {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{names_in, sorted};

    #[test]
    fn all_files_are_known_and_sound() {
        assert_eq!(names_in("devices"), sorted(names()));
        for name in names() {
            let profile = super::known(name).unwrap().unwrap().profile();
            assert!(profile.random_reads_per_s_single <= profile.random_reads_per_s_deep, "{name}: {profile:?}");
        }
        assert!(super::known("ssds").is_none());
    }

    #[test]
    fn requests_wait_for_the_longest_latency_for_the_queue_and_for_their_bytes() {
        let hdd = known("hdd").unwrap().unwrap();
        let ssd = known("ssd").unwrap().unwrap();
        let page = Request { is_sequential: false, bytes: 4000 };
        let next = Request { is_sequential: true, ..page };
        // 12 ms, and 4,000 bytes of 160 MB a second: 25 us. None of the latency if it follows.
        assert_eq!(hdd.read(&[page]), Duration::from_micros(12_025));
        assert_eq!(hdd.read(&[page, next, next]), Duration::from_micros(12_075));
        assert_eq!(hdd.read(&[page; 3]), Duration::from_micros(36_075));
        // Up to 32 together wait once; 64 wait twice.
        assert_eq!(ssd.read(&[page]), Duration::from_micros(88));
        assert_eq!(ssd.read(&[page; 32]), Duration::from_micros(80 + 32 * 8));
        assert_eq!(ssd.read(&[page; 64]), Duration::from_micros(160 + 64 * 8));
        assert_eq!(ssd.read(&[]), Duration::ZERO);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let sound = KNOWN[0].1;
        let refused = |from: &str, to: &str| Model::parse(&sound.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            refused("read-latency-us = 12000.0", "read-latency-us = -1.0"),
            "read-latency-us: 0 to 10000000 us, not -1"
        );
        assert_eq!(
            refused("read-mb-per-s = 160.0", "read-mb-per-s = nan"),
            "read-mb-per-s: 0.001 to 10000000 MB/s, not NaN"
        );
        assert_eq!(refused("queue-depth = 1", "queue-depth = 0"), "queue-depth: 1 to 65536, not 0");
        assert_eq!(
            refused("sequential-discount = 1.0", "sequential-discount = 1.5"),
            "sequential-discount is a share, 0 to 1, not 1.5"
        );
        assert!(refused("queue-depth = 1", "queue-deepth = 1").contains("unknown field `queue-deepth`"));
        assert!(refused("queue-depth = 1\n", "").contains("missing field `queue-depth`"));
        assert!(Model::parse("\u{0}").is_err());
    }
}
