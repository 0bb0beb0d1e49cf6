//! Survey of a source without reading its files, and the choice of what to read.
//!
//! The unit is a small file, or an extent of a large one. Which units are read depends on a hash of the file's name and of the
//! extent's number: so versions of a file, which mostly keep their name or differ in a date or a number, are read together or
//! not at all, and their duplicates are seen (see [`Keying`]). Every byte is read with about the same probability: classes of
//! units by length, each read in the same proportion (stratified sampling, proportional allocation), keep a few large files from
//! deciding.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Result;
use onefold_engine::io::tree::EntryKind;
use onefold_engine::monitor::Monitor;
use onefold_engine::source::walk::{Event, Item, Walk};
use twox_hash::XxHash3_64;

/// Amount to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// About this many bytes of a larger source.
    Bytes(u64),
    /// Everything.
    Everything,
}

/// Longest extent of a large file in bytes: changes of an image are local, and its parts differ.
const EXTENT_BYTES_MAX: u64 = 16 << 20;
/// Shortest one: chunks of a mebibyte on average must fit a few times.
const EXTENT_BYTES_MIN: u64 = 4 << 20;
/// Fewest extents of a sample.
const SAMPLE_EXTENTS_MIN: u64 = 64;
/// Most extents of a file; those of larger files are longer.
const EXTENTS_MAX: u64 = 1 << 16;
/// Upper limits of classes of units in bytes; the last class has the rest.
const CLASSES: [u64; 2] = [128 << 10, 1 << 20];
/// Resolution of the histogram of hashes: parts of each power of two.
const PARTS_BITS: u32 = 6;
const PARTS: usize = 64 << PARTS_BITS;
/// Reading stops after this multiple of the sample: files may have grown, or the choice was unlucky.
pub const OVERRUN: (u64, u64) = (5, 4);

/// Bytes of a class below its threshold are spread over as many parts of the histogram as if this many were equally full. A
/// sample of few large groups represents the rest badly.
const PARTS_EFFECTIVE_MIN: u128 = 48;
/// Classes with a smaller share of the bytes do not matter.
const CLASS_SHARE_MIN: u128 = 10;

/// Property that files of a group share. The first one that makes groups small enough is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keying {
    /// The name without its digits, in whatever directory: `dump-2026-01-01.sql` and `dump-2026-01-02.sql`.
    Alike,
    /// The name, in whatever directory.
    Name,
    /// Nothing: each file is chosen by itself.
    Path,
}

const KEYINGS: [Keying; 3] = [Keying::Alike, Keying::Name, Keying::Path];

impl Keying {
    fn hash(self, item: &Item) -> u64 {
        let name = item.name.as_bytes();
        match self {
            Self::Alike => {
                let letters: Vec<u8> = name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect();
                XxHash3_64::oneshot(&letters)
            }
            Self::Name => XxHash3_64::oneshot(name),
            Self::Path => XxHash3_64::oneshot(item.path.as_os_str().as_bytes()),
        }
    }
}

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
#[derive(Clone, Debug)]
pub struct Survey {
    /// Contents of the source.
    pub totals: Totals,
    /// Property that files are chosen by.
    pub keying: Keying,
    /// Bytes of an extent; `None` where everything is read, and files are not divided.
    extent_bytes: Option<u64>,
    /// A unit is read if its hash is below that of its class.
    thresholds: [u64; CLASSES.len() + 1],
    /// Bytes after which reading ends.
    pub bytes_max: u64,
}

/// An extent of a file that is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of its first byte.
    pub offset: u64,
    /// Offset of its end; the last one of a file has none.
    pub end: Option<u64>,
    /// Whether a sample half as large would have it.
    pub in_half: bool,
}

