//! `recover`, `tag` and `rewrite`: snapshots that are derived from others.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::derive::{DeriveOptions, Relabel, RewriteOptions, StoreOptions};
use onefold_engine::forget::Forgetting;
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::io::os_identity::{host_name, user_name};
use onefold_engine::monitor::{Loss, Monitor};
use onefold_engine::pipeline::Driver;
use onefold_engine::repo::{self, Derived};
use onefold_engine::snapshot::{ForgetBody, Snapshot};
use onefold_engine::store::Store;
use onefold_engine::store::commits::Commits;
use onefold_engine::types::SessionId;

use crate::args::derive::{RecoverArgs, RewriteArgs, TagArgs};
use crate::commands::snapshots::Table;
use crate::exit::Unreadable;
use crate::interrupt::Interrupt;
use crate::json::derive::{changed, recovered};
use crate::json::{self, object, short_id};
use crate::open::{self, Opened, OpenedCache, open};
use crate::output::Output;
use crate::settings::{Settings, Verbosity};
use crate::sources;
use crate::text;
use crate::trust;

/// Takes forgets back, or lists the snapshots that are forgotten.
pub(crate) fn recover(settings: &Settings, output: &Arc<Output>, args: &RecoverArgs) -> Result<()> {
    let run = Run::begin(settings, output, "recover")?;
    let mut named: Vec<SessionId> = Vec::new();
    let mut tags = None;
    if args.snapshots.is_empty() {
        // In restic, it makes a snapshot with this tag of all that no snapshot has any more.
        tags = settings.dialect.tag_of_recovered().map(|tag| vec![tag.to_owned()]);
        if tags.is_none() {
            return run.list_forgotten();
        }
        named.extend(run.commits.forgotten_snapshots().iter().map(|(id, _)| *id));
    }
    for name in &args.snapshots {
        let id = run.commits.resolve_forgotten(name)?;
        if !named.contains(&id) {
            named.push(id);
        }
    }
    let (mut recovered_snapshots, mut lost_snapshots) = (0_u64, 0_u64);
    for id in named {
        let derived = repo::recover(&run.opened.store, &run.options, id, tags.as_deref())
            .with_context(|| format!("snapshot {}", short_id(id)))?;
        let (old, recovered) = (short_id(id), recovered(id, &derived));
        recovered_snapshots += u64::from(matches!(derived, Derived::Made(..)));
        match (recovered, &derived) {
            (Some(recovered), _) if output.json => output.message(&recovered)?,
            (_, Derived::Made(new, _)) => {
                output.line(format!("snapshot {} saved: it is snapshot {old} again", short_id(*new)))?;
            }
            (_, Derived::Exists(same)) => {
                output.line(format!("snapshot {old} was recovered before, as snapshot {}", short_id(*same)))?;
            }
            (_, Derived::Lost { chunks, paths }) => {
                lost_snapshots += 1;
                output.warn(&format!(
                    "snapshot {old} is not recovered: {} are missing, which {} need",
                    text::count(*chunks, "chunk"),
                    text::count(*paths, "path")
                ));
            }
            (_, Derived::Unmodified) => {}
        }
    }
    if output.json {
        output.message(&object! {
            message_type: "summary", recovered_snapshots, lost_snapshots, peak_rss_bytes?: process_peak_rss_bytes(),
        })?;
    }
    run.finish()?;
    ensure!(lost_snapshots == 0, Unreadable::NotRecovered);
    Ok(())
}

/// Changes the tags of snapshots.
pub(crate) fn tag(settings: &Settings, output: &Arc<Output>, args: &TagArgs) -> Result<()> {
    ensure!(
        !args.add.is_empty() || !args.remove.is_empty() || !args.set.is_empty(),
        "nothing to do: give --add, --remove or --set"
    );
    let run = Run::begin(settings, output, "tag")?;
    let selected = open::find_all(output, &run.commits, &args.selection, &args.snapshots)?;
    let forgetting = (!args.dry_run).then(|| run.forgetting("tag")).transpose()?;
    let mut changed = 0;
    for (id, snapshot) in selected {
        let tags = args.change(&snapshot.tags);
        if tags == snapshot.tags {
            continue;
        }
        let so_far = || format!("snapshot {}, after {} changed", short_id(id), text::count(changed, "snapshot"));
        if args.dry_run {
            run.would_change(id, &format!("get the tags [{}]", tags.join(", ")))?;
        } else {
            let derived = repo::tag(&run.opened.store, &run.options, id, &tags).with_context(so_far)?;
            // Only once the new one is durable.
            let new = run.replacement(id, &derived)?;
            if let Some(forgetting) = &forgetting {
                forgetting.forget(id).with_context(so_far)?;
            }
            run.report(id, new)?;
        }
        changed += 1;
    }
    run.summarize(changed, args.dry_run)?;
    run.finish()
}

