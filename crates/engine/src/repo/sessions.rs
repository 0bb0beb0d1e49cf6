//! Sessions of a writer: another one if a collection has fenced the last one.

use crate::error::{Error, Result};
use crate::monitor::Monitor;

/// Sessions that a writer tries before it gives up on being fenced.
const SESSIONS_MAX: usize = 3;

/// Repeats an attempt, which begins a session, while it is fenced.
pub(super) fn with_sessions<T>(monitor: &dyn Monitor, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut sessions = 0;
    loop {
        sessions += 1;
        match attempt() {
            Err(Error::Fenced { session }) if sessions < SESSIONS_MAX => {
                monitor.note(&format!("session {session} was fenced; starting again"));
            }
            result => return result,
        }
    }
}
