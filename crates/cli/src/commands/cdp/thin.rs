//! `cdp thin`: keeps less of the past.

use std::path::Path;

use anyhow::{Result, ensure};
use onefold_cdp::journal::GroupId;
use onefold_cdp::retention::{Carried, Fate, Held, MomentFacts, Plan, Planned, Why};
use onefold_engine::forget::Trust;
use onefold_engine::io::os::OsDisk;
use onefold_engine::store::Store;
use serde_json::{Value, json};

use crate::args::cdp::ThinArgs;
use crate::commands::cdp::group_file::GroupFile;
use crate::commands::cdp::keep::KeepFile;
use crate::commands::cdp::named::is_directory;
use crate::commands::cdp::stored::timestamp;
use crate::commands::cdp::writing::{Needs, Writing};
use crate::interrupt::Interrupt;
use crate::json::short_id;
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;
use crate::text;

/// Thins the history of a group by rules.
pub(super) fn run(settings: &Settings, output: &Output, args: &ThinArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let Group { name, id, keep } = find(settings, &opened.store, &args.name)?;
    let rules = KeepFile::of(&args.keep).unwrap_or_default().or(keep).rules()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let writing = Writing::new(settings, &opened.store, &cache, Needs { thins: true, ..Needs::default() })?;
    let trust = if args.trust_times { Trust::Times } else { Trust::Compare };
    let mut thinner = writing.thinner((&name, id), trust)?;
    let plan = thinner.plan(&rules, &text::utc_offset)?;
    let carried = if args.dry_run {
        Carried::default()
    } else {
        thinner.carry_out(&plan, &writing.request(), &writing.forget_note(), &mut || interrupt.is_raised())?
    };
    ensure!(!carried.is_stopped, onefold_engine::Error::Interrupted);
    report(settings, output, &plan, if args.dry_run { None } else { Some(&carried) })?;
    ensure!(
        !carried.is_prune_in_progress,
        "a prune is at work, and {} were thinned before; try again after it",
        text::count(carried.thinned.len() as u64, "checkpoint")
    );
    Ok(())
}

/// A group whose history is thinned.
struct Group {
    name: String,
    id: Option<GroupId>,
    keep: KeepFile,
}

fn find(settings: &Settings, store: &Store, text: &str) -> Result<Group> {
    if !is_directory(text) {
        return Ok(Group { name: text.to_owned(), id: None, keep: KeepFile::default() });
    }
    let directory = absolute(Path::new(text))?;
    let disk = OsDisk::with_backend(directory.clone(), settings.io);
    let file = GroupFile::read(&disk, &directory)?;
    let id = if file.receiver.is_some() { GroupId(file.id()?) } else { file.reading_identity(store)?.group };
    let id = Some(id);
    Ok(Group { name: file.name, id, keep: file.keep.unwrap_or_default() })
}

fn report(settings: &Settings, output: &Output, plan: &Plan, carried: Option<&Carried>) -> Result<()> {
    if settings.json {
        let checkpoints: Vec<Value> = plan.checkpoints.iter().map(|planned| planned_json(planned, carried)).collect();
        return Ok(output.message(&json!({ "dry_run": carried.is_none(), "checkpoints": checkpoints }))?);
    }
    let (mut thinned, mut forgotten) = (0_u64, 0_u64);
    for planned in &plan.checkpoints {
        let what = match &planned.fate {
            Fate::Kept(why) => format!("stays: {}", reason(why)),
            Fate::Thinned => {
                thinned += 1;
                format!("keeps its images and {} before", text::count(planned.inside.len() as u64, "moment"))
            }
            Fate::Forgotten => {
                forgotten += 1;
                "is forgotten".to_owned()
            }
        };
        let (snapshot, time) = (short_id(planned.snapshot), text::local_time(timestamp(planned.time)));
        output.line(format!("checkpoint {snapshot}  LSN {} to {}  {time}  {what}", planned.first, planned.last))?;
    }
    let would = if carried.is_none() { "would be " } else { "" };
    Ok(output.line(format!("{} {would}thinned, {forgotten} {would}forgotten", text::count(thinned, "checkpoint")))?)
}

/// Returns why a checkpoint stays as it is.
fn reason(why: &Why) -> String {
    match why {
        Why::Newest => "the newest".to_owned(),
        Why::Writes => "every write of its age is kept".to_owned(),
        Why::Held(Held::Tag(tag)) => format!("has the tag {tag}"),
        Why::Held(Held::Doubtful(doubt)) => doubt.to_string(),
        Why::Held(Held::TooLong) => "its history is too long for the memory".to_owned(),
        Why::Enough => "has no more than what is kept".to_owned(),
    }
}

fn planned_json(planned: &Planned, carried: Option<&Carried>) -> Value {
    let (fate, reason) = match &planned.fate {
        Fate::Kept(why) => ("kept", Some(reason(why))),
        Fate::Thinned => ("thinned", None),
        Fate::Forgotten => ("forgotten", None),
    };
    let time = |time: u64| text::rfc3339(timestamp(time));
    let moment = |moment: &MomentFacts| json!({ "lsn": moment.lsn.0, "time": time(moment.time), "mark": moment.mark });
    let derived = carried.and_then(|carried| carried.thinned.iter().find(|(from, _)| *from == planned.snapshot));
    json!({
        "snapshot": planned.snapshot.to_string(),
        "first_lsn": planned.first.0,
        "last_lsn": planned.last.0,
        "time": time(planned.time),
        "fate": fate,
        "reason": reason,
        "moments": planned.inside.iter().map(moment).collect::<Vec<_>>(),
        "derived": derived.map(|(_, derived)| derived.to_string()),
    })
}
