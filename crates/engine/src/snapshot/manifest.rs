//! The body of a manifest: the containers that a snapshot refers to.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{Decoded, put_varint};
use crate::object::HEADER_LEN;
use crate::object::sealed::BODY_LEN_MAX;
use crate::snapshot::format::{TAG_CONTAINERS, TEXT_LEN_MAX, field, fields};
use crate::types::{ContainerId, SessionId};

/// Bytes of a session's id.
const SESSION_LEN: usize = 16;
/// Bytes of the two numbers before a run, at most.
const RUN_HEAD_LEN: usize = 10;
/// Most containers of a run. A field has space for any run.
const RUN_MAX: usize = 4096;

const _: () = assert!(SESSION_LEN + RUN_HEAD_LEN + RUN_MAX <= TEXT_LEN_MAX);

/// Encodes a manifest, container by container.
#[derive(Debug)]
pub(crate) struct ManifestEncoder {
    /// [`HEADER_LEN`] bytes for the header, then whole fields.
    out: Vec<u8>,
    /// The value of the open field: nothing, or a session and its runs.
    value: Vec<u8>,
    /// The ordinal after the last closed run of the field.
    closed: u32,
    /// The open run: its first container, and the shares.
    first: ContainerId,
    shares: Vec<u8>,
}

impl ManifestEncoder {
    /// Starts without containers.
    pub(crate) fn new() -> Self {
        let first = ContainerId { session: SessionId([0; SESSION_LEN]), ordinal: 0 };
        Self { out: vec![0; HEADER_LEN], value: Vec::new(), closed: 0, first, shares: Vec::new() }
    }

    /// Adds a container with the share of its plaintext that the snapshot refers to, in 1/255 and at least 1. Containers come
    /// in the order of their ids, each once.
    pub(crate) fn push(&mut self, id: ContainerId, share: u8) {
        assert!(share != 0, "a container that is not referred to is not listed");
        let is_next = self.first.session == id.session
            && u64::from(self.first.ordinal) + self.shares.len() as u64 == u64::from(id.ordinal);
        if self.shares.is_empty() || !is_next || self.shares.len() == RUN_MAX {
            self.end_run(id.session);
            self.first = id;
        }
        self.shares.push(share);
    }

    /// Returns the body, after [`HEADER_LEN`] bytes that [`seal_buffer`](crate::object::sealed::seal_buffer) writes; `None` if it
    /// is longer than that of a small object can be.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        self.end_run(self.first.session);
        self.end_field();
        (self.out.len() <= HEADER_LEN + BODY_LEN_MAX).then_some(self.out)
    }

    /// Ends the open run. The next one is of session `next`.
    fn end_run(&mut self, next: SessionId) {
        if !self.shares.is_empty() {
            if TEXT_LEN_MAX < self.value.len() + RUN_HEAD_LEN + self.shares.len() {
                self.end_field();
            }
            if self.value.is_empty() {
                self.value.extend_from_slice(&self.first.session.0);
            }
            put_varint(&mut self.value, u64::from(self.first.ordinal - self.closed));
            put_varint(&mut self.value, self.shares.len() as u64);
            self.value.extend_from_slice(&self.shares);
            let len = u32::try_from(self.shares.len()).expect("runs are short");
            // After the greatest ordinal, no run of the session follows.
            self.closed = self.first.ordinal.saturating_add(len);
            self.shares.clear();
        }
        if next != self.first.session {
            self.end_field();
        }
    }

    fn end_field(&mut self) {
        if !self.value.is_empty() {
            let value = std::mem::take(&mut self.value);
            field(&mut self.out, TAG_CONTAINERS, |out| out.extend_from_slice(&value));
        }
        self.closed = 0;
    }
}

