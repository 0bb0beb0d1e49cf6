//! `cdp`: continuous protection of volumes.

mod control;
mod create;
mod group_file;
mod serve;

use std::sync::Arc;

use anyhow::Result;

use crate::args::cdp::{CdpCommand, GroupArgs, MarkArgs};
use crate::commands::cdp::control::{Request, ask};
use crate::output::Output;
use crate::settings::Settings;

/// Carries out a command.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, command: &CdpCommand) -> Result<()> {
    match command {
        CdpCommand::Create(args) => create::run(settings, output, args),
        CdpCommand::Serve(args) => serve::run(settings, output, args),
        CdpCommand::Status(args) => status(settings, output, args),
        CdpCommand::Mark(args) => mark(settings, output, args),
    }
}

fn status(settings: &Settings, output: &Output, args: &GroupArgs) -> Result<()> {
    let state = ask(&args.group, &Request::Status)?;
    if settings.json {
        return Ok(output.message(&state)?);
    }
    for (name, value) in state.as_object().into_iter().flatten() {
        output.line(format!("{name}: {value}"))?;
    }
    Ok(())
}

fn mark(settings: &Settings, output: &Output, args: &MarkArgs) -> Result<()> {
    let marked = ask(&args.group.group, &Request::Mark { name: args.name.clone() })?;
    if settings.json {
        return Ok(output.message(&marked)?);
    }
    Ok(output.line(format!("marked LSN {}", marked["lsn"]))?)
}
