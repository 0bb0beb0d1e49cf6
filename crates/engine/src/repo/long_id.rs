//! Ids of 64 digits, as restic's clients expect them.

use std::fmt;

use crate::types::{RepositoryId, SessionId};

/// Hexadecimal digits of an id.
pub(crate) const LONG_ID_DIGITS: usize = 64;

/// Separates this use of BLAKE3 from all others.
const SNAPSHOT_CONTEXT: &str = "onefold 2026-11 snapshot id, the digits after the session";
/// Separates this use of BLAKE3 from all others.
const REPOSITORY_CONTEXT: &str = "onefold 2026-11 repository id, the digits after the random ones";

/// A snapshot's id: 64 hexadecimal digits. The first 32 are the session's, the others are derived from them. Every prefix
/// of the session's digits is therefore a prefix of the id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SnapshotId(pub SessionId);

impl SnapshotId {
    /// Returns true if `digits` are the first ones of the id, or all of them.
    pub(crate) fn starts_with(self, digits: &str) -> bool {
        self.to_string().starts_with(digits)
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_long(f, &self.0.0, SNAPSHOT_CONTEXT)
    }
}

/// A repository's id: 64 hexadecimal digits, the first 32 those that were drawn when it was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LongRepositoryId(pub RepositoryId);

impl fmt::Display for LongRepositoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_long(f, &self.0.0, REPOSITORY_CONTEXT)
    }
}

fn write_long(f: &mut fmt::Formatter<'_>, id: &[u8; 16], context: &str) -> fmt::Result {
    let derived = blake3::derive_key(context, id);
    id.iter().chain(derived.iter().take(LONG_ID_DIGITS / 2 - id.len())).try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_begins_with_its_session_and_never_changes() {
        let id = SnapshotId(SessionId([0xa5; 16]));
        let text = id.to_string();
        assert_eq!(text.len(), LONG_ID_DIGITS);
        assert!(text.starts_with(&SessionId([0xa5; 16]).to_string()));
        // Clients store ids: a later version derives the same.
        assert_eq!(text, "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a51a433c7114668f56f84538f5034ba8c6");
        assert!(id.starts_with("") && id.starts_with("a5a5a5a5") && id.starts_with(&text));
        let other = if text.ends_with('0') { "1" } else { "0" };
        assert!(!id.starts_with(&(text[..63].to_owned() + other)));
        assert!(!id.starts_with(&(text + "0")));
    }

    #[test]
    fn a_repository_and_a_session_of_the_same_digits_have_unlike_ids() {
        let repository = LongRepositoryId(RepositoryId([0xa5; 16])).to_string();
        assert_eq!(repository.len(), LONG_ID_DIGITS);
        assert!(repository.starts_with(&RepositoryId([0xa5; 16]).to_string()));
        assert_ne!(repository, SnapshotId(SessionId([0xa5; 16])).to_string());
    }

    #[test]
    fn neighboring_sessions_have_unlike_tails() {
        let tail = |byte| SnapshotId(SessionId([byte; 16])).to_string()[32..].to_owned();
        assert_ne!(tail(1), tail(2));
    }
}
