//! `list`.

use anyhow::Result;
use onefold_engine::crypto::slot::hex;
use onefold_engine::inspect::list_chunks;
use onefold_engine::repo::SnapshotId;
use onefold_engine::store::Store;
use onefold_engine::store::slots::read_slots;
use onefold_engine::types::ChunkKind;

use crate::args::list::ListedObjects;
use crate::commands::key::UNREAD_SLOTS;
use crate::interrupt::Interrupt;
use crate::open::{Opened, OpenedCache, open};
use crate::output::{Output, WriteFailure};
use crate::settings::Settings;
use crate::trust;

/// Lists the ids of objects, one a line.
pub(crate) fn run(settings: &Settings, output: &Output, objects: ListedObjects) -> Result<()> {
    let opened = open(settings, output)?;
    let store = &opened.store;
    match objects {
        ListedObjects::Snapshots => snapshots(settings, output, &opened),
        ListedObjects::Keys if opened.password.is_none() => Ok(()),
        ListedObjects::Keys => {
            let found = read_slots(&*store.objects, store.config.repository)?;
            found.slots.iter().try_for_each(|slot| output.line(hex(&slot.id)))?;
            output.flush()?;
            output.fail_on(found.findings, UNREAD_SLOTS)
        }
        ListedObjects::Packs => {
            let cache = OpenedCache::open(settings, store.config.repository, output)?;
            let containers = store.list_containers(&cache.scratch())?;
            containers.iter().try_for_each(|(_, id)| Ok(output.line(id.to_string())?))
        }
        ListedObjects::Quarantined => {
            let quarantined = store.list_quarantined()?;
            quarantined.iter().try_for_each(|container| Ok(output.line(container.name.id.to_string())?))
        }
        ListedObjects::Blobs => blobs(settings, output, store),
        ListedObjects::Index | ListedObjects::Locks => Ok(()),
    }
}

fn snapshots(settings: &Settings, output: &Output, opened: &Opened) -> Result<()> {
    let commits = trust::read_commits(settings, output, &opened.store)?;
    for (session, _) in commits.snapshots() {
        output.line(SnapshotId(session).to_string())?;
    }
    output.flush()?;
    output.fail_on(commits.findings.iter().map(|(_, error)| error), "not all snapshots can be read")
}

fn blobs(settings: &Settings, output: &Output, store: &Store) -> Result<()> {
    let cache = OpenedCache::open(settings, store.config.repository, output)?;
    let interrupt = Interrupt::listen()?;
    let mut failure = WriteFailure::default();
    let listed = list_chunks(store, &cache.scratch(), &interrupt, &mut |fingerprint, kind| {
        let kind = match kind {
            ChunkKind::Data => "data",
            ChunkKind::Tree | ChunkKind::Recipe => "tree",
        };
        failure.keep(output.line(format!("{kind} {fingerprint}")))
    });
    let unreadable = failure.or(listed)?;
    output.flush()?;
    output.fail_on(unreadable, "not all containers can be read in full")
}
