//! Signals. SIGINT, SIGTERM and SIGHUP end the command cleanly; a second one ends it at once. SIGUSR1 asks for a line of
//! progress. SIGXFSZ does not end the process, so that the write that was too long fails with an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use onefold_engine::monitor::Monitor;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};

use crate::exit::Code;
use crate::files;

/// Set by SIGUSR1.
static IS_STATUS_WANTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Handles the signals that must not end the process, whatever it does. Their default is to end it.
pub(crate) fn prepare() -> Result<()> {
    let is_wanted = IS_STATUS_WANTED.get_or_init(Arc::default);
    signal_hook::flag::register(SIGUSR1, Arc::clone(is_wanted)).context("listen to SIGUSR1")?;
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("listen to SIGXFSZ")?;
    Ok(())
}

/// Returns true if a line of progress was asked for since the last call.
pub(crate) fn take_status_request() -> bool {
    IS_STATUS_WANTED.get().is_some_and(|is_wanted| is_wanted.swap(false, Ordering::Relaxed))
}

/// Whether the user has asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. Until then a signal ends the process, so this is called once passwords are typed.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = Self::default();
        // `nohup` has it ignored, and the command is to survive the terminal then.
        let hangup = (!files::is_signal_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            // In this order: the first signal finds the flag unset, the second finds it set.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                Code::Interrupted as i32,
                Arc::clone(&interrupt.0),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupt.0)))
            .context("listen to signals")?;
        }
        Ok(interrupt)
    }

    /// Returns true if a signal has come.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Monitor of operations that show only their results.
impl Monitor for Interrupt {
    fn is_interrupted(&self) -> bool {
        self.is_raised()
    }
}
