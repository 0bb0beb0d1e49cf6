//! `cat`.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::crypto::slot::hex;
use onefold_engine::inspect::{read_chunk, read_container};
use onefold_engine::repo::SnapshotName;
use onefold_engine::store::cursor::DirectoryCursor;
use onefold_engine::store::slots::read_slots;
use onefold_engine::types::Fingerprint;
use serde::Serialize;

use crate::args::SelectionArgs;
use crate::args::inspect::CatObject;
use crate::commands::ls::descend;
use crate::interrupt::Interrupt;
use crate::json::{inspect, list};
use crate::open::{self, OpenedCache, OpenedSnapshot, find_by_id, open};
use crate::output::{Output, WriteFailure};
use crate::settings::Settings;
use crate::trust;

/// Writes an object: JSON, but for chunks, which are written as they are.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, object: &CatObject) -> Result<()> {
    match object {
        CatObject::Config => pretty(output, &inspect::config(&open(settings, output)?.store.config)),
        CatObject::Key { id } => key(settings, output, id),
        CatObject::Snapshot { snapshot, selection } => {
            let opened = open(settings, output)?;
            let name = SnapshotName::parse(snapshot);
            ensure!(name.path.is_none(), "{snapshot}: a path in a snapshot is shown by `onefold cat tree`");
            let commits = trust::read_commits(settings, output, &opened.store)?;
            let (session, snapshot) = open::find(output, &commits, selection, &name)?;
            pretty(output, &list::snapshot(session, snapshot))
        }
        CatObject::Tree { snapshot, selection } => tree(settings, output, snapshot, selection),
        CatObject::Chunk { fingerprint } => chunk(settings, output, fingerprint),
        CatObject::Container { id } => container(settings, output, id),
        CatObject::Masterkey => bail!("cat masterkey: the key that everything is encrypted with is never shown"),
        CatObject::Index { .. } => bail!("cat index: a repository has no index; it is kept on this host"),
        CatObject::Lock { .. } => bail!("cat lock: a repository has no locks"),
    }
}

fn pretty(output: &Output, object: &impl Serialize) -> Result<()> {
    output.line(serde_json::to_vec_pretty(object)?)?;
    Ok(output.flush()?)
}

fn key(settings: &Settings, output: &Output, id: &str) -> Result<()> {
    let opened = open(settings, output)?;
    if opened.password.is_none() {
        bail!("the repository is not encrypted: it has no key slots");
    }
    let found = read_slots(&*opened.store.objects, opened.store.config.repository)?;
    pretty(output, &inspect::key(find_by_id("key slot", id, &found.slots, |slot| hex(&slot.id))?))
}

/// Writes the entries of one directory, an entry a line: there may be millions.
fn tree(settings: &Settings, output: &Output, name: &str, selection: &SelectionArgs) -> Result<()> {
    let found = OpenedSnapshot::open(settings, output, name, selection)?;
    let mut reader = found.reader(settings)?;
    let (root, base) = descend(&mut reader, found.snapshot.tree, found.path.as_bytes())?;
    let mut cursor = DirectoryCursor::new(root);
    output.bytes(format!("{{\"id\":\"{root}\",\"nodes\":[").as_bytes())?;
    let mut separator = &b"\n"[..];
    while let Some(hinted) = cursor.next(&mut reader)? {
        if found.interrupt.is_raised() {
            return Err(Error::Interrupted.into());
        }
        let path = [&base[..], b"/", &hinted.entry.name].concat();
        output.bytes(separator)?;
        output.bytes(&serde_json::to_vec(&inspect::node(&hinted.entry, &path, &found.snapshot.owners))?)?;
        separator = b",\n";
    }
    output.line("\n]}")?;
    Ok(output.flush()?)
}

/// Writes a container as it is stored.
fn container(settings: &Settings, output: &Output, id: &str) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let containers = opened.store.list_containers(&cache.scratch())?;
    let (number, _) = find_by_id("container", id, containers.iter(), |(_, id)| id.to_string())?;
    let mut failure = WriteFailure::default();
    let written = read_container(&opened.store, &containers.name(number)?, &mut |bytes| {
        if interrupt.is_raised() {
            return Err(Error::Interrupted);
        }
        failure.keep(output.bytes(bytes))
    });
    failure.or(written)?;
    Ok(output.flush()?)
}

fn chunk(settings: &Settings, output: &Output, text: &str) -> Result<()> {
    let fingerprint = Fingerprint::parse(text)
        .with_context(|| format!("{text}: not a fingerprint; those have 64 digits from 0 to 9 and a to f"))?;
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let chunk = read_chunk(&opened.store, &cache.scratch(), fingerprint, &interrupt)?;
    output.note(&format!("{:?} chunk of {} bytes in container {}", chunk.kind, chunk.contents.len(), chunk.container));
    output.bytes(&chunk.contents)?;
    Ok(output.flush()?)
}
