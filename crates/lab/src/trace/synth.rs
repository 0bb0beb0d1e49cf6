//! Synthetic traces: a source of objects that change from version to version, at any size.
//!
//! Seed, object, position and the last version that wrote a chunk decide its content. So the generator stores nothing: it makes each
//! object again for each version, one part at a time. After Tarasov et al., "Generating
//! Realistic Datasets for Deduplication Analysis" (USENIX ATC 2012): states of files from one version to the next, and chunks
//! that come from a common pool with skewed popularity. Unlike theirs, ours has no histograms of a real file system: the
//! numbers are the user's, and `describe` reports their effect.

use anyhow::{Result, ensure};
use clap::Args;
use onefold_engine::random::mix64;

use crate::stream::Random;
use crate::trace::{Event, Events, HASH_LEN, TraceChunk};

/// Chunks of a part of an object. One part is in memory, 24 bytes for each chunk.
const PART_CHUNKS: u64 = 1 << 16;

/// Lengths of chunks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lengths {
    /// All the same.
    Fixed(u32),
    /// As content-defined chunking gives them: the shortest length and an exponential rest, up to the longest.
    Exponential {
        /// Shortest.
        min: u32,
        /// Mean if there were no longest.
        mean: u32,
        /// Longest.
        max: u32,
    },
}

/// Properties of a source.
#[derive(Clone, Copy, PartialEq, Debug, Args)]
pub struct SynthSpec {
    /// Same seed, same trace.
    #[arg(long, value_name = "N", default_value_t = SynthSpec::default().seed)]
    pub seed: u64,
    /// States of the source.
    #[arg(long, value_name = "N", default_value_t = SynthSpec::default().versions)]
    pub versions: u32,
    /// Objects (files, images) of the first version.
    #[arg(long, value_name = "N", default_value_t = SynthSpec::default().objects)]
    pub objects: u64,
    /// Mean length of an object in chunks.
    #[arg(long, value_name = "MEAN", default_value_t = SynthSpec::default().object_chunks)]
    pub object_chunks: f64,
    /// Share of the first version's objects that each later version adds.
    #[arg(long, value_name = "SHARE", default_value_t = SynthSpec::default().added)]
    pub added: f64,
    /// Share of objects that each later version removes.
    #[arg(long, value_name = "SHARE", default_value_t = SynthSpec::default().removed)]
    pub removed: f64,
    /// Share of objects that each later version modifies.
    #[arg(long, value_name = "SHARE", default_value_t = SynthSpec::default().modified)]
    pub modified: f64,
    /// Share of a modified object's chunks that are rewritten.
    #[arg(long, value_name = "SHARE", default_value_t = SynthSpec::default().changed)]
    pub changed: f64,
    /// Mean length of a run of new chunks.
    #[arg(long, value_name = "MEAN", default_value_t = SynthSpec::default().change_run)]
    pub change_run: f64,
    /// Share of runs of new chunks that come from a common pool: duplicates within a version.
    #[arg(long, value_name = "SHARE", default_value_t = SynthSpec::default().pooled)]
    pub pooled: f64,
    /// Sources of runs in the pool.
    #[arg(long, value_name = "N", default_value_t = SynthSpec::default().pool_size)]
    pub pool_size: u64,
    /// Exponent of their popularity (Zipf); 0 makes all the same.
    #[arg(long, value_name = "EXPONENT", default_value_t = SynthSpec::default().pool_skew)]
    pub pool_skew: f64,
    /// Lengths of chunks.
    #[arg(skip = SynthSpec::default().lengths)]
    pub lengths: Lengths,
}

impl Default for SynthSpec {
    /// A file system that is saved daily: 2% of its files are modified, a tenth of each, and 1% come new (Lillibridge's recipe,
    /// as Tarasov et al. quote it).
    fn default() -> Self {
        Self {
            seed: 1,
            versions: 10,
            objects: 1000,
            object_chunks: 100.0,
            added: 0.01,
            removed: 0.005,
            modified: 0.02,
            changed: 0.1,
            change_run: 16.0,
            pooled: 0.1,
            pool_size: 1000,
            pool_skew: 1.0,
            lengths: Lengths::Exponential { min: 2048, mean: 8192, max: 65536 },
        }
    }
}

