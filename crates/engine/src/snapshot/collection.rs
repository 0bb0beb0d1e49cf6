//! The bodies of the steps of a collection.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use crate::codec::{DecodeError, Decoded, put_container_id, put_varint};
use crate::object::HEADER_LEN;
use crate::object::names::CollectionStep;
use crate::object::sealed::BODY_LEN_MAX;
use crate::snapshot::format::{TAG_CONTAINER, TAG_KIND, field, fields};
use crate::types::{ContainerId, SessionId};

/// Most containers that `final` names in place of a deleted one. Chunks of more are looked for everywhere.
pub const TARGETS_MAX: usize = 8;

const TAG_MARKED_CHECKSUM: u8 = 17;
const TAG_MARKED: u8 = 128;
const TAG_MOVED: u8 = 129;
const TAG_QUARANTINED: u8 = 141;
const TAG_QUICK: u8 = 142;
/// Bytes of a container's id.
const ID_LEN: usize = 20;

/// The containers that hold the reached chunks of a container that a collection has deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MovedContainer {
    /// The deleted container.
    pub(crate) container: ContainerId,
    /// At most [`TARGETS_MAX`]. None: the chunks are looked for everywhere.
    pub(crate) targets: Vec<ContainerId>,
}

/// The body of a step of a collection. The step stands in it, so that none passes for another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CollectionBody {
    /// The step.
    pub(crate) step: CollectionStep,
    /// Checksum of the commits that were marked, where the step rests on them.
    pub(crate) marked_checksum: Option<[u8; 32]>,
    /// The containers that it is about.
    pub(crate) containers: Vec<ContainerId>,
    /// Those of them that are quarantined instead of deleted.
    pub(crate) quarantined: Vec<ContainerId>,
    /// In `condemn`, the snapshots that were marked before it.
    pub(crate) marked: Vec<SessionId>,
    /// In `final`, the locations of what stood in containers that this collection and earlier ones have deleted, as far as
    /// snapshots still have hints to them.
    pub(crate) moved: Vec<MovedContainer>,
    /// In `final`, the number of quick collections since the last full one, this one included.
    pub(crate) quick: u32,
}

/// A field of a step of which there may be many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollectionItem<'a> {
    /// A container that the step is about.
    Container(ContainerId),
    /// One of these containers, which is quarantined instead of deleted.
    Quarantined(ContainerId),
    /// A snapshot that was marked.
    Marked(SessionId),
    /// A deleted container, and its targets.
    Moved(ContainerId, &'a [ContainerId]),
}

/// Encodes the body of a step field by field, for those who do not hold all of it.
#[derive(Debug)]
pub(crate) struct CollectionEncoder {
    /// [`HEADER_LEN`] bytes for the header, then the body.
    out: Vec<u8>,
}

impl CollectionEncoder {
    /// Starts the body of a step.
    pub(crate) fn new(step: CollectionStep) -> Self {
        let step = match step {
            CollectionStep::Begin => 1,
            CollectionStep::Condemn => 2,
            CollectionStep::Final => 3,
            CollectionStep::Done => 4,
        };
        let mut out = vec![0; HEADER_LEN];
        field(&mut out, TAG_KIND, |out| out.push(step));
        Self { out }
    }

    /// Adds the checksum of the commits that were marked, once.
    fn marked_checksum(&mut self, checksum: &[u8; 32]) {
        field(&mut self.out, TAG_MARKED_CHECKSUM, |out| out.extend_from_slice(checksum));
    }

    /// Adds the number of quick collections since the last full one, once.
    pub(crate) fn quick(&mut self, count: u32) {
        if count != 0 {
            field(&mut self.out, TAG_QUICK, |out| put_varint(out, count.into()));
        }
    }

    /// Adds a container.
    pub(crate) fn container(&mut self, id: ContainerId) {
        field(&mut self.out, TAG_CONTAINER, |out| put_container_id(out, id));
    }

