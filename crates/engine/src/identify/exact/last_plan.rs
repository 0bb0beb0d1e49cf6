//! The last plan of the adaptive schedule, with which the next session starts: backups of a host are alike.
//!
//! The file `plan` of the index keeps it, if the stream of the session had one phase. A file that is missing or damaged costs the first plan of a session a few thousand chunks.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | `OFPLAN01` |
//! | 8 | 4 | chunks that wait for each other |
//! | 12 | 4 | 0 for a stride over chunks, 1 for one in runs |
//! | 16 | 4 | the stride |
//! | 20 | 4 | records before a hit |
//! | 24 | 4 | records from the hit on |
//! | 28 | 8 | chunks of the session |
//! | 36 | 4 | CRC32C of all that precedes |
#![deny(clippy::indexing_slicing)]

use crate::identify::exact::directory::IndexDirectory;
use crate::identify::locality::frame::with_checksum;
use crate::identify::schedule::plan::{Plan, Stride};
use crate::identify::schedule::planner::LastPlan;
use crate::io::Access;
use crate::kv::Fields;

const FILE: &str = "plan";
const MAGIC: [u8; 8] = *b"OFPLAN01";
const BYTES: usize = 40;

fn encode(LastPlan { plan, chunks }: &LastPlan) -> Vec<u8> {
    let (kind, stride) = match plan.stride {
        Stride::Chunks(stride) => (0, stride),
        Stride::InRuns(stride) => (1, stride),
    };
    let [pool, kind, stride, back, forward] = [plan.pool, kind, stride, plan.back, plan.forward].map(u32::to_le_bytes);
    with_checksum(&[&MAGIC, &pool, &kind, &stride, &back, &forward, &chunks.to_le_bytes()])
}

fn decode(bytes: &[u8]) -> Option<LastPlan> {
    let checksum = crc32c::crc32c(bytes.get(..BYTES - 4)?);
    let mut fields = Fields::new(bytes);
    if fields.array() != Some(MAGIC) {
        return None;
    }
    let (pool, kind, stride) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let stride = match kind {
        0 => Stride::Chunks(stride),
        1 => Stride::InRuns(stride),
        _ => return None,
    };
    let plan = Plan { pool, stride, back: fields.u32()?, forward: fields.u32()? };
    plan.back.checked_add(plan.forward)?;
    let last = LastPlan { plan, chunks: fields.u64()? };
    (fields.u32()? == checksum && fields.left() == 0).then_some(last)
}

/// Returns the last plan of an earlier session; `None` if none is known.
pub(in crate::identify) fn read(directory: &IndexDirectory) -> Option<LastPlan> {
    let mut bytes = [0; BYTES];
    directory.open(FILE, Access::Read).ok()?.read_at(0, &mut bytes).ok()?;
    decode(&bytes)
}

/// Keeps a plan for the next session, or none. A failure is no error.
pub(in crate::identify) fn write(directory: &IndexDirectory, last: Option<LastPlan>) {
    if read(directory) != last {
        let bytes = last.as_ref().map_or_else(|| vec![0; BYTES], encode);
        let _ = directory.open_or_create(FILE).and_then(|file| file.write_at(0, &bytes));
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn plans_come_back_and_every_changed_bit_shows() {
        for stride in [Stride::Chunks(8), Stride::InRuns(u32::MAX)] {
            let plan = Plan { pool: 65_536, stride, back: 51, forward: 51 };
            let last = LastPlan { plan, chunks: 1 << 40 };
            let mut bytes = encode(&last);
            assert_eq!(bytes.len(), BYTES);
            assert_eq!(decode(&bytes), Some(last));
            for bit in 0..BYTES * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&bytes), None);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(decode(&bytes[..20]), None);
        }
    }
}
