//! Chunks through an identifier, timed and checked: what a backup does between cutting and packing, without the bytes.
//!
//! Chunks that are to be stored fill the containers of a [simulated repository](crate::sim), which are recorded as in a backup. The
//! clock runs only while the identifier works: making chunks up, reading them from a trace, rewriting and checking do not count.

mod due;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_engine::identify::{Counters, Identifier, Mark, Resolved, SequencedChunk, Unit, Verdict};
use onefold_engine::io::Host;
use onefold_engine::types::{Chunk, Sequence};

use crate::counts::float;
use crate::replay::due::Due;
use crate::sim::recipe::{Recipe, Step};
use crate::sim::{Before, Repository, container};
use crate::stream::{Stream, name};
use crate::trace::{Event, Events};

/// Chunks that are drawn before the clock runs.
const BATCH_CHUNKS: usize = 1 << 14;
/// Chunks of one call of `submit`, which is timed.
pub const SUBMITTED_CHUNKS: usize = 256;

/// A chunk on its way into an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// The chunk.
    pub chunk: Chunk,
    /// Whether it is new, if that is known.
    pub is_new: Option<bool>,
    /// Whether a file begins with it, and the one before ends.
    pub begins_file: bool,
}

impl Drawn {
    /// Returns a chunk that is in no file or inside of one.
    pub fn inside(chunk: Chunk, is_new: bool) -> Self {
        Self { chunk, is_new: Some(is_new), begins_file: false }
    }
}

/// A source of chunks, which are those of one session or of several, one after the other.
pub trait Source {
    /// Returns the next chunk of the session, `None` after its last.
    fn draw(&mut self) -> Result<Option<Drawn>>;

    /// Goes on to the next session after the last chunk of one; returns false if there is none. Each has a chunk.
    fn next_session(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Returns the number of the session.
    fn session(&self) -> u32 {
        0
    }

    /// Learns whether the chunk of this number is unique; those of all sessions are numbered from 0 on.
    fn resolved(&mut self, _sequence: Sequence, _is_unique: bool) -> Result<()> {
        Ok(())
    }
}

/// Chunks of a stream that is made up and has no end, all of one length.
#[derive(Debug)]
pub struct MadeUp<'a> {
    /// Who makes them up.
    pub stream: &'a mut Stream,
    /// Their length.
    pub len: u32,
}

impl Source for MadeUp<'_> {
    fn draw(&mut self) -> Result<Option<Drawn>> {
        let (number, is_new) = self.stream.draw();
        Ok(Some(Drawn::inside(Chunk { fingerprint: name(number), len: self.len }, is_new)))
    }
}

/// The chunks of a trace, streams one after the other. Each version that has chunks is a session, as with successive backups.
/// Its number is that of the version.
pub struct Traced<'a> {
    events: &'a mut dyn Events,
    /// Version of the stream.
    version: u32,
    /// Version of the session, from its first chunk on.
    session: Option<u32>,
    /// First chunk of the next session.
    next: Option<Drawn>,
    /// Whether a stream has begun since the last chunk. Each is a file.
    begins_file: bool,
}

impl<'a> Traced<'a> {
    /// Takes the events of a trace.
    pub fn new(events: &'a mut dyn Events) -> Self {
        Self { events, version: 0, session: None, next: None, begins_file: false }
    }
}

impl std::fmt::Debug for Traced<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traced").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Source for Traced<'_> {
    fn draw(&mut self) -> Result<Option<Drawn>> {
        if let Some(first) = self.next.take_if(|_| self.session == Some(self.version)) {
            return Ok(Some(first));
        }
        while self.next.is_none() {
            match self.events.next_event()? {
                Some(Event::Chunk(traced)) => {
                    let begins_file = std::mem::take(&mut self.begins_file);
                    let drawn = Drawn { chunk: traced.chunk(), is_new: None, begins_file };
                    if *self.session.get_or_insert(self.version) == self.version {
                        return Ok(Some(drawn));
                    }
                    self.next = Some(drawn);
                }
                Some(Event::Begin { version, .. }) => (self.version, self.begins_file) = (version, true),
                Some(Event::End) => {}
                None => break,
            }
        }
        Ok(None)
    }

    fn next_session(&mut self) -> Result<bool> {
        let has_next = self.next.is_some();
        if has_next {
            self.session = Some(self.version);
        }
        Ok(has_next)
    }

    fn session(&self) -> u32 {
        self.session.unwrap_or_default()
    }
}

