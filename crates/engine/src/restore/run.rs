//! Restoring a snapshot, or a part of it.
//!
//! The first pass creates and fills everything. The second links further names of files to those that are whole. The third
//! sets the metadata of directories, the deepest first, since creating their entries changes their times. Each pass reads the
//! tree again, so that none of it is kept in memory. A dry run walks the same passes over a target that it does not change.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::tree::TargetTree;
use crate::restore::dry_run::DryRunTarget;
use crate::restore::fetch::Fetcher;
use crate::restore::files::{FileWriter, REFERENCE_BYTES};
use crate::restore::links::FirstPaths;
use crate::restore::partial::PARTIAL_SUFFIX;
use crate::restore::passes::{Fill, LinkNames, SetDirectories, Verify};
use crate::restore::policy::{Effect, Overwrite};
use crate::restore::removal::Clearing;
use crate::restore::request::{RestoreReport, RestoreRequest};
use crate::restore::select::Root;
use crate::restore::walk::Run;
use crate::store::metadata::MetadataMemory;
use crate::store::{MetadataReader, Store};

/// References to chunks that are gathered before their regions are read, at least and at most.
const WINDOW_CHUNKS_MIN: usize = 1 << 12;
const WINDOW_CHUNKS_MAX: usize = 1 << 16;

/// Restores a snapshot, or a part of it.
pub fn restore(store: &Store, request: &RestoreRequest<'_>) -> Result<RestoreReport> {
    let target: Arc<dyn TargetTree> = match request.effect {
        Effect::Write => Arc::clone(&request.target),
        Effect::DryRun => Arc::new(DryRunTarget::of(Arc::clone(&request.target))),
    };
    if request.overwrite == Overwrite::Refuse && !target.list(Path::new(""))?.is_empty() {
        return Err(Error::invalid(
            "the target directory is not empty; restore into an empty one, or say with --overwrite what is to happen",
        ));
    }
    let containers = store.list_containers(&request.scratch)?;
    let share = request.memory_bytes / 4;
    let memory = MetadataMemory::left_by(&containers, share);
    let mut reader = MetadataReader::open(store, &containers, &request.scratch, memory)?;
    let fetcher = Fetcher::new(store, &containers, &request.scratch, &request.driver, 2 * share);
    // What refers to chunks waits in a quarter of the last share; what is linked to may spill.
    let window_chunks = (share / 4 / REFERENCE_BYTES).clamp(WINDOW_CHUNKS_MIN, WINDOW_CHUNKS_MAX);
    let links = FirstPaths::new(request.scratch.map(&store.host, "hard links", share - share / 4)?);
    let root = Root::find(&mut reader, &*target, (request.tree, request.path))?;
    if let Root::Directory { entry: Some(_), .. } = root {
        // An earlier restore may have left it read-only. It gets its mode again at the end.
        target.create_dir(Path::new(""))?;
    }
    let folds_case = target.folds_case()?;
    let clearing = Arc::new(Clearing::new(
        Arc::clone(&target),
        request.effect,
        request.full_directories.clone(),
        request.filter.clone(),
        Arc::clone(&request.monitor),
    ));
    let writer = (request.effect == Effect::Write).then(|| {
        let (trust, monitor) = (request.trust, Arc::clone(&request.monitor));
        FileWriter::new(fetcher, Arc::clone(&target), Arc::clone(&clearing), trust, window_chunks, monitor)
    });
    let (reader, has_links, report) = (&mut reader, false, RestoreReport::default());
    let mut run =
        Run { request, target, reader, writer, links, has_links, folds_case, clearing, obstructed_names: 0, report };
    let passed = run.pass(&root);
    if passed.is_err() {
        run.abandon();
    }
    passed.map(|()| run.report())
}

impl Run<'_> {
    fn pass(&mut self, root: &Root) -> Result<()> {
        self.visit(root, &mut Fill)?;
        if let Some(writer) = &mut self.writer {
            writer.flush()?;
        }
        self.take_incomplete_links()?;
        if self.has_links {
            self.visit(root, &mut LinkNames)?;
            // Where the target has no hard links, further names are files of their own.
            if let Some(writer) = &mut self.writer {
                writer.flush()?;
            }
        }
        if let Root::Directory { .. } = root {
            self.visit(root, &mut SetDirectories)?;
        }
        // A dry run has restored nothing that could be read back.
        if self.request.verify && self.request.effect == Effect::Write {
            self.visit(root, &mut Verify)?;
        }
        Ok(())
    }

    /// Ends the writing of files after an error, and reports what stays.
    fn abandon(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        writer.abandon();
        let partials = writer.partials();
        if partials != 0 {
            let stay = if partials == 1 { "1 partial file stays" } else { &format!("{partials} partial files stay") };
            self.request.monitor.note(&format!("{stay} in the target, under names that end in {PARTIAL_SUFFIX}"));
        }
    }

    fn report(&self) -> RestoreReport {
        let mut report = self.report.clone();
        report.deleted = self.clearing.deleted();
        if let Some(writer) = &self.writer {
            writer.add_to(&mut report);
        }
        report
    }
}
