//! The bytes at hand: those of a batch, after the unfinished rest of the previous batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use onefold_engine::chunk::WINDOW;

use super::candidates::{Candidates, Search};
use super::reader::{Batch, RunEnd};
use super::survey::UnitOf;

/// Bytes of one task of the search for candidates.
const TASK_BYTES: usize = 256 << 10;

/// A run of the batch.
#[derive(Debug)]
pub struct WindowRun {
    /// Offset in the window of its first byte of this batch.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
    /// End.
    pub end: RunEnd,
    /// Its unit of the sample.
    pub unit: UnitOf,
    /// Candidates for cuts, counted from `start`.
    pub candidates: Candidates,
}

/// A batch with what came before it.
#[derive(Debug, Default)]
pub struct Window {
    /// Bytes that are kept of batches before, then those of this one.
    pub bytes: Vec<u8>,
    /// The runs, in order.
    pub runs: Vec<WindowRun>,
    /// Offset of `bytes` in all data read.
    pub offset: u64,
    /// Bytes of the open run that came before this batch, as far as they matter to hashes.
    halo: usize,
}

impl Window {
    /// Moves on to the next batch, and keeps `keep` of the last bytes, which must exist.
    pub fn advance(&mut self, kept: usize, batch: &Batch, search: &Search, threads: usize) {
        self.halo = match self.runs.last() {
            Some(run) if run.end == RunEnd::Open => (self.run_before() + run.len).min(WINDOW - 1),
            Some(_) | None => 0,
        };
        let kept = kept.max(self.halo);
        let passed = self.bytes.len() - kept;
        self.bytes.drain(..passed);
        self.offset += passed as u64;
        self.bytes.extend_from_slice(&batch.bytes);
        let mut start = kept;
        self.runs.clear();
        for run in &batch.runs {
            let candidates = Candidates::default();
            self.runs.push(WindowRun { start, len: run.len, end: run.end, unit: run.unit, candidates });
            start += run.len;
        }
        assert_eq!(start, self.bytes.len(), "runs make up their batch");
        self.search(search, threads);
    }

    /// Returns how many bytes of the only run came before this batch.
    fn run_before(&self) -> usize {
        if self.runs.len() == 1 { self.halo } else { 0 }
    }

    /// Finds candidates, on several threads.
    fn search(&mut self, search: &Search, threads: usize) {
        let mut tasks = Vec::new();
        for (number, run) in self.runs.iter().enumerate() {
            let before = if number == 0 { self.halo } else { 0 };
            for start in (0..run.len).step_by(TASK_BYTES) {
                let halo = (before + start).min(WINDOW - 1);
                tasks.push(Task { run: number, start, halo, found: Mutex::default() });
            }
        }
        let next = AtomicUsize::new(0);
        let (bytes, runs) = (&self.bytes, &self.runs);
        on_threads(threads, || {
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(run) = runs.get(task.run) else { continue };
                let (start, end) = (run.start + task.start, run.start + run.len.min(task.start + TASK_BYTES));
                let found = search.find(bytes.get(start - task.halo..end).unwrap_or_default(), task.halo);
                *task.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
        });
        for task in tasks {
            let found = task.found.into_inner().unwrap_or_else(PoisonError::into_inner);
            let start = u32::try_from(task.start).expect("batches are far below 4 GiB");
            if let Some(run) = self.runs.get_mut(task.run) {
                for (all, found) in run.candidates.iter_mut().zip(found) {
                    all.extend(found.into_iter().map(|candidate| start + candidate));
                }
            }
        }
    }
}

struct Task {
    run: usize,
    start: usize,
    halo: usize,
    found: Mutex<Candidates>,
}

/// Runs the same work on `threads` threads, or on fewer if the system refuses some.
pub fn on_threads(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        let start = |_: &usize| thread::Builder::new().spawn_scoped(scope, &work).is_ok();
        let _started = (1..threads).take_while(start).count();
        work();
    });
}
