//! The repository's parameters, fixed at `init`.

use crate::chunk::{CHUNK_BYTES_AVERAGE, ChunkSizes, Chunking, WINDOW};
use crate::codec::{DecodeError, Decoded, Reader};
use crate::crypto::{Keys, MasterKey};
use crate::error::{Error, Result};
use crate::object::header::{FormatVersion, ObjectType, check_preamble, put_preamble};
use crate::types::{RepositoryId, Timestamp};

/// Bytes of the stored form.
pub(crate) const CONFIG_LEN: usize = 224;
const CHECKSUM_LEN: usize = 32;
const MAC_LEN: usize = 32;
const RESERVED_LEN: usize = 40;
const CHUNKER_GEAR: u8 = 1;
const CHUNKER_FIXED: u8 = 2;

/// Smallest and largest bound on the length of a chunk in bytes.
pub const CHUNK_BYTES: std::ops::RangeInclusive<u32> = 64..=8 << 20;
/// Smallest and largest container in bytes.
pub(crate) const CONTAINER_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=64 << 20;
/// Smallest and largest region in bytes of plaintext.
pub(crate) const REGION_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=8 << 20;

/// Most items in a node of a recipe or a tree, whatever the repository's parameters.
pub(crate) const NODE_ITEMS_MAX: u32 = 1 << 16;
/// Smallest mean distance of candidates. A Gear table is drawn until no run of one byte is a candidate, which happens
/// with probability (1 - 1/target)^256: one draw in 56 at 64, none in the life of a machine at 8.
const GEAR_TARGET_MIN: u32 = 64;

/// When a list of items is cut into nodes: after an item whose uniform 32-bit value is below `u32::MAX / target`, once
/// there are `min` items, and in any case at `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutRule {
    /// No node but the last has fewer items.
    pub min: u32,
    /// Mean number of items after `min` until a cut.
    pub target: u32,
    /// No node has more items.
    pub max: u32,
}

impl CutRule {
    /// Says whether a node of `count` items is cut after the item with this value.
    pub(crate) fn cuts(&self, count: usize, value: u32) -> bool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.max <= count || (self.min <= count && value < u32::MAX / self.target)
    }

    fn is_valid(&self) -> bool {
        2 <= self.min && 1 <= self.target && self.target.max(self.min) <= self.max && self.max <= NODE_ITEMS_MAX
    }
}

/// Parameters of a repository.
#[derive(Clone, Debug)]
pub struct Config {
    /// Version of the format of new objects.
    pub format: FormatVersion,
    /// Identity of the repository.
    pub repository: RepositoryId,
    /// When it was made.
    pub created: Timestamp,
    /// How streams are cut into chunks.
    pub chunking: Chunking,
    /// Plaintext bytes of consecutive chunks that are compressed and sealed together.
    pub region_bytes: u32,
    /// Bytes of a full container.
    pub container_bytes: u32,
    /// Most recipe items that stand in a tree entry itself.
    pub recipe_inline_max: u32,
    /// How recipes are cut into segments.
    pub recipe_cut: CutRule,
    /// How directories are cut into nodes.
    pub(crate) tree_cut: CutRule,
    /// Encoded bytes at which a tree node is cut whatever its entries.
    pub(crate) tree_node_bytes: u32,
    /// Whether regions may be compressed against similar ones (format 2).
    pub similarity: bool,
    /// The master key, if the repository is not encrypted.
    pub clear_key: Option<MasterKey>,
}

impl Config {
    /// The longest plaintext of a region in bytes: a region grows to `region_bytes`, or to its only chunk.
    pub(crate) fn region_bytes_limit(&self) -> u32 {
        self.region_bytes.max(self.chunking.chunk_bytes_max()).max(self.metadata_chunk_bytes_max())
    }

    /// The longest metadata chunk in bytes, hints included.
    fn metadata_chunk_bytes_max(&self) -> u32 {
        self.container_bytes / 2
    }

    /// The longest encoded tree entry in bytes; a larger one (by its extended attributes) is not stored.
    pub(crate) fn entry_bytes_max(&self) -> u32 {
        self.container_bytes / 4
    }

