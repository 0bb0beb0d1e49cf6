//! `cdp`: continuous protection of volumes.

mod bring_back;
mod checkpoints;
mod control;
mod create;
mod group_file;
mod keep;
mod maintenance;
mod named;
mod new_journal;
mod opening;
mod progress;
mod receive;
mod scan;
mod sending;
mod serve;
mod sockets;
mod status;
mod stored;
mod thin;
mod volume_server;
mod writing;

use std::sync::Arc;

use anyhow::Result;
use onefold_cdp::log::Log;

use crate::args::cdp::{CdpCommand, GroupArgs, MarkArgs};
use crate::commands::cdp::control::{Request, ask};
use crate::output::Output;
use crate::settings::Settings;

/// Carries out a command.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, command: &CdpCommand) -> Result<()> {
    match command {
        CdpCommand::Create(args) => create::run(settings, output, args),
        CdpCommand::Serve(args) => serve::run(settings, output, args),
        CdpCommand::Receive(args) => receive::run(settings, output, args),
        CdpCommand::Status(args) => status::run(settings, output, args),
        CdpCommand::Scan(args) => scan::run(settings, output, args),
        CdpCommand::Checkpoint(args) => checkpoint(settings, output, args),
        CdpCommand::History(args) => stored::list(settings, output, args),
        CdpCommand::Export(args) => stored::export(settings, output, args),
        CdpCommand::Restore(args) if args.into_volumes => bring_back::run(settings, output, args),
        CdpCommand::Restore(args) => stored::restore(settings, output, args),
        CdpCommand::Mark(args) => mark(settings, output, args),
        CdpCommand::Thin(args) => thin::run(settings, output, args),
    }
}

fn checkpoint(settings: &Settings, output: &Output, args: &GroupArgs) -> Result<()> {
    let made = ask(&args.group, &Request::Checkpoint)?;
    if settings.json {
        return Ok(output.message(&made)?);
    }
    if made.is_null() {
        output.note("nothing was written since the last checkpoint");
        return Ok(());
    }
    Ok(output.line(format!(
        "checkpoint {} up to LSN {}",
        made["snapshot"].as_str().unwrap_or_default(),
        made["last_lsn"]
    ))?)
}

/// Returns where servers report what happens.
fn log(output: &Arc<Output>) -> Log {
    let output = Arc::clone(output);
    Log::new(move |line| output.warn(line))
}

fn mark(settings: &Settings, output: &Output, args: &MarkArgs) -> Result<()> {
    let marked = ask(&args.group.group, &Request::Mark { name: args.name.clone() })?;
    if settings.json {
        return Ok(output.message(&marked)?);
    }
    Ok(output.line(format!("marked LSN {}", marked["lsn"]))?)
}
