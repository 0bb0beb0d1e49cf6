//! What a hit reads, and which chunks have entries.

/// How many log records a hit reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowRule {
    /// Always the same number (Ma et al.: 2,048).
    Fixed(u32),
    /// At most this many: as the plan of the adaptive schedule says; otherwise twice the mean run of duplicates, and none while
    /// duplicates come one by one.
    Adaptive(u32),
}

impl WindowRule {
    /// Returns the largest number of records.
    pub(crate) fn max(self) -> u32 {
        let (Self::Fixed(max) | Self::Adaptive(max)) = self;
        max
    }
}

/// Which chunks have entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completeness {
    /// All: no stored chunk is ever declared unique.
    Exact,
    /// Features: the samples of containers or stream segments. A stored chunk is declared unique if no hit has read what names it.
    /// (Lillibridge et al., FAST 2009; Guo and Efstathopoulos, USENIX ATC 2011.)
    NearExact,
}

/// Range that a hit reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefetchUnit {
    /// Records around it, as many as the [`WindowRule`] says.
    Window,
    /// All records of its container (Zhu et al., FAST 2008), at most as many as the largest window has.
    Container,
    /// The stream segment that has the chunk, and segments after it (Fu et al., FAST 2015), at most as many records as the largest
    /// window has. A hit whose entry has no position in a stream reads its container.
    Segment {
        /// Segments after it.
        following: u32,
    },
}

/// Addend of the number of a unit if the index is near-exact.
pub(in crate::identify) const NEAR_EXACT: u8 = 3;

/// Which files of units a checkpoint names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::identify) struct UnitFiles {
    /// The units of the arrival log.
    pub(in crate::identify) has_units: bool,
    /// The stream log with its segments.
    pub(in crate::identify) has_stream: bool,
}

impl PrefetchUnit {
    /// Returns the number by which a checkpoint names the unit.
    pub(in crate::identify) fn code(self) -> u8 {
        match self {
            Self::Window => 0,
            Self::Container => 1,
            Self::Segment { .. } => 2,
        }
    }

    /// Returns which files a checkpoint of the unit with a number names; `None` for an unknown number.
    pub(in crate::identify) fn files_of(code: u8) -> Option<UnitFiles> {
        let unit = code % NEAR_EXACT;
        (code < 2 * NEAR_EXACT && unit <= 2).then_some(UnitFiles { has_units: unit != 0, has_stream: unit == 2 })
    }
}
