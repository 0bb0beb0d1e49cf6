//! `forget --what-if`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_engine::collect::what_if;
use onefold_engine::store::Store;
use onefold_engine::types::SessionId;

use crate::args::prune::PruneArgs;
use crate::commands::prune;
use crate::interrupt::Interrupt;
use crate::json::ledger;
use crate::open::OpenedCache;
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::Settings;
use crate::text;

/// Shows what a prune would free if some snapshots were forgotten.
pub(super) fn run(
    settings: &Settings,
    output: &Arc<Output>,
    store: &Store,
    args: &PruneArgs,
    forgotten: &[SessionId],
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, store.config.repository, output)?;
    let progress = Progress::new(output, &interrupt, Activity::Prune);
    let request = prune::request(settings, store, &cache, args)?;
    let found = {
        let _shown = progress.show();
        what_if(store, &request, &forgotten.iter().copied().collect(), &*progress)?
    };
    for finding in &found.findings {
        output.warn(finding);
    }
    ensure!(
        found.findings.is_empty(),
        "not all of the repository can be read, so what would be freed is not known; `onefold check --read-data` reports more"
    );
    if output.json {
        output.message(&ledger::what_if(&found))?;
        return Ok(output.flush()?);
    }
    let only = &found.held.only;
    output.line(format!(
        "only {} would be forgotten {} {}: {} before compression",
        if found.forgotten == 1 { "the snapshot that" } else { "the snapshots that" },
        if found.forgotten == 1 { "holds" } else { "hold" },
        text::count(only.chunks, "chunk"),
        text::bytes(only.plain_bytes),
    ))?;
    let freed = found.freed_bytes();
    let bytes = text::bytes(freed.unsigned_abs());
    output.line(if freed < 0 {
        format!("forgetting and pruning would take {bytes} ({} bytes) more", freed.unsigned_abs())
    } else {
        format!("forgetting and pruning would free {bytes} ({freed} bytes)")
    })?;
    output.line(format!(
        "  {} ({}) would be removed, and {} ({}) written; {} would stay unused",
        text::count(found.deleted_containers, "container"),
        text::bytes(found.deleted_bytes),
        text::count(found.written_containers, "container"),
        text::bytes(found.written_bytes),
        text::bytes(found.plan.left_unused_bytes),
    ))?;
    for line in prune::bases_lines(&found.plan) {
        output.line(line)?;
    }
    if 0 < found.decided_containers {
        let decided = text::count(found.decided_containers, "container");
        let bytes = text::bytes(found.decided_bytes);
        output.line(format!("  {decided} ({bytes}) of an earlier prune are among what would be freed"))?;
    }
    if found.plan.is_cut {
        output.line("  more containers would be removed than one prune can; the next one frees more")?;
    }
    Ok(output.flush()?)
}