    /// Says why these parameters cannot make a repository.
    pub(crate) fn validate(&self) -> std::result::Result<(), &'static str> {
        let chunk_bytes_max = match self.chunking {
            Chunking::Gear(sizes) => {
                let ordered = sizes.min <= sizes.max && GEAR_TARGET_MIN <= sizes.target;
                if !ordered || (sizes.min as usize) < 2 * WINDOW {
                    return Err("chunk sizes out of order or below the hash's window");
                }
                sizes.max
            }
            Chunking::Fixed { bytes } => bytes,
        };
        if !CHUNK_BYTES.contains(&chunk_bytes_max) {
            return Err("largest chunk out of range");
        }
        if !CONTAINER_BYTES.contains(&self.container_bytes) {
            return Err("container size out of range");
        }
        // Padding rounds lengths of this order up to a 32nd of their power of two (PADME); a full container must stay one.
        if self.container_bytes.trailing_zeros() + 5 < self.container_bytes.ilog2() {
            return Err("container size that is no multiple of a 32nd of the power of two below it");
        }
        let half = self.container_bytes / 2;
        if half < chunk_bytes_max || half < self.region_bytes || !REGION_BYTES.contains(&self.region_bytes) {
            return Err("region or largest chunk out of range, or above half a container");
        }
        // At 0 the list of segments would have no top that fits a tree entry.
        if !(1..=1 << 12).contains(&self.recipe_inline_max) || !self.recipe_cut.is_valid() || !self.tree_cut.is_valid()
        {
            return Err("recipe or tree cut rule out of range");
        }
        // 64 bytes are more than any recipe item with its hint takes.
        if self.entry_bytes_max() < 64 * self.recipe_cut.max.max(self.recipe_inline_max) {
            return Err("recipe segments could outgrow a metadata chunk");
        }
        if self.tree_node_bytes < 1 << 10 || self.entry_bytes_max() / 4 < self.tree_node_bytes {
            return Err("tree node size out of range");
        }
        Ok(())
    }

    /// Returns the stored form.
    pub(crate) fn encode(&self, keys: &Keys) -> Vec<u8> {
        let mut out = Vec::with_capacity(CONFIG_LEN);
        put_preamble(self.format, ObjectType::Config, &mut out);
        out.extend_from_slice(&self.repository.0);
        let (chunker, sizes) = match self.chunking {
            Chunking::Gear(sizes) => (CHUNKER_GEAR, [sizes.min, sizes.target, sizes.max]),
            Chunking::Fixed { bytes } => (CHUNKER_FIXED, [bytes; 3]),
        };
        out.push(u8::from(self.clear_key.is_none()));
        out.push(chunker);
        out.push(u8::from(!self.similarity));
        out.push(0);
        let cuts = [self.recipe_cut, self.tree_cut].map(|rule| [rule.min, rule.target, rule.max]);
        let numbers = sizes
            .into_iter()
            .chain([self.region_bytes, self.container_bytes, self.recipe_inline_max])
            .chain(cuts.into_iter().flatten())
            .chain([self.tree_node_bytes]);
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.created.seconds.to_le_bytes());
        out.extend_from_slice(&self.clear_key.as_ref().map_or([0; 32], |key| key.0));
        out.resize(CONFIG_LEN - MAC_LEN - CHECKSUM_LEN, 0);
        let mac = keys.mac(&out);
        out.extend_from_slice(mac.as_bytes());
        let checksum = blake3::hash(&out);
        out.extend_from_slice(checksum.as_bytes());
        out
    }

    /// Reads the stored form. Its MAC can be checked once the keys are known: see [`Config::authenticate`].
    pub(crate) fn decode(object: &str, bytes: &[u8]) -> Result<Self> {
        let (format, object_type) = check_preamble(object, bytes)?;
        if object_type != ObjectType::Config {
            return Err(Error::damaged(object, "is not a repository's config"));
        }
        let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM_LEN>() else {
            return Err(Error::damaged(object, "ends too early"));
        };
        if bytes.len() != CONFIG_LEN || blake3::hash(body) != *checksum {
            return Err(Error::damaged(object, "its checksum is wrong"));
        }
        let config = Self::decode_body(format, body).map_err(|error: DecodeError| error.of(object))?;
        config.validate().map_err(|reason| Error::damaged(object, reason))?;
        Ok(config)
    }

    fn decode_body(format: FormatVersion, body: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(body);
        reader.bytes(8)?;
        let repository = RepositoryId(reader.array()?);
        let encrypted = reader.u8()?;
        let chunker = reader.u8()?;
        let similarity = match (format, reader.array()?) {
            (_, [0, 0]) => true,
            (FormatVersion::V2, [1, 0]) => false,
            _ => return Err(reader.error("reserved bytes are not zero")),
        };
        let sizes = ChunkSizes { min: reader.u32()?, target: reader.u32()?, max: reader.u32()? };
        let chunking = match chunker {
            CHUNKER_GEAR => Chunking::Gear(sizes),
            CHUNKER_FIXED if sizes.min == sizes.max && sizes.target == sizes.max => {
                Chunking::Fixed { bytes: sizes.max }
            }
            CHUNKER_FIXED => return Err(reader.error("fixed chunks of several sizes")),
            _ => return Err(reader.error("unknown chunker")),
        };
        let (region_bytes, container_bytes, recipe_inline_max) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let mut rule = || Ok(CutRule { min: reader.u32()?, target: reader.u32()?, max: reader.u32()? });
        let (recipe_cut, tree_cut) = (rule()?, rule()?);
        let tree_node_bytes = reader.u32()?;
        let created = Timestamp { seconds: reader.i64()?, nanoseconds: 0 };
        let key = MasterKey(reader.array()?);
        let clear_key = match encrypted {
            0 => Some(key),
            1 if key.0 == [0; 32] => None,
            1 => return Err(reader.error("a key in clear in an encrypted repository")),
            _ => return Err(reader.error("neither encrypted nor not")),
        };
        if reader.array()? != [0; RESERVED_LEN] {
            return Err(reader.error("reserved bytes are not zero"));
        }
        Ok(Self {
            format,
            repository,
            created,
            chunking,
            region_bytes,
            container_bytes,
            recipe_inline_max,
            recipe_cut,
            tree_cut,
            tree_node_bytes,
            similarity,
            clear_key,
        })
    }

    /// Checks the MAC of a stored form that was decoded without keys.
    pub(crate) fn authenticate(object: &str, bytes: &[u8], keys: &Keys) -> Result<()> {
        let Some((body, _)) = bytes.split_last_chunk::<CHECKSUM_LEN>() else {
            return Err(Error::damaged(object, "ends too early"));
        };
        match body.split_last_chunk::<MAC_LEN>() {
            Some((signed, mac)) if keys.mac(signed) == *mac => Ok(()),
            _ => Err(Error::damaged(object, "its authentication code is wrong: it was changed without the key")),
        }
    }

    /// Returns the default parameters for a new repository.
    pub(crate) fn with_defaults(repository: RepositoryId, created: Timestamp, clear_key: Option<MasterKey>) -> Self {
        Self {
            format: FormatVersion::default(),
            repository,
            created: Timestamp { nanoseconds: 0, ..created },
            chunking: Chunking::Gear(ChunkSizes::for_average(CHUNK_BYTES_DEFAULT)),
            region_bytes: REGION_BYTES_DEFAULT,
            container_bytes: 4 << 20,
            recipe_inline_max: 24,
            recipe_cut: CutRule { min: 256, target: 768, max: 4096 },
            tree_cut: CutRule { min: 64, target: 192, max: 1024 },
            tree_node_bytes: 128 << 10,
            similarity: true,
            clear_key,
        }
    }
}

