//! Looking keys up on disk, many at a time, without rounds: as soon as a page has come, what follows from it is read.
//!
//! In rounds the disk waits for the slowest read of each, and has ever less to do in the later ones.

use crate::error::Result;
use crate::io::{OwnedRead, ReadStream};
use crate::kv::search::{Reader, Search, Span, sort_searches};
use crate::kv::table::Lookup;
use crate::kv::{Key, Ordinal};

impl Reader<'_> {
    /// Carries out searches as [`Reader::search`] does and with the same answers, but none waits for another: the disk has as
    /// much to do as a batch allows until the last ones. Those whose ways parted are not read together again, which costs a few
    /// reads more; where these are dear, and where runs are read whole, it goes in rounds.
    pub(super) fn streamed_search(
        mut self,
        keys: &[Key],
        mut searches: Vec<Search>,
        live: &dyn Fn(Ordinal) -> bool,
        out: &mut [Lookup],
    ) {
        if self.reads_together() {
            return self.search(keys, searches, live, out);
        }
        sort_searches(&mut searches);
        let (disk, file) = (self.disk, self.file);
        searches.retain_mut(|search| search.goes_on(self.buckets, keys, &mut self.counters.recent_skips));
        let mut waiting = self.spans(&searches, 0);
        // Taken from the end.
        waiting.reverse();
        let flying = Vec::new();
        let mut steps = Steps { reader: self, keys, searches, live, out, waiting, flying, pages: 0 };
        disk.read_stream(file, &mut steps);
    }
}

/// Searches of which each goes on as soon as its page has come.
struct Steps<'a, 'r> {
    reader: Reader<'r>,
    keys: &'a [Key],
    searches: Vec<Search>,
    live: &'a dyn Fn(Ordinal) -> bool,
    out: &'a mut [Lookup],
    /// Spans to be read, the next one last.
    waiting: Vec<Span>,
    /// Spans that are being read.
    flying: Vec<Option<Span>>,
    /// Pages of these.
    pages: usize,
}

impl ReadStream for Steps<'_, '_> {
    fn next(&mut self) -> Option<OwnedRead> {
        let fits = |span: &mut Span| self.pages == 0 || self.pages + span.pages() <= self.reader.batch_pages;
        let span = self.waiting.pop_if(fits)?;
        let (offset, buffer) = self.reader.space_for(&span);
        self.pages += span.pages();
        let number = self.flying.iter().position(Option::is_none).unwrap_or(self.flying.len());
        if number == self.flying.len() {
            self.flying.push(None);
        }
        self.flying[number] = Some(span);
        Some(OwnedRead { number, offset, buffer })
    }

    fn end(&mut self, read: OwnedRead, outcome: Result<()>) {
        let OwnedRead { number, buffer, .. } = read;
        let span = self.flying[number].take().expect("a read ends once");
        self.pages -= span.pages();
        let Self { reader, keys, searches, live, out, waiting, .. } = self;
        let all = &mut searches[span.searches.clone()];
        reader.advance(&span, outcome.is_ok().then_some(&*buffer), keys, all, live, out);
        reader.pool.give(buffer);
        // Those that go on move to the front, in order.
        let mut count = 0;
        for index in 0..all.len() {
            if all[index].goes_on(reader.buckets, keys, &mut reader.counters.recent_skips) {
                all.swap(count, index);
                count += 1;
            }
        }
        // Before the others: the longest way to an answer begins first.
        waiting.extend(reader.spans(&all[..count], span.searches.start));
    }
}
