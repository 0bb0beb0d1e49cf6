//! The chunks of a source without a repository, as a trace records them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::accelerator::Accelerator;
use crate::backup::Budget;
use crate::backup::block::{FileEnd, Step};
use crate::backup::cut::CutEvent;
use crate::backup::entry::AccessTimes;
use crate::backup::ingest::{ChunkRule, Ingest};
use crate::backup::parent::Parent;
use crate::backup::read::{FileReader, SourceReader};
use crate::error::Result;
use crate::io::tree::SourceTree;
use crate::monitor::{Action, Monitor};
use crate::pipeline::driver::Driver;
use crate::source::exclude::Excludes;
use crate::source::walk::Walk;
use crate::types::Chunk;

/// Longest entry with its attributes, as in a repository of the default sizes.
const ENTRY_BYTES_MAX: u32 = 1 << 20;

/// What to record, and how.
#[derive(Debug)]
pub struct RecordOptions {
    /// Paths as the user named them.
    pub roots: Vec<PathBuf>,
    /// What to leave out.
    pub excludes: Arc<Excludes>,
    /// How it becomes chunks.
    pub rule: ChunkRule,
    /// Division of the memory.
    pub budget: Budget,
    /// Device that searches and names, too; it has a share in the budget.
    pub accelerator: Option<Accelerator>,
}

/// What a source has next.
#[derive(Clone, Copy, Debug)]
pub enum Recorded<'a> {
    /// A file begins.
    Begin(&'a Path),
    /// Its next chunk, and the bytes of it.
    Chunk(Chunk, &'a [u8]),
    /// It ends, or could not be read any further, or changed while it was read and begins again.
    End,
}

/// Reads a source as a first backup does, and hands over what it would store of file contents. Returns how many things could
/// not be read, of which the monitor was told.
pub fn record(
    source: &Arc<dyn SourceTree>,
    options: RecordOptions,
    driver: &Driver,
    monitor: &dyn Monitor,
    each: &mut dyn FnMut(Recorded<'_>) -> Result<()>,
) -> Result<u64> {
    record_changed(source, options, None, driver, monitor, each)
}

/// Does the same with what a parent does not have.
pub(super) fn record_changed(
    source: &Arc<dyn SourceTree>,
    options: RecordOptions,
    parent: Option<Parent>,
    driver: &Driver,
    monitor: &dyn Monitor,
    each: &mut dyn FnMut(Recorded<'_>) -> Result<()>,
) -> Result<u64> {
    let files = FileReader::new(ENTRY_BYTES_MAX, AccessTimes::LeftOut);
    let walk = Walk::new(Arc::clone(source), &options.roots, options.excludes)?;
    let reader = SourceReader::new(files, walk, parent);
    let ingest = Ingest::new(driver, reader, files, options.rule, (&options.budget, options.accelerator.as_ref()));
    let mut failures = 0;
    let mut open = PathBuf::new();
    let mut fail = |path: &Path, error: &_| {
        failures += 1;
        monitor.failure(path, error);
    };
    ingest.run(monitor, &mut |mut block| {
        let mut number = 0;
        for event in std::mem::take(&mut block.events) {
            match event {
                CutEvent::Chunk => {
                    let fingerprint = *block.fingerprints.get(number).expect("every chunk was named");
                    let bytes = block.chunk(number);
                    let len = u32::try_from(bytes.len()).expect("chunks are shorter than 4 GiB");
                    number += 1;
                    each(Recorded::Chunk(Chunk { fingerprint, len }, bytes))?;
                }
                CutEvent::Step(Step::File(start)) => {
                    open = start.path;
                    each(Recorded::Begin(&open))?;
                }
                CutEvent::Step(Step::FileEnd(end)) => {
                    match end {
                        FileEnd::Whole => monitor.entry(&open, Action::New),
                        FileEnd::Changed => {}
                        FileEnd::Failed(error) => fail(&open, &error),
                    }
                    each(Recorded::End)?;
                }
                CutEvent::Step(Step::Failed(path, error)) => fail(&path, &error),
                CutEvent::Step(Step::Enter(_) | Step::Leave | Step::Entry(..) | Step::Reused(..) | Step::Hole(_)) => {}
            }
        }
        Ok(())
    })?;
    Ok(failures)
}
