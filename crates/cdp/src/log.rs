//! Messages for the log of whoever runs a server.

use std::fmt;
use std::sync::Arc;

/// A function that takes messages, one line each.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&str) + Send + Sync>);

impl Log {
    /// Passes messages to a function. Any thread may call it.
    pub fn new(function: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    /// Drops all messages.
    pub fn none() -> Self {
        Self::new(|_| {})
    }

    /// Reports a message.
    pub fn line(&self, message: &str) {
        (self.0)(message);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}
