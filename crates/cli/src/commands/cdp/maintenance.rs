//! The thread that looks after a group while it is served: extents that are behind are recorded again.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use onefold_cdp::volume::{Group, Resync};

use crate::output::Output;
use crate::text;

/// How often the thread looks.
const PAUSE: Duration = Duration::from_millis(200);
/// How long it waits after a volume could not be read.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_mins(1);

/// Looks after a group until the other end of `ended` is gone.
pub(super) fn run(group: &Group, ended: &Receiver<()>, output: &Output) {
    let mut was_behind = false;
    let mut pause = PAUSE;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
        was_behind = report(group, was_behind, output);
        pause = match group.resync_step() {
            Ok(Resync::Stepped) => Duration::ZERO,
            Ok(Resync::Waiting | Resync::Done) => PAUSE,
            Err(error) => {
                output.warn(&format!("extents that are behind cannot be recorded: {error}"));
                PAUSE_AFTER_FAILURE
            }
        };
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