impl Survey {
    /// Walks the source. Bytes are counted by the hash of their unit, so that a threshold can be chosen afterward that
    /// the sample holds just enough of.
    pub fn of(walk: Walk, roots: &[PathBuf], sample: Sample, monitor: &dyn Monitor) -> Result<Self> {
        let Sample::Bytes(wanted) = sample else {
            let mut totals = Totals::default();
            each_file(walk, roots, monitor, &mut totals, &mut |_| ())?;
            return Ok(Self::of_everything(totals));
        };
        let extent_bytes = extent_bytes(wanted);
        let mut totals = Totals::default();
        let mut histograms = KEYINGS.map(|keying| (keying, Histogram::default()));
        each_file(walk, roots, monitor, &mut totals, &mut |item| {
            for (keying, histogram) in &mut histograms {
                for unit in units(keying.hash(item), item.metadata.size, Some(extent_bytes)) {
                    histogram.add(&unit);
                }
            }
        })?;
        if totals.bytes <= wanted {
            return Ok(Self::of_everything(totals));
        }
        let bytes_max = wanted.saturating_mul(OVERRUN.0) / OVERRUN.1;
        let mut survey = Self::of_everything(totals);
        for (keying, histogram) in histograms {
            let (thresholds, is_spread) = histogram.choose(wanted);
            survey = Self { totals, keying, extent_bytes: Some(extent_bytes), thresholds, bytes_max };
            if is_spread {
                break;
            }
        }
        Ok(survey)
    }

    fn of_everything(totals: Totals) -> Self {
        let thresholds = [u64::MAX; CLASSES.len() + 1];
        Self { totals, keying: Keying::Alike, extent_bytes: None, thresholds, bytes_max: u64::MAX }
    }

    /// Returns true if everything is to be read.
    pub fn is_everything(&self) -> bool {
        self.extent_bytes.is_none()
    }

    /// Returns the extents of a file that are to be read, in order.
    pub fn extents(&self, item: &Item) -> impl Iterator<Item = Extent> + use<'_> {
        units(self.keying.hash(item), item.metadata.size, self.extent_bytes).filter_map(move |unit| {
            let threshold = if self.is_everything() {
                u64::MAX
            } else {
                self.thresholds.get(class(unit.len)).copied().unwrap_or_default()
            };
            let in_half = unit.hash < threshold / 2;
            let chosen = self.is_everything() || unit.hash < threshold;
            chosen.then_some(Extent { offset: unit.offset, end: unit.end, in_half })
        })
    }
}

/// Bytes of units by their hash and class.
#[derive(Debug)]
struct Histogram(Vec<[u64; CLASSES.len() + 1]>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![[0; CLASSES.len() + 1]; PARTS])
    }
}

impl Histogram {
    fn add(&mut self, unit: &Unit) {
        if let Some(sum) = self.0.get_mut(part(unit.hash)).and_then(|sums| sums.get_mut(class(unit.len))) {
            *sum = sum.saturating_add(unit.len);
        }
    }

    fn of_class(&self, class: usize) -> impl Iterator<Item = u128> + '_ {
        self.0.iter().map(move |sums| sums.get(class).copied().map(u128::from).unwrap_or_default())
    }

    /// Returns the threshold of each class below which there are as many bytes as it has a share of the wanted ones, but no
    /// more; and whether these come from many parts.
    fn choose(&self, wanted: u64) -> ([u64; CLASSES.len() + 1], bool) {
        let classes: [u128; CLASSES.len() + 1] = std::array::from_fn(|class| self.of_class(class).sum());
        let all: u128 = classes.iter().sum::<u128>().max(1);
        let mut is_spread = true;
        let thresholds = std::array::from_fn(|class| {
            let of_class = classes.get(class).copied().unwrap_or_default();
            let share = of_class * u128::from(wanted) / all;
            let (mut sum, mut squares, mut parts) = (0, 0, 0);
            for bytes in self.of_class(class) {
                if share < sum + bytes {
                    break;
                }
                sum += bytes;
                squares += bytes * bytes;
                parts += 1;
            }
            let matters = all <= of_class * CLASS_SHARE_MIN;
            is_spread &= !matters || (PARTS_EFFECTIVE_MIN * squares <= sum * sum && share <= sum * 4 / 3);
            first_of_part(parts)
        });
        (thresholds, is_spread)
    }
}

