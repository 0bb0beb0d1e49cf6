//! Why a connection ended.

use std::{fmt, io};

use onefold_engine::error::Error;

/// The end of a connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// The other side has closed it between two messages.
    Ended,
    /// The stream broke, or nothing came for too long.
    Io(io::Error),
    /// The other side sent what the protocol does not allow.
    Protocol(String),
    /// The other side refuses the link.
    Refused(String),
    /// This side refuses the link: the other one is sent the sentence.
    Refusing(String),
    /// Something on this side failed.
    Local(Error),
    /// Another connection of the same group, or the end of the program, has ended it.
    Replaced,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the other side has closed the connection"),
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => f.write_str("the other side is silent"),
            Self::Io(error) => error.fmt(f),
            Self::Protocol(reason) => write!(f, "the other side breaks the protocol: {reason}"),
            // Whatever it contains, it stays one line.
            Self::Refused(sentence) => write!(f, "the other side refuses: {}", sentence.replace(char::is_control, " ")),
            Self::Refusing(sentence) => f.write_str(sentence),
            Self::Local(error) => error.fmt(f),
            Self::Replaced => f.write_str("another connection has replaced it"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Local(error)
    }
}
