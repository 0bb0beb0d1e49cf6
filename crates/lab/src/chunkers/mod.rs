//! Chunkers of the literature, for traces: what data looks like to the systems that papers measure.
//!
//! Repositories are cut in the engine's way alone, which is a part of their format; [`Algorithm::Gear`] and
//! [`Algorithm::Fixed`] are it. The others are here, a file each, with their source and where they deviate from it. All cut
//! one stream at a time, from its beginning: where a chunk ends depends on the chunk's bytes (`FastCDC`, `SeqCDC`: and the next
//! one; TTTD: and those up to the maximum), not on what came before it nor on the blocks in which the stream comes. No chunker
//! keeps more of a stream than a few bytes.

pub mod ae;
#[cfg(test)]
mod chunkers_tests;
pub mod fastcdc;
pub mod parameter;
pub mod rabin;
pub mod ram;
pub mod seqcdc;
pub mod tttd;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use onefold_engine::backup::cut::StreamCutter;
use onefold_engine::backup::ingest::ChunkRule;
use onefold_engine::chunk::{CHUNK_BYTES_AVERAGE, ChunkSizes, Chunking};
use onefold_engine::fingerprint::Fingerprinter;
use onefold_engine::object::config::CHUNK_BYTES;

use crate::chunkers::ae::AeCutter;
use crate::chunkers::fastcdc::FastCdcCutter;
use crate::chunkers::parameter::Parameters;
use crate::chunkers::rabin::RabinCutter;
use crate::chunkers::ram::RamCutter;
use crate::chunkers::seqcdc::SeqCdcCutter;
use crate::chunkers::tttd::TttdCutter;
use crate::point::dimension::unknown;

/// Key of the engine's hash where no repository has one of its own: anybody may know it.
pub(crate) const OPEN_KEY: [u8; 32] = *b"onefold lab: cuts are no secret!";
/// Shortest minimum that can be asked for. More than any window.
const MIN_LEAST: u32 = 64;

/// Algorithms that set the boundaries of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Algorithm {
    /// The algorithm of repositories, with a public key.
    Gear,
    /// Chunks of one length.
    Fixed,
    /// Rabin's fingerprint over 48 bytes, as in most papers.
    Rabin,
    /// `FastCDC` of 2020, as the crate of this name.
    #[value(name = "fastcdc", help = "FastCDC of 2020, as the crate of this name")]
    FastCdc,
    /// Asymmetric extremum.
    Ae,
    /// Rapid asymmetric maximum.
    Ram,
    /// Two thresholds, two divisors, with Rabin's fingerprint.
    Tttd,
    /// Sequences of rising bytes.
    #[value(name = "seqcdc", help = "SeqCDC: sequences of rising bytes")]
    SeqCdc,
    /// Rabin's fingerprint with destor's window, which is empty at the minimum.
    DestorRabin,
}

/// Sizes of chunks in bytes. None is longer than `max`, and none but the last of a stream shorter than `min`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Shortest.
    pub min: u32,
    /// The mean that is asked for; docs/traces.md has what each algorithm makes of it.
    pub average: u32,
    /// Longest.
    pub max: u32,
}

impl Algorithm {
    /// Returns its name, as the command has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gear => "gear",
            Self::Fixed => "fixed",
            Self::Rabin => "rabin",
            Self::FastCdc => "fastcdc",
            Self::Ae => "ae",
            Self::Ram => "ram",
            Self::Tttd => "tttd",
            Self::SeqCdc => "seqcdc",
            Self::DestorRabin => "destor-rabin",
        }
    }

    /// Returns the averages that can be asked for. Not each of them, see [`Algorithm::check_average`].
    pub fn averages(self) -> RangeInclusive<u32> {
        if self == Self::Fixed { CHUNK_BYTES } else { CHUNK_BYTES_AVERAGE }
    }

    /// Returns the reason to refuse an average within the range, if any.
    pub fn check_average(self, average: u32) -> Result<()> {
        let is_masked = matches!(self, Self::Rabin | Self::DestorRabin);
        ensure!(!is_masked || average.is_power_of_two(), "a power of two for {}, not {average}", self.name());
        self.check_bound(average)
    }

    /// Returns the reason to refuse a minimum or maximum within the range, if any.
    pub fn check_bound(self, bytes: u32) -> Result<()> {
        ensure!(self != Self::FastCdc || bytes.is_multiple_of(2), "an even number for fastcdc, not {bytes}");
        Ok(())
    }

    /// Returns the sizes that it has where nothing else is asked for: those of its source.
    pub fn sizes(self, average: u32) -> Sizes {
        let (min, max) = match self {
            Self::Gear => (average / 2, 4 * average),
            Self::Fixed => (average, average),
            // destor's 1024, 8192 and 65,536.
            Self::Rabin | Self::DestorRabin => (average / 8, 8 * average),
            // The paper's 2 KB, 8 KB and 64 KB.
            Self::FastCdc => (average / 8 * 2, 8 * average),
            // The papers have no maximum: the same as the others'.
            Self::Ae => (ae::min_for(average), 8 * average),
            Self::Ram => (ram::min_for(average), 8 * average),
            Self::Tttd => tttd::bounds_for(average),
            Self::SeqCdc => (average / 2, 2 * average),
        };
        Sizes { min, average, max }
    }

    /// Returns the minima that can be asked for; `None`: it follows from the average.
    pub fn minima(self, average: u32) -> Option<RangeInclusive<u32>> {
        match self {
            // The rest is the mean distance of candidates, for which the table is drawn; the main divisor.
            Self::Gear | Self::Tttd => Some(MIN_LEAST..=average - average / 8),
            Self::Rabin | Self::DestorRabin | Self::FastCdc | Self::SeqCdc => Some(MIN_LEAST..=average),
            Self::Fixed | Self::Ae | Self::Ram => None,
        }
    }

    /// Begins a stream, where the engine does not cut it; `None` where it does. The sizes are those of a [`Chunker`], and the
    /// parameters those of the algorithm's source.
    pub fn cutter(self, sizes: Sizes) -> Option<Box<dyn StreamCutter>> {
        self.cutter_with(sizes, Parameters::for_sizes(sizes))
    }

    fn cutter_with(self, sizes: Sizes, parameters: Parameters) -> Option<Box<dyn StreamCutter>> {
        Some(match self {
            Self::Gear | Self::Fixed => return None,
            Self::Rabin => Box::new(RabinCutter::new(sizes)),
            Self::FastCdc => Box::new(FastCdcCutter::new(sizes)),
            Self::Ae => Box::new(AeCutter::new(sizes)),
            Self::Ram => Box::new(RamCutter::new(sizes)),
            Self::Tttd => Box::new(TttdCutter::new(sizes, parameters.backup_divisor)),
            Self::SeqCdc => Box::new(SeqCdcCutter::new(sizes, parameters)),
            Self::DestorRabin => Box::new(RabinCutter::of_destor(sizes)),
        })
    }

    /// Returns the maxima that can be asked for; `None`: it follows from the average.
    pub fn maxima(self, average: u32) -> Option<RangeInclusive<u32>> {
        (self != Self::Fixed).then_some(average..=*CHUNK_BYTES.end())
    }
}

