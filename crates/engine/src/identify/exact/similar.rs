//! Segments that wait for their end, and the similar ones that are read for them.
//!
//! With a [`Selection`] other than the base one, the chunks of a segment wait until it ends. Then its features are looked up in one batch, the
//! most similar segments of earlier streams are read into the cache, and the chunks arrive. Chunks that the cache does not have are looked
//! up, or, in a near-exact index, are unique. (Fu et al., FAST 2015, figure 1; Lillibridge et al., "Sparse Indexing", FAST 2009.)
//!
//! [`Selection`]: crate::identify::Selection

use std::collections::HashSet;

use crate::identify::exact::identify::Index;
use crate::identify::exact::registry::Preferred;
use crate::identify::exact::waiting_segment::WaitingSegment;
use crate::identify::identity_hasher::BuildIdentityHasher;
use crate::identify::locality::arrival_log::{LogRecord, LogWindow};
use crate::identify::options::PrefetchUnit;
use crate::identify::{Selection, SequencedChunk};
use crate::kv::{Key, Lookup, Ordinal, Position};
use crate::types::{Chunk, ChunkKind, Fingerprint};

impl Index {
    /// Lets a chunk wait for the end of its segment, and answers the segment before if it begins another one.
    pub(in crate::identify) fn wait(&mut self, chunk: &SequencedChunk) {
        let Some(segment) = &self.session.segment else { return };
        if let Some(is_cut) = segment.ends_before(chunk, self.options.pending_bytes_max) {
            self.answer_segment(is_cut);
        }
        if let Some(segment) = &mut self.session.segment {
            segment.push(chunk);
        }
    }

    /// Answers the chunks of the waiting segment. `is_cut`: it has not ended by itself.
    pub(in crate::identify) fn answer_segment(&mut self, is_cut: bool) {
        let Some(chunks) = self.session.segment.as_mut().map(WaitingSegment::take) else { return };
        let data = |chunk: &&SequencedChunk| chunk.kind == ChunkKind::Data;
        let fingerprints: Vec<Fingerprint> = chunks.iter().filter(data).map(|chunk| chunk.chunk.fingerprint).collect();
        let champions = self.champions_of(&fingerprints);
        self.read_champions(&champions);
        for chunk in &chunks {
            self.arrive(chunk);
        }
        let others =
            if self.options.selection == Selection::All { self.others(&champions, &fingerprints) } else { Vec::new() };
        if let Some(queue) = &mut self.session.stream {
            queue.follow(others);
            queue.end_segment();
        }
        if let Some(stream) = self.store.stream.as_mut().filter(|_| is_cut && !fingerprints.is_empty()) {
            stream.segments_cut_short += 1;
        }
    }

    /// Returns the first positions of the segments to be read for a segment with these chunks.
    fn champions_of(&mut self, segment: &[Fingerprint]) -> Vec<Position> {
        let features = self.options.sampling.features(segment);
        if features.is_empty() {
            return Vec::new();
        }
        let mapping = self.options.mapping.max(1);
        let numbers = || (0..=u8::MAX).take(mapping as usize);
        let keys_of = |at: &usize| segment.get(*at).map(Key::from);
        let keys: Vec<Key> =
            features.iter().filter_map(keys_of).flat_map(|key| numbers().map(move |number| key.nth(number))).collect();
        let start = self.timer.now();
        let mut answers = Vec::with_capacity(keys.len());
        for batch in keys.chunks(self.options.store.lookups_max()) {
            answers.extend(self.store.entries.look_up(batch, &Preferred(&self.store.registry)));
        }
        self.counters.lookup_nanos += self.timer.nanos_since(start);
        self.counters.lookups += features.len() as u64;
        self.counters.lookup_batches += 1;
        let mut candidates = Vec::new();
        for (feature, answers) in (0..).zip(answers.chunks(numbers().count())) {
            let best =
                answers.iter().copied().reduce(|best, answer| if best.entry().is_some() { best } else { answer });
            self.count_answer(best.unwrap_or(Lookup::Absent));
            for position in answers.iter().filter_map(|answer| Some(answer.entry()?.position)) {
                let unit = self.store.stream.as_ref().filter(|_| position.is_in_stream());
                match unit.and_then(|stream| stream.around(position, 0, u32::MAX)) {
                    Some(unit) => candidates.push((feature, unit.start.number())),
                    None => self.counters.lookups_without_unit += u64::from(position.is_in_stream()),
                }
            }
        }
        let chosen = self.options.selection.champions(&candidates);
        chosen.into_iter().map(Position::in_stream).collect()
    }

    /// Reads segments, each with those that follow it, unless it is cached.
    fn read_champions(&mut self, champions: &[Position]) {
        let PrefetchUnit::Segment { following } = self.options.unit else { return };
        let most = self.options.window.max();
        let mut windows: Vec<(LogWindow, _)> = Vec::new();
        for champion in champions {
            self.counters.champions += 1;
            if self.cache.touch_unit(*champion) {
                continue;
            }
            let around = self.store.stream.as_ref().and_then(|stream| stream.around(*champion, following, most));
            self.counters.units_read += u64::from(around.is_some());
            windows.extend(around.map(|window| (window, None)));
        }
        self.read_all(&windows);
    }

    /// Returns the chunks of some cached segments that are none of those given, and whose containers live.
    fn others(&self, segments: &[Position], known: &[Fingerprint]) -> Vec<(Chunk, Ordinal)> {
        let mut known: HashSet<Fingerprint, BuildIdentityHasher> = known.iter().copied().collect();
        let mut others = Vec::new();
        for extent in segments.iter().filter_map(|start| self.cache.unit(*start)) {
            for LogRecord { chunk, ordinal } in extent.records {
                if known.insert(chunk.fingerprint) && self.live(ordinal, Position::NONE).is_some() {
                    others.push((chunk, ordinal));
                }
            }
        }
        others
    }
}