/// Calls `each` for every file of a walk, and counts. Unreadable files are reported when they are read.
fn each_file(
    walk: Walk,
    roots: &[PathBuf],
    monitor: &dyn Monitor,
    totals: &mut Totals,
    each: &mut dyn FnMut(&Item),
) -> Result<()> {
    for event in walk {
        if monitor.is_interrupted() {
            return Err(onefold_engine::Error::Interrupted.into());
        }
        match event {
            Event::Entry(item) if is_stream(&item, roots) => {
                totals.files += 1;
                totals.bytes = totals.bytes.saturating_add(item.metadata.size);
                each(&item);
            }
            Event::Entry(_) | Event::EnterDirectory(_) => totals.other_entries += 1,
            Event::LeaveDirectory | Event::Error { .. } => {}
        }
    }
    Ok(())
}

/// Returns true if an entry is read: a file, or a block device named by the user.
pub fn is_stream(item: &Item, roots: &[PathBuf]) -> bool {
    match item.metadata.kind {
        EntryKind::File => true,
        EntryKind::BlockDevice => roots.contains(&item.path),
        EntryKind::Directory | EntryKind::Symlink | EntryKind::Fifo | EntryKind::Socket | EntryKind::CharDevice => {
            false
        }
    }
}

struct Unit {
    hash: u64,
    offset: u64,
    end: Option<u64>,
    len: u64,
}

fn extent_bytes(wanted: u64) -> u64 {
    (wanted / SAMPLE_EXTENTS_MIN).clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX)
}

/// Divides a file.
fn units(key: u64, size: u64, extent_bytes: Option<u64>) -> impl Iterator<Item = Unit> + use<> {
    // Extents begin at multiples of every fixed block.
    let len = extent_bytes.map_or(u64::MAX, |len| len.max(size / EXTENTS_MAX).next_multiple_of(EXTENT_BYTES_MIN));
    let count = size.div_ceil(len).max(1);
    (0..count).map(move |number| {
        let offset = number * len;
        let is_last = number + 1 == count;
        let end = if is_last { size } else { offset + len };
        let hash = XxHash3_64::oneshot_with_seed(key, &number.to_le_bytes());
        Unit { hash, offset, end: (!is_last).then_some(end), len: end - offset }
    })
}

