//! Ways to compress versions against each other.

use std::fmt;
use std::ops::RangeInclusive;

use anyhow::{Context, Result};
use onefold_engine::similarity::anchors::ANCHOR_DISTANCE;
use onefold_engine::similarity::choose::{CHUNK_REGIONS_MAX, DEPTH_DEFAULT, Limits};
use onefold_engine::similarity::index::SAMPLE_DISTANCE;
use onefold_engine::similarity::regions::{BASES_MAX, DEPTH_MAX};
use onefold_engine::source::exclude::parse_size;

use super::super_features::SuperFeature;
use crate::point::dimension::unknown;

/// Features by which similar regions are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Nothing: no region has a base.
    None,
    /// Anchors at this mean distance in bytes.
    Anchors(u32),
    /// Super-features of chunks.
    SuperFeatures(SuperFeature),
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no bases"),
            Self::Anchors(distance) => write!(f, "anchors, 1 in {distance} bytes"),
            Self::SuperFeatures(SuperFeature::NTransform) => f.write_str("N-transform"),
            Self::SuperFeatures(SuperFeature::Odess) => f.write_str("Odess"),
            Self::SuperFeatures(SuperFeature::Finesse) => f.write_str("Finesse"),
        }
    }
}

/// One way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Features of a region.
    pub feature: Feature,
    /// One feature in so many is in memory.
    pub sample: u32,
    /// Longest chain of bases.
    pub depth: u8,
    /// Most bases of a region.
    pub bases: usize,
    /// Plaintext of a region in bytes.
    pub region_bytes: u32,
    /// Whether scattered edits have chunks in front instead of regions.
    pub has_chunks: bool,
}

/// Settings of a point.
const SETTINGS: [&str; 10] = [
    "none",
    "anchors=512",
    "odess",
    "finesse",
    "n-transform",
    "sample=128",
    "depth=2",
    "bases=2",
    "region=512K",
    "chunks",
];
/// Distances of anchors: those below a window of the hash do not exist.
const DISTANCES: RangeInclusive<u32> = 32..=65_536;
/// Samples.
const SAMPLES: RangeInclusive<u32> = 1..=4096;
/// Lengths of regions, as those of a repository.
const REGIONS: RangeInclusive<u32> = 64 << 10..=4 << 20;

/// Reads a number, or a size, within a range.
fn within(name: &str, value: &str, range: RangeInclusive<u32>) -> Result<u32> {
    let number = parse_size(value).ok().and_then(|number| u32::try_from(number).ok());
    let refused = || format!("{name}: from {} to {}, not {value}", range.start(), range.end());
    number.filter(|number| range.contains(number)).with_context(refused)
}

/// Default length of a region in a repository.
const REGION_BYTES: u32 = 512 << 10;

impl Default for Point {
    fn default() -> Self {
        Self {
            feature: Feature::Anchors(ANCHOR_DISTANCE),
            sample: SAMPLE_DISTANCE,
            depth: DEPTH_DEFAULT,
            bases: BASES_MAX,
            region_bytes: REGION_BYTES,
            has_chunks: false,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { feature, sample, depth, bases, region_bytes, has_chunks } = self;
        write!(f, "{feature}")?;
        if *feature != Feature::None {
            write!(f, ", {sample} in memory, ")?;
            write!(f, "{bases} base{}, depth {depth}", if *bases == 1 { "" } else { "s" })?;
        }
        write!(f, ", {} KiB", region_bytes >> 10)?;
        if *has_chunks { f.write_str(", chunks") } else { Ok(()) }
    }
}

impl Point {
    /// Reads a point: `none`, or settings with commas between them.
    pub fn parse(text: &str) -> Result<Self> {
        let mut point = Self::default();
        for setting in text.split(',') {
            let (name, value) = setting.split_once('=').map_or((setting, None), |(name, value)| (name, Some(value)));
            match (name, value) {
                ("none", None) => point.feature = Feature::None,
                ("odess", None) => point.super_features(SuperFeature::Odess),
                ("finesse", None) => point.super_features(SuperFeature::Finesse),
                ("n-transform", None) => point.super_features(SuperFeature::NTransform),
                ("chunks", None) => point.has_chunks = true,
                ("anchors", Some(value)) => point.feature = Feature::Anchors(within(name, value, DISTANCES)?),
                ("sample", Some(value)) => point.sample = within(name, value, SAMPLES)?,
                ("depth", Some(value)) => point.depth = u8::try_from(within(name, value, 1..=DEPTH_MAX.into())?)?,
                ("bases", Some(value)) => point.bases = within(name, value, 1..=2)? as usize,
                ("region", Some(value)) => point.region_bytes = within(name, value, REGIONS)?,
                _ => {
                    let names = SETTINGS.iter().copied();
                    return Err(unknown("setting of a point", setting, names));
                }
            }
        }
        Ok(point)
    }

    /// Takes super-features, all of them in memory.
    fn super_features(&mut self, kind: SuperFeature) {
        (self.feature, self.sample) = (Feature::SuperFeatures(kind), 1);
    }

    /// Returns the limits of the policy.
    pub(super) fn limits(&self) -> Limits {
        let chunk_regions_max = if self.has_chunks { CHUNK_REGIONS_MAX } else { 0 };
        Limits { bases_max: self.bases, depth_max: self.depth, chunk_regions_max, ..Limits::default() }
    }

    /// Returns the points of the curve: no bases, the default, and the default with each dimension changed.
    pub fn curve() -> Vec<Self> {
        let default = Self::default();
        let mut points = vec![Self { feature: Feature::None, ..default }, default];
        points.extend([256, 1024].map(|distance| Self { feature: Feature::Anchors(distance), ..default }));
        points.extend([1, 64, 256].map(|sample| Self { sample, ..default }));
        points.extend([1, 4].map(|depth| Self { depth, ..default }));
        points.push(Self { bases: 1, ..default });
        for region_bytes in [256 << 10, 1 << 20] {
            points.push(Self { feature: Feature::None, region_bytes, ..default });
            points.push(Self { region_bytes, ..default });
        }
        points.push(Self { has_chunks: true, ..default });
        let kinds = [SuperFeature::NTransform, SuperFeature::Odess, SuperFeature::Finesse];
        points.extend(kinds.map(|kind| Self { feature: Feature::SuperFeatures(kind), sample: 1, ..default }));
        points
    }
}
