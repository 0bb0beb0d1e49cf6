//! Which containers are read whole.

use crate::check::{CheckRequest, ReadData};
use crate::error::{Error, Result};
use crate::io::Host;
use crate::types::ContainerId;

/// Selection of the containers that are read, one after the other.
#[derive(Debug)]
pub(super) struct Sample {
    read: ReadData,
    /// Containers still to come, and those among them to be taken, for a random sample.
    left: u64,
    wanted: u64,
    random: blake3::OutputReader,
}

impl Sample {
    /// Prepares for `count` containers of at most `container_bytes` each.
    pub(crate) fn new(request: &CheckRequest, host: &dyn Host, count: usize, container_bytes: u32) -> Result<Self> {
        request.read.validate()?;
        let mut seed = [0; 32];
        match (request.read, request.seed) {
            (ReadData::Percent(_) | ReadData::Bytes(_), Some(number)) => {
                seed = *blake3::hash(&number.to_le_bytes()).as_bytes();
            }
            (ReadData::Percent(_) | ReadData::Bytes(_), None) => host.random(&mut seed)?,
            (ReadData::None | ReadData::All | ReadData::Subset { .. }, _) => {}
        }
        let left = count as u64;
        let wanted = match request.read {
            ReadData::Percent(percent) => share(left, percent),
            ReadData::Bytes(bytes) => bytes.div_ceil(u64::from(container_bytes.max(1))).min(left),
            ReadData::None | ReadData::All | ReadData::Subset { .. } => 0,
        };
        let random = blake3::Hasher::new_keyed(&seed).finalize_xof();
        Ok(Self { read: request.read, left, wanted, random })
    }

    /// Returns true if the next container, which is this one, is read.
    pub(super) fn takes(&mut self, container: ContainerId) -> bool {
        match self.read {
            ReadData::None => false,
            ReadData::All => true,
            ReadData::Subset { index, of } => {
                // By its own name: later backups leave it in its part. The parts of a session differ by one container.
                let session = u64::from_le_bytes(*container.session.0.first_chunk().expect("a session has 16 bytes"));
                let number = session.wrapping_add(u64::from(container.ordinal));
                let part = number.checked_rem(of).expect("a subset of no parts was refused");
                part + 1 == index
            }
            ReadData::Percent(_) | ReadData::Bytes(_) => self.draw(),
        }
    }

    /// Selection sampling (Knuth, "The Art of Computer Programming" 2, algorithm 3.4.2 S): exactly `wanted` of what is
    /// left, every choice as likely as any other, without a list.
    fn draw(&mut self) -> bool {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        let scaled = (u128::from(u64::from_le_bytes(bytes)) * u128::from(self.left)) >> 64;
        let taken = scaled < u128::from(self.wanted);
        self.left = self.left.saturating_sub(1);
        self.wanted = self.wanted.saturating_sub(u64::from(taken));
        taken
    }
}

/// Returns that share of a number, rounded up, so that a sample is never empty.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of containers, in percent that were checked"
)]
fn share(count: u64, percent: f64) -> u64 {
    ((count as f64 * percent / 100.0).ceil() as u64).min(count)
}

impl ReadData {
    /// Fails if the request cannot be carried out.
    pub(crate) fn validate(&self) -> Result<()> {
        match *self {
            Self::Subset { index, of } if index == 0 || of < index => {
                Err(Error::invalid(format!("there is no part {index} of {of}: parts are counted from 1")))
            }
            Self::Percent(percent) if !(percent > 0.0 && percent <= 100.0) => {
                Err(Error::invalid(format!("{percent}% is no share: more than 0% and at most 100% can be read")))
            }
            Self::Bytes(0) => Err(Error::invalid("a sample of 0 bytes reads nothing")),
            Self::None | Self::All | Self::Subset { .. } | Self::Percent(_) | Self::Bytes(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Driver;
    use crate::store::metadata::Scratch;
    use crate::testing::sim::SimHost;
    use crate::types::SessionId;

    fn taken(read: ReadData, count: usize) -> Vec<usize> {
        let request = CheckRequest {
            snapshots: crate::check::CheckedSnapshots::All,
            read,
            scratch: Scratch { disk: None, dir: "".into() },
            memory_bytes: 1 << 20,
            driver: Driver::inline(1),
            seed: Some(5),
            heads: None,
            accelerator: None,
        };
        let mut sample = Sample::new(&request, &SimHost::new(1), count, 4 << 20).unwrap();
        (0..count).filter(|number| sample.takes(container(*number))).collect()
    }

    fn container(number: usize) -> ContainerId {
        let ordinal = u32::try_from(number).unwrap();
        ContainerId { session: SessionId([200 + u8::try_from(number / 25).unwrap_or(0); 16]), ordinal }
    }

    #[test]
    fn subsets_are_disjoint_and_make_up_the_whole() {
        let mut all: Vec<usize> = (1..=7).flat_map(|index| taken(ReadData::Subset { index, of: 7 }, 40)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
        let before = taken(ReadData::Subset { index: 3, of: 7 }, 30);
        let after = taken(ReadData::Subset { index: 3, of: 7 }, 40);
        assert!(after.starts_with(&before) && (3..=5).contains(&before.len()), "{before:?} {after:?}");
        assert_eq!(taken(ReadData::All, 3), [0, 1, 2]);
        assert_eq!(taken(ReadData::None, 3), [0; 0]);
    }

    #[test]
    fn samples_have_their_size_and_nonsense_is_refused() {
        for (percent, expected) in [(0.001, 1), (10.0, 100), (99.95, 1000), (100.0, 1000)] {
            assert_eq!(taken(ReadData::Percent(percent), 1000).len(), expected);
        }
        for (bytes, expected) in [(1, 1), (4 << 20, 1), ((4 << 20) + 1, 2), (500 << 20, 125), (u64::MAX, 1000)] {
            assert_eq!(taken(ReadData::Bytes(bytes), 1000).len(), expected);
        }
        assert_eq!(taken(ReadData::Percent(10.0), 1000), taken(ReadData::Percent(10.0), 1000));
        for read in [
            ReadData::Percent(0.0),
            ReadData::Percent(101.0),
            ReadData::Percent(f64::NAN),
            ReadData::Bytes(0),
            ReadData::Subset { index: 0, of: 3 },
            ReadData::Subset { index: 4, of: 3 },
        ] {
            assert!(read.validate().is_err(), "{read:?}");
        }
    }
}
