//! Containers by the numbers in entries: a list on the medium, and in memory.
//!
//! Numbers are assigned in order and never reused. A record is written once and made durable before any entry names it. Its last
//! word holds the status: complete, or gone. In memory a container takes about
//! 80 bytes.

use std::collections::HashMap;

use onefold_engine::kv::Ordinal;
use onefold_engine::random::mix64;
use onefold_engine::types::{ContainerId, SessionId};
use onefold_engine::{Error, Result};

use crate::mapped::medium::Medium;
use crate::mapped::segments::{ENTRY_BYTES, ENTRY_WORDS, Segments};
use crate::mapped::space::{CONTAINERS_AT, Space};

const STATUS_AT: u64 = 24;

/// Status of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// Some of its chunks may be recorded.
    Begun,
    /// All of its chunks are recorded.
    Complete,
    /// It was forgotten: its number is invalid.
    Gone,
}

impl Status {
    fn word(self, index: u64) -> u64 {
        match self {
            Self::Begun => 0,
            Self::Complete => mix64(index ^ 1 << 40),
            Self::Gone => mix64(index ^ 1 << 41),
        }
    }

    /// Decodes a status. With an invalid word, the container is recorded again.
    fn of(word: u64, index: u64) -> Self {
        [Self::Complete, Self::Gone].into_iter().find(|status| status.word(index) == word).unwrap_or(Self::Begun)
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    container: ContainerId,
    status: Status,
    is_live: bool,
}

fn encode(index: u64, container: ContainerId) -> [u64; ENTRY_WORDS] {
    let [low, high] = halves(container.session);
    let check = check_of(index, low, high, container.ordinal);
    [low, high, check << 32 | u64::from(container.ordinal), Status::Begun.word(index)]
}

fn halves(session: SessionId) -> [u64; 2] {
    let (words, _) = session.0.as_chunks::<8>();
    [0, 1].map(|half| words.get(half).map_or(0, |word| u64::from_le_bytes(*word)))
}

fn check_of(index: u64, low: u64, high: u64, ordinal: u32) -> u64 {
    mix64(low ^ mix64(high ^ mix64(u64::from(ordinal) << 32 ^ index))) >> 32 | 1
}

fn decode(index: u64, record: &[u64]) -> Option<Known> {
    let &[low, high, third, status] = record else { return None };
    let ordinal = u32::try_from(third & 0xffff_ffff).ok()?;
    let mut session = [0; 16];
    session[..8].copy_from_slice(&low.to_le_bytes());
    session[8..].copy_from_slice(&high.to_le_bytes());
    let container = ContainerId { session: SessionId(session), ordinal };
    let status = Status::of(status, index);
    (check_of(index, low, high, ordinal) == third >> 32).then_some(Known { container, status, is_live: false })
}

/// The containers.
#[derive(Debug)]
pub struct Containers {
    segments: Segments,
    known: Vec<Known>,
    by_container: HashMap<ContainerId, Ordinal>,
}

impl Containers {
    /// Starts an empty list.
    pub fn create<M: Medium>(space: &mut Space<M>) -> Result<Self> {
        let bits = space.geometry().containers_bits;
        let segments = Segments::create(space, CONTAINERS_AT, bits)?;
        Ok(Self { segments, known: Vec::new(), by_container: HashMap::new() })
    }

    /// Reads the regions of a list; `None` if they are damaged. [`Containers::load`] comes next.
    pub fn open<M: Medium>(space: &Space<M>) -> Option<Self> {
        let segments = Segments::open(space, CONTAINERS_AT, space.geometry().containers_bits)?;
        Some(Self { segments, known: Vec::new(), by_container: HashMap::new() })
    }

    /// Returns its regions of the medium, with their bytes.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64)> {
        self.segments.regions()
    }

    /// Reads all records up to the first damaged one, and zeros the rest. No container is live so far.
    pub fn load<M: Medium>(&mut self, space: &mut Space<M>) -> Result<()> {
        let capacity = self.segments.capacity();
        while self.count() < capacity {
            let index = self.count();
            // One at a time: they are few and consecutive.
            let record: [u64; ENTRY_WORDS] = space.medium.again(self.segments.offset_of(index));
            let Some(known) = decode(index, &record) else { break };
            self.push(known);
        }
        let rest = self.segments.extents(self.count(), capacity - self.count());
        rest.for_each(|(offset, records)| space.zero(offset, records * ENTRY_BYTES));
        space.medium.fence()
    }

    fn push(&mut self, known: Known) -> Ordinal {
        let ordinal = Ordinal(u32::try_from(self.known.len()).expect("no more are registered"));
        if known.status != Status::Gone {
            self.by_container.insert(known.container, ordinal);
        }
        self.known.push(known);
        ordinal
    }

    /// Returns the number of assigned numbers.
    pub fn count(&self) -> u64 {
        self.known.len() as u64
    }

    /// Returns the container of a number, if it is live.
    #[inline]
    pub fn live(&self, Ordinal(ordinal): Ordinal) -> Option<ContainerId> {
        self.known.get(ordinal as usize).filter(|known| known.is_live).map(|known| known.container)
    }

    /// Returns the number of a container; assigns one if it has none. Durable when this returns. The container becomes live.
    pub fn register<M: Medium>(&mut self, space: &mut Space<M>, container: ContainerId) -> Result<Ordinal> {
        if let Some(&ordinal) = self.by_container.get(&container) {
            self.known[ordinal.0 as usize].is_live = true;
            return Ok(ordinal);
        }
        let index = self.count();
        if u64::from(u32::MAX) <= index {
            return Err(Error::invalid("the fingerprint store has numbered 4,294,967,295 containers"));
        }
        if index == self.segments.capacity() {
            self.segments.add(space)?;
        }
        let offset = self.segments.offset_of(index);
        space.medium.write(offset, &encode(index, container));
        space.medium.flush(offset, ENTRY_BYTES);
        space.medium.fence()?;
        Ok(self.push(Known { container, status: Status::Begun, is_live: true }))
    }

