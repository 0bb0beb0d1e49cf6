//! Which snapshots bear a time that cannot be theirs.
//!
//! A client whose clock is wrong, or that lies, could push the snapshots of others out of a policy. So its snapshots are
//! kept and count for nothing. What they are held against is the time at which the repository received them, and the log
//! of commits: a snapshot names the commits that stood before it.

use std::fmt;

use crate::forget::calendar::DAY;
use crate::forget::candidate::{Candidate, HeadTime, Received};
use crate::types::Timestamp;

/// How far the clocks of two hosts may differ, in seconds. A clock that shows local time instead of UTC is wrong by up to 14
/// hours.
const CLOCKS_DIFFER_MAX: i64 = DAY;

/// 2020-01-01, before the first snapshot that this program made. A clock that was reset shows an earlier time.
const EARLIEST: i64 = 18_262 * DAY;

/// Reasons to doubt the time of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Doubt {
    /// It is later than now.
    Future,
    /// It is earlier than this program.
    TooEarly,
    /// It is earlier than that of a snapshot that stood already.
    BeforeHead,
    /// It is not the time at which the repository received the snapshot.
    NotAsReceived,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Future => "doubtful time: in the future",
            Self::TooEarly => "doubtful time: before 2020",
            Self::BeforeHead => "doubtful time: before an earlier snapshot",
            Self::NotAsReceived => "doubtful time: not when it was received",
        })
    }
}

/// Whether times of snapshots are doubted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// They are compared with receipt and log.
    Compare,
    /// They are taken as they are.
    Times,
}

/// What the times of snapshots were compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Times of receipt and the order of the log.
    ReceiptAndLog,
    /// The order of the log alone: no time of receipt agrees, as in a copy of a repository.
    LogOnly,
    /// Nothing: the user trusts them.
    Trusted,
}

/// Finds the doubtful ones among all snapshots of a repository.
pub(super) fn doubts(all: &[Candidate<'_>], trust: Trust, now: Timestamp) -> (Basis, Vec<Option<Doubt>>) {
    if trust == Trust::Times {
        return (Basis::Trusted, vec![None; all.len()]);
    }
    let agrees = |candidate: &Candidate<'_>| {
        candidate.received.is_some() && doubt(candidate, Basis::ReceiptAndLog, now).is_none()
    };
    let basis = if all.is_empty() || all.iter().any(agrees) { Basis::ReceiptAndLog } else { Basis::LogOnly };
    (basis, all.iter().map(|candidate| doubt(candidate, basis, now)).collect())
}

fn doubt(candidate: &Candidate<'_>, basis: Basis, now: Timestamp) -> Option<Doubt> {
    let time = candidate.snapshot.time;
    let is_before_head = |head: &HeadTime| {
        let is_plausible = implausible(head.time, head.received, basis, now).is_none();
        is_plausible && is_earlier(time, head.time)
    };
    implausible(time, candidate.received, basis, now)
        .or_else(|| candidate.heads.iter().any(is_before_head).then_some(Doubt::BeforeHead))
}

/// Says why a time is doubtful by itself.
fn implausible(time: Timestamp, received: Option<Received>, basis: Basis, now: Timestamp) -> Option<Doubt> {
    if is_earlier(now, time) {
        return Some(Doubt::Future);
    }
    if time.seconds < EARLIEST {
        return Some(Doubt::TooEarly);
    }
    let is_received_then = received.is_none_or(|received| received.includes(time));
    (basis == Basis::ReceiptAndLog && !is_received_then).then_some(Doubt::NotAsReceived)
}

impl Received {
    fn includes(&self, time: Timestamp) -> bool {
        !is_earlier(time, self.begin) && !is_earlier(self.end, time)
    }
}

/// Returns true if a time is earlier by more than clocks differ.
pub(crate) fn is_earlier(time: Timestamp, than: Timestamp) -> bool {
    time.seconds.saturating_add(CLOCKS_DIFFER_MAX) < than.seconds
}
