//! `repair`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_engine::backup::Monitor;
use onefold_engine::repo::{RebuildRequest, RebuiltIndex, rebuild_index};

use crate::args::repair::{RepairCommand, RepairIndexArgs};
use crate::exit::Unreadable;
use crate::interrupt::Interrupt;
use crate::json::repair::RepairIndexSummary;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::retry::with_retries;
use crate::settings::{Settings, Verbosity};
use crate::text;

/// Repairs the index of this host.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, command: &RepairCommand) -> Result<()> {
    match command {
        RepairCommand::Index(args) => index(settings, output, args),
    }
}

/// Rebuilds the index of this host. `--read-all-packs` changes nothing about it.
fn index(settings: &Settings, output: &Arc<Output>, _typed: &RepairIndexArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    ensure!(
        !cache.is_temporary(),
        "there is no index to rebuild: it is kept in the cache directory, which is not used"
    );
    let progress = Progress::new(output, &interrupt, Activity::Repair);
    let request = RebuildRequest {
        cache: &cache.cache,
        index: settings.index(),
        scratch: cache.scratch(),
        monitor: Arc::clone(&progress) as Arc<dyn Monitor>,
    };
    let rebuilt = {
        let _shown = progress.show();
        with_retries(settings, output, &progress, || rebuild_index(&opened.store, &request))?
    };
    print_index(output, &rebuilt)?;
    ensure!(rebuilt.unreadable == 0, Unreadable::NotIndexed);
    Ok(())
}

fn print_index(output: &Output, rebuilt: &RebuiltIndex) -> Result<()> {
    if output.json {
        output.message(&RepairIndexSummary::of(rebuilt))?;
    } else if Verbosity::Normal <= output.verbosity {
        let (containers, chunks) = (text::count(rebuilt.containers, "container"), text::count(rebuilt.chunks, "chunk"));
        output.line(format!("the index was rebuilt: {containers} with {chunks}"))?;
        if 0 < rebuilt.in_doubt {
            let left = text::count(rebuilt.in_doubt, "container");
            output.line(format!("{left} of unfinished sessions will be added by the next backup"))?;
        }
    }
    Ok(output.flush()?)
}
