//! Selective deduplication by the chunk fragmentation level, CFL-SD (Nam et al., MASCOTS 2012).

use crate::backup::rewriting::{Decision, Place, Placed, Rewriting, decision};
use crate::lru::Lru;
use crate::types::{ContainerId, Sequence};

/// A run of chunks in one container with less than this share of its bytes is fragmented: 3%, as in destor's sample configuration.
const USED_MIN: (u64, u64) = (3, 100);
/// Chunks are stored again while the level is below this one: 0.6, as in the paper.
const LEVEL: (u64, u64) = (3, 5);
/// Containers of the cache that a restore is thought to have: 30, as in destor's sample configuration.
const CACHE_CONTAINERS: usize = 30;

/// Stores short runs of duplicates again while a restore of the stream so far would read many more containers than it has bytes for. A
/// run ends at other containers, new chunks and file marks.
#[derive(Debug)]
pub struct Selective {
    run: Option<Run>,
    used_min: u64,
    level: Level,
}

#[derive(Debug)]
struct Run {
    container: ContainerId,
    bytes: u64,
    /// Chunks that wait until the run is long enough.
    waiting: Vec<(Sequence, u32)>,
}

impl Selective {
    /// Takes the bytes of a container.
    pub fn new(container_bytes: u64) -> Self {
        let container_bytes = container_bytes.max(1);
        let used_min = container_bytes * USED_MIN.0 / USED_MIN.1;
        Self { run: None, used_min, level: Level::new(container_bytes) }
    }

    fn keep(&mut self, container: ContainerId, (sequence, len): (Sequence, u32), decided: &mut Vec<Decision>) {
        self.level.refer(Some(container), len);
        decided.push(Decision::Keep(sequence));
    }

    fn end_run(&mut self, decided: &mut Vec<Decision>) {
        let Some(Run { container, waiting, .. }) = self.run.take() else { return };
        for (sequence, len) in waiting {
            let is_fragmented = self.level.is_low();
            self.level.refer((!is_fragmented).then_some(container), len);
            decided.push(decision(sequence, is_fragmented));
        }
    }
}

impl Rewriting for Selective {
    fn push(&mut self, reference: &Placed, decided: &mut Vec<Decision>) {
        let &Placed { sequence, len, place } = reference;
        let Place::Stored(container) = place else {
            self.end_run(decided);
            self.level.refer(None, len);
            decided.push(Decision::Keep(sequence));
            return;
        };
        if self.run.as_ref().is_none_or(|run| run.container != container) {
            self.end_run(decided);
        }
        let run = self.run.get_or_insert_with(|| Run { container, bytes: 0, waiting: Vec::new() });
        run.bytes += u64::from(len);
        run.waiting.push((sequence, len));
        if self.used_min <= run.bytes {
            for chunk in std::mem::take(&mut run.waiting) {
                self.keep(container, chunk, decided);
            }
        }
    }

    fn mark(&mut self, decided: &mut Vec<Decision>) {
        self.end_run(decided);
    }

    fn finish(&mut self, decided: &mut Vec<Decision>) {
        self.end_run(decided);
    }
}

/// The fragmentation level of the stream so far: the containers that its bytes fill, divided by those that a restore reads with a
/// cache of the least recently used ones.
#[derive(Debug)]
struct Level {
    container_bytes: u64,
    bytes: u64,
    /// Bytes that this session stores, in containers of their own.
    stored: u64,
    cache: Lru<Result<ContainerId, u64>, ()>,
    reads: u64,
}

impl Level {
    fn new(container_bytes: u64) -> Self {
        Self { container_bytes, bytes: 0, stored: 0, cache: Lru::new(CACHE_CONTAINERS), reads: 0 }
    }

    /// Notes a chunk in a container that was there before, or in one that this session writes.
    fn refer(&mut self, container: Option<ContainerId>, len: u32) {
        self.bytes += u64::from(len);
        let container = container.ok_or_else(|| {
            self.stored += u64::from(len);
            self.stored / self.container_bytes
        });
        if self.cache.get(&container).is_none() {
            self.cache.insert(container, (), 1);
            self.reads += 1;
        }
    }

    fn is_low(&self) -> bool {
        self.bytes.div_ceil(self.container_bytes) * LEVEL.1 < self.reads * LEVEL.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::rewriting::tests::{decided, random_stream, stream};
    use crate::random::SplitMix64;

    #[test]
    fn short_runs_are_stored_again_while_the_level_is_low() {
        // Containers of 1,000 bytes: a run needs 30. The first container read is all that one needs; the second read lowers the level
        // to one half.
        assert_eq!(decided(Selective::new(1000), &stream("11n22333443n3s3"), &[]), "...!!...!!!.!.!");
        // A mark ends the run of three, and a new chunk that of the same container.
        assert_eq!(decided(Selective::new(1000), &stream("1nn333"), &[]), "......");
        assert_eq!(decided(Selective::new(1000), &stream("1nn333"), &[5]), "...!!!");
        assert_eq!(decided(Selective::new(1000), &stream("1nn33n33"), &[]), "...!!.!!");
    }

    #[test]
    fn the_level_stays_where_it_is_demanded() {
        // Whole containers cost nothing, and a stream of fragments is stored again until they are few.
        let whole: String = (1..9).map(|container| container.to_string().repeat(100)).collect();
        assert!(!decided(Selective::new(1000), &stream(&whole), &[]).contains('!'));
        let fragments: String = (0..3000).map(|number| char::from(b'1' + u8::try_from(number % 9).unwrap())).collect();
        let decided = decided(Selective::new(1000), &stream(&fragments), &[]);
        assert!(decided[..20].contains('!'), "{decided}");
        assert!(!decided[2000..].contains('!'), "{decided}");
    }

    #[test]
    fn random_streams_are_decided_as_a_naive_model_does() {
        let mut random = SplitMix64::new(6);
        for _ in 0..100 {
            let stream = random_stream(&mut random, 400);
            let marks = [100, 101, 250];
            let mut runs: Vec<Vec<&Placed>> = Vec::new();
            for placed in &stream {
                let goes_on = runs.last().is_some_and(|run| {
                    let is_stored = matches!(placed.place, Place::Stored(_));
                    is_stored && run[0].place == placed.place && !marks.contains(&placed.sequence.0)
                });
                if goes_on { runs.last_mut().unwrap().push(placed) } else { runs.push(vec![placed]) }
            }
            let (mut bytes, mut stored, mut reads, mut used) = (0u64, 0u64, 0u64, Vec::new());
            let mut expected = String::new();
            for run in runs {
                let is_short = run.iter().map(|placed| u64::from(placed.len)).sum::<u64>() < 30;
                for placed in run {
                    let low = (bytes.div_ceil(1000) as f64) < 0.6 * reads as f64;
                    let again = is_short && low && matches!(placed.place, Place::Stored(_));
                    let container = match placed.place {
                        Place::Stored(container) if !again => Ok(container),
                        _ => {
                            stored += u64::from(placed.len);
                            Err(stored / 1000)
                        }
                    };
                    bytes += u64::from(placed.len);
                    reads += u64::from(!used.contains(&container));
                    used.retain(|other| *other != container);
                    used.push(container);
                    used.drain(..used.len().saturating_sub(30));
                    expected.push(if again { '!' } else { '.' });
                }
            }
            assert_eq!(decided(Selective::new(1000), &stream, &marks), expected);
        }
    }
}
