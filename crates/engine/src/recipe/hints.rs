//! Hints: the container of each referenced chunk when the reference was written.
//!
//! The fingerprint does not cover hints, so that equal contents stay equal when chunks move. A reader tries the hint first
//! and searches elsewhere if it is stale.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{Decoded, Reader, put_container_id, put_varint};
use crate::types::{ContainerId, SessionId};

/// Collects the hints of consecutive references.
#[derive(Clone, Debug, Default)]
pub(crate) struct HintTable {
    containers: Vec<ContainerId>,
    /// Runs of references into one container: how many, and the container's number plus one, or 0 where none is known.
    runs: Vec<(u64, u64)>,
}

/// A container is looked for among this many that were named last; more are named again.
const LOOK_BACK: usize = 16;

impl HintTable {
    /// Appends the hint of the next reference.
    pub(crate) fn push(&mut self, container: Option<ContainerId>) {
        let number = match container {
            None => 0,
            Some(container) => {
                let known = self.containers.iter().enumerate().rev().take(LOOK_BACK);
                let found = known.filter(|(_, held)| **held == container).map(|(at, _)| at).next();
                let at = found.unwrap_or_else(|| {
                    self.containers.push(container);
                    self.containers.len() - 1
                });
                at as u64 + 1
            }
        };
        match self.runs.last_mut() {
            Some((count, held)) if *held == number => *count += 1,
            _ => self.runs.push((1, number)),
        }
    }

    /// Appends all hints of another table.
    pub(crate) fn extend(&mut self, hints: impl Iterator<Item = Option<ContainerId>>) {
        hints.for_each(|hint| self.push(hint));
    }

    /// Appends the encoded form; nothing for an empty table.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if self.runs.is_empty() {
            return;
        }
        put_varint(out, self.containers.len() as u64);
        for container in &self.containers {
            put_container_id(out, *container);
        }
        for (count, number) in &self.runs {
            put_varint(out, *count);
            put_varint(out, *number);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.containers.clear();
        self.runs.clear();
    }
}

/// Reads the hints of `references` references.
pub(crate) fn decode_hints(bytes: &[u8], references: usize) -> Decoded<Vec<Option<ContainerId>>> {
    let mut hints = Vec::with_capacity(references);
    if bytes.is_empty() {
        hints.resize(references, None);
        return Ok(hints);
    }
    let mut reader = Reader::new(bytes);
    let count = reader.count(20)?;
    let mut containers = Vec::with_capacity(count);
    for _ in 0..count {
        containers.push(reader.container_id()?);
    }
    while reader.remaining() > 0 {
        let run = reader.varint()?;
        let number = reader.varint()?;
        let run = usize::try_from(run).ok().filter(|run| *run <= references - hints.len());
        let run = run.ok_or_else(|| reader.error("more hints than references"))?;
        let container = match number.checked_sub(1) {
            None => None,
            Some(at) => {
                let found = usize::try_from(at).ok().and_then(|at| containers.get(at));
                Some(*found.ok_or_else(|| reader.error("hint to a container that is not listed"))?)
            }
        };
        hints.extend(std::iter::repeat_n(container, run));
    }
    if hints.len() == references { Ok(hints) } else { Err(reader.error("fewer hints than references")) }
}

/// Returns true if encoded hints name a container of a session.
pub(crate) fn name_session(bytes: &[u8], session: SessionId) -> bool {
    let mut reader = Reader::new(bytes);
    let count = reader.count(20).unwrap_or(0);
    (0..count).any(|_| reader.container_id().is_ok_and(|container| container.session == session))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SessionId;

    #[test]
    fn hints_come_back_in_order() {
        let id = |ordinal| Some(ContainerId { session: SessionId([1; 16]), ordinal });
        let hints: Vec<_> = (0..200).map(|at| if at % 7 == 0 { None } else { id(at / 50 % 3) }).collect();
        let mut table = HintTable::default();
        table.extend(hints.iter().copied());
        let mut out = Vec::new();
        table.encode(&mut out);
        assert_eq!(decode_hints(&out, 200), Ok(hints));
        assert!(decode_hints(&out, 199).is_err());
        assert!(decode_hints(&out, 201).is_err());
        assert_eq!(decode_hints(&[], 3), Ok(vec![None; 3]));
    }
}
