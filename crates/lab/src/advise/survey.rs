//! Survey of a source without reading its files, and the choice of what to read.
//!
//! The unit is a cluster of files (see `clusters.rs`), or the same extent of all its files if they are large. Which units are
//! read depends on a hash of the cluster and of the extent's number. Every byte is read with about the same probability: classes
//! of units by length, each read in the same proportion (stratified cluster sampling, proportional allocation), keep a few
//! large files from deciding. Units form random groups, from which the error is estimated.

use std::ops::Range;

use anyhow::Result;
use onefold_engine::io::tree::SourceFile;
use onefold_engine::monitor::Monitor;
use onefold_engine::source::walk::{Contents, Event, Item, Walk};
use twox_hash::XxHash3_64;

use super::clusters::{Cluster, Clusters, EXTENT_BYTES_MIN, PAGE_BYTES};
use super::rules::Rule;

/// Amount to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// About this many bytes of a larger source.
    Bytes(u64),
    /// Everything.
    Everything,
}

/// Upper limits of classes of units, by the largest file of the cluster. Longer files that are not divided are one more class.
const CLASS_LIMITS: [u64; 2] = [16 << 10, 128 << 10];
/// Class of extents of files that change in place.
const CLASS_DIVIDED: usize = CLASS_LIMITS.len() + 1;
/// Classes of extents of files with insertions: at the same offset in all files of a cluster, or at the same share of the length.
/// They are two samples of the same files (see `units`): one has the lower half of the groups, the other the upper.
pub const CLASSES_ALIGNED: [usize; 2] = [CLASS_DIVIDED + 1, CLASS_DIVIDED + 2];
/// Number of classes.
pub const CLASSES: usize = CLASS_DIVIDED + 3;
/// Groups of units. Each is left out once to find its influence (jackknife).
pub const GROUPS: usize = 32;
/// Resolution of the histogram of hashes: parts of each power of two.
const PARTS_BITS: u32 = 6;
const PARTS: usize = 64 << PARTS_BITS;
/// Memory of the survey.
pub const MEMORY_BYTES: usize = super::clusters::MEMORY_BYTES + PARTS * CLASSES * size_of::<u64>();
/// Reading stops after this multiple of what was chosen: files may have grown.
const OVERRUN: (u64, u64) = (5, 4);
/// Extents must be this many times as long as the chunks of a rule on average.
const CHUNKS_OF_EXTENT: u64 = 4;
/// A rule is left out if extents are too short for it in a larger part of the source.
const SHORT_PARTS: u64 = 10;
/// Powers of two of the shortest extent that are told apart.
const EXTENT_POWERS: usize = 16;

/// Contents of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Files, and devices that were named.
    pub files: u64,
    /// Everything else.
    pub other_entries: u64,
    /// Length of the files in bytes, holes included.
    pub bytes: u64,
}

/// Contents of a source, and the choice of what to read.
#[derive(Debug)]
pub struct Survey {
    /// Contents of the source.
    pub totals: Totals,
    /// Bytes of each class.
    pub class_bytes: [u64; CLASSES],
    /// Bytes of holes in files that are divided. They are in no class: it is known where they are, and what they take.
    pub hole_bytes: u64,
    /// Chooses among all units of this size; `None` where everything is read, and files are not divided.
    choice: Option<Choice>,
    /// Bytes after which reading ends.
    pub bytes_max: u64,
}

#[derive(Debug)]
struct Choice {
    clusters: Clusters,
    seed: u64,
    /// A unit is read if its hash is below that of its class.
    thresholds: [u64; CLASSES],
    /// Bytes of divided files, by the power of two of the extents.
    divided_bytes: [u64; EXTENT_POWERS],
}

/// Unit that data belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnitOf {
    /// Class.
    pub class: u8,
    /// Group.
    pub group: u8,
    /// Whether the file goes on before it.
    pub starts_inside: bool,
    /// Whether the file goes on after it.
    pub ends_inside: bool,
    /// Number of the path, among those that were given, that its file is below.
    pub root: u16,
}

