//! `upgrade`.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::check::{CheckRequest, CheckedSnapshots, ReadData, check};
use onefold_engine::io::os_identity::host_name;
use onefold_engine::object::FormatVersion;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::upgrade;

use crate::args::create::UpgradeArgs;
use crate::interrupt::Interrupt;
use crate::json::object;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::Settings;
use crate::trust;

/// Sets the version of a repository's format, if a check finds nothing.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &UpgradeArgs) -> Result<()> {
    let version = FormatVersion::from_number(args.format).context("--format: no such version")?;
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    // An upgrade that was interrupted leaves copies of the config that differ, which a check reports.
    if opened.store.config.format < version {
        let request = CheckRequest {
            read: ReadData::None,
            snapshots: CheckedSnapshots::All,
            scratch: cache.scratch(),
            memory_bytes: settings.memory_bytes,
            driver: Driver::threads(settings.threads),
            seed: None,
            accelerator: None,
            heads: trust::heads(settings, opened.store.config.repository),
        };
        let progress = Progress::new(output, &interrupt, Activity::Check);
        let report = {
            let _shown = progress.show();
            check(&opened.store, &request, &*progress)?
        };
        ensure!(report.is_sound(), "`onefold check` finds errors in the repository, so that it is not upgraded");
    }
    let is_changed = upgrade(&opened.store, version, &cache.scratch(), &host_name())?;
    if output.json {
        output.message(&object! { message_type: "upgraded", version: args.format, is_changed, })?;
    } else if is_changed {
        output.line(format!("the repository has format {} now", args.format))?;
    } else {
        output.line(format!("the repository has format {} already", args.format))?;
    }
    Ok(())
}
