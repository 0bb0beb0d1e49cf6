//! Checks of requests against what was negotiated.

use std::ops::Range;

use super::wire::request::{Request, command, flag};
use super::wire::{Errno, PAYLOAD_BYTES_MAX, export_flag};

/// The reason why a request is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) error: Errno,
    /// A sentence for people.
    pub(crate) message: &'static str,
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self { error, message: "" }
    }
}

/// Negotiated properties of a connection that decide which requests are executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// Bytes of the export.
    pub(crate) size: u64,
    /// Flags of the export.
    pub(crate) flags: u16,
    pub(crate) is_structured: bool,
    /// Metadata contexts, in the order of `Context::ALL`.
    pub(crate) contexts: [bool; 2],
}

impl Terms {
    /// Returns the range of a request that may be executed; for a flush it means nothing.
    pub(crate) fn admit(&self, request: &Request) -> Result<Range<u64>, Refusal> {
        let refuse = |error, message| Err(Refusal { error, message });
        let Some((needed, known)) = needs_of(request.command) else {
            return refuse(Errno::Invalid, "unknown command");
        };
        if request.flags & !known != 0 {
            return refuse(Errno::Invalid, "unknown flag for this command");
        }
        let is_change = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if is_change && self.has(export_flag::READ_ONLY) {
            return refuse(Errno::NotPermitted, "the export is read-only");
        }
        if !self.has(needed) || !self.has(needed_by_flags(request.flags)) {
            return refuse(Errno::Invalid, "the export does not announce this command or flag");
        }
        if request.command == command::FLUSH {
            return Ok(0..0);
        }
        if request.len == 0 {
            return refuse(Errno::Invalid, "a request without a length");
        }
        if PAYLOAD_BYTES_MAX < request.len {
            match request.command {
                // "Error values": this error is for reads by clients that know the flag DF.
                command::READ if self.has(export_flag::SEND_DF) => return refuse(Errno::Overflow, "more than 32 MiB"),
                command::READ | command::WRITE => return refuse(Errno::Invalid, "more than 32 MiB"),
                _ => {}
            }
        }
        if request.command == command::BLOCK_STATUS && !self.contexts.contains(&true) {
            return refuse(Errno::Invalid, "no metadata context is selected");
        }
        match request.offset.checked_add(u64::from(request.len)) {
            Some(end) if end <= self.size => Ok(request.offset..end),
            _ if matches!(request.command, command::WRITE | command::WRITE_ZEROES) => {
                refuse(Errno::NoSpace, "beyond the end of the export")
            }
            _ => refuse(Errno::Invalid, "beyond the end of the export"),
        }
    }

    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// Returns the flags of the export that a command needs, and the flags that it knows.
fn needs_of(command: u16) -> Option<(u16, u16)> {
    // "Command flags": FUA is valid for all commands.
    let (needed, known) = match command {
        command::READ => (0, flag::DF),
        command::WRITE => (0, 0),
        command::FLUSH => (export_flag::SEND_FLUSH, 0),
        command::TRIM => (export_flag::SEND_TRIM, 0),
        command::CACHE => (export_flag::SEND_CACHE, 0),
        command::WRITE_ZEROES => (export_flag::SEND_WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO),
        command::BLOCK_STATUS => (0, flag::REQ_ONE),
        _ => return None,
    };
    Some((needed, known | flag::FUA))
}

/// Returns the flags of the export that the flags of a command need.
fn needed_by_flags(flags: u16) -> u16 {
    let needs = [
        (flag::FUA, export_flag::SEND_FUA),
        (flag::DF, export_flag::SEND_DF),
        (flag::FAST_ZERO, export_flag::SEND_FAST_ZERO),
    ];
    needs.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, needed)| all | needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    const ALL: Terms = Terms { size: SIZE, flags: !export_flag::READ_ONLY, is_structured: true, contexts: [true; 2] };

    fn admit(terms: Terms, command: u16, flags: u16, offset: u64, len: u32) -> Result<Range<u64>, Errno> {
        terms.admit(&Request { flags, command, cookie: 0, offset, len }).map_err(|refusal| refusal.error)
    }

