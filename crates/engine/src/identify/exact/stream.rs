//! Units and the two logs that hold them: what hits read, and how the stream log follows the stream.

use crate::error::Result;
use crate::identify::exact::identify::Index;
use crate::identify::exact::store::Store;
use crate::identify::exact::stream_log::StreamLog;
use crate::identify::exact::stream_queue::{StreamChunk, StreamQueue};
use crate::identify::locality::arrival_log::{LogExtent, LogWindow};
use crate::identify::locality::frame::LogCounters;
use crate::identify::options::PrefetchUnit;
use crate::kv::{Containers, Entry, Key, Lookup, Ordinal, Position};

impl Store {
    /// Returns how many records a hit reads on average, at most `max`, if hits read other units than windows.
    pub(in crate::identify) fn unit_records(&self, max: u32) -> Option<u32> {
        let mean = match self.unit {
            PrefetchUnit::Window => return None,
            PrefetchUnit::Container => self.log.mean_records(),
            PrefetchUnit::Segment { following } => {
                let of_one = self.stream.as_ref().map_or(0, StreamLog::mean_records);
                of_one.saturating_mul(u64::from(following) + 1)
            }
        };
        Some(u32::try_from(mean.max(1)).unwrap_or(max).min(max))
    }

    /// Returns the memory of all units.
    pub(in crate::identify) fn units_bytes(&self) -> usize {
        let of_stream = self.stream.as_ref().map_or(0, |stream| stream.log.units.memory_bytes());
        self.log.units.memory_bytes() + of_stream
    }

    /// Returns the work of both logs of chunks.
    pub(in crate::identify) fn log_counters(&self) -> LogCounters {
        let mut sum = self.log.log.counters;
        if let Some(stream) = &self.stream {
            sum.add(&stream.log.log.counters);
        }
        sum
    }

    /// Returns the end of the positions of duplicates.
    pub(in crate::identify) fn positions_end(&self) -> u64 {
        match &self.stream {
            Some(stream) => Position::in_stream(stream.log.log.next_position().0).0,
            None => self.log.log.next_position().0,
        }
    }

    /// Returns the unit that a hit reads, of at most so many records: that of its position, or else its container. `None` if neither
    /// is known.
    pub(in crate::identify) fn unit_around(
        &self,
        position: Position,
        ordinal: Ordinal,
        records_max: u32,
    ) -> Option<LogWindow> {
        let of_position = match (self.unit, &self.stream) {
            (PrefetchUnit::Segment { following }, Some(stream)) if position.is_in_stream() => {
                stream.around(position, following, records_max)
            }
            _ => self.log.around(position.0, 0, records_max),
        };
        let of_container = || self.log.around(self.log.units.of_container(ordinal)?.0, 0, records_max);
        of_position.or_else(of_container)
    }

    /// Returns true if hits read units, and the position of an entry leads to none.
    pub(in crate::identify) fn lacks_unit(&self, position: Position) -> bool {
        match (self.unit, &self.stream) {
            (PrefetchUnit::Window, _) => false,
            (_, Some(stream)) if position.is_in_stream() => !stream.holds(position),
            _ => position == Position::NONE || !self.log.units.holds(position.0),
        }
    }

    /// Divides what was read into units, so that each is held once, the last one first: the unit of a hit comes after those that follow
    /// it, which leave a full cache before it does.
    pub(in crate::identify) fn divide_into_units(&self, extents: Vec<LogExtent>) -> Vec<LogExtent> {
        let mut divided = Vec::with_capacity(extents.len());
        for LogExtent { start, records } in extents {
            let mut records = records.into_iter();
            let (log, mut number) = match &self.stream {
                Some(stream) if start.is_in_stream() => (&stream.log, start.number()),
                _ => (&self.log, start.number()),
            };
            while records.len() != 0 {
                let window = log.around(number, 0, u32::MAX);
                let len = window.map_or(records.len() as u64, |window| window.end() - number);
                let len = usize::try_from(len).unwrap_or(usize::MAX).min(records.len());
                let of_unit = records.by_ref().take(len).collect();
                divided.push(LogExtent { start: Position(start.0 - start.number() + number), records: of_unit });
                number += len as u64;
            }
        }
        divided.reverse();
        divided
    }

    /// Returns true if hits read segments, and the entry with this position leads to none.
    pub(in crate::identify) fn lacks_segment(&self, position: Position) -> bool {
        self.stream.as_ref().is_some_and(|stream| !stream.holds(position))
    }

    /// Reads windows of both logs.
    pub(in crate::identify) fn read_windows(&mut self, windows: Vec<LogWindow>) -> Vec<LogExtent> {
        let (of_stream, windows) = divide(windows);
        let mut extents = if windows.is_empty() { Vec::new() } else { self.log.read(windows) };
        if let Some(stream) = self.stream.as_mut().filter(|_| !of_stream.is_empty()) {
            extents.append(&mut stream.read(of_stream));
        }
        extents
    }

