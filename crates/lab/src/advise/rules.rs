//! Rules that are compared: ways to cut streams into chunks.

use std::fmt;

use onefold_engine::chunk::{ChunkSizes, Chunking};

/// Average lengths of content-defined chunks in bytes, each twice the one before.
pub const AVERAGES: [u32; 9] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Lengths of fixed blocks in bytes.
pub const BLOCKS: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Number of rules.
pub const RULES: usize = AVERAGES.len() + BLOCKS.len();
/// Default average length of chunks.
pub const AVERAGE_DEFAULT: u32 = 8 << 10;

/// Default bytes of a container.
pub const CONTAINER_BYTES: u32 = 4 << 20;

/// One way to cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// By content, into chunks of this average length.
    Content(u32),
    /// At multiples of this length.
    Fixed(u32),
}

impl Rule {
    /// Returns all, content-defined ones first, each kind by length.
    pub fn all() -> impl Iterator<Item = Self> {
        AVERAGES.into_iter().map(Self::Content).chain(BLOCKS.into_iter().map(Self::Fixed))
    }

    /// Returns it as the engine has it.
    pub fn chunking(self) -> Chunking {
        match self {
            Self::Content(average) => Chunking::Gear(ChunkSizes::for_average(average)),
            Self::Fixed(bytes) => Chunking::Fixed { bytes },
        }
    }

    /// Returns the length that names it, in bytes.
    pub fn bytes(self) -> u32 {
        let (Self::Content(bytes) | Self::Fixed(bytes)) = self;
        bytes
    }

    /// Returns true if cuts do not depend on content.
    pub fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }

    /// Returns the options of `init` that choose it. The longest chunk is to be half a container at most.
    pub fn options(self) -> String {
        let container = 2 * self.chunking().chunk_bytes_max();
        let container =
            if container <= CONTAINER_BYTES { String::new() } else { format!(" --container-size {}", size(container)) };
        match self {
            Self::Content(bytes) => format!("--chunk-size {}{container}", size(bytes)),
            Self::Fixed(bytes) => format!("--fixed-chunk-size {}{container}", size(bytes)),
        }
    }
}

/// As on the command line, `fixed` before blocks.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, bytes) = match self {
            Self::Content(bytes) => ("", bytes),
            Self::Fixed(bytes) => ("fixed ", bytes),
        };
        f.pad(&format!("{kind}{}", size(*bytes)))
    }
}

fn size(bytes: u32) -> String {
    if bytes < 1 << 20 { format!("{}k", bytes >> 10) } else { format!("{}m", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_as_on_the_command_line() {
        let names: Vec<String> = Rule::all().map(|rule| rule.to_string()).collect();
        assert_eq!(names.len(), RULES);
        let expected = "4k 8k 16k 32k 64k 128k 256k 512k 1m fixed 4k fixed 16k fixed 64k fixed 1m";
        assert_eq!(names.join(" "), expected);
        assert_eq!(Rule::Fixed(1 << 20).options(), "--fixed-chunk-size 1m");
        assert_eq!(Rule::Content(512 << 10).options(), "--chunk-size 512k");
        assert_eq!(Rule::Content(1 << 20).options(), "--chunk-size 1m --container-size 8m");
    }
}