/// Bytes of each class and group of units.
pub type Covered = [[u64; GROUPS]; CLASSES];

impl UnitOf {
    /// Returns true if it is a part of files that are divided.
    pub fn is_divided(self) -> bool {
        CLASS_DIVIDED <= usize::from(self.class)
    }

    /// Adds bytes of it.
    pub fn cover(self, covered: &mut Covered, bytes: u64) {
        let class = covered.get_mut(usize::from(self.class));
        if let Some(sum) = class.and_then(|groups| groups.get_mut(usize::from(self.group))) {
            *sum += bytes;
        }
    }
}

/// An extent of a file that is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of its first byte.
    pub offset: u64,
    /// Offset of its end; the last one of a file has none.
    pub end: Option<u64>,
    /// Its unit.
    pub unit: UnitOf,
}

impl Survey {
    /// Walks the source twice: the first walk counts clusters, and so decides what a unit is; the second one counts bytes by the
    /// hash of their unit, so that a threshold can be chosen that the sample holds just enough of. `seed` chooses the sample.
    pub fn of(walk: &dyn Fn() -> Result<Walk>, sample: Sample, seed: u64, monitor: &dyn Monitor) -> Result<Self> {
        let wanted = match sample {
            Sample::Bytes(wanted) => wanted,
            Sample::Everything => u64::MAX,
        };
        let mut clusters = Clusters::new(wanted);
        let totals = each_file(walk()?, monitor, &mut |item| clusters.add(item))?;
        if totals.bytes <= wanted {
            let class_bytes = std::array::from_fn(|class| if class == 0 { totals.bytes } else { 0 });
            let (choice, bytes_max) = (None, u64::MAX);
            return Ok(Self { totals, class_bytes, hole_bytes: 0, choice, bytes_max });
        }
        let mut histogram = Histogram::default();
        let mut divided_bytes = [0_u64; EXTENT_POWERS];
        let mut hole_bytes = 0;
        each_file(walk()?, monitor, &mut |item| {
            let cluster = clusters.of(item);
            let size = item.metadata.size;
            if cluster.extent_bytes < cluster.largest
                && let Some(bytes) = divided_bytes.get_mut(power(cluster.extent_bytes))
            {
                *bytes = bytes.saturating_add(size);
            }
            let mut data = (cluster.extent_bytes < cluster.largest).then(|| Data::of(item));
            for mut unit in units(cluster, size, seed) {
                if let Some(data) = &mut data {
                    let len = data.within(unit.offset..unit.offset + unit.len);
                    hole_bytes += unit.len - len;
                    unit.len = len;
                }
                histogram.add(&unit);
            }
        })?;
        let (thresholds, class_bytes, chosen) = histogram.choose(wanted);
        let choice = Choice { clusters, seed, thresholds, divided_bytes };
        let bytes_max = chosen.saturating_mul(OVERRUN.0) / OVERRUN.1;
        Ok(Self { totals, class_bytes, hole_bytes, choice: Some(choice), bytes_max })
    }

    /// Returns true if everything is to be read.
    pub fn is_everything(&self) -> bool {
        self.choice.is_none()
    }

    /// Returns true if the extents that are read are long enough for the chunks of a rule.
    pub fn is_enough_for(&self, rule: Rule) -> bool {
        let wanted = CHUNKS_OF_EXTENT * u64::from(rule.bytes());
        let is_short = |power: usize| EXTENT_BYTES_MIN << power < wanted;
        self.choice.as_ref().is_none_or(|choice| {
            let short = choice.divided_bytes.iter().enumerate().filter(|(power, _)| is_short(*power));
            short.map(|(_, bytes)| bytes).sum::<u64>().saturating_mul(SHORT_PARTS) <= self.totals.bytes
        })
    }

