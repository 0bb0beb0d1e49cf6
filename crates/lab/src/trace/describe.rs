//! Properties of a trace: share of duplicates, their distances, and the lengths of their runs.
//!
//! Exact, in memory that does not depend on the trace: chunks are sorted by name on temporary files (32 bytes for each
//! chunk), then duplicates by position (20 bytes for each).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::spill::Partitions;
use serde::Serialize;

use crate::trace::block::Totals;
use crate::trace::{Event, Events, HASH_LEN};

/// Memory of records that are sorted. At most two lists of them exist at a time.
const SORT_BYTES: usize = 32 << 20;
/// Most versions that are distinguished: each takes memory.
const VERSIONS_MAX: usize = 1 << 17;
/// Classes of a histogram: by powers of two.
const CLASSES: usize = 64;

/// Number of values in each class; the n-th class is from 2^n to below 2^(n+1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram([u64; CLASSES]);

impl Histogram {
    fn add(&mut self, value: u64) {
        let class = value.max(1).ilog2() as usize;
        if let Some(count) = self.0.get_mut(class) {
            *count += 1;
        }
    }

    /// Returns the lowest value of each class up to the last one that is not empty, and the number of values in it.
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64)> {
        let end = self.0.iter().rposition(|count| *count != 0).map_or(0, |last| last + 1);
        (0..end).zip(self.0).map(|(class, count)| (1 << class, count))
    }
}

/// Contents of one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VersionSummary {
    /// Its number.
    pub version: u32,
    /// What it contains.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Contents, with the duplicates among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Streams, chunks and their bytes.
    #[serde(flatten)]
    pub totals: Totals,
    /// Chunks that came before, in this version or another.
    pub duplicate_chunks: u64,
    /// Their bytes.
    pub duplicate_bytes: u64,
}

/// Properties of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceSummary {
    /// Each version, in order.
    pub versions: Vec<VersionSummary>,
    /// Distances in chunks from duplicates back to the last occurrence.
    pub lags: Histogram,
    /// Lengths of runs of duplicates in chunks: consecutive duplicates whose last occurrences are consecutive, too.
    pub runs: Histogram,
    /// Number of runs.
    pub run_count: u64,
}

impl TraceSummary {
    /// Returns what all versions have together.
    pub fn sum(&self) -> Counts {
        self.versions.iter().map(|version| version.counts).fold(Counts::default(), |sum, one| Counts {
            totals: Totals {
                streams: sum.totals.streams + one.totals.streams,
                chunks: sum.totals.chunks + one.totals.chunks,
                bytes: sum.totals.bytes.saturating_add(one.totals.bytes),
            },
            duplicate_chunks: sum.duplicate_chunks + one.duplicate_chunks,
            duplicate_bytes: sum.duplicate_bytes.saturating_add(one.duplicate_bytes),
        })
    }
}

/// A chunk by name: hash, position in the trace, length.
type Named = [u8; HASH_LEN + 8 + 4];
/// A duplicate by position: position, position of its last occurrence, length.
type DuplicateRecord = [u8; 8 + 8 + 4];

/// Starts a list of records to be sorted, in a temporary file in `dir`.
fn records<const N: usize>(dir: &Path) -> Result<Partitions<N>> {
    let (disk, host) = (Arc::new(OsDisk::new(dir.to_path_buf())), Arc::new(OsHost::new()));
    Ok(Partitions::new(Some(disk), PathBuf::new(), host, "records of the trace", SORT_BYTES)?)
}