impl SynthSpec {
    /// Refuses impossible properties.
    pub fn check(&self) -> Result<()> {
        let shares = [
            ("added", self.added),
            ("removed", self.removed),
            ("modified", self.modified),
            ("changed", self.changed),
            ("pooled", self.pooled),
        ];
        for (name, share) in shares {
            ensure!((0.0..=1.0).contains(&share), "{name} is a share, 0 to 1, not {share}");
        }
        for (name, mean) in [("object-chunks", self.object_chunks), ("change-run", self.change_run)] {
            ensure!((1.0..=1e12).contains(&mean), "{name} is a mean of at least 1, not {mean}");
        }
        ensure!((0.0..=10.0).contains(&self.pool_skew), "pool-skew is 0 to 10, not {}", self.pool_skew);
        ensure!(self.versions != 0, "a trace has at least one version");
        ensure!(self.pool_size != 0, "the pool has at least one source of runs");
        ensure!(self.objects <= 1 << 40, "more than 2^40 objects");
        match self.lengths {
            Lengths::Fixed(len) => ensure!(len != 0, "chunks of no bytes"),
            Lengths::Exponential { min, mean, max } => {
                ensure!(0 < min && min <= mean && mean <= max, "lengths of chunks: shortest, mean, longest, in order");
            }
        }
        Ok(())
    }
}

/// Which content a chunk has: equal ones are duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Content {
    /// Of an object and the version that wrote it, or of the pool.
    source: u64,
    version: u64,
    index: u64,
}

/// The version that stands for the pool; no object has it.
const POOL: u64 = u64::MAX;

/// Kind of a decision. Decisions are independent of each other.
#[derive(Clone, Copy, Debug)]
enum Decision {
    Length = 1,
    Removed,
    Modified,
    Runs,
    Content,
}

/// Makes a trace.
#[derive(Debug)]
pub struct Synth {
    spec: SynthSpec,
    version: u32,
    object: u64,
    /// The current object: its length in chunks, and the number returned so far.
    open: Option<(u64, u64)>,
    part: Vec<Content>,
}

impl Synth {
    /// Starts at the first version.
    pub fn new(spec: SynthSpec) -> Result<Self> {
        spec.check()?;
        Ok(Self { spec, version: 0, object: 0, open: None, part: Vec::new() })
    }

    fn random(&self, decision: Decision, words: [u64; 3]) -> Random {
        let start = mix64(self.spec.seed ^ mix64(decision as u64));
        Random::new(words.into_iter().fold(start, |state, word| mix64(state ^ mix64(word))))
    }

