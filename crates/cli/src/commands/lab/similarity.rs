//! `lab similarity`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use onefold_engine::pipeline::Driver;
use onefold_lab::files::write_new;
use onefold_lab::similarity::point::Point;
use onefold_lab::similarity::{SimilarityOptions, measure};

use crate::args::lab::similarity::SimilarityArgs;
use crate::commands::lab::chunker::chunker_of;
use crate::commands::lab::experiment::{advised, command, origin, print, scratch};
use crate::compat::Dialect;
use crate::exit::Unreadable;
use crate::files;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::Settings;
use crate::sources::{self, Left};

/// Compresses versions against each other.
pub(crate) fn similarity(settings: &Settings, output: &Arc<Output>, args: &SimilarityArgs) -> Result<()> {
    let Left { excludes, .. } = sources::excludes(Dialect::Onefold, &args.excludes, &[])?;
    if let Some(path) = &args.findings {
        ensure!(!files::exists(path), "write {}: it exists", path.display());
    }
    let options = SimilarityOptions {
        paths: args.paths.clone(),
        excludes: Arc::new(excludes),
        chunker: chunker_of(&args.chunker)?,
        level: args.level,
        points: if args.points.is_empty() { Point::curve() } else { args.points.clone() },
        verify: args.verify,
        memory_bytes: settings.memory_bytes,
        scratch: scratch(args.scratch.as_ref()),
    };
    let interrupt = Interrupt::listen()?;
    let progress = Progress::new(output, &interrupt, Activity::Files);
    let work = (&Driver::threads(settings.threads), settings.budget());
    let measured = {
        let _shown = progress.show();
        measure(&options, work, &*progress).map_err(advised)
    }?;
    let findings = measured.findings(command(), origin());
    print(output, args.csv, &findings)?;
    if let Some(path) = &args.findings {
        write_new(path, &serde_json::to_vec_pretty(&findings)?)?;
    }
    ensure!(measured.failures == 0, Unreadable::NotCompressed);
    Ok(())
}
