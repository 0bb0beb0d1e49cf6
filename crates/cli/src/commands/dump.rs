//! `dump`.

use std::io::{self, Write};
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

use crate::args::list::{ArchiveFormat, DumpArgs};
use crate::commands::dump_contents::{Sources, WRITING, write_contents};
use crate::commands::{dump_tar, dump_zip};
use crate::compat::Dialect;
use crate::files::Target;
use crate::open::{OpenedSnapshot, metadata_reader};
use crate::output::Output;
use crate::settings::Settings;

/// Writes a file of a snapshot, or a directory as an archive.
pub(crate) fn run(settings: &Settings, output: &Output, args: &DumpArgs) -> Result<()> {
    let OpenedSnapshot { opened, cache, interrupt, snapshot, path: base, .. } =
        OpenedSnapshot::open(settings, output, &args.snapshot, &args.selection)?;
    let mut reader = metadata_reader(settings, &opened.store, &cache)?;
    let path = Path::new(&base).join(args.file.strip_prefix("/").unwrap_or(&args.file));
    let found = find_entry(&mut reader, snapshot.tree, &path)?;
    let driver = Driver::threads(settings.threads);
    let scratch = cache.scratch();
    let containers = opened.store.list_containers(&scratch)?;
    let mut fetcher = Fetcher::new(&opened.store, &containers, &scratch, &driver, settings.memory_bytes / 2);
    let root = found.as_ref().map_or(Some(snapshot.tree), |found| match found.entry.content {
        Content::Directory { node } => Some(node),
        Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => None,
    });
    ensure!(
        root.is_none() || args.target.is_some() || !output.is_terminal(),
        "{}: a directory, which is written as an archive; send the output elsewhere than to a terminal, or give --target",
        path.display()
    );
    let mut target = match &args.target {
        Some(path) => Some(Target::create(path).with_context(|| format!("create {}", path.display()))?),
        None => None,
    };
    let out: &mut dyn Write = match &mut target {
        Some(target) => target,
        None => &mut Out(output),
    };
    if let Some(root) = root {
        let host = Arc::clone(&opened.store.host);
        let links = SpillMap::new(scratch.disk, scratch.dir, host, "hard links", settings.memory_bytes / 8)?;
        let links = FirstPaths::new(links);
        let (interrupt, owners) = (&interrupt, &snapshot.owners);
        let sources = Sources { output, interrupt, reader: &mut reader, fetcher: &mut fetcher, links, owners };
        // To restic, a directory that was named with the snapshot is the root.
        let named = if settings.dialect == Dialect::Restic { &args.file } else { &path };
        let base: PathBuf = named.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let base = base.as_os_str().as_bytes();
        match args.archive {
            ArchiveFormat::Tar => dump_tar::write(out, sources, (root, base))?,
            ArchiveFormat::Zip => dump_zip::write(out, sources, (root, base))?,
        }
    } else {
        let file = found.with_context(|| format!("{}: not in the snapshot", path.display()))?;
        ensure!(file.entry.kind == EntryKind::File, "{}: not a regular file in the snapshot", path.display());
        write_contents(out, &interrupt, &mut reader, &mut fetcher, &file)?;
    }
    out.flush().context(WRITING)?;
    match (target, &args.target) {
        (Some(target), Some(path)) => target.finish().with_context(|| format!("write {}", path.display())),
        _ => Ok(()),
    }
}

/// Standard output, as writers want it.
struct Out<'a>(&'a Output);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bytes(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