/// An algorithm with its sizes: what makes chunks of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunker {
    algorithm: Algorithm,
    sizes: Sizes,
    parameters: Parameters,
}

impl fmt::Display for Chunker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sizes { min, average, max } = self.sizes;
        match self.algorithm {
            Algorithm::Fixed => write!(f, "fixed, {average} bytes")?,
            algorithm => write!(f, "{}, {average} bytes on average, {min} to {max}", algorithm.name())?,
        }
        self.algorithm
            .parameters()
            .iter()
            .try_for_each(|parameter| write!(f, ", {} {}", parameter.name(), self.parameters.get(*parameter)))
    }
}

impl Chunker {
    /// Checks that the algorithm can have the sizes.
    pub fn new(algorithm: Algorithm, sizes: Sizes) -> Result<Self> {
        let Sizes { min, average, max } = sizes;
        let own = algorithm.averages().contains(&average).then(|| algorithm.sizes(average));
        let is_possible = own.is_some_and(|own| {
            algorithm.minima(average).map_or(min == own.min, |minima| minima.contains(&min))
                && algorithm.maxima(average).map_or(max == own.max, |maxima| maxima.contains(&max))
        });
        algorithm.check_average(average)?;
        [min, max].into_iter().try_for_each(|bound| algorithm.check_bound(bound))?;
        ensure!(is_possible, "{} cannot have {sizes:?}", algorithm.name());
        Ok(Self { algorithm, sizes, parameters: Parameters::for_sizes(sizes) })
    }

    /// Sets a parameter of the algorithm by text: `parameter=value`.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        let (name, value) =
            assignment.split_once('=').with_context(|| format!("{assignment:?}: write parameter=value"))?;
        let own = self.algorithm.parameters();
        ensure!(!own.is_empty(), "{} has sizes only, no parameter {name:?}", self.algorithm.name());
        let names = || own.iter().map(|parameter| parameter.name());
        let parameter = own.iter().find(|parameter| parameter.name() == name.trim());
        let kind = format!("parameter of {}", self.algorithm.name());
        let parameter = *parameter.ok_or_else(|| unknown(&kind, name.trim(), names()))?;
        let values = parameter.values(self.sizes);
        let number = value.trim().parse().ok().filter(|value| values.contains(value));
        let refused = || format!("{name}: from {} to {}, not {value:?}", values.start(), values.end());
        self.parameters.set(parameter, number.with_context(refused)?);
        Ok(())
    }

    /// Returns how a recording makes chunks, with this for their names.
    pub fn rule(&self, fingerprinter: Arc<dyn Fingerprinter>) -> ChunkRule {
        let Sizes { min, average, max } = self.sizes;
        if let Some(cutter) = self.algorithm.cutter_with(self.sizes, self.parameters) {
            return ChunkRule::with_cutter(cutter, fingerprinter);
        }
        let chunking = if self.algorithm == Algorithm::Gear {
            Chunking::Gear(ChunkSizes { min, target: average - min, max })
        } else {
            Chunking::Fixed { bytes: average }
        };
        ChunkRule::new(chunking, &OPEN_KEY, fingerprinter)
    }
}

/// Returns an offset within a block, which is shorter than 4 GiB.
fn offset(at: usize) -> u32 {
    u32::try_from(at).expect("a piece is shorter than 4 GiB")
}