    #[test]
    fn requests_within_the_export_are_admitted() {
        for command in
            [command::READ, command::WRITE, command::TRIM, command::CACHE, command::WRITE_ZEROES, command::BLOCK_STATUS]
        {
            assert_eq!(admit(ALL, command, 0, SIZE - 1, 1), Ok(SIZE - 1..SIZE), "{command}");
            assert_eq!(admit(ALL, command, flag::FUA, 0, 1), Ok(0..1), "{command}");
            let beyond =
                if matches!(command, command::WRITE | command::WRITE_ZEROES) { Errno::NoSpace } else { Errno::Invalid };
            for (offset, len) in [(SIZE - 1, 2), (SIZE, 1), (u64::MAX, 1), (u64::MAX - 1, 2)] {
                assert_eq!(admit(ALL, command, 0, offset, len), Err(beyond), "{command} at {offset}");
            }
            assert_eq!(admit(ALL, command, 0, 0, 0), Err(Errno::Invalid), "{command}");
        }
        assert_eq!(admit(ALL, command::FLUSH, 0, 7, 7), Ok(0..0));
        for command in [2, 8, u16::MAX] {
            assert_eq!(admit(ALL, command, 0, 0, 1), Err(Errno::Invalid));
        }
    }

    #[test]
    fn only_reads_and_writes_are_limited_to_32_mib() {
        const MORE: u32 = PAYLOAD_BYTES_MAX + 1;
        assert_eq!(admit(ALL, command::READ, 0, 0, MORE), Err(Errno::Overflow));
        let simple = Terms { flags: ALL.flags & !export_flag::SEND_DF, ..ALL };
        assert_eq!(admit(simple, command::READ, 0, 0, MORE), Err(Errno::Invalid));
        assert_eq!(admit(ALL, command::WRITE, 0, 0, MORE), Err(Errno::Invalid));
        assert!(admit(ALL, command::READ, 0, 0, PAYLOAD_BYTES_MAX).is_ok());
        assert!(admit(ALL, command::WRITE_ZEROES, 0, 0, MORE).is_ok());
        assert!(admit(ALL, command::TRIM, 0, 0, MORE).is_ok());
    }

    #[test]
    fn what_is_not_announced_is_refused() {
        let read_only = Terms { flags: ALL.flags | export_flag::READ_ONLY, ..ALL };
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(admit(read_only, command, 0, 0, 1), Err(Errno::NotPermitted));
        }
        assert!(admit(read_only, command::READ, 0, 0, 1).is_ok() && admit(read_only, command::FLUSH, 0, 0, 0).is_ok());
        let bare = Terms { flags: export_flag::HAS_FLAGS, contexts: [false; 2], ..ALL };
        for command in 3..8 {
            assert_eq!(admit(bare, command, 0, 0, 1), Err(Errno::Invalid), "{command}");
        }
        assert!(admit(bare, command::WRITE, 0, 0, 1).is_ok());
        assert_eq!(admit(bare, command::WRITE, flag::FUA, 0, 1), Err(Errno::Invalid));
        assert_eq!(admit(bare, command::READ, flag::DF, 0, 1), Err(Errno::Invalid));
        for (command, flags) in [
            (command::READ, flag::NO_HOLE),
            (command::WRITE, flag::DF),
            (command::FLUSH, flag::REQ_ONE),
            (command::TRIM, flag::NO_HOLE),
            (command::CACHE, flag::DF),
            (command::WRITE_ZEROES, flag::DF),
            (command::BLOCK_STATUS, flag::FAST_ZERO),
            (command::READ, 1 << 5),
        ] {
            assert_eq!(admit(ALL, command, flags, 0, 1), Err(Errno::Invalid), "{command} with {flags}");
        }
        assert!(admit(ALL, command::WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO | flag::FUA, 0, 1).is_ok());
        assert!(admit(ALL, command::BLOCK_STATUS, flag::REQ_ONE, 0, 1).is_ok());
    }
}
