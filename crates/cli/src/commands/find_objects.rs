//! `find --blob`, `--tree` and `--pack`: where snapshots use chunks, by their fingerprints.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use onefold_engine::Error;
use onefold_engine::collect::why::{ChunkPrefix, WhyRequest, find_chunk};
use onefold_engine::snapshot::Snapshot;
use onefold_engine::store::Store;
use onefold_engine::store::recipe_cursor::{FileExtent, RecipeCursor};
use onefold_engine::store::walk::{Event, TreeWalk};
use onefold_engine::tree::Content;
use onefold_engine::types::{Fingerprint, SessionId};

use crate::args::inspect::FindArgs;
use crate::interrupt::Interrupt;
use crate::json::{inspect, short_id};
use crate::open::{self, OpenedCache, OpenedMetadata, find_by_id};
use crate::output::Output;
use crate::settings::Settings;
use crate::text;

/// Searches snapshots, the newest first unless typed otherwise.
pub(crate) fn run(settings: &Settings, output: &Output, args: &FindArgs) -> Result<()> {
    let OpenedMetadata { commits, cache, interrupt, mut reader } = OpenedMetadata::open(settings, output)?;
    let wanted = Wanted::of(reader.store(), &cache, args)?;
    let mut snapshots = open::find_all(output, &commits, &args.selection, &args.snapshot)?;
    if !args.reverse {
        snapshots.reverse();
    }
    let mut results = Results { output, found: BTreeSet::new(), unreadable: Vec::new() };
    if output.json {
        output.bytes(b"[")?;
    }
    for (session, snapshot) in snapshots {
        if wanted.trees(&snapshot.tree) {
            results.hit((session, snapshot), &snapshot.tree, b"/", None)?;
        }
        let mut walk = TreeWalk::new(snapshot.tree, b"", snapshot.tree);
        while let Some(event) = walk.next(&mut reader, &interrupt)? {
            let path = walk.path().to_vec();
            match event {
                Event::Leave => {}
                Event::Unreadable(error) => results.unreadable.push(error),
                Event::Entry(hinted) => match &hinted.entry.content {
                    Content::Directory { node } => {
                        if wanted.trees(node) {
                            results.hit((session, snapshot), node, &path, None)?;
                        }
                        walk.enter(*node, *node)?;
                    }
                    Content::File { recipe, .. } if wanted.has_chunks() => {
                        let tree = walk.state().copied();
                        let mut cursor = RecipeCursor::new(recipe, &hinted.hints);
                        while let Some(extent) = cursor.next(&mut reader)? {
                            if let FileExtent::Chunk(found) = extent
                                && wanted.chunks(&found.chunk.fingerprint)
                            {
                                results.hit((session, snapshot), &found.chunk.fingerprint, &path, tree)?;
                            }
                        }
                    }
                    Content::File { .. } | Content::Symlink { .. } | Content::Special { .. } => {}
                },
            }
        }
    }
    if output.json {
        output.line("]")?;
    }
    if args.show_pack_id {
        show_containers(settings, output, reader.store(), &cache, &results.found)?;
    }
    output.flush()?;
    let unread = commits.findings.iter().map(|(_, error)| error);
    let unread = reader.findings().iter().chain(&results.unreadable).chain(unread);
    output.fail_on(unread, "not everything could be searched")
}

/// The chunks that are looked for.
#[derive(Default)]
struct Wanted {
    /// As they were typed.
    prefixes: Vec<ChunkPrefix>,
    /// Those of containers.
    exact: BTreeSet<Fingerprint>,
    only_trees: bool,
    only_chunks: bool,
}

impl Wanted {
    fn of(store: &Store, cache: &OpenedCache, args: &FindArgs) -> Result<Self> {
        let mut wanted = Self { only_trees: args.tree, only_chunks: args.chunk, ..Self::default() };
        for typed in &args.patterns {
            let text = typed.to_str().unwrap_or_default();
            if args.pack {
                let containers = store.list_containers(&cache.scratch())?;
                let (number, _) = find_by_id("container", text, containers.iter(), |(_, id)| id.to_string())?;
                let container = store.open_container(&containers.name(number)?)?;
                wanted.exact.extend(container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint));
            } else {
                let wrong = || format!("{}: not the beginning of a fingerprint", typed.display());
                wanted.prefixes.push(ChunkPrefix::parse(text).with_context(wrong)?);
            }
        }
        Ok(wanted)
    }

    fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.exact.contains(fingerprint) || self.prefixes.iter().any(|prefix| prefix.matches(fingerprint))
    }

    fn trees(&self, node: &Fingerprint) -> bool {
        !self.only_chunks && self.contains(node)
    }

    fn has_chunks(&self) -> bool {
        !self.only_trees
    }

    fn chunks(&self, fingerprint: &Fingerprint) -> bool {
        self.has_chunks() && self.contains(fingerprint)
    }
}

/// Prints what is found as it is found, in restic's form.
struct Results<'a> {
    output: &'a Output,
    found: BTreeSet<Fingerprint>,
    unreadable: Vec<Error>,
}

impl Results<'_> {
    /// Prints a use of a chunk; `tree` is the directory of the file that it is a part of, and `None` for a directory.
    fn hit(
        &mut self,
        (session, snapshot): (SessionId, &Snapshot),
        fingerprint: &Fingerprint,
        path: &[u8],
        tree: Option<Fingerprint>,
    ) -> Result<()> {
        let output = self.output;
        if output.json {
            let separator: &[u8] = if self.found.is_empty() { b"" } else { b"," };
            output.bytes(separator)?;
            output.bytes(&serde_json::to_vec(&inspect::found_chunk((session, snapshot), fingerprint, path, tree))?)?;
        } else {
            let shown = output.printable(path);
            if let Some(tree) = tree {
                output.line(format!("Found blob {fingerprint}"))?;
                output.line([b" ... in file ", shown.as_slice()].concat())?;
                output.line(format!("     (tree {tree})"))?;
            } else {
                output.line(format!("Found tree {fingerprint}"))?;
                output.line([b" ... path ", shown.as_slice()].concat())?;
            }
            let (id, time) = (short_id(session), text::local_time(snapshot.time));
            output.line(format!(" ... in snapshot {id} ({time})"))?;
        }
        self.found.insert(*fingerprint);
        Ok(())
    }
}

/// Prints the container of each chunk that was found.
fn show_containers(
    settings: &Settings,
    output: &Output,
    store: &Store,
    cache: &OpenedCache,
    found: &BTreeSet<Fingerprint>,
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let scratch = cache.scratch();
    let request = WhyRequest {
        snapshots: &[],
        listed: &BTreeSet::new(),
        forgotten: None,
        scratch: &scratch,
        memory_bytes: settings.memory_bytes,
        monitor: &interrupt,
    };
    for fingerprint in found {
        let text = fingerprint.to_string();
        let prefix = ChunkPrefix::parse(&text).context("a fingerprint begins with itself")?;
        if let Some(copy) = find_chunk(store, &request, &prefix)?.copies.first() {
            output.line(format!("Object belongs to pack {}", copy.container))?;
            output.line(format!(" ... Pack {}: {text}, {} bytes", copy.container, copy.len))?;
        }
    }
    Ok(())
}