fn class(len: u64) -> usize {
    CLASSES.iter().take_while(|end| **end < len).count()
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
mod tests {
    use std::path::Path;

    use onefold_engine::io::tree::{Metadata, SourceTree};
    use onefold_engine::source::walk::Location;
    use onefold_engine::testing::mem_tree::MemTree;
    use onefold_engine::types::Timestamp;

    use super::*;

    fn item(name: &str, size: u64) -> Item {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        let metadata = Metadata {
            kind: EntryKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: time,
            ctime: time,
            size,
            device: 0,
            inode: 0,
            links: 1,
            rdev: 0,
        };
        let location = Location::new(MemTree::new().open_dir(Path::new("/")).unwrap(), name.as_ref());
        let path = PathBuf::from(name);
        Item { path, name: name.into(), location, metadata, xattrs: Vec::new(), link_target: None }
    }

    /// Chooses from files of the same length.
    fn survey(names: &[String], size: u64, wanted: u64) -> Survey {
        let (mut totals, extent_bytes) = (Totals::default(), Some(extent_bytes(wanted)));
        for keying in KEYINGS {
            let mut histogram = Histogram::default();
            for name in names {
                units(keying.hash(&item(name, size)), size, extent_bytes).for_each(|unit| histogram.add(&unit));
                totals.bytes += size;
            }
            let (thresholds, is_spread) = histogram.choose(wanted);
            if is_spread || keying == Keying::Path {
                return Survey { totals, keying, extent_bytes, thresholds, bytes_max: u64::MAX };
            }
        }
        unreachable!("the last keying is taken")
    }

    fn chosen(survey: &Survey, name: &str, size: u64) -> Vec<Extent> {
        survey.extents(&item(name, size)).collect()
    }

    fn word(number: usize) -> String {
        let letters =
            [number, number / 26, number / 676].map(|digit| char::from(b'a' + u8::try_from(digit % 26).unwrap()));
        letters.iter().collect()
    }

    #[test]
    fn parts_ascend_with_hashes() {
        let mut last = 0;
        for hash in
            (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + (1 << bit) / 3, (1_u64 << bit) + ((1 << bit) - 1)])
        {
            let part = part(hash);
            assert!(last <= part && part < PARTS, "{hash}");
            assert!(first_of_part(part) <= hash && hash <= first_of_part(part + 1), "{hash}");
            last = part;
        }
    }

    #[test]
    fn versions_of_a_file_are_chosen_together_and_the_sample_is_as_large_as_wanted() {
        let size = 1000;
        let names: Vec<String> = (0..8000).map(|number| format!("{}-{}.sql", word(number / 2), number % 2)).collect();
        let survey = survey(&names, size, 8000 * size / 4);
        assert_eq!(survey.keying, Keying::Alike);
        let is_chosen = |name: &String| !chosen(&survey, name, size).is_empty();
        assert!(names.chunks(2).all(|pair| is_chosen(&pair[0]) == is_chosen(&pair[1])));
        let count = names.iter().filter(|name| is_chosen(name)).count();
        assert!((1900..=2000).contains(&count), "{count} of 8000");
        let halves = names.iter().flat_map(|name| chosen(&survey, name, size)).filter(|extent| extent.in_half).count();
        assert!(count * 4 / 10 < halves && halves < count * 6 / 10, "{halves} of {count}");
    }

    /// Photos of a camera differ in their numbers only: read together, it would be all of them or none.
    #[test]
    fn where_all_names_are_alike_files_are_chosen_by_themselves() {
        let names: Vec<String> = (0..8000).map(|number| format!("IMG_{number}.JPG")).collect();
        let survey = survey(&names, 1000, 2_000_000);
        assert_eq!(survey.keying, Keying::Name);
        let count = names.iter().filter(|name| !chosen(&survey, name, 1000).is_empty()).count();
        assert!((1900..=2000).contains(&count), "{count} of 8000");
        let names = vec!["index.html".to_owned(); 8000];
        assert_eq!(self::survey(&names, 1000, 2_000_000).keying, Keying::Path);
    }

    #[test]
    fn large_files_that_are_alike_are_read_at_the_same_places() {
        let size = 4000 * EXTENT_BYTES_MIN + 5;
        let names = ["disk-1.img", "disk-2.img"].map(str::to_owned);
        let survey = survey(&names, size, size / 4);
        let [first, second] = names.map(|name| chosen(&survey, &name, size));
        assert_eq!(first, second);
        let bytes = first.len() as u64 * survey.extent_bytes.unwrap();
        assert!(size / 10 < bytes && bytes < size / 7, "{bytes} of {size}");
    }

    #[test]
    fn a_file_of_any_length_has_few_stretches() {
        for size in [0, 1, EXTENT_BYTES_MIN, EXTENT_BYTES_MIN + 1, 1 << 40, u64::MAX / 2] {
            let mut end = 0;
            let mut count = 0;
            for unit in units(1, size, Some(EXTENT_BYTES_MIN)) {
                assert_eq!(unit.offset, end);
                end += unit.len;
                count += 1;
            }
            assert_eq!(end, size);
            assert!((1..=EXTENTS_MAX + 1).contains(&count), "{count} for {size}");
        }
    }
}
