//! `list`.

use anyhow::{Result, bail};
use onefold_engine::crypto::slot::hex;
use onefold_engine::inspect::list_chunks;
use onefold_engine::repo::SnapshotId;
use onefold_engine::store::Store;
use onefold_engine::store::slots::read_slots;
use onefold_engine::types::ChunkKind;

use crate::args::list::ListedObjects;
use crate::commands::key::report_unread_slots;
use crate::interrupt::Interrupt;
use crate::open::{Opened, open};
use crate::output::Output;
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
            let found = read_slots(&*store.disk, store.config.repository)?;
            found.slots.iter().try_for_each(|slot| output.line(hex(&slot.id)))?;
            output.flush()?;
            report_unread_slots(output, &found.findings)
        }
        ListedObjects::Packs => {
            let listing = store.list_containers()?;
            listing.containers.iter().try_for_each(|name| Ok(output.line(name.id.to_string())?))
        }
        ListedObjects::Blobs => blobs(output, store),
        ListedObjects::Index | ListedObjects::Locks => Ok(()),
    }
}

fn snapshots(settings: &Settings, output: &Output, opened: &Opened) -> Result<()> {
    let commits = trust::read_commits(settings, output, opened)?;
    for (session, _) in commits.snapshots() {
        output.line(SnapshotId(session).to_string())?;
    }
    output.flush()?;
    for (_, error) in &commits.findings {
        output.warn(&format!("error: {error}"));
    }
    match commits.findings.len() {
        0 => Ok(()),
        1 => bail!("a snapshot cannot be read; `onefold check` says more"),
        count => bail!("{count} snapshots cannot be read; `onefold check` says more"),
    }
}

fn blobs(output: &Output, store: &Store) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let mut broken = None;
    let listed = list_chunks(store, &interrupt, &mut |fingerprint, kind| {
        let kind = match kind {
            ChunkKind::Data => "data",
            ChunkKind::Tree | ChunkKind::Recipe => "tree",
        };
        output.line(format!("{kind} {fingerprint}")).map_err(|error| {
            let text = error.to_string();
            broken = Some(error);
            onefold_engine::Error::invalid(text)
        })
    });
    if let Some(error) = broken {
        return Err(error.into());
    }
    let unreadable = listed?;
    output.flush()?;
    for error in &unreadable {
        output.warn(&format!("error: {error}"));
    }
    match unreadable.len() {
        0 => Ok(()),
        1 => bail!("a container cannot be read in full; `onefold check` says more"),
        count => bail!("{count} containers cannot be read in full; `onefold check` says more"),
    }
}