/// Average chunk of a new repository in bytes.
const CHUNK_BYTES_DEFAULT: u32 = 8 << 10;
/// Region of a new repository in bytes of plaintext.
const REGION_BYTES_DEFAULT: u32 = 512 << 10;

const _: () = assert!(2 * WINDOW <= *CHUNK_BYTES_AVERAGE.start() as usize / 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_would_hang_a_writer_are_refused() {
        let config = Config::with_defaults(RepositoryId([5; 16]), Timestamp::default(), None);
        config.validate().unwrap();
        let endless_table = ChunkSizes { min: 64, target: 8, max: 4096 };
        assert!(Config { chunking: Chunking::Gear(endless_table), ..config.clone() }.validate().is_err());
        assert!(Config { recipe_inline_max: 0, ..config.clone() }.validate().is_err());
        assert!(Config { container_bytes: 5_000_000, ..config }.validate().is_err(), "would be padded beyond itself");
    }

    #[test]
    fn a_config_comes_back_and_any_flipped_bit_is_noticed() {
        let repository = RepositoryId([5; 16]);
        let master = MasterKey([6; 32]);
        let keys = Keys::derive(&master, repository);
        let config = Config::with_defaults(repository, Timestamp::default(), None);
        let stored = config.encode(&keys);
        assert_eq!(stored.len(), CONFIG_LEN);
        let back = Config::decode("config", &stored).unwrap();
        assert_eq!(back.encode(&keys), stored);
        Config::authenticate("config", &stored, &keys).unwrap();
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Config::decode("config", &flipped).is_err(), "bit {bit}");
        }
    }
}