    /// Starts to read windows of both logs in the background.
    pub(in crate::identify) fn start_read(&mut self, windows: Vec<LogWindow>) {
        let (of_stream, windows) = divide(windows);
        if !windows.is_empty() {
            self.log.start_read(windows);
        }
        if let Some(stream) = self.stream.as_mut().filter(|_| !of_stream.is_empty()) {
            stream.start_read(of_stream);
        }
    }

    /// Waits for the reads in the background; returns their records, or `None` if none was started.
    pub(in crate::identify) fn end_read(&mut self) -> Option<Vec<LogExtent>> {
        let of_log = self.log.end_read();
        match (of_log, self.stream.as_mut().and_then(StreamLog::end_read)) {
            (Some(extents), Some(of_stream)) => Some([extents, of_stream].concat()),
            (of_log, of_stream) => of_log.or(of_stream),
        }
    }

    /// Appends the chunks of a stream whose containers are recorded to the stream log. A failure to write degrades the index and
    /// is no error.
    pub(in crate::identify) fn log_stream(&mut self, queue: &mut StreamQueue) {
        if self.degraded.is_none()
            && let Err(error) = self.append_stream(queue)
        {
            self.degrade(&error);
        }
        if self.degraded.is_some() {
            queue.stop();
        }
    }

    fn append_stream(&mut self, queue: &mut StreamQueue) -> Result<()> {
        while let Some(chunk) = queue.pop() {
            self.append_chunk(&chunk)?;
        }
        if queue.take_cut() {
            self.cut_segment()?;
        }
        Ok(())
    }

    fn append_chunk(&mut self, chunk: &StreamChunk) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if stream.has_due_entries(chunk) {
            let entries = stream.take_entries();
            self.enter(entries)?;
        }
        self.directory.mark_unclean()?;
        self.stream.as_mut().map_or(Ok(()), |stream| stream.push(chunk, &mut self.registry))
    }

    /// Ends the open segment of the stream.
    fn cut_segment(&mut self) -> Result<()> {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.has_open_segment()) else { return Ok(()) };
        let entries = stream.cut();
        self.enter(entries)
    }

    /// Enters chunks of a segment with their position in the stream.
    fn enter(&mut self, mut entries: Vec<Entry>) -> Result<()> {
        // A chunk may have an entry of another container, which must not give way to one of a container that was forgotten.
        entries.retain(|entry| self.registry.is_live(entry.ordinal));
        self.spread(&mut entries);
        self.insert(&entries)?;
        if let Some(stream) = &mut self.stream {
            stream.updates += entries.len() as u64;
            stream.reuse(entries);
            stream.note_entered(&mut self.registry);
        }
        self.entries.maintain(&mut self.registry)?;
        if self.checkpoint_is_due() { self.checkpoint() } else { Ok(()) }
    }

    /// Lets entries of features that lead to several segments take the place of the oldest, each.
    fn spread(&mut self, entries: &mut [Entry]) {
        let mapping = usize::try_from(self.stream.as_ref().map_or(1, StreamLog::mapping)).unwrap_or(1);
        if mapping <= 1 {
            return;
        }
        for entry in entries {
            let keys: Vec<Key> = (0..=u8::MAX).take(mapping).map(|number| entry.key.nth(number)).collect();
            let known = self.entries.look_up(&keys, &self.registry);
            let age = |answer: &Lookup| answer.entry().map_or(0, |entry| entry.position.number() + 1);
            if let Some((oldest, _)) = keys.iter().zip(&known).min_by_key(|(_, answer)| age(answer)) {
                entry.key = *oldest;
            }
        }
    }

    /// Ends the stream: takes what can be logged of it, and ends its last segment.
    pub(in crate::identify) fn end_stream(&mut self, queue: &mut StreamQueue) {
        queue.end();
        self.log_stream(queue);
        if self.degraded.is_none()
            && let Err(error) = self.cut_segment()
        {
            self.degrade(&error);
        }
        if let Some(stream) = &mut self.stream {
            stream.end_stream();
        }
    }
}

/// Returns the windows of the stream log, and the others.
fn divide(windows: Vec<LogWindow>) -> (Vec<LogWindow>, Vec<LogWindow>) {
    windows.into_iter().partition(|window| window.start.is_in_stream())
}

impl Index {
    /// Appends the chunks of the stream whose containers are recorded to the stream log.
    pub(in crate::identify) fn log_stream(&mut self) {
        if let Some(queue) = &mut self.session.stream {
            self.store.log_stream(queue);
            self.take_entered();
        }
    }

    /// Takes chunks that are entered out of those in flight.
    fn take_entered(&mut self) {
        let Some(stream) = &mut self.store.stream else { return };
        for fingerprint in stream.entered.drain(..) {
            self.session.set_entered(&fingerprint);
        }
    }

    /// Ends the stream of the session once its last container is recorded: enters the last segment. [`Index::attach`] and
    /// [`Index::close`] do that too. Chunks that are submitted after it, in the same session, are in no segment.
    pub fn end_stream(&mut self) {
        if let Some(mut queue) = self.session.stream.take() {
            self.store.end_stream(&mut queue);
            self.take_entered();
        }
    }
}
