//! Waiting for the index, which another process on this host may hold.

use std::time::Duration;

use onefold_engine::Error;
use onefold_engine::backup::Monitor;
use onefold_engine::io::Host;
use onefold_engine::io::os::OsHost;

use crate::json::object;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::text;

/// Interval between attempts to lock the index.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Repeats an action while another writer on this host holds the index, for as long as the user allows.
pub(crate) fn with_retries<T>(
    settings: &Settings,
    output: &Output,
    progress: &Progress,
    mut action: impl FnMut() -> onefold_engine::Result<T>,
) -> onefold_engine::Result<T> {
    let host = OsHost::new();
    let end = host.monotonic() + settings.retry_lock;
    let mut is_reported = false;
    loop {
        match action() {
            Err(Error::IndexBusy { .. }) if host.monotonic() < end => {
                if !is_reported {
                    report_waiting(output, settings.retry_lock);
                    is_reported = true;
                }
                if progress.is_interrupted() {
                    return Err(Error::Interrupted);
                }
                std::thread::sleep(RETRY_INTERVAL.min(end.saturating_sub(host.monotonic())));
            }
            result => return result,
        }
    }
}

/// Reports why the command waits: on standard error, since standard output is for results.
fn report_waiting(output: &Output, at_most: Duration) {
    let at_most = text::short_duration(at_most);
    let message = format!(
        "another command on this host holds the index; waiting up to {at_most} for it (--retry-lock 0 fails at once)"
    );
    if output.json {
        output.warn_message(&object! { message_type: "waiting", message, });
    } else {
        output.note(&message);
    }
}
