//! End of the command: exit codes as the manual documents them, and one sentence.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;

use onefold_engine::Error;

use crate::args::flags;
use crate::compat::{Dialect, LEFT_OUT_OF_RESTIC};
use crate::json::object;
use crate::output::{escape, say};

/// Exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    /// Done.
    Done = 0,
    /// Failed, wrong usage included.
    Failed = 1,
    /// A part of the source, or a container of the repository, could not be read; the snapshot was made without it.
    Unreadable = 3,
    /// There is no repository.
    NoRepository = 10,
    /// The index is held by another writer on this host.
    IndexBusy = 11,
    /// Wrong password.
    WrongPassword = 12,
    /// Interrupted.
    Interrupted = 130,
}

impl From<Code> for std::process::ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Meaning of each code, for manuals.
pub(crate) const MEANINGS: [(Code, &str); 7] = [
    (Code::Done, "Done."),
    (
        Code::Failed,
        "Failed, also because of wrong usage; check found damage; restore could not restore everything; `cdp scan` found differences.",
    ),
    (
        Code::Unreadable,
        "A part of the source, or a container of the repository, could not be read. The snapshot, trace or index was made without it \
         (with --dry-run, none was made). Or standard input was empty, and no snapshot was made. Or chunks of a \
         forgotten snapshot are missing, and it was not recovered. Or extents of a volume were written all the time, and `cdp scan` did \
         not compare them.",
    ),
    (Code::NoRepository, "There is no repository."),
    (Code::IndexBusy, "The index is held by another writer on this host."),
    (Code::WrongPassword, "Wrong password."),
    (Code::Interrupted, "Interrupted, by SIGTERM and SIGHUP too."),
];

/// The end of a backup, or a recording, that could not read everything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unreadable {
    /// It made a snapshot of what it could read.
    LeftOut,
    /// It made none, since there was nothing in the stream.
    Empty,
    /// An index was made of what could be read.
    NotIndexed,
    /// It was only tried out.
    TriedOut,
    /// A forgotten snapshot has lost chunks.
    NotRecovered,
    /// A snapshot that is not forgotten has lost chunks.
    NotDerived,
    /// Extents of a volume were written while they were to be compared.
    #[cfg(feature = "cdp")]
    NotCompared,
    /// A trace was made of what could be read.
    #[cfg(feature = "lab")]
    NotRecorded,
    /// Regions were compressed of what could be read.
    #[cfg(feature = "lab")]
    NotCompressed,
    /// Advice was given on what could be read.
    #[cfg(feature = "lab")]
    NotAdvisedOn,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftOut => "the snapshot was made, but not everything could be read: the errors above say what",
            #[cfg(feature = "lab")]
            Self::NotAdvisedOn => "the advice is on what could be read: the errors above say what could not",
            #[cfg(feature = "lab")]
            Self::NotRecorded => "the trace was made, but not everything could be read: the errors above say what",
            #[cfg(feature = "lab")]
            Self::NotCompressed => "the figures are of what could be read: the errors above say what could not",
            Self::NotIndexed => {
                "the index was rebuilt without the containers that cannot be read: the errors above say which"
            }
            Self::Empty => "no snapshot was made: the stream is empty; --allow-empty makes one of it",
            Self::NotRecovered => "not every snapshot was recovered: the errors above name the paths that are lost",
            Self::NotDerived => {
                "no snapshot was made, since chunks are missing: the errors above name the paths that are lost"
            }
            #[cfg(feature = "cdp")]
            Self::NotCompared => "the volumes were compared, but not where they were written all the time",
            Self::TriedOut => "a backup would leave out what cannot be read: the errors above say what",
        })
    }
}

impl std::error::Error for Unreadable {}

/// Returns the exit code for an error.
pub(crate) fn code_of(error: &anyhow::Error) -> Code {
    if error.downcast_ref::<Unreadable>().is_some() {
        return Code::Unreadable;
    }
    match error.downcast_ref::<Error>() {
        Some(Error::NoRepository { .. }) => Code::NoRepository,
        Some(Error::IndexBusy { .. }) => Code::IndexBusy,
        Some(Error::WrongPassword | Error::SlotsNotTried { .. }) => Code::WrongPassword,
        Some(Error::Interrupted) => Code::Interrupted,
        _ => Code::Failed,
    }
}

/// Describes an error: the failure, and a remedy if one is known.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let advice = match error.downcast_ref::<Error>() {
        Some(Error::NoRepository { .. }) => "; `onefold init` makes one",
        Some(Error::SlotsNotTried { .. }) => {
            "; --key-memory-max SIZE allows more memory, --key-hint ID names the slot to try first"
        }
        Some(Error::Replaced { .. }) => {
            "; if you have put another repository there, --accept-new-repository accepts it"
        }
        Some(Error::IndexBusy { .. }) => "; --retry-lock DURATION waits longer for it",
        Some(Error::Server { .. }) => "; without --index-server, the index is made again on this host",
        Some(error) if error.io_kind() == Some(io::ErrorKind::StorageFull) => {
            "; once there is free space again, the next run goes on with what is stored so far"
        }
        _ => "",
    };
    let mut sentence = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // The engine's errors end with their cause already.
        if !sentence.ends_with(&cause) {
            let link = if sentence.is_empty() { "" } else { ": " };
            sentence.push_str(link);
            sentence.push_str(&cause);
        }
    }
    sentence + advice
}

/// Returns true if the reader of the output went away, which needs no message.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns true if messages are to be JSON, also where the command line cannot be read.
pub(crate) fn wants_json() -> bool {
    let mut typed = std::env::args_os().filter_map(|argument| match argument.as_bytes().strip_prefix(b"--json")? {
        b"" => Some(true),
        value => flags::truth(value.strip_prefix(b"=")?),
    });
    typed.next_back() == Some(true)
}

/// Reports the end on standard error, as restic does: a line of JSON for programs, else a sentence.
pub(crate) fn report(code: Code, sentence: &str, json: bool) {
    report_as(Dialect::Onefold, code, None, sentence, json);
}

/// Reports the end in the words of a dialect.
pub(crate) fn report_as(dialect: Dialect, code: Code, error: Option<&anyhow::Error>, sentence: &str, json: bool) {
    let sentence = sentence.trim_end();
    let known = error.and_then(anyhow::Error::downcast_ref);
    let message = match error.and_then(anyhow::Error::downcast_ref) {
        Some(Unreadable::LeftOut | Unreadable::TriedOut) if dialect == Dialect::Restic => {
            format!("{LEFT_OUT_OF_RESTIC}: {sentence}")
        }
        _ if json => dialect.json_ending(known, sentence),
        _ => dialect.ending(known, sentence),
    };
    if json {
        let exit = object! { message_type: "exit_error", code: u16::from(code as u8), message: &*message, };
        say(serde_json::to_string(&exit).unwrap_or_else(|error| error.to_string()).as_bytes());
    } else {
        say(&escape(message.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_reported_once() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = anyhow::Error::new(Error::io("write", "file".as_ref(), full)).context("while packing");
        assert_eq!(sentence(&error).matches("no storage space").count(), 1, "{}", sentence(&error));
        assert!(sentence(&error).starts_with("while packing: write file: "));
    }

    #[test]
    fn codes_are_found_below_added_context() {
        let error = anyhow::Error::new(Error::WrongPassword).context("while opening");
        assert_eq!(code_of(&error), Code::WrongPassword);
        assert_eq!(code_of(&anyhow::anyhow!("anything")), Code::Failed);
        assert_eq!(code_of(&Unreadable::LeftOut.into()), Code::Unreadable);
    }
}