/// The sessions of a source as one.
pub struct Joined<'a>(pub &'a mut dyn Source);

impl std::fmt::Debug for Joined<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Joined")
    }
}

impl Source for Joined<'_> {
    fn draw(&mut self) -> Result<Option<Drawn>> {
        loop {
            let drawn = self.0.draw()?;
            if drawn.is_some() || !self.0.next_session()? {
                return Ok(drawn);
            }
        }
    }
}

/// Chunks declared unique.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UniqueSet {
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sum of their names, modulo 2^128: the same for the same set whatever the order, another if one is missing or there
    /// twice.
    pub checksum: u128,
}

impl UniqueSet {
    /// Adds a chunk.
    pub fn add(&mut self, chunk: &Chunk) {
        let (name, _) = chunk.fingerprint.0.split_first_chunk().expect("a fingerprint has 32 bytes");
        self.chunks += 1;
        self.bytes += u64::from(chunk.len);
        self.checksum = self.checksum.wrapping_add(u128::from_le_bytes(*name));
    }

    /// Adds a set that has none of these chunks.
    pub fn add_all(&mut self, other: &Self) {
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }
}

/// An identifier under test, and what the test knows.
#[derive(Debug)]
pub struct Replay<I> {
    identifier: I,
    clock: Arc<dyn Host>,
    repository: Repository,
    /// References in the order of the stream, if the repository has versions.
    recipe: Option<Recipe>,
    next_sequence: u64,
    /// Whether the identifier learns where files begin and end.
    has_marks: bool,
    files: u64,
    is_in_file: bool,
    due: Due,
    unique: UniqueSet,
    /// Chunks declared unique that were known: exactness would be broken.
    pub stored_again: u64,
}

/// Measurements of an interval of chunks.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outcome {
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in the identifier.
    pub time: Duration,
    /// Longest time of a call with [`SUBMITTED_CHUNKS`].
    pub longest: Duration,
    /// Counters.
    pub counters: Counters,
}

impl Outcome {
    /// Returns millions of chunks per second.
    pub fn millions_per_second(&self) -> f64 {
        float(self.chunks) / self.time.as_secs_f64() / 1e6
    }

    /// Adds a later interval.
    pub fn add(&mut self, later: &Self) {
        self.chunks += later.chunks;
        self.bytes += later.bytes;
        self.time += later.time;
        self.longest = self.longest.max(later.longest);
        self.counters.add(&later.counters);
    }
}

impl<I: Identifier> Replay<I> {
    /// Takes an identifier that knows the containers of a repository, and a clock.
    pub fn new(identifier: I, clock: Arc<dyn Host>, mut repository: Repository) -> Self {
        if !identifier.is_exact() {
            repository.learn_truth();
        }
        let plan = repository.plan();
        let recipe = plan.has_versions().then(|| Recipe::new(plan.rewrite.policy(repository.containers.rule())));
        Self {
            identifier,
            clock,
            repository,
            recipe,
            next_sequence: 0,
            has_marks: false,
            files: 0,
            is_in_file: false,
            due: Due::default(),
            unique: UniqueSet::default(),
            stored_again: 0,
        }
    }

    /// Tells the identifier from now on where files begin and end. Each file is submitted by itself, which takes time.
    #[must_use]
    pub fn with_marks(self) -> Self {
        Self { has_marks: true, ..self }
    }

