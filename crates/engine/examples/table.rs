//! Measures insertions into the bucket table, and lookups.
//!
//! `cargo run --release -p onefold-engine --example table -- DIR COUNT MEMORY` inserts COUNT entries with random keys into
//! a table with a memtable of MEMORY MiB, and half as much for recent filters and merge buffers together. The file bypasses
//! the page cache, and flushes run on a second thread. Then the program looks up present and absent keys, 128 at a time.

#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Access, Disk, Host};
use onefold_engine::kv::{Entry, FlushDone, FlushJob, Key, Live, Lookup, Ordinal, Position, Table, TableSpec};
use onefold_engine::random::SplitMix64;

/// Ends of the reported intervals, in millions of entries.
const REPORTED: [u64; 9] = [1, 10, 25, 50, 75, 100, 125, 150, 200];
const BATCH: u16 = 64;
const LOOKUPS: u64 = 128 * 1_000;

fn key(number: u64) -> Key {
    let mut bytes = [0; 20];
    let mut state = number;
    for word in bytes.chunks_mut(8) {
        state = SplitMix64::new(state).next_u64();
        word.copy_from_slice(&state.to_be_bytes()[..word.len()]);
    }
    Key(bytes)
}

/// A second thread that runs flushes.
struct Flusher {
    jobs: SyncSender<Vec<FlushJob>>,
    done: Receiver<Vec<FlushDone>>,
    waited: f64,
}

fn seconds() -> f64 {
    OsHost::new().monotonic().as_secs_f64()
}

impl Flusher {
    fn step(&mut self, table: &mut Table) {
        if table.is_flushing() {
            let done = if table.has_space() {
                self.done.try_recv().ok()
            } else {
                let start = seconds();
                let done = self.done.recv().ok();
                self.waited += seconds() - start;
                done
            };
            if let Some(done) = done {
                table.finish_flush(done).expect("the disk takes the flush");
            }
        }
        if table.wants_flush() {
            let live: Live = Arc::new(|_| true);
            self.jobs.send(table.start_flush(&live)).expect("the thread waits for jobs");
        }
    }
}

fn insert(table: &mut Table, flusher: &mut Flusher, count: u64, out: &mut impl Write) -> Result<()> {
    let mut start = (0, seconds(), table.counters(), 0.0);
    for first in (0..count).step_by(BATCH.into()) {
        let keys: Vec<Key> = (first..first + u64::from(BATCH)).map(key).collect();
        for key in &keys {
            table.prefetch(key);
        }
        for (key, number) in keys.into_iter().zip(first..) {
            while !table.has_space() {
                flusher.step(table);
            }
            table.insert(&Entry { key, ordinal: Ordinal(7), position: Position(number) });
        }
        flusher.step(table);
        let number = first + u64::from(BATCH);
        if REPORTED.iter().any(|millions| millions * 1_000_000 == number) || count <= number {
            let (first, time, before, waited) = start;
            let (taken, now) = (seconds() - time, table.counters());
            let inserted = (number - first) as f64;
            writeln!(
                out,
                "{:>4} M: {:5.2} M/s, {:6.1} bytes written and {:6.1} read per insert, {:4.1} % waiting for flushes, \
                 {} runs, {:.1} MiB of recent filters, {:.1} MiB in all",
                number / 1_000_000,
                inserted / taken / 1e6,
                (now.bytes_written - before.bytes_written) as f64 / inserted,
                (now.bytes_read - before.bytes_read) as f64 / inserted,
                100.0 * (flusher.waited - waited) / taken,
                now.runs_written,
                now.recent_bytes_max as f64 / f64::from(1 << 20),
                table.memory_bytes() as f64 / f64::from(1 << 20),
            )?;
            start = (number, seconds(), now, flusher.waited);
        }
    }
    Ok(())
}

fn look_up(table: &mut Table, disk: &dyn Disk, numbers: impl Iterator<Item = u64>, out: &mut impl Write) -> Result<()> {
    let (before, start) = (table.counters(), seconds());
    let (mut found, mut looked_up, mut answers) = (0, 0, Vec::new());
    let keys: Vec<_> = numbers.map(key).collect();
    for batch in keys.chunks(128) {
        table.lookup(disk, batch, &|_| true, &mut answers);
        looked_up += batch.len();
        found += answers.iter().filter(|answer| matches!(answer, Lookup::OnDisk(_))).count();
    }
    let (now, count) = (table.counters(), looked_up as f64);
    writeln!(
        out,
        "{:.1} % on disk: {:.3} reads of {:.3} pages per lookup, {:.0} k/s",
        100.0 * found as f64 / count,
        (now.page_reads - before.page_reads) as f64 / count,
        (now.lookup_pages - before.lookup_pages) as f64 / count,
        count / (seconds() - start) / 1e3,
    )
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, dir, count, memory] = &arguments[..] else {
        return Err(Error::other("usage: table DIR COUNT MEMORY (memtable in MiB)"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(Error::other);
    let (count, mebibytes) = (number(count)?, usize::try_from(number(memory)?).map_err(Error::other)?);
    let disk = Arc::new(OsDisk::new(PathBuf::from(dir)));
    let path = Path::new("table");
    let exists = disk.exists(path).map_err(Error::other)?;
    if !exists {
        drop(disk.create(path).map_err(Error::other)?);
    }
    let file = disk.open(path, Access::Direct).map_err(Error::other)?;
    file.set_len(0).map_err(Error::other)?;
    let mut out = std::io::stdout();
    let mut table = Table::new(file, TableSpec::for_memtable(mebibytes << 20));
    writeln!(out, "{} buckets", table.buckets())?;
    std::thread::scope(|scope| {
        let (jobs, to_do) = sync_channel::<Vec<FlushJob>>(1);
        let (finished, done) = sync_channel(1);
        let job_disk = Arc::clone(&disk);
        scope.spawn(move || {
            for jobs in to_do {
                let done = jobs.into_iter().map(|job| job.run(&*job_disk)).collect();
                finished.send(done).expect("the table waits for its flush");
            }
        });
        let mut flusher = Flusher { jobs, done, waited: 0.0 };
        insert(&mut table, &mut flusher, count, &mut out)?;
        while table.is_flushing() {
            table.finish_flush(flusher.done.recv().expect("the thread runs")).map_err(Error::other)?;
        }
        Ok::<_, Error>(())
    })?;
    let step = (count / LOOKUPS).max(1);
    look_up(&mut table, &*disk, (0..LOOKUPS.min(count)).map(|number| number * step), &mut out)?;
    look_up(&mut table, &*disk, count * 2..count * 2 + LOOKUPS, &mut out)?;
    writeln!(out, "{:?}", table.counters())
}