    /// Returns how many objects there have been up to a version.
    fn objects_up_to(&self, version: u32) -> u64 {
        self.spec.objects + u64::from(version) * self.added()
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
    fn added(&self) -> u64 {
        (self.spec.objects as f64 * self.spec.added).round() as u64
    }

    /// Returns the version that an object came with.
    fn birth(&self, object: u64) -> u32 {
        let later = object.saturating_sub(self.spec.objects).checked_div(self.added());
        let is_first = object < self.spec.objects;
        later.filter(|_| !is_first).map_or(0, |later| u32::try_from(later + 1).unwrap_or(u32::MAX))
    }

    fn is_removed(&self, object: u64) -> bool {
        (self.birth(object) + 1..=self.version)
            .any(|version| self.random(Decision::Removed, [object, version.into(), 0]).share() < self.spec.removed)
    }

    fn length(&self, object: u64) -> u64 {
        self.random(Decision::Length, [object, 0, 0]).geometric(self.spec.object_chunks)
    }

    /// Makes the part of the open object that begins at a chunk.
    fn make_part(&mut self, start: u64, len: u64) {
        let (object, birth) = (self.object, self.birth(self.object));
        let mut part = std::mem::take(&mut self.part);
        part.clear();
        let mut random = self.random(Decision::Runs, [object, birth.into(), start]);
        while (part.len() as u64) < len {
            let run = random.geometric(self.spec.change_run).min(len - part.len() as u64);
            let from = start + part.len() as u64;
            let content = self.draw_content(&mut random, object, birth, from);
            part.extend((0..run).map(|step| Content { index: content.index + step, ..content }));
        }
        for version in birth + 1..=self.version {
            let is_modified = self.random(Decision::Modified, [object, version.into(), 0]).share() < self.spec.modified;
            if is_modified {
                self.modify(&mut part, object, version, start);
            }
        }
        self.part = part;
    }

    /// Writes a version's runs over a part.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small numbers"
    )]
    fn modify(&self, part: &mut [Content], object: u64, version: u32, start: u64) {
        let mut random = self.random(Decision::Runs, [object, version.into(), start]);
        let runs = part.len() as f64 * self.spec.changed / self.spec.change_run;
        let count = runs as u64 + u64::from(random.share() < runs.fract());
        for _ in 0..count {
            let at = random.below(part.len() as u64);
            let run = random.geometric(self.spec.change_run);
            let content = self.draw_content(&mut random, object, version, start + at);
            let places = part.iter_mut().skip(usize::try_from(at).unwrap_or(usize::MAX));
            for (step, place) in (0..run).zip(places) {
                *place = Content { index: content.index + step, ..content };
            }
        }
    }

    /// Returns the first content of a run: new, or from the pool.
    fn draw_content(&self, random: &mut Random, object: u64, version: u32, from: u64) -> Content {
        if random.share() < self.spec.pooled {
            Content { source: self.draw_popular(random), version: POOL, index: 0 }
        } else {
            Content { source: object, version: version.into(), index: from }
        }
    }

    /// Draws from the pool: the probability of the n-th is about that of 1 / n to the power of the skew.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    fn draw_popular(&self, random: &mut Random) -> u64 {
        let (size, share, rest) = (self.spec.pool_size as f64, random.share(), 1.0 - self.spec.pool_skew);
        let rank =
            if rest.abs() < 1e-6 { size.powf(share) } else { (share * (size.powf(rest) - 1.0) + 1.0).powf(1.0 / rest) };
        (rank as u64).clamp(1, self.spec.pool_size) - 1
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the longest")]
    fn chunk(&self, content: Content) -> TraceChunk {
        let Content { source, version, index } = content;
        let mut random = self.random(Decision::Content, [source, version, index]);
        let mut hash = [0; HASH_LEN];
        for place in hash.chunks_mut(8) {
            let bits = random.bits().to_le_bytes();
            place.copy_from_slice(bits.get(..place.len()).unwrap_or_default());
        }
        let len = match self.spec.lengths {
            Lengths::Fixed(len) => len,
            Lengths::Exponential { min, mean, max } => {
                let rest = -f64::from(mean - min) * f64::ln(1.0 - random.share());
                min.saturating_add(rest as u32).min(max)
            }
        };
        TraceChunk { hash, len }
    }
}

