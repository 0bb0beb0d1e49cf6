//! The policy of flushes: which buckets are written out, and how.

use crate::kv::bucket_table::bucket::Buckets;
use crate::kv::bucket_table::bucket_name::BucketName;
use crate::kv::bucket_table::damage::DamagedBuckets;
use crate::kv::bucket_table::memtable::Memtable;
use crate::kv::bucket_table::run::Run;
use crate::kv::bucket_table::spec::TableSpec;

/// Share of the buckets that one flush writes out: the fullest twenty-fourth. A run is then about 1.8 times what a bucket
/// has in the memtable on average, reads and writes come in batches, and a thirteenth of the memtable becomes free.
pub(in crate::kv) const FLUSH_SHARE: u32 = 24;

/// Fewest buckets that one flush writes out, if there are so many, so that small tables read and write in batches too.
const FLUSH_BUCKETS_MIN: usize = 4;

/// Most buckets that split, pairs that join and damaged buckets that are rewritten in one flush. Each is read and written
/// whole: 3 MB at 200 million entries in 2,048 buckets.
const RESHAPED_MAX: usize = 8;

/// Change of a bucket by a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The runs after the first `kept` become one.
    Merge {
        /// Name of the bucket.
        bucket: BucketName,
        /// Runs that stay, from the oldest.
        kept: usize,
    },
    /// The bucket becomes two.
    Split(BucketName),
    /// Two halves become one bucket.
    Join([BucketName; 2]),
}

impl Change {
    /// Returns the buckets that are changed.
    pub(in crate::kv) fn sources(&self) -> &[BucketName] {
        match self {
            Self::Merge { bucket, .. } | Self::Split(bucket) => std::slice::from_ref(bucket),
            Self::Join(halves) => halves,
        }
    }

    /// Returns how many runs of a changed bucket stay, from the oldest.
    pub(in crate::kv) fn kept(self) -> usize {
        match self {
            Self::Merge { kept, .. } => kept,
            Self::Split(_) | Self::Join(_) => 0,
        }
    }

    /// Returns the buckets that get a new run, in order.
    pub(in crate::kv) fn outputs(self) -> Vec<BucketName> {
        match self {
            Self::Merge { bucket, .. } => vec![bucket],
            Self::Split(bucket) => bucket.halves().expect("a bucket that is split is not too deep").to_vec(),
            Self::Join([first, _]) => vec![first.parent().expect("a half has a whole")],
        }
    }
}

/// Chooses the fullest buckets and damaged ones, and a change for each, in order of their keys.
pub(in crate::kv) fn choose(
    spec: &TableSpec,
    buckets: &Buckets,
    memtable: &Memtable,
    damaged: &DamagedBuckets,
) -> Vec<Change> {
    let buffered = |bucket: u32| memtable.bucket_count(bucket);
    let mut fullest: Vec<u32> = buckets.numbers().filter(|bucket| buffered(*bucket) != 0).collect();
    let count = (buckets.count() / FLUSH_SHARE as usize).max(FLUSH_BUCKETS_MIN);
    if count < fullest.len() {
        fullest.select_nth_unstable_by_key(count, |bucket| std::cmp::Reverse(buffered(*bucket)));
        fullest.truncate(count);
    }
    let mut names: Vec<_> = fullest.into_iter().map(|number| buckets.get(number).name).collect();
    names.extend(damaged.on_disk().filter(|name| buckets.contains(*name)).take(RESHAPED_MAX));
    names.sort_unstable_by_key(|name| name.first_head());
    names.dedup();
    let depth = spec.depth();
    let mut reshaped = 0;
    let mut changes: Vec<Change> = Vec::with_capacity(names.len());
    for name in names {
        let is_last = |name| changes.last().is_some_and(|last| last.sources().contains(&name));
        if is_last(name) {
            continue;
        }
        let buffered = buffered(buckets.number(name));
        let may_reshape = reshaped < RESHAPED_MAX;
        let joined = || halves_to_join(buckets, name).filter(|[first, _]| !is_last(*first));
        let change = if may_reshape && name.depth() < depth && buffered != 0 {
            Change::Split(name)
        } else if may_reshape
            && depth < name.depth()
            && let Some(halves) = joined()
        {
            Change::Join(halves)
        } else if damaged.is_on_disk(name) {
            Change::Merge { bucket: name, kept: 0 }
        } else {
            let chain = &buckets.get(buckets.number(name)).runs;
            Change::Merge { bucket: name, kept: kept_runs(name, spec.runs_max.max(1), buffered.into(), chain) }
        };
        reshaped += usize::from(!matches!(change, Change::Merge { .. }));
        changes.push(change);
    }
    changes
}

/// Returns the two halves of the parent of a bucket, if both are buckets.
fn halves_to_join(buckets: &Buckets, name: BucketName) -> Option<[BucketName; 2]> {
    name.parent()?.halves().filter(|halves| halves.iter().all(|half| buckets.contains(*half)))
}

/// Decides how many runs of a chain, from the oldest, stay as they are when `staged` entries are written out.
///
/// A short chain stays whole. Otherwise the newest runs are merged, back to a run that is more than f times the sum of
/// all younger ones. f of 1..=4 and the longest chain are drawn per bucket, to spread merges over time.
fn kept_runs(name: BucketName, runs_max: u32, buffered: u64, chain: &[Run]) -> usize {
    let drawn = name.prefix().wrapping_mul(0x9e37_79b9); // 2^32 / golden ratio: neighbors draw differently
    let ratio = u64::from(drawn >> 30) + 1;
    let runs_max = (runs_max - (drawn >> 29 & 1).min(runs_max - 1)) as usize;
    if chain.len() < runs_max {
        return chain.len();
    }
    let mut kept = chain.len();
    let mut sum = buffered;
    while let Some(before) = kept.checked_sub(1) {
        let must = runs_max <= kept;
        if !must && sum.saturating_mul(ratio) < chain[before].entries {
            break;
        }
        sum = sum.saturating_add(chain[before].entries);
        kept = before;
    }
    kept
}