    fn set_status<M: Medium>(&mut self, space: &mut Space<M>, ordinal: Ordinal, status: Status) {
        let known = &mut self.known[ordinal.0 as usize];
        known.status = status;
        let offset = self.segments.offset_of(ordinal.0.into());
        space.medium.store(offset + STATUS_AT, status.word(ordinal.0.into()));
        space.medium.flush(offset, ENTRY_BYTES);
    }

    /// Marks a container as complete; its entries must be durable. Durable when this returns.
    pub fn complete<M: Medium>(&mut self, space: &mut Space<M>, ordinal: Ordinal) -> Result<()> {
        self.set_status(space, ordinal, Status::Complete);
        space.medium.fence()
    }

    /// Marks containers as gone. Durable when this returns: only then may entries that name them be reused.
    pub fn forget<M: Medium>(&mut self, space: &mut Space<M>, containers: &[ContainerId]) -> Result<()> {
        for container in containers {
            if let Some(ordinal) = self.by_container.remove(container) {
                self.known[ordinal.0 as usize].is_live = false;
                self.set_status(space, ordinal, Status::Gone);
            }
        }
        space.medium.fence()
    }

    /// Takes the containers that exist; all others are gone. Returns the unknown and the incomplete ones.
    pub fn attach<M: Medium>(&mut self, space: &mut Space<M>, live: &[ContainerId]) -> Result<Vec<ContainerId>> {
        self.known.iter_mut().for_each(|known| known.is_live = false);
        let mut missing = Vec::new();
        for &container in live {
            let known = self.by_container.get(&container).map(|ordinal| &mut self.known[ordinal.0 as usize]);
            if let Some(known) = known {
                known.is_live = true;
                if known.status == Status::Complete {
                    continue;
                }
            }
            missing.push(container);
        }
        let is_live = |ordinal: &Ordinal| self.known[ordinal.0 as usize].is_live;
        let gone = self.by_container.iter().filter(|(_, ordinal)| !is_live(ordinal));
        let mut gone: Vec<_> = gone.map(|(container, _)| *container).collect();
        // The stores follow the order of the arguments, not the order of a map.
        gone.sort_unstable();
        self.forget(space, &gone)?;
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::meter::{Metered, TickClock};
    use crate::mapped::recorder::Recorder;
    use crate::mapped::space::Geometry;

    fn container(session: u8, ordinal: u32) -> ContainerId {
        ContainerId { session: SessionId([session; 16]), ordinal }
    }

    fn metered(recorder: &Recorder) -> Metered<Recorder> {
        Metered::new(recorder.clone(), std::time::Duration::ZERO, &TickClock::shared())
    }

    fn opened(recorder: &Recorder) -> (Space<Recorder>, Containers) {
        let mut space = Space::open(metered(recorder)).unwrap();
        let mut containers = Containers::open(&space).unwrap();
        let regions = containers.regions().collect();
        assert!(space.claim(regions));
        containers.load(&mut space).unwrap();
        (space, containers)
    }

    #[test]
    fn numbers_stay_and_what_is_not_complete_is_missing() {
        let recorder = Recorder::default();
        let geometry = Geometry { containers_bits: 1, ..Geometry::default() };
        let mut space = Space::create(metered(&recorder), geometry).unwrap();
        let mut containers = Containers::create(&mut space).unwrap();
        space.seal().unwrap();
        let all: Vec<_> = (0..9).map(|number| container(1, number)).collect();
        for (number, &container) in (0..).zip(&all) {
            assert_eq!(containers.register(&mut space, container).unwrap(), Ordinal(number));
            assert_eq!(containers.register(&mut space, container).unwrap(), Ordinal(number));
            if number != 3 {
                containers.complete(&mut space, Ordinal(number)).unwrap();
            }
        }
        containers.forget(&mut space, &[all[5], container(7, 7)]).unwrap();
        assert_eq!(containers.live(Ordinal(5)), None);

        let (mut space, mut containers) = opened(&recorder);
        assert_eq!((containers.count(), containers.live(Ordinal(0))), (9, None), "nothing is live before it is said");
        assert_eq!(containers.attach(&mut space, &all[..7]).unwrap(), [all[3], all[5]]);
        assert_eq!(containers.live(Ordinal(3)), Some(all[3]));
        assert_eq!(containers.live(Ordinal(5)), None, "it was forgotten and is another now");
        assert_eq!(containers.register(&mut space, all[5]).unwrap(), Ordinal(9));
        assert_eq!(containers.live(Ordinal(7)), None);

        let (mut space, mut containers) = opened(&recorder);
        assert_eq!(containers.attach(&mut space, &all).unwrap(), [all[3], all[5], all[7], all[8]]);
    }

    #[test]
    fn a_damaged_record_ends_the_list_and_later_ones_do_not_come_back() {
        let recorder = Recorder::default();
        let mut space = Space::create(metered(&recorder), Geometry::default()).unwrap();
        let mut containers = Containers::create(&mut space).unwrap();
        space.seal().unwrap();
        for number in 0..9 {
            containers.register(&mut space, container(1, number)).unwrap();
        }
        let offset = containers.segments.offset_of(4);
        space.medium.store(offset + 8, 1);
        let (mut space, mut containers) = opened(&recorder);
        assert_eq!(containers.count(), 4);
        containers.register(&mut space, container(2, 0)).unwrap();
        assert_eq!(opened(&recorder).1.count(), 5);
    }
}