    /// Submits `chunks` chunks of a source, or all of a shorter one; with `drains`, until none is pending.
    pub fn advance(&mut self, source: &mut dyn Source, chunks: u64, drains: bool) -> Result<Outcome> {
        let before = self.identifier.counters();
        let mut outcome = Outcome::default();
        let mut resolved = Vec::new();
        let mut drawn = Vec::with_capacity(BATCH_CHUNKS);
        let mut batch = Vec::with_capacity(BATCH_CHUNKS);
        while outcome.chunks < chunks {
            drawn.clear();
            while drawn.len() < BATCH_CHUNKS && outcome.chunks < chunks {
                let Some(next) = source.draw()? else { break };
                drawn.push(next);
                outcome.chunks += 1;
                outcome.bytes += u64::from(next.chunk.len);
            }
            if drawn.is_empty() {
                break;
            }
            self.due.draw(&drawn);
            let has_marks = self.has_marks;
            let files = drawn.chunk_by(|_, next| !(has_marks && next.begins_file));
            for part in files.flat_map(|file| file.chunks(SUBMITTED_CHUNKS)) {
                batch.clear();
                for Drawn { chunk, begins_file, .. } in part {
                    batch.push(SequencedChunk::data(Sequence(self.next_sequence), *chunk));
                    self.next_sequence += 1;
                    if let Some(recipe) = &mut self.recipe {
                        recipe.push(*chunk, *begins_file);
                    }
                }
                let start = self.clock.monotonic();
                if has_marks && part.first().is_some_and(|first| first.begins_file) {
                    self.end_file(&mut resolved)?;
                    self.identifier.mark(Mark::FileBegin, &mut resolved)?;
                    self.is_in_file = true;
                    self.files += 1;
                }
                self.identifier.submit(&batch, &mut resolved)?;
                let taken = self.clock.monotonic().saturating_sub(start) + self.resolve(&mut resolved, source)?;
                outcome.time += taken;
                outcome.longest = outcome.longest.max(taken);
            }
        }
        if drains {
            let start = self.clock.monotonic();
            self.end_file(&mut resolved)?;
            self.identifier.drain(&mut resolved)?;
            outcome.time += self.clock.monotonic().saturating_sub(start) + self.resolve(&mut resolved, source)?;
            ensure!(self.due.count() == 0, "{} chunks have no verdict", self.due.count());
            if let Some(recipe) = &mut self.recipe {
                recipe.finish();
                outcome.time += self.refer()?;
            }
        }
        outcome.counters = self.identifier.counters().since(&before);
        Ok(outcome)
    }

    fn end_file(&mut self, resolved: &mut Vec<Resolved>) -> Result<()> {
        if std::mem::take(&mut self.is_in_file) {
            self.identifier.mark(Mark::FileEnd, resolved)?;
        }
        Ok(())
    }

    /// Compares verdicts with the truth, stores unique chunks, and passes on the references whose turn has come; returns the time of
    /// the identifier.
    fn resolve(&mut self, resolved: &mut Vec<Resolved>, source: &mut dyn Source) -> Result<Duration> {
        let mut taken = Duration::ZERO;
        let mut early = Vec::new();
        for Resolved { sequence, verdict } in resolved.drain(..) {
            let due = self.due.resolve(sequence).context("a verdict on a chunk that is not due one")?;
            let Drawn { chunk, is_new, .. } = due;
            source.resolved(sequence, verdict == Verdict::Unique)?;
            match verdict {
                Verdict::Unique => {
                    let (container, time) = self.store(chunk)?;
                    self.count_unique(&due, container);
                    taken += time;
                    if let Some(recipe) = &mut self.recipe {
                        recipe.set_new(sequence, container)?;
                    }
                }
                Verdict::SameAs(first) => {
                    if let Some(recipe) = &mut self.recipe
                        && !recipe.set_same(sequence, first)?
                    {
                        early.push((sequence, first));
                    }
                }
                Verdict::Stored(container) => {
                    ensure!(is_new != Some(true), "a new chunk was said to be stored");
                    if let Some(recipe) = &mut self.recipe {
                        recipe.set_stored(sequence, container.ordinal)?;
                    }
                }
            }
        }
        if let Some(recipe) = &mut self.recipe {
            for (sequence, first) in early {
                ensure!(
                    recipe.set_same(sequence, first)?,
                    "a chunk was said to be the same as one that is not in flight"
                );
            }
            recipe.end_verdicts();
            taken += self.refer()?;
        }
        Ok(taken)
    }

    /// Counts a chunk that was declared unique and is stored in a container.
    fn count_unique(&mut self, Drawn { chunk, is_new, .. }: &Drawn, container: u32) {
        match self.repository.note_stored(chunk, container) {
            None => {
                self.stored_again += u64::from(*is_new == Some(false));
                self.unique.add(chunk);
            }
            Some(Before::New) => self.unique.add(chunk),
            Some(Before::Shunned) => self.repository.again.add_rewritten(chunk),
            Some(Before::Again) if self.identifier.is_exact() => self.repository.again.add_rewritten(chunk),
            Some(Before::Stored) if self.identifier.is_exact() => self.stored_again += 1,
            Some(Before::Stored | Before::Again) => {
                self.repository.again.missed_chunks += 1;
                self.repository.again.missed_bytes += u64::from(chunk.len);
            }
        }
    }

