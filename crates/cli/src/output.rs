//! Standard output, which is data, and standard error, which is messages.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::compat::Dialect;
use crate::settings::{Settings, Verbosity};

/// Standard output and standard error of a command.
#[derive(Debug)]
pub(crate) struct Output {
    /// Whether the output is JSON.
    pub(crate) json: bool,
    /// Amount of messages.
    pub(crate) verbosity: Verbosity,
    /// Program whose conventions are followed.
    pub(crate) dialect: Dialect,
    /// Interval of progress reports, if the user chose one; zero turns them off.
    pub(crate) progress_interval: Option<Duration>,
    data: Mutex<io::BufWriter<io::Stdout>>,
    to_terminal: bool,
}

impl Output {
    /// Writes to the process's standard output and error.
    pub(crate) fn new(settings: &Settings) -> Self {
        let stdout = io::stdout();
        let to_terminal = stdout.is_terminal();
        Self {
            json: settings.json,
            verbosity: settings.verbosity,
            dialect: settings.dialect,
            progress_interval: settings.progress_interval,
            data: Mutex::new(io::BufWriter::new(stdout)),
            to_terminal,
        }
    }

    /// Writes bytes of data as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        named(self.data.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes))
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

    /// Writes out everything that is buffered.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let flushed = self.data.lock().unwrap_or_else(PoisonError::into_inner).flush();
        named(flushed.and_then(|()| onefold_sys::report_close(io::stdout().as_fd())))
    }

    /// Returns true if people see standard output as it is written.
    pub(crate) fn is_terminal(&self) -> bool {
        self.to_terminal
    }

    /// Returns a name as it is listed: on a terminal without bytes that would control it.
    pub(crate) fn printable(&self, name: &[u8]) -> Vec<u8> {
        if self.to_terminal { escape(name) } else { name.to_vec() }
    }

    /// Prints a message for people, unless the output is JSON or --quiet is set.
    pub(crate) fn note(&self, text: &str) {
        if Verbosity::Normal <= self.verbosity && !self.json {
            self.warn(text);
        }
    }

    /// Prints a message that --quiet does not suppress. It is one line, even if names in it hold line breaks.
    #[expect(clippy::unused_self, reason = "all messages go through the output")]
    pub(crate) fn warn(&self, text: &str) {
        say(&escape(text.as_bytes()));
    }

    /// Reports errors, a line each. Fails with `problem` if there are any.
    pub(crate) fn fail_on<E: Display>(&self, errors: impl IntoIterator<Item = E>, problem: &str) -> Result<()> {
        let count = errors.into_iter().map(|error| self.warn(&format!("error: {error}"))).count();
        ensure!(count == 0, "{problem}; `onefold check` says more");
        Ok(())
    }

    /// Writes one message for programs to standard error.
    #[expect(clippy::unused_self, reason = "all messages go through the output")]
    pub(crate) fn warn_message(&self, message: &impl Serialize) {
        say(serde_json::to_string(message).unwrap_or_else(|error| error.to_string()).as_bytes());
    }
}

/// The error of a writer that the engine calls. The engine gets `Interrupted` instead, and stops.
#[derive(Debug, Default)]
pub(crate) struct WriteFailure(Option<anyhow::Error>);

impl WriteFailure {
    /// Keeps the error of a write.
    pub(crate) fn keep<E: Into<anyhow::Error>>(&mut self, written: Result<(), E>) -> onefold_engine::Result<()> {
        written.map_err(|error| {
            self.0 = Some(error.into());
            onefold_engine::Error::Interrupted
        })
    }

    /// Returns the kept error, or else the result of the engine.
    pub(crate) fn or<T>(self, result: onefold_engine::Result<T>) -> Result<T> {
        match self.0 {
            Some(error) => Err(error),
            None => Ok(result?),
        }
    }
}

/// Adds to an error that standard output is what could not be written.
fn named(written: io::Result<()>) -> io::Result<()> {
    written.map_err(|error| io::Error::new(error.kind(), format!("write standard output: {error}")))
}

/// Writes out what was printed through the buffer of the standard library.
pub(crate) fn printed(print: io::Result<()>) -> io::Result<()> {
    named(print.and_then(|()| io::stdout().flush()))
}

/// Writes a line to standard error.
pub(crate) fn say(line: &[u8]) {
    // If standard error is gone, nothing can be reported.
    let _ignored = io::stderr().write_all(&[line, b"\n"].concat());
}

/// Characters that are not seen and change how others are: the categories Cf, Zl and Zp of Unicode 17, and fillers.
const HIDDEN: [RangeInclusive<char>; 25] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e00ff}',
    '\u{e01f0}'..='\u{e0fff}',
];

/// Returns true for characters that control a terminal, cannot be seen, or change the order in which others are shown.
fn is_hidden(character: char) -> bool {
    character.is_control() || HIDDEN.iter().any(|range| range.contains(&character))
}

/// Escapes a text for people: names in it come from files of any origin, and must neither control a terminal nor begin a
/// line.
pub(crate) fn escape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_hidden(character) {
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

    #[test]
    fn characters_that_hide_or_turn_others_are_escaped() {
        let turning = ["200e", "200f", "202a", "202b", "202c", "202d", "202e", "2066", "2067", "2068", "2069", "61c"];
        let invisible = ["200b", "200c", "200d", "2060", "feff", "ad", "e0041"];
        let separators = ["2028", "2029", "85"];
        for code in turning.into_iter().chain(invisible).chain(separators) {
            let character = char::from_u32(u32::from_str_radix(code, 16).unwrap()).unwrap();
            let shown = escape(format!("a{character}b").as_bytes());
            assert_eq!(String::from_utf8(shown).unwrap(), format!("a\\u{{{code}}}b"));
        }
        // Letters of every script stay as they are.
        let letters = "\u{5d0}\u{627}\u{915}\u{e01}\u{4e2d}\u{1f600}e\u{301}\u{a0}".as_bytes();
        assert_eq!(escape(letters), letters);
        assert!(HIDDEN.windows(2).all(|pair| pair[0].end() < pair[1].start()));
    }
}