    /// Marks a container of the step as one that is quarantined instead of deleted.
    pub(crate) fn quarantined(&mut self, id: ContainerId) {
        field(&mut self.out, TAG_QUARANTINED, |out| put_container_id(out, id));
    }

    /// Adds a snapshot that was marked.
    pub(crate) fn marked(&mut self, snapshot: SessionId) {
        field(&mut self.out, TAG_MARKED, |out| out.extend_from_slice(&snapshot.0));
    }

    /// Adds a deleted container with its targets; more than [`TARGETS_MAX`] count as none. Comes after all containers: an entry
    /// that the object has no space left for is left out. Then its chunks are looked for everywhere.
    pub(crate) fn moved(&mut self, container: ContainerId, targets: &[ContainerId]) {
        let targets = if TARGETS_MAX < targets.len() { &[] } else { targets };
        // Tag, length and count take at most four bytes.
        if HEADER_LEN + BODY_LEN_MAX < self.out.len() + 4 + ID_LEN * (1 + targets.len()) {
            return;
        }
        field(&mut self.out, TAG_MOVED, |out| {
            put_container_id(out, container);
            put_varint(out, targets.len() as u64);
            for target in targets {
                put_container_id(out, *target);
            }
        });
    }

    /// Returns the body, after [`HEADER_LEN`] bytes that [`seal_buffer`](crate::object::sealed::seal_buffer) writes.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.out
    }
}

impl CollectionBody {
    /// Makes a step that names containers and nothing else.
    pub(crate) fn new(step: CollectionStep, containers: Vec<ContainerId>) -> Self {
        let (quarantined, marked, moved) = (Vec::new(), Vec::new(), Vec::new());
        Self { step, marked_checksum: None, containers, quarantined, marked, moved, quick: 0 }
    }