/// Makes snapshots without some paths.
pub(crate) fn rewrite(settings: &Settings, output: &Arc<Output>, args: &RewriteArgs) -> Result<()> {
    let (patterns, texts) = sources::exclude_patterns(settings.dialect, &args.patterns)?;
    let only = sources::include_patterns(settings.dialect, &args.includes)?;
    let time = args.new_time.as_deref().map(text::parse_time).transpose().context("--new-time")?;
    let hostname = args.new_host.clone().filter(|host| !host.is_empty());
    let changes = RewriteOptions { relabel: Relabel { tags: None, hostname, time }, only, patterns, texts };
    ensure!(
        args.snapshot_summary || !changes.is_empty(),
        "nothing to do: give --exclude, --include or their kind, --new-host or --new-time"
    );
    let run = Run::begin(settings, output, "rewrite")?;
    let selected = open::find_all(output, &run.commits, &args.selection, &args.snapshots)?;
    let storing = StoreOptions { compression: settings.compression, driver: Driver::threads(settings.threads) };
    let forgetting = (args.forget && !args.dry_run).then(|| run.forgetting("rewrite")).transpose()?;
    let store = &run.opened.store;
    let mut changed = 0;
    for (id, original) in selected {
        let so_far = || format!("snapshot {}, after {} rewritten", short_id(id), text::count(changed, "snapshot"));
        if args.dry_run {
            let tried = repo::try_rewrite(store, &run.options, (id, original), &changes).with_context(so_far)?;
            let Some(rewritten) = tried else {
                run.unmodified(id)?;
                continue;
            };
            run.would_change(id, &difference(original, &rewritten))?;
        } else {
            match repo::rewrite(store, &run.options, &storing, id, &changes).with_context(so_far)? {
                Derived::Unmodified => {
                    run.unmodified(id)?;
                    continue;
                }
                derived => {
                    let new = run.replacement(id, &derived)?;
                    if let Some(forgetting) = &forgetting {
                        forgetting.forget(id).with_context(so_far)?;
                    }
                    if let Derived::Made(_, rewritten) = &derived {
                        output.note(&format!("snapshot {}: {}", short_id(id), difference(original, rewritten)));
                    }
                    run.report(id, new)?;
                }
            }
        }
        changed += 1;
    }
    run.summarize(changed, args.dry_run)?;
    run.finish()
}

/// Returns what a rewritten snapshot does not have any more, and what it says of itself instead.
fn difference(original: &Snapshot, rewritten: &Snapshot) -> String {
    let mut parts = Vec::new();
    if original.tree != rewritten.tree {
        parts.push(removed(original, rewritten));
    }
    if original.hostname != rewritten.hostname {
        parts.push(format!("host {}", rewritten.hostname));
    }
    if original.time != rewritten.time {
        parts.push(format!("time {}", text::local_time(rewritten.time)));
    }
    parts.join(", ")
}

fn removed(original: &Snapshot, rewritten: &Snapshot) -> String {
    let (before, after) = (&original.summary, &rewritten.summary);
    let files = before.files_processed.saturating_sub(after.files_processed);
    let bytes = before.bytes_processed.saturating_sub(after.bytes_processed);
    format!("without {} that have {}", text::count(files, "file"), text::bytes(bytes))
}

/// One run of a command.
pub(super) struct Run<'a> {
    settings: &'a Settings,
    output: &'a Arc<Output>,
    pub(super) opened: Opened,
    pub(super) commits: Commits,
    pub(super) options: DeriveOptions,
    /// Holds the directory of temporary files.
    pub(super) cache: OpenedCache,
}

impl<'a> Run<'a> {
    pub(super) fn begin(settings: &'a Settings, output: &'a Arc<Output>, command: &'static str) -> Result<Self> {
        let opened = open(settings, output)?;
        let interrupt = Interrupt::listen()?;
        let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
        let commits = trust::read_commits(settings, output, &opened.store)?;
        let options = DeriveOptions {
            hostname: host_name(),
            scratch: cache.scratch(),
            budget: settings.budget(),
            monitor: Arc::new(Listener { output: Arc::clone(output), interrupt, command }),
        };
        Ok(Self { settings, output, opened, commits, options, cache })
    }