/// Reads a trace to its end, with temporary files in `dir`.
pub fn describe(events: &mut dyn Events, dir: &Path) -> Result<TraceSummary> {
    let mut named = records::<{ size_of::<Named>() }>(dir)?;
    // Each version, and the position of the first chunk after it.
    let mut versions: Vec<(VersionSummary, u64)> = Vec::new();
    let mut position = 0_u64;
    while let Some(event) = events.next_event()? {
        if let Event::Begin { version, .. } = event
            && versions.last().is_none_or(|(last, _)| last.version != version)
        {
            ensure!(versions.len() < VERSIONS_MAX, "the trace has more than {VERSIONS_MAX} versions");
            versions.push((VersionSummary { version, ..VersionSummary::default() }, position));
        }
        if let Event::Chunk(chunk) = event {
            let mut record: Named = [0; size_of::<Named>()];
            record[..HASH_LEN].copy_from_slice(&chunk.hash);
            record[HASH_LEN..HASH_LEN + 8].copy_from_slice(&position.to_be_bytes());
            record[HASH_LEN + 8..].copy_from_slice(&chunk.len.to_be_bytes());
            named.push(&record)?;
            position += 1;
        }
        if let Some((summary, end)) = versions.last_mut() {
            summary.counts.totals.count(&event);
            *end = position;
        }
    }
    let mut lags = Histogram([0; CLASSES]);
    let mut duplicates = records::<{ size_of::<DuplicateRecord>() }>(dir)?;
    let mut last: Option<([u8; HASH_LEN], u64)> = None;
    for record in named.finish()?.sorted() {
        let record = record?;
        let (hash, rest) = record.split_first_chunk::<HASH_LEN>().expect("a record begins with a hash");
        let (position, _) = rest.split_first_chunk::<8>().expect("the position follows");
        let at = u64::from_be_bytes(*position);
        if let Some((_, before)) = last.replace((*hash, at)).filter(|(last, _)| last == hash) {
            lags.add(at - before);
            let mut duplicate: DuplicateRecord = [0; size_of::<DuplicateRecord>()];
            duplicate[..8].copy_from_slice(position);
            duplicate[8..16].copy_from_slice(&before.to_be_bytes());
            duplicate[16..].copy_from_slice(&record[HASH_LEN + 8..]);
            duplicates.push(&duplicate)?;
        }
    }
    let (mut runs, mut run_count) = (Histogram([0; CLASSES]), 0);
    // Place and last occurrence of the duplicate before, and how many are in its run.
    let mut run: Option<(u64, u64, u64)> = None;
    let mut remaining = versions.iter_mut();
    let mut version = remaining.next();
    let duplicates = duplicates.finish()?;
    for duplicate in duplicates.sorted() {
        let duplicate = duplicate?;
        let [at, before] =
            [0, 8].map(|start| u64::from_be_bytes(duplicate[start..start + 8].try_into().expect("eight bytes")));
        let len = u32::from_be_bytes(duplicate[16..].try_into().expect("four bytes"));
        while version.as_ref().is_some_and(|(_, end)| *end <= at) {
            version = remaining.next();
        }
        if let Some((summary, _)) = &mut version {
            summary.counts.duplicate_chunks += 1;
            summary.counts.duplicate_bytes += u64::from(len);
        }
        let goes_on = run.filter(|(last, source, _)| (last + 1, source + 1) == (at, before));
        if let (None, Some((.., len))) = (goes_on, run) {
            runs.add(len);
        }
        run_count += u64::from(goes_on.is_none());
        run = Some((at, before, goes_on.map_or(1, |(.., len)| len + 1)));
    }
    if let Some((.., len)) = run {
        runs.add(len);
    }
    let versions = versions.into_iter().map(|(summary, _)| summary).collect();
    Ok(TraceSummary { versions, lags, runs, run_count })
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

    /// Versions without chunks, and how many are left.
    struct Versions(u32, u32);

    impl Events for Versions {
        fn next_event(&mut self) -> Result<Option<Event>> {
            let Self(next, count) = self;
            if next == count {
                return Ok(None);
            }
            *next += 1;
            Ok(Some(Event::Begin { name: Vec::new(), version: *next }))
        }
    }

    #[test]
    fn more_versions_than_memory_is_for_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let most = u32::try_from(VERSIONS_MAX).unwrap();
        assert_eq!(describe(&mut Versions(0, most), dir.path()).unwrap().versions.len(), VERSIONS_MAX);
        let refused = describe(&mut Versions(0, most + 1), dir.path()).unwrap_err().to_string();
        assert_eq!(refused, "the trace has more than 131072 versions");
    }

    #[test]
    fn duplicates_lags_and_runs_are_counted() {
        let versions: [&[u8]; 3] = [&[1, 2, 3, 4, 4], &[1, 2, 9, 3, 4], &[]];
        let mut events = Vec::new();
        for (version, chunks) in (0..).zip(versions) {
            events.push(Event::Begin { name: Vec::new(), version });
            let chunk =
                |number: &u8| Event::Chunk(TraceChunk { hash: [*number; HASH_LEN], len: 10 * u32::from(*number) });
            events.extend(chunks.iter().map(chunk));
            events.push(Event::End);
        }
        let dir = tempfile::tempdir().unwrap();
        let summary = describe(&mut Listed(events.into_iter()), dir.path()).unwrap();
        let version = |version, chunks, bytes, duplicate_chunks, duplicate_bytes| VersionSummary {
            version,
            counts: Counts { totals: Totals { streams: 1, chunks, bytes }, duplicate_chunks, duplicate_bytes },
        };
        assert_eq!(summary.versions, [version(0, 5, 140, 1, 40), version(1, 5, 190, 4, 100), version(2, 0, 0, 0, 0)]);
        // 4 repeats immediately; 1, 2 five positions later; 3 six, 4 five positions later.
        assert_eq!(summary.lags.classes().collect::<Vec<_>>(), [(1, 1), (2, 0), (4, 4)]);
        // 4; 1, 2; 3; 4, whose last occurrence does not follow that of 3.
        assert_eq!(summary.runs.classes().collect::<Vec<_>>(), [(1, 3), (2, 1)]);
        assert_eq!((summary.run_count, summary.sum().duplicate_chunks), (4, 5));
    }
}