    /// Returns the encoded form.
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code, reason = "a collector encodes field by field"))]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = CollectionEncoder::new(self.step);
        if let Some(checksum) = &self.marked_checksum {
            encoder.marked_checksum(checksum);
        }
        encoder.quick(self.quick);
        self.containers.iter().for_each(|container| encoder.container(*container));
        self.quarantined.iter().for_each(|container| encoder.quarantined(*container));
        self.marked.iter().for_each(|snapshot| encoder.marked(*snapshot));
        self.moved.iter().for_each(|moved| encoder.moved(moved.container, &moved.targets));
        encoder.finish().split_off(HEADER_LEN)
    }

    /// Reads the encoded form.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn decode(body: &[u8]) -> Decoded<Self> {
        let (mut containers, mut quarantined) = (Vec::new(), Vec::new());
        let (mut marked, mut moved) = (Vec::new(), Vec::new());
        let body = Self::decode_items(body, &mut |item| match item {
            CollectionItem::Container(id) => containers.push(id),
            CollectionItem::Quarantined(id) => quarantined.push(id),
            CollectionItem::Marked(snapshot) => marked.push(snapshot),
            CollectionItem::Moved(container, targets) => {
                moved.push(MovedContainer { container, targets: targets.to_vec() });
            }
        })?;
        Ok(Self { containers, quarantined, marked, moved, ..body })
    }

    /// Reads the encoded form and hands on what there may be millions of, instead of returning it. After an error some were
    /// handed on.
    pub(crate) fn decode_items(body: &[u8], take: &mut dyn FnMut(CollectionItem<'_>)) -> Decoded<Self> {
        let (mut step, mut marked_checksum, mut quick) = (None, None, 0);
        let mut targets = Vec::with_capacity(TARGETS_MAX);
        fields(body, |tag, value| {
            match tag {
                TAG_KIND => {
                    step = Some(match value.u8()? {
                        1 => CollectionStep::Begin,
                        2 => CollectionStep::Condemn,
                        3 => CollectionStep::Final,
                        4 => CollectionStep::Done,
                        _ => return Err(value.error("unknown step of a collection")),
                    });
                }
                TAG_MARKED_CHECKSUM => marked_checksum = Some(value.array()?),
                TAG_CONTAINER => take(CollectionItem::Container(value.container_id()?)),
                TAG_QUARANTINED => take(CollectionItem::Quarantined(value.container_id()?)),
                TAG_MARKED => take(CollectionItem::Marked(SessionId(value.array()?))),
                TAG_QUICK => quick = value.varint32()?,
                TAG_MOVED => {
                    let container = value.container_id()?;
                    let count = value.count(ID_LEN)?;
                    if TARGETS_MAX < count {
                        return Err(value.error("container that has moved to more containers than are named"));
                    }
                    targets.clear();
                    for _ in 0..count {
                        targets.push(value.container_id()?);
                    }
                    take(CollectionItem::Moved(container, &targets));
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        match step {
            Some(step) => Ok(Self { marked_checksum, quick, ..Self::new(step, Vec::new()) }),
            None => Err(DecodeError { offset: body.len(), reason: "collection without a step" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ordinal: u32) -> ContainerId {
        ContainerId { session: SessionId([1; 16]), ordinal }
    }

    fn body() -> CollectionBody {
        let moved = |container, targets: &[u32]| MovedContainer {
            container: id(container),
            targets: targets.iter().map(|target| id(*target)).collect(),
        };
        CollectionBody {
            marked_checksum: Some([9; 32]),
            quick: 7,
            marked: vec![SessionId([3; 16]), SessionId([4; 16])],
            quarantined: vec![id(5)],
            moved: vec![moved(5, &[6]), moved(7, &[]), moved(8, &[1, 2, 3, 4, 5, 6, 7, 8])],
            ..CollectionBody::new(CollectionStep::Final, vec![id(5); 3])
        }
    }

    #[test]
    fn steps_come_back() {
        assert_eq!(CollectionBody::decode(&body().encode()), Ok(body()));
        let condemn = CollectionBody::new(CollectionStep::Condemn, vec![id(u32::MAX)]);
        assert_eq!(CollectionBody::decode(&condemn.encode()), Ok(condemn));
        assert!(CollectionBody::decode(&[]).is_err());
    }

    #[test]
    fn a_container_that_moved_to_too_many_is_encoded_as_one_that_moved_anywhere_and_refused_where_it_stands() {
        let mut encoder = CollectionEncoder::new(CollectionStep::Final);
        encoder.moved(id(1), &[id(2); TARGETS_MAX + 1]);
        let decoded = CollectionBody::decode(&encoder.finish().split_off(HEADER_LEN)).unwrap();
        assert_eq!(decoded.moved, [MovedContainer { container: id(1), targets: Vec::new() }]);

        let mut bytes = CollectionBody::new(CollectionStep::Final, Vec::new()).encode();
        field(&mut bytes, TAG_MOVED, |out| {
            put_container_id(out, id(1));
            put_varint(out, 9);
            (0..9).for_each(|target| put_container_id(out, id(target)));
        });
        assert!(CollectionBody::decode(&bytes).is_err());
    }

    #[test]
    fn entries_that_do_not_fit_are_left_out() {
        let mut encoder = CollectionEncoder::new(CollectionStep::Final);
        let targets: Vec<ContainerId> = (0..8).map(id).collect();
        let entries = BODY_LEN_MAX / (ID_LEN * 9) + 10;
        (0..entries).for_each(|_| encoder.moved(id(0), &targets));
        let body = encoder.finish().split_off(HEADER_LEN);
        assert!(body.len() <= BODY_LEN_MAX && BODY_LEN_MAX - 200 < body.len());
        let mut decoded = 0;
        CollectionBody::decode_items(&body, &mut |_| decoded += 1).unwrap();
        assert!(decoded < entries && BODY_LEN_MAX / 185 < decoded);
    }
}
