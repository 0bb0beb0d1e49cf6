//! `find`.

use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use onefold_engine::inspect::{Found, Search, SearchOptions};
use onefold_engine::monitor::Monitor;
use onefold_engine::repo::SnapshotId;
use onefold_engine::snapshot::{OwnerNames, Snapshot};
use onefold_engine::source::exclude::{Case, Patterns};
use onefold_engine::store::MetadataReader;
use onefold_engine::types::{SessionId, Timestamp};

use crate::args::inspect::FindArgs;
use crate::commands::ls::{Look, entry_line};
use crate::interrupt::Interrupt;
use crate::json::{inspect, short_id};
use crate::open::{self, OpenedMetadata};
use crate::output::Output;
use crate::settings::{Settings, Verbosity};
use crate::text;

/// Searches snapshots, the newest first unless typed otherwise.
pub(crate) fn run(settings: &Settings, output: &Output, args: &FindArgs) -> Result<()> {
    let options = options(args)?;
    let OpenedMetadata { commits, cache, interrupt, mut reader } = OpenedMetadata::open(settings, output)?;
    let mut snapshots = open::find_all(output, &commits, &args.selection, &args.snapshot)?;
    let mut search = Search::new(&reader, options, &cache.scratch(), settings.memory_bytes / 8)?;
    let look = Look { long: args.long, human_readable: args.human_readable };
    let mut results = Results { output, look, snapshots: 0, hits: 0 };
    results.begin()?;
    if !args.reverse {
        snapshots.reverse();
    }
    for (session, snapshot) in snapshots {
        search.begin(snapshot.tree)?;
        results.snapshot(&mut search, &mut reader, &interrupt, session, snapshot)?;
    }
    results.end()?;
    let unread = commits.findings.iter().map(|(_, error)| error);
    output.fail_on(reader.findings().iter().chain(&search.failures).chain(unread), "not everything could be searched")
}

fn options(args: &FindArgs) -> Result<SearchOptions> {
    let case = if args.ignore_case { Case::Insensitive } else { Case::Sensitive };
    if let Some(pattern) = args.patterns.iter().find(|pattern| pattern.is_empty() || pattern.as_bytes() == b"!") {
        bail!("`{}`: not a pattern", pattern.display());
    }
    let patterns = Patterns::parse(args.patterns.iter().map(|pattern| pattern.as_bytes()), case)?;
    let time = |name: &'static str, args: &Option<String>| -> Result<Option<Timestamp>> {
        args.as_deref().map(text::parse_time).transpose().context(name)
    };
    Ok(SearchOptions {
        patterns: vec![patterns],
        newest: time("--newest", &args.newest)?,
        oldest: time("--oldest", &args.oldest)?,
    })
}

/// Prints what is found as it is found. For programs it is one list of snapshots, each with its matches.
struct Results<'a> {
    output: &'a Output,
    look: Look,
    /// Snapshots with matches so far.
    snapshots: u64,
    /// Matches in the current one.
    hits: u64,
}

impl Results<'_> {
    fn begin(&self) -> Result<()> {
        if self.output.json {
            self.output.bytes(b"[")?;
        }
        Ok(())
    }

    fn snapshot(
        &mut self,
        search: &mut Search,
        reader: &mut MetadataReader,
        interrupt: &Interrupt,
        session: SessionId,
        snapshot: &Snapshot,
    ) -> Result<()> {
        self.hits = 0;
        while let Some(found) = search.next(reader, interrupt as &dyn Monitor)? {
            if self.hits == 0 {
                self.first(session, snapshot)?;
            }
            self.hit(&found, &snapshot.owners)?;
            self.hits += 1;
        }
        if 0 < self.hits {
            self.snapshots += 1;
            if self.output.json {
                self.output
                    .bytes(format!("],\"hits\":{},\"snapshot\":\"{}\"}}", self.hits, SnapshotId(session)).as_bytes())?;
            }
        }
        Ok(())
    }

    fn first(&self, session: SessionId, snapshot: &Snapshot) -> Result<()> {
        let follows = 0 < self.snapshots;
        if self.output.json {
            self.output.bytes(if follows { b",\n{\"matches\":[" } else { b"{\"matches\":[" })?;
        } else if Verbosity::Normal <= self.output.verbosity {
            if follows {
                self.output.line("")?;
            }
            let (id, time) = (short_id(session), text::local_time(snapshot.time));
            self.output.line(format!("Found matching entries in snapshot {id} from {time}"))?;
        }
        Ok(())
    }

    fn hit(&self, found: &Found, owners: &OwnerNames) -> Result<()> {
        let (entry, path) = (&found.hinted.entry, &found.path);
        if self.output.json {
            if 0 < self.hits {
                self.output.bytes(b",\n")?;
            }
            self.output.bytes(&serde_json::to_vec(&inspect::found(entry, path, owners))?)?;
        } else {
            self.output.line(entry_line(self.output, entry, path, self.look))?;
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.output.json {
            self.output.line("]")?;
        }
        Ok(self.output.flush()?)
    }
}