    pub(super) fn forgetting(&self, command: &str) -> Result<Forgetting<'_>> {
        let store: &Store = &self.opened.store;
        let (hostname, username) = (host_name(), user_name());
        let note = ForgetBody { time: store.host.now(), hostname, username, rules: format!("replaced by {command}") };
        Ok(Forgetting::begin(store, &note)?)
    }

    /// Lists the snapshots that are forgotten.
    fn list_forgotten(&self) -> Result<()> {
        let listed = self.commits.forgotten_snapshots();
        if self.output.json {
            let objects: Vec<_> = listed.iter().map(|(id, snapshot)| json::list::snapshot(*id, snapshot)).collect();
            self.output.message(&objects)?;
        } else {
            let table = Table { output: self.output, compact: false, long_ids: false, reasons: None };
            table.print(&listed)?;
        }
        self.finish()
    }

    /// Returns the snapshot that replaces another one.
    fn replacement(&self, old: SessionId, derived: &Derived) -> Result<SessionId> {
        match derived {
            Derived::Made(new, _) => Ok(*new),
            Derived::Exists(same) => {
                self.output.note(&format!("snapshot {} is there already", short_id(*same)));
                Ok(*same)
            }
            Derived::Unmodified => bail!("snapshot {} was changed meanwhile: try again", short_id(old)),
            Derived::Lost { .. } => Err(Unreadable::NotDerived.into()),
        }
    }

    pub(super) fn report(&self, old: SessionId, new: SessionId) -> Result<()> {
        if self.output.json {
            self.output.message(&changed(old, Some(new)))?;
        } else if Verbosity::Normal <= self.output.verbosity {
            self.output.line(format!("snapshot {} saved in place of {}", short_id(new), short_id(old)))?;
        }
        Ok(())
    }

    pub(super) fn would_change(&self, id: SessionId, what: &str) -> Result<()> {
        if self.output.json {
            self.output.message(&changed(id, None))?;
        } else {
            self.output.line(format!("would change snapshot {}: {what}", short_id(id)))?;
        }
        Ok(())
    }

    fn unmodified(&self, id: SessionId) -> Result<()> {
        if !self.output.json && Verbosity::Normal <= self.output.verbosity {
            self.output.line(format!("snapshot {} unmodified", short_id(id)))?;
        }
        Ok(())
    }

    /// Prints how many snapshots were changed, as restic does.
    pub(super) fn summarize(&self, changed: u64, dry_run: bool) -> Result<()> {
        if self.output.json {
            return Ok(self.output.message(&object! {
                message_type: "summary",
                changed_snapshots: changed,
                dry_run?: dry_run.then_some(true),
                peak_rss_bytes?: process_peak_rss_bytes(),
            })?);
        }
        if Verbosity::Normal <= self.output.verbosity {
            let count = text::count(changed, "snapshot");
            self.output.line(match (changed, dry_run) {
                (0, _) => "no snapshots were modified".to_owned(),
                (_, false) => format!("modified {count}"),
                (_, true) => format!("would modify {count}"),
            })?;
        }
        Ok(())
    }

    /// Ends the output, and remembers the snapshots that were made. Fails if a commit could not be read.
    pub(super) fn finish(&self) -> Result<()> {
        self.output.flush()?;
        trust::remember(self.settings, self.output, &self.opened.store);
        let unread = self.commits.findings.iter().map(|(_, error)| error).chain(&self.commits.not_forgotten);
        self.output.fail_on(unread, "not all commits can be read")
    }
}

/// Monitor that prints what is lost or left out.
#[derive(Debug)]
struct Listener {
    output: Arc<Output>,
    interrupt: Interrupt,
    command: &'static str,
}

impl Monitor for Listener {
    fn excluded(&self, path: &Path) {
        if Verbosity::Verbose <= self.output.verbosity {
            self.output.note(&format!("excluding {}", path.display()));
        }
    }

    fn lost(&self, path: &Path, loss: Loss) {
        // A reader that has gone away shows when the snapshot is reported.
        let _ignored = if self.output.json {
            self.output.message(&json::repair::lost(path, loss))
        } else {
            let what = match loss {
                Loss::Directory => "with everything in it".to_owned(),
                Loss::Entries => "some entries".to_owned(),
                Loss::Bytes { lost, len } => format!("{lost} of {len} bytes"),
            };
            let path = self.output.printable(path.as_os_str().as_encoded_bytes());
            self.output.line([b"  lost: ", path.as_slice(), b": ", what.as_bytes()].concat())
        };
    }

    fn failure(&self, path: &Path, error: &Error) {
        if self.output.json {
            self.output.warn_message(&json::failure(self.command, path, error.to_string()));
        } else {
            self.output.warn(&format!("error: {}: {error}", path.display()));
        }
    }

    fn note(&self, text: &str) {
        self.output.note(text);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }
}
