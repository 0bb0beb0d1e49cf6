//! `cdp status`.

use std::time::Duration;

use anyhow::Result;
use onefold_cdp::journal::{Lag, Lsn};
use onefold_cdp::volume::{Group, GroupStatus};
use onefold_engine::io::Host as _;
use onefold_engine::io::os::OsHost;
use serde_json::{Value, json};

use crate::args::cdp::GroupArgs;
use crate::commands::cdp::control::{Request, ask};
use crate::commands::cdp::progress::{Newest, Progress};
use crate::output::Output;
use crate::settings::Settings;
use crate::text;

/// Digits of the id of a snapshot that people see.
const SHORT: usize = 8;

/// Shows the state of a group that is served.
pub(super) fn run(settings: &Settings, output: &Output, args: &GroupArgs) -> Result<()> {
    let state = ask(&args.group, &Request::Status)?;
    if settings.json {
        return Ok(output.message(&state)?);
    }
    let lines = if state["received"] == true { received_lines(&state) } else { lines(&state) };
    for line in lines {
        output.line(line)?;
    }
    Ok(())
}

/// Returns the state of a group, as `--json` prints it.
pub(super) fn state(name: &str, group: &Group, progress: &Progress) -> Value {
    let GroupStatus { journal, unsynced_age, active_extents, behind_bytes, is_recording, failure } = group.status();
    let (newest, checkpoint_error) = progress.state();
    // Before the first checkpoint, nothing is stored.
    let Lag { records, bytes, time } =
        newest.map_or_else(Lag::default, |newest| group.journal().lag(Lsn(newest.last.0 + 1)));
    let now = OsHost::new().now();
    let now = u64::try_from(now.seconds).unwrap_or(0).saturating_mul(1_000_000_000) + u64::from(now.nanoseconds);
    let checkpoint = |Newest { snapshot, last, time }: Newest| json!({ "snapshot": snapshot.to_string(), "last_lsn": last.0, "time": text::rfc3339(time) });
    json!({
        "group": name,
        "lsn": journal.next.0 - 1,
        "durable_lsn": journal.durable.0 - 1,
        "first_lsn": journal.first.0,
        "checkpoint": newest.map(checkpoint),
        "checkpoint_error": checkpoint_error,
        "lag_records": records,
        "lag_bytes": bytes,
        "lag_seconds": seconds(Duration::from_nanos(time.map_or(0, |time| now.saturating_sub(time)))),
        "unsynced_seconds": seconds(unsynced_age.unwrap_or_default()),
        "journal_bytes": journal.used,
        "journal_bytes_max": journal.bytes_max,
        "journal_percent": journal.used * 100 / journal.bytes_max.max(1),
        "active_extents": active_extents,
        "behind_bytes": behind_bytes,
        "gap": behind_bytes != 0,
        "recording": is_recording,
        "failure": failure.map(|error| error.to_string()),
    })
}

/// Returns seconds, in thousandths.
pub(super) fn seconds(duration: Duration) -> f64 {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}

/// Returns the state for people.
fn lines(state: &Value) -> Vec<String> {
    let number = |name: &str| state[name].as_u64().unwrap_or(0);
    let bytes = |name: &str| text::bytes(number(name));
    let mut lines = vec![format!(
        "group {}: LSN {}, durable up to {}",
        state["group"].as_str().unwrap_or_default(),
        number("lsn"),
        number("durable_lsn")
    )];
    let link = &state["link"];
    lines.push(match state["checkpoint"].as_object() {
        _ if link.is_object() => link_line(link),
        Some(made) => {
            let (snapshot, time) = (made["snapshot"].as_str(), made["time"].as_str());
            let snapshot = snapshot.and_then(|id| id.get(..SHORT)).unwrap_or_default();
            let time = time.and_then(|time| text::parse_time(time).ok()).map(text::local_time).unwrap_or_default();
            format!("checkpoint: {snapshot} up to LSN {}, {time}", made["last_lsn"])
        }
        None => "checkpoint: none yet".to_owned(),
    });
    let missing = if link.is_object() { "not at the receiver" } else { "in no checkpoint" };
    lines.push(match number("lag_records") {
        0 => format!("{missing}: nothing"),
        records => {
            let (records, bytes) = (text::count(records, "record"), bytes("lag_bytes"));
            format!("{missing}: {records}, {bytes}, the oldest {} s old", state["lag_seconds"])
        }
    });
    lines.push(match state["unsynced_seconds"].as_f64() {
        Some(age) if age != 0.0 => format!("not durable: records of the last {age} s"),
        _ => "not durable: nothing".to_owned(),
    });
    let (used, most) = (bytes("journal_bytes"), bytes("journal_bytes_max"));
    lines.push(format!("journal: {used} of {most}, {}%", number("journal_percent")));
    lines.push(format!("active: {} of 4 MiB", text::count(number("active_extents"), "extent")));
    lines.push(match (number("behind_bytes"), state["recording"].as_bool()) {
        (0, _) => "behind: nothing".to_owned(),
        (_, Some(true)) => format!("behind: {}, being recorded; the history has a gap", bytes("behind_bytes")),
        _ => format!("behind: {}; changes are not recorded, and the history has a gap", bytes("behind_bytes")),
    });
    for (name, what) in [("checkpoint_error", "the last checkpoint failed"), ("failure", "writes fail")] {
        if let Some(reason) = state[name].as_str() {
            lines.push(format!("{what}: {reason}"));
        }
    }
    lines
}

/// Returns the state of the link to a receiver for people.
fn link_line(link: &Value) -> String {
    let receiver = link["receiver"].as_str().unwrap_or_default();
    let known = match link["acknowledged_lsn"].as_u64() {
        Some(last) => format!("has records up to LSN {last}, and a checkpoint up to {}", link["checkpoint_lsn"]),
        None => "was not reached yet".to_owned(),
    };
    match (link["connected"].as_bool(), link["failure"].as_str()) {
        (Some(true), _) => format!("receiver: {receiver} {known}"),
        (_, Some(failure)) => format!("receiver: {receiver} {known}; not connected: {failure}"),
        _ => format!("receiver: {receiver} {known}; not connected"),
    }
}

/// Returns the state of a group that is received, for people.
fn received_lines(state: &Value) -> Vec<String> {
    let Some(group) = state["group"].as_str() else { return vec!["no sender has come yet".to_owned()] };
    let number = |name: &str| state[name].as_u64().unwrap_or(0);
    let bytes = |name: &str| text::bytes(number(name));
    let sender = if state["connected"] == true { "connected" } else { "not connected" };
    let mut lines = vec![
        format!("group {group}: LSN {}, durable up to {}", number("lsn"), number("durable_lsn")),
        format!("sender: {sender}, sent {} of records since the start", bytes("received_bytes")),
        format!("in a checkpoint: records up to LSN {}", number("checkpoint_lsn")),
        format!("journal: {} of {}", bytes("journal_bytes"), bytes("journal_bytes_max")),
    ];
    for (name, what) in [("checkpoint_error", "the last checkpoint failed"), ("failure", "nothing is received")] {
        if let Some(reason) = state[name].as_str() {
            lines.push(format!("{what}: {reason}"));
        }
    }
    lines
}