impl Events for Synth {
    fn next_event(&mut self) -> Result<Option<Event>> {
        if let Some((len, given)) = self.open {
            if given == len {
                (self.open, self.object) = (None, self.object + 1);
                return Ok(Some(Event::End));
            }
            let within = given % PART_CHUNKS;
            if within == 0 {
                self.make_part(given, (len - given).min(PART_CHUNKS));
            }
            self.open = Some((len, given + 1));
            let content = usize::try_from(within).ok().and_then(|within| self.part.get(within).copied());
            return Ok(content.map(|content| Event::Chunk(self.chunk(content))));
        }
        loop {
            if self.objects_up_to(self.version) <= self.object {
                (self.version, self.object) = (self.version.saturating_add(1), 0);
            }
            if self.spec.versions <= self.version {
                return Ok(None);
            }
            if self.object < self.objects_up_to(self.version) && !self.is_removed(self.object) {
                self.open = Some((self.length(self.object), 0));
                let name = format!("object-{:08}", self.object).into_bytes();
                return Ok(Some(Event::Begin { name, version: self.version }));
            }
            self.object += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns what each version has: chunks, those that no version before had, and those that came twice in it.
    fn summed(spec: SynthSpec) -> Vec<[usize; 3]> {
        let mut synth = Synth::new(spec).unwrap();
        let (mut known, mut within) = (HashSet::new(), HashSet::new());
        let mut versions = Vec::<[usize; 3]>::new();
        while let Some(event) = synth.next_event().unwrap() {
            match event {
                Event::Begin { version, .. } if versions.len() <= version as usize => {
                    assert_eq!(versions.len(), version as usize);
                    versions.push([0; 3]);
                    within.clear();
                }
                Event::Chunk(chunk) => {
                    let [chunks, new, twice] = versions.last_mut().unwrap();
                    *chunks += 1;
                    *new += usize::from(known.insert(chunk.hash));
                    *twice += usize::from(!within.insert(chunk.hash));
                }
                Event::Begin { .. } | Event::End => {}
            }
        }
        versions
    }

    fn share(part: usize, whole: usize) -> f64 {
        f64::from(u32::try_from(part).unwrap()) / f64::from(u32::try_from(whole).unwrap())
    }

    #[test]
    fn shares_come_out_as_they_were_asked_for() {
        let spec = SynthSpec {
            versions: 4,
            objects: 400,
            object_chunks: 500.0,
            added: 0.05,
            removed: 0.0,
            modified: 0.5,
            changed: 0.2,
            pooled: 0.0,
            ..SynthSpec::default()
        };
        let versions = summed(spec);
        assert_eq!((versions.len(), versions[0][1], versions[0][2]), (4, versions[0][0], 0));
        for [before, [chunks, new, twice]] in versions.array_windows() {
            assert_eq!(*twice, 0);
            // Added chunks, and modified ones except where runs meet.
            let grown = share(chunks - before[0], versions[0][0]);
            assert!((0.03..0.07).contains(&grown), "{grown}");
            let changed = share(new - (chunks - before[0]), before[0]);
            assert!((0.07..0.11).contains(&changed), "{changed}");
        }
        let pooled = summed(SynthSpec { versions: 1, pooled: 0.5, ..spec });
        let twice = share(pooled[0][2], pooled[0][0]);
        assert!((0.35..0.5).contains(&twice), "{twice}");
        let removed = summed(SynthSpec { removed: 0.5, added: 0.0, ..spec });
        let left = share(removed[1][0], removed[0][0]);
        assert!((0.4..0.6).contains(&left), "{left}");
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_large_objects_are_made_in_parts() {
        let spec =
            SynthSpec { versions: 3, objects: 2, object_chunks: 150_000.0, modified: 1.0, ..SynthSpec::default() };
        let all = |spec| {
            let mut synth = Synth::new(spec).unwrap();
            let mut events = Vec::new();
            while let Some(event) = synth.next_event().unwrap() {
                events.push(event);
            }
            events
        };
        let events = all(spec);
        assert!(2 * PART_CHUNKS < events.len() as u64);
        assert_eq!(events, all(spec));
        assert_ne!(events, all(SynthSpec { seed: 2, ..spec }));
        for event in &events {
            if let Event::Chunk(chunk) = event {
                assert!((2048..=65536).contains(&chunk.len));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |spec: SynthSpec| Synth::new(spec).unwrap_err().to_string();
        let spec = SynthSpec::default();
        assert_eq!(refused(SynthSpec { changed: 1.5, ..spec }), "changed is a share, 0 to 1, not 1.5");
        assert_eq!(refused(SynthSpec { pooled: f64::NAN, ..spec }), "pooled is a share, 0 to 1, not NaN");
        assert_eq!(refused(SynthSpec { change_run: 0.0, ..spec }), "change-run is a mean of at least 1, not 0");
        assert_eq!(refused(SynthSpec { versions: 0, ..spec }), "a trace has at least one version");
        assert_eq!(refused(SynthSpec { lengths: Lengths::Fixed(0), ..spec }), "chunks of no bytes");
        let lengths = Lengths::Exponential { min: 5, mean: 4, max: 9 };
        assert_eq!(refused(SynthSpec { lengths, ..spec }), "lengths of chunks: shortest, mean, longest, in order");
    }
}
