//! Buckets with damaged pages.

use std::collections::BTreeMap;

use crate::kv::bucket_table::bucket_name::BucketName;

/// State of a bucket in which a damaged page was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Damage {
    /// The bucket has damaged pages.
    OnDisk,
    /// The bucket was rewritten without them; the entries that they held are missing.
    Rewritten,
}

/// Buckets in which a damaged page was found and whose entries were not added again.
#[derive(Debug, Default)]
pub(in crate::kv) struct DamagedBuckets(BTreeMap<BucketName, Damage>);

impl DamagedBuckets {
    /// Notes that a damaged page of a bucket was found.
    pub(in crate::kv) fn add(&mut self, bucket: BucketName) {
        self.0.insert(bucket, Damage::OnDisk);
    }

    /// Notes that runs of a bucket were merged: all of them, or some, and whether a page that was read was damaged.
    pub(in crate::kv) fn note_merge(&mut self, bucket: BucketName, is_whole: bool, is_damaged: bool) {
        if self.is_on_disk(bucket) && is_whole {
            self.0.insert(bucket, Damage::Rewritten);
        } else if is_damaged {
            self.0.entry(bucket).or_insert(Damage::Rewritten);
        }
    }

    /// Notes that all entries of a bucket were added again.
    pub(in crate::kv) fn forget(&mut self, bucket: BucketName) {
        self.0.remove(&bucket);
    }

    /// Returns true if the bucket still has damaged pages.
    pub(in crate::kv) fn is_on_disk(&self, bucket: BucketName) -> bool {
        self.0.get(&bucket) == Some(&Damage::OnDisk)
    }

    /// Returns the buckets that still have damaged pages.
    pub(in crate::kv) fn on_disk(&self) -> impl Iterator<Item = BucketName> {
        self.0.iter().filter(|(_, damage)| **damage == Damage::OnDisk).map(|(name, _)| *name)
    }

    /// Returns all buckets, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = BucketName> {
        self.0.keys().copied()
    }
}
