//! The clock of the index. Two readings cost more than a probe of the cache, so probes are sampled.

use std::sync::Arc;
use std::time::Duration;

use crate::io::Host;

/// Batches for each batch that is timed.
const BATCHES_PER_SAMPLE: u64 = 16;

/// The clock that measures nanoseconds for the counters.
#[derive(Debug)]
pub(in crate::identify) struct Timer {
    host: Arc<dyn Host>,
    batches: u64,
}

impl Timer {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, batches: 0 }
    }

    pub(in crate::identify) fn now(&self) -> Duration {
        self.host.monotonic()
    }

    pub(in crate::identify) fn nanos_since(&self, start: Duration) -> u64 {
        u64::try_from(self.now().saturating_sub(start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Begins another batch of chunks.
    pub(in crate::identify) fn begin_batch(&mut self) {
        self.batches += 1;
    }

    /// Returns the time if this batch is a sample.
    pub(in crate::identify) fn sample(&self) -> Option<Duration> {
        self.batches.is_multiple_of(BATCHES_PER_SAMPLE).then(|| self.now())
    }

    /// Returns the nanoseconds that all batches took, going by a sample that began at `start`.
    pub(in crate::identify) fn nanos_of_sample(&self, start: Duration) -> u64 {
        BATCHES_PER_SAMPLE * self.nanos_since(start)
    }
}