/// Reads the body of a manifest. Passes on the containers with their shares in the order of their ids, each once. After an
/// error some were passed on.
pub(crate) fn decode_manifest(body: &[u8], take: &mut dyn FnMut(ContainerId, u8)) -> Decoded<()> {
    let mut last: Option<ContainerId> = None;
    fields(body, |tag, value| {
        if tag != TAG_CONTAINERS {
            return Ok(false);
        }
        let session = SessionId(value.array()?);
        let mut next = 0u64;
        while 0 < value.remaining() {
            next += u64::from(value.varint32()?);
            let count = value.count(1)?;
            if count == 0 {
                return Err(value.error("run without containers"));
            }
            for share in value.bytes(count)? {
                let ordinal = u32::try_from(next).map_err(|_| value.error("ordinal beyond 32 bits"))?;
                let id = ContainerId { session, ordinal };
                if *share == 0 || last.is_some_and(|last| id <= last) {
                    return Err(value.error("container that is not used, or not in order"));
                }
                take(id, *share);
                last = Some(id);
                next += 1;
            }
        }
        Ok(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn id(session: u8, ordinal: u32) -> ContainerId {
        ContainerId { session: SessionId([session; 16]), ordinal }
    }

    fn encode(containers: &[(ContainerId, u8)]) -> Vec<u8> {
        let mut encoder = ManifestEncoder::new();
        for (id, share) in containers {
            encoder.push(*id, *share);
        }
        encoder.finish().unwrap().split_off(HEADER_LEN)
    }

    fn decode(body: &[u8]) -> Decoded<Vec<(ContainerId, u8)>> {
        let mut containers = Vec::new();
        decode_manifest(body, &mut |id, share| containers.push((id, share))).map(|()| containers)
    }

    #[test]
    fn containers_come_back_with_their_shares() {
        let mut random = SplitMix64::new(1);
        for case in 0..300 {
            let mut containers = Vec::new();
            for session in 0..u8::try_from(random.below(4)).unwrap() {
                let mut ordinal = random.below(3) * u64::from(u32::MAX - 20_000);
                for _ in 0..random.below(if case % 50 == 0 { 20_000 } else { 50 }) {
                    let share = u8::try_from(1 + random.below(255)).unwrap();
                    if let Ok(ordinal) = u32::try_from(ordinal) {
                        containers.push((id(session, ordinal), share));
                    }
                    ordinal += 1 + random.below(8) / 7 * random.below(300);
                }
            }
            assert_eq!(decode(&encode(&containers)), Ok(containers), "case {case}");
        }
        assert_eq!(decode(&encode(&[(id(1, u32::MAX), 255)])), Ok(vec![(id(1, u32::MAX), 255)]));
        assert_eq!(decode(&[]), Ok(Vec::new()));
    }

    #[test]
    fn many_containers_take_two_bytes_each_at_most_and_fields_of_64_kib() {
        let all: Vec<_> = (0..300_000).map(|ordinal| (id(1, ordinal * 2), 7)).collect();
        let body = encode(&all);
        assert!(body.len() < 3 * all.len() + 1000, "{}", body.len());
        assert_eq!(decode(&body), Ok(all));
        let dense: Vec<_> = (0..300_000).map(|ordinal| (id(1, ordinal), 7)).collect();
        let body = encode(&dense);
        assert!(body.len() < dense.len() + 1000, "{}", body.len());
        assert_eq!(decode(&body), Ok(dense));
    }

    #[test]
    fn what_no_writer_writes_is_refused() {
        let of = |values: &[&[u8]]| {
            let mut body = Vec::new();
            for value in values {
                field(&mut body, TAG_CONTAINERS, |out| {
                    out.extend_from_slice(&[5; 16]);
                    out.extend_from_slice(value);
                });
            }
            decode(&body)
        };
        assert_eq!(of(&[&[3, 2, 9, 8], &[5, 1, 1]]).unwrap().len(), 3);
        assert!(of(&[&[3, 2, 9, 8], &[4, 1, 1]]).is_err(), "a container twice");
        assert!(of(&[&[3, 2, 9, 0]]).is_err(), "a container without a share");
        assert!(of(&[&[3, 0]]).is_err(), "a run without containers");
        assert!(of(&[&[3, 2, 9]]).is_err(), "a run that ends too early");
        assert!(of(&[&[0xff, 0xff, 0xff, 0xff, 0x0f, 2, 1, 1]]).is_err(), "an ordinal beyond 32 bits");
        assert!(decode(&[18, 3, 1, 2, 3]).is_err(), "half a session");
    }
}
