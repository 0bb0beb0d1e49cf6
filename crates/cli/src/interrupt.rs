//! SIGINT and SIGTERM end the command cleanly; a second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use onefold_engine::monitor::Monitor;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::Code;

/// Whether the user has asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. Until then a signal ends the process, so this is called once passwords are typed.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
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

    /// Says whether a signal has come.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// For operations of which nothing is shown but their results.
impl Monitor for Interrupt {
    fn is_interrupted(&self) -> bool {
        self.is_raised()
    }
}
