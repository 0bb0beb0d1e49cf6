//! Standard output is data, standard error is talk.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use serde::Serialize;

/// How much is said.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    /// What a user wants to know.
    Normal,
    /// Details of what is done.
    Verbose,
    /// Every file.
    EveryFile,
}

/// Where a command's words go.
#[derive(Debug)]
pub(crate) struct Output {
    /// Whether programs read along.
    pub(crate) json: bool,
    /// How much is said.
    pub(crate) verbosity: Verbosity,
    data: Mutex<io::BufWriter<io::Stdout>>,
    to_terminal: bool,
}

impl Output {
    /// Writes to the process's standard output and error.
    pub(crate) fn new(json: bool, verbosity: Verbosity) -> Self {
        let stdout = io::stdout();
        let to_terminal = stdout.is_terminal();
        Self { json, verbosity, data: Mutex::new(io::BufWriter::new(stdout)), to_terminal }
    }

    /// Writes bytes of data as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.data.lock().map_err(|_| io::Error::other("standard output is unusable"))?.write_all(bytes)
    }

    /// Writes a line of data.
    pub(crate) fn line(&self, line: impl AsRef<[u8]>) -> io::Result<()> {
        self.bytes(&[line.as_ref(), b"\n"].concat())
    }

    /// Writes one message for programs, on a line of its own, at once.
    pub(crate) fn message(&self, message: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_vec(message)?)?;
        self.flush()
    }

    /// Makes sure that everything has gone out.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.data.lock().map_err(|_| io::Error::other("standard output is unusable"))?.flush()
    }

    /// Returns a name as it is listed: on a terminal without bytes that would control it.
    pub(crate) fn printable(&self, name: &[u8]) -> Vec<u8> {
        if self.to_terminal { escape(name) } else { name.to_vec() }
    }

    /// Says something to the user, unless programs read along or nothing is to be said.
    pub(crate) fn note(&self, text: &str) {
        if Verbosity::Normal <= self.verbosity && !self.json {
            self.warn(text);
        }
    }

    /// Says something to the user that must not go unsaid. It is one line, whatever the names in it hold.
    #[expect(clippy::unused_self, reason = "all talk goes through the output")]
    pub(crate) fn warn(&self, text: &str) {
        say(&escape(text.as_bytes()));
    }

    /// Writes one message for programs to standard error.
    #[expect(clippy::unused_self, reason = "all talk goes through the output")]
    pub(crate) fn warn_message(&self, message: &impl Serialize) {
        say(serde_json::to_string(message).unwrap_or_else(|error| error.to_string()).as_bytes());
    }
}

/// Writes a line to standard error.
pub(crate) fn say(line: &[u8]) {
    // There is nobody left to tell if standard error is gone.
    let _ignored = io::stderr().write_all(&[line, b"\n"].concat());
}

/// Returns a text as people are shown it: names in it come from files that anybody may have made, and must not control a
/// terminal or begin a line of their own.
pub(crate) fn escape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                out.extend(character.escape_default().map(|escaped| escaped as u8));
            } else {
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        for byte in chunk.invalid() {
            out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_see_no_control_characters() {
        assert_eq!(escape(b"plain \xc3\xa4"), b"plain \xc3\xa4");
        assert_eq!(escape(b"a\x1b[2J\n\xff"), b"a\\u{1b}[2J\\n\\xff");
    }
}