    /// Returns the extents of a file that are to be read, in order.
    pub fn extents(&self, item: &Item) -> impl Iterator<Item = Extent> + use<> {
        let size = item.metadata.size;
        let (cluster, seed, thresholds) = match &self.choice {
            Some(choice) => (choice.clusters.of(item), choice.seed, choice.thresholds),
            None => {
                (Cluster { key: 0, largest: 0, extent_bytes: u64::MAX, has_insertions: false }, 0, [u64::MAX; CLASSES])
            }
        };
        let is_everything = self.is_everything();
        units(cluster, size, seed).filter_map(move |unit| {
            let threshold = thresholds.get(usize::from(unit.of.class)).copied().unwrap_or_default();
            let of = if is_everything { UnitOf::default() } else { unit.of };
            (is_everything || unit.hash < threshold).then_some(Extent { offset: unit.offset, end: unit.end, unit: of })
        })
    }
}

/// Bytes of units by their hash and class.
#[derive(Debug)]
struct Histogram(Vec<[u64; CLASSES]>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![[0; CLASSES]; PARTS])
    }
}

impl Histogram {
    fn add(&mut self, unit: &Unit) {
        let class = usize::from(unit.of.class);
        if let Some(sum) = self.0.get_mut(part(unit.hash)).and_then(|sums| sums.get_mut(class)) {
            *sum = sum.saturating_add(unit.len);
        }
    }

    fn of_class(&self, class: usize) -> impl Iterator<Item = u128> + '_ {
        self.0.iter().map(move |sums| sums.get(class).copied().map(u128::from).unwrap_or_default())
    }

    /// Returns the threshold of each class below which there are about as many bytes as it has a share of the wanted ones; the
    /// bytes of each class; and all that are chosen.
    fn choose(&self, wanted: u64) -> ([u64; CLASSES], [u64; CLASSES], u64) {
        let classes: [u128; CLASSES] = std::array::from_fn(|class| self.of_class(class).sum());
        let all: u128 = classes.iter().sum::<u128>().max(1);
        let mut chosen = 0;
        let thresholds = std::array::from_fn(|class| {
            let share = classes.get(class).copied().unwrap_or_default() * u128::from(wanted) / all;
            let (mut sum, mut parts) = (0, 0);
            for bytes in self.of_class(class) {
                // A part that is more than what is missing twice over stays out.
                if share < sum + bytes / 2 {
                    break;
                }
                sum += bytes;
                parts += 1;
            }
            chosen += sum;
            first_of_part(parts)
        });
        let bytes = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
        (thresholds, classes.map(bytes), bytes(chosen))
    }
}

/// Calls `each` for every file of a walk, and counts. Unreadable files are reported when they are read.
fn each_file(walk: Walk, monitor: &dyn Monitor, each: &mut dyn FnMut(&Item)) -> Result<Totals> {
    let mut totals = Totals::default();
    for event in walk {
        if monitor.is_interrupted() {
            return Err(onefold_engine::Error::Interrupted.into());
        }
        match event {
            Event::Entry(item) if item.contents != Contents::None => {
                totals.files += 1;
                totals.bytes = totals.bytes.saturating_add(item.metadata.size);
                each(&item);
            }
            Event::Entry(_) | Event::EnterDirectory(_) => totals.other_entries += 1,
            Event::LeaveDirectory | Event::Error { .. } => {}
        }
    }
    Ok(totals)
}

/// Data of a file between its holes.
struct Data {
    /// The file; `None` where it cannot be opened, which is reported when it is read.
    file: Option<Box<dyn SourceFile>>,
    /// Offset for which the file was asked last, and the next range of data from there on.
    asked: u64,
    next: Range<u64>,
}

impl Data {
    fn of(item: &Item) -> Self {
        Self { file: item.location.open().ok(), asked: 0, next: 0..0 }
    }

    /// Returns the bytes of data in a range. Where the file does not say, all are.
    fn within(&mut self, range: Range<u64>) -> u64 {
        let (mut offset, mut sum) = (range.start, 0);
        while offset < range.end {
            if offset < self.asked || self.next.end <= offset {
                let found = self.file.as_mut().and_then(|file| file.next_data(offset).ok());
                self.next = match found {
                    Some(Some(next)) if offset < next.end => next,
                    // No data follows.
                    Some(None) => u64::MAX..u64::MAX,
                    _ => return sum + (range.end - offset),
                };
                self.asked = offset;
            }
            let (start, end) = (self.next.start.max(offset), self.next.end.min(range.end));
            sum += end.saturating_sub(start);
            offset = if start < end { end } else { range.end };
        }
        sum
    }
}