    /// Adds the references whose turn has come to the version, and stores chunks again; returns the time of the identifier.
    fn refer(&mut self) -> Result<Duration> {
        let mut taken = Duration::ZERO;
        while let Some(recipe) = &mut self.recipe
            && let Some(step) = recipe.next_step()?
        {
            match step {
                Step::Refer(chunk, container) => self.repository.refer(&chunk, container)?,
                Step::StoreAgain(sequence, chunk) => {
                    let start = self.clock.monotonic();
                    self.identifier.supersede(&SequencedChunk::data(sequence, chunk))?;
                    taken += self.clock.monotonic().saturating_sub(start);
                    let (container, time) = self.store(chunk)?;
                    taken += time;
                    self.repository.note_stored(&chunk, container);
                    self.repository.again.add_rewritten(&chunk);
                    self.repository.refer(&chunk, container)?;
                    if let Some(recipe) = &mut self.recipe {
                        recipe.stored_again(sequence, &chunk, container);
                    }
                }
            }
        }
        Ok(taken)
    }

    /// Stores a chunk, in a new container if it does not fit; returns its container, and the time of recording the full one.
    fn store(&mut self, chunk: Chunk) -> Result<(u32, Duration)> {
        let fits = self.repository.containers.fits(chunk.len);
        let taken = if fits { Duration::ZERO } else { self.record()? };
        Ok((self.repository.containers.push(chunk)?, taken))
    }

    fn record(&mut self) -> Result<Duration> {
        let containers = &mut self.repository.containers;
        let start = self.clock.monotonic();
        let container = container(containers.next_number());
        self.identifier.record(Unit { container, len: 0, chunks: containers.open() })?;
        let taken = self.clock.monotonic().saturating_sub(start);
        containers.close();
        if let Some(recipe) = &mut self.recipe {
            recipe.set_recorded();
        }
        Ok(taken)
    }

    /// Returns the chunks declared unique so far that were not stored before.
    pub fn unique(&self) -> UniqueSet {
        self.unique
    }

    /// Returns how many files have begun of which the identifier learned.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Returns the identifier.
    pub fn identifier(&self) -> &I {
        &self.identifier
    }

    /// Returns the repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Records the rest; returns the identifier and the repository.
    pub fn finish(mut self) -> Result<(I, Repository)> {
        if !self.repository.containers.open().is_empty() {
            self.record()?;
        }
        Ok((self.identifier, self.repository))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceChunk;

    struct Listed(std::vec::IntoIter<Event>);

    impl Events for Listed {
        fn next_event(&mut self) -> Result<Option<Event>> {
            Ok(self.0.next())
        }
    }

    /// Returns events of streams: version and number of chunks, which all differ in length.
    fn listed(streams: &[(u32, u32)]) -> Listed {
        let mut len = 0;
        let mut events = Vec::new();
        for &(version, chunks) in streams {
            events.push(Event::Begin { name: Vec::new(), version });
            for _ in 0..chunks {
                len += 1;
                events.push(Event::Chunk(TraceChunk { hash: [7; 20], len }));
            }
            events.push(Event::End);
        }
        Listed(events.into_iter())
    }

    /// Returns the number and the lengths of the chunks of each session.
    fn sessions(source: &mut dyn Source) -> Vec<(u32, Vec<u32>)> {
        let mut sessions = Vec::new();
        loop {
            let drawn = std::iter::from_fn(|| source.draw().unwrap()).map(|drawn| drawn.chunk.len).collect();
            sessions.push((source.session(), drawn));
            // It says so again.
            assert_eq!(source.draw().unwrap(), None);
            if !source.next_session().unwrap() {
                return sessions;
            }
        }
    }

    #[test]
    fn each_version_with_chunks_is_a_session() {
        let of = |streams: &[(u32, u32)]| sessions(&mut Traced::new(&mut listed(streams)));
        let divided = of(&[(0, 0), (1, 2), (1, 0), (1, 1), (2, 0), (4, 1), (5, 0)]);
        assert_eq!(divided, [(1, vec![1, 2, 3]), (4, vec![4])]);
        assert_eq!(of(&[(0, 2), (1, 1)]), [(0, vec![1, 2]), (1, vec![3])]);
        assert_eq!(of(&[]), [(0, vec![])]);
        let mut events = listed(&[(0, 2), (1, 1), (3, 1)]);
        assert_eq!(sessions(&mut Joined(&mut Traced::new(&mut events))), [(0, vec![1, 2, 3, 4])]);
    }
}
