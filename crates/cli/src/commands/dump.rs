//! `dump`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::Error;
use onefold_engine::io::tree::EntryKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::restore::{dump, find_entry};

use crate::args::DumpArgs;
use crate::open::{OpenedSnapshot, metadata_reader};
use crate::output::Output;
use crate::settings::Settings;

/// Writes a file of a snapshot to standard output.
pub(crate) fn run(settings: &Settings, output: &Output, typed: &DumpArgs) -> Result<()> {
    let OpenedSnapshot { opened, cache, interrupt, snapshot, path: base, .. } =
        OpenedSnapshot::open(settings, output, &typed.snapshot, &typed.selection)?;
    let mut reader = metadata_reader(settings, &opened.store, &cache)?;
    let path = std::path::Path::new(&base).join(typed.file.strip_prefix("/").unwrap_or(&typed.file));
    let found = find_entry(&mut reader, snapshot.tree, &path)?;
    let file = found.with_context(|| format!("{}: a directory; `onefold restore` brings it back", path.display()))?;
    ensure!(file.entry.kind == EntryKind::File, "{}: not a regular file in the snapshot", path.display());
    let containers = Arc::new(opened.store.list_containers()?);
    let driver = Driver::threads(settings.threads);
    let mut fetcher = Fetcher::new(&opened.store, containers, &cache.scratch(), &driver, settings.memory_bytes / 2);
    let mut broken = None;
    let written = dump(&mut reader, &mut fetcher, &file, &mut |bytes| {
        if interrupt.is_raised() {
            return Err(Error::Interrupted);
        }
        output.bytes(bytes).map_err(|error| {
            let text = error.to_string();
            broken = Some(error);
            Error::invalid(text)
        })
    });
    match broken {
        Some(error) => Err(anyhow::Error::new(error).context("write to standard output")),
        None => Ok(written?),
    }
}
