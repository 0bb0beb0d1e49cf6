//! `dump`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::io::tree::EntryKind;
use onefold_engine::pipeline::Driver;
use onefold_engine::restore::fetch::Fetcher;
use onefold_engine::restore::find_entry;
use onefold_engine::restore::links::FirstPaths;
use onefold_engine::spill::SpillMap;
use onefold_engine::tree::Content;

use crate::args::DumpArgs;
use crate::commands::dump_contents::write_contents;
use crate::commands::dump_tar;
use crate::open::{OpenedSnapshot, metadata_reader};
use crate::output::Output;
use crate::settings::Settings;

/// Writes a file of a snapshot, or a directory as an archive, to standard output.
pub(crate) fn run(settings: &Settings, output: &Output, typed: &DumpArgs) -> Result<()> {
    let OpenedSnapshot { opened, cache, interrupt, snapshot, path: base, .. } =
        OpenedSnapshot::open(settings, output, &typed.snapshot, &typed.selection)?;
    let mut reader = metadata_reader(settings, &opened.store, &cache)?;
    let path = Path::new(&base).join(typed.file.strip_prefix("/").unwrap_or(&typed.file));
    let found = find_entry(&mut reader, snapshot.tree, &path)?;
    let containers = Arc::new(opened.store.list_containers()?);
    let driver = Driver::threads(settings.threads);
    let scratch = cache.scratch();
    let mut fetcher = Fetcher::new(&opened.store, containers, &scratch, &driver, settings.memory_bytes / 2);
    let root = found.as_ref().map_or(Some(snapshot.tree), |found| match found.entry.content {
        Content::Directory { node } => Some(node),
        Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => None,
    });
    if let Some(root) = root {
        ensure!(
            typed.archive.is_some(),
            "{}: a directory; `onefold restore` brings it back, and --archive tar writes it",
            path.display()
        );
        let host = Arc::clone(&opened.store.host);
        let links = SpillMap::new(scratch.disk, scratch.dir, host, "hard links", settings.memory_bytes / 8)?;
        let links = FirstPaths::new(links);
        let sources = dump_tar::Sources { reader: &mut reader, fetcher: &mut fetcher, links };
        let base: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        return dump_tar::write(output, &interrupt, sources, root, base.as_os_str().as_bytes());
    }
    let file = found.with_context(|| format!("{}: not in the snapshot", path.display()))?;
    ensure!(file.entry.kind == EntryKind::File, "{}: not a regular file in the snapshot", path.display());
    ensure!(typed.archive.is_none(), "{}: a file, which needs no --archive", path.display());
    write_contents(output, &interrupt, &mut reader, &mut fetcher, &file)?;
    Ok(())
}