struct Unit {
    hash: u64,
    offset: u64,
    end: Option<u64>,
    len: u64,
    of: UnitOf,
}

/// Divides a file. What was inserted in one version of a file moves what follows; so half of the extents begin at the same offset in
/// all files of the cluster, and half at the same share of their length. The alignment that finds more duplicates is better.
fn units(cluster: Cluster, size: u64, seed: u64) -> impl Iterator<Item = Unit> + use<> {
    let Cluster { key, largest, extent_bytes: len, has_insertions } = cluster;
    let is_divided = len < largest;
    let is_aligned = is_divided && has_insertions;
    // The share means little for another file that happens to be in the bucket.
    let is_scaled = is_aligned && largest / 2 <= size;
    let limits = CLASS_LIMITS.iter().take_while(|limit| **limit < largest).count();
    let [same_offset, same_share] = CLASSES_ALIGNED;
    let count = if is_scaled { largest.div_ceil(len) } else { size.div_ceil(len).max(1) };
    (0..count).filter_map(move |number| {
        let hash = |seed: u64| XxHash3_64::oneshot_with_seed(key ^ seed, &number.to_le_bytes());
        let of_group = hash(!seed);
        let is_relative = GROUPS as u64 / 2 <= of_group % GROUPS as u64;
        let class = match (is_aligned, is_divided) {
            (true, _) if is_relative => same_share,
            (true, _) => same_offset,
            (false, true) => CLASS_DIVIDED,
            (false, false) => limits,
        };
        let limit = |number: u64| {
            let offset = u128::from(number) * u128::from(len);
            let offset = if is_scaled && is_relative {
                offset * u128::from(size) / u128::from(largest) / u128::from(PAGE_BYTES) * u128::from(PAGE_BYTES)
            } else {
                offset
            };
            u64::try_from(offset).map_or(size, |offset| offset.min(size))
        };
        let (offset, end) = (limit(number), if number + 1 == count { size } else { limit(number + 1) });
        let of = UnitOf {
            class: u8::try_from(class).expect("a few classes"),
            group: u8::try_from(of_group % GROUPS as u64).expect("a few groups"),
            starts_inside: 0 < offset,
            ends_inside: end < size,
            root: 0,
        };
        let unit = Unit { hash: hash(seed), offset, end: (end < size).then_some(end), len: end - offset, of };
        (offset < end || size == 0).then_some(unit)
    })
}

/// Returns the power of two of an extent, counted from the shortest.
fn power(extent_bytes: u64) -> usize {
    let power = (extent_bytes / EXTENT_BYTES_MIN).max(1).ilog2();
    usize::try_from(power).expect("below 64").min(EXTENT_POWERS - 1)
}

/// Returns the part of the histogram that a hash belongs to: its power of two and the bits that follow. Parts ascend as hashes do.
fn part(hash: u64) -> usize {
    let power = hash.max(1).ilog2();
    let below = hash.max(1) ^ 1 << power;
    let fine = if power < PARTS_BITS { below << (PARTS_BITS - power) } else { below >> (power - PARTS_BITS) };
    (power as usize) << PARTS_BITS | usize::try_from(fine).expect("a few bits")
}

/// Returns the lowest hash of a part, or the highest of all.
fn first_of_part(part: usize) -> u64 {
    let power = u32::try_from(part >> PARTS_BITS).expect("parts are few");
    if 63 < power {
        return u64::MAX;
    }
    let fine = part as u64 & ((1 << PARTS_BITS) - 1);
    let below = if power < PARTS_BITS { fine >> (PARTS_BITS - power) } else { fine << (power - PARTS_BITS) };
    1 << power | below
}

#[cfg(test)]
mod tests;
