//! How a prune compresses what it copies: a policy.

use crate::compress::Compression;

/// Compression of what a prune copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copies {
    /// Compression of regions that are made again.
    pub compression: Compression,
    /// Makes every copied region again, without its chunks that are not needed. A region that would be copied as it is stays so if
    /// the new form is not shorter.
    pub recompresses: bool,
}

impl Copies {
    /// Level of copies that are compressed again. Levels above take twice the time and more, and gain little: a region is no longer than
    /// what level 9 searches.
    pub const LEVEL: i32 = 9;

    /// Compresses only what cannot be copied as it is.
    pub fn mostly_as_stored(compression: Compression) -> Self {
        Self { compression, recompresses: false }
    }

    /// Compresses everything again, by default at level [`Copies::LEVEL`].
    pub fn recompressed(compression: Option<Compression>) -> Self {
        Self { compression: compression.unwrap_or(Compression::Zstd(Self::LEVEL)), recompresses: true }
    }
}
