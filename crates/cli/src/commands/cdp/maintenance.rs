//! The thread that looks after a group while it is served: it makes old records durable, and records extents that are behind.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use onefold_cdp::volume::{Group, Resync};
use onefold_engine::io::Host as _;
use onefold_engine::io::os::OsHost;

use crate::output::Output;
use crate::text;

/// How often the thread looks. [`onefold_cdp::volume::UNSYNCED_AGE`] relies on it.
const PAUSE: Duration = Duration::from_millis(200);
/// How long extents that are behind wait after a volume could not be read.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_mins(1);

/// Looks after a group until the other end of `ended` is gone.
pub(super) fn run(group: &Group, ended: &Receiver<()>, output: &Output) {
    let host = OsHost::new();
    let (mut was_behind, mut has_failed) = (false, false);
    let (mut pause, mut resync_from) = (PAUSE, Duration::ZERO);
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
        was_behind = report(group, was_behind, output);
        pause = PAUSE;
        if let Err(error) = group.maintain()
            && !std::mem::replace(&mut has_failed, true)
        {
            output.warn(&format!("writes fail from now on: {error}"));
        }
        if has_failed || host.monotonic() < resync_from {
            continue;
        }
        match group.resync_step() {
            Ok(Resync::Stepped) => pause = Duration::ZERO,
            Ok(Resync::Waiting | Resync::Done) => {}
            Err(error) => {
                output.warn(&format!("extents that are behind cannot be recorded: {error}"));
                resync_from = host.monotonic() + PAUSE_AFTER_FAILURE;
            }
        }
    }
}

/// Reports when a group gets behind, and when it is not any more; returns true if it is.
fn report(group: &Group, was_behind: bool, output: &Output) -> bool {
    let bytes = group.behind().bytes();
    if bytes != 0 && !was_behind {
        let bytes = text::bytes(bytes);
        output.warn(&format!("the history has a gap: changes in {bytes} were not recorded"));
    }
    if bytes == 0 && was_behind {
        output.note("everything that was behind is recorded again: the gap of the history has ended");
    }
    bytes != 0
}
