//! Buckets: each holds the keys that begin with its prefix. Buckets split and join one at a time.
//!
//! A directory of 2^d slots, where d is the longest prefix, maps the first d bits of a key to its bucket (extendible
//! hashing: Fagin, Nievergelt, Pippenger and Strong, TODS 1979). Keys are uniform and need no hash. A bucket with a
//! shorter prefix fills several slots.

use crate::kv::bucket_table::bucket_name::{BucketName, first_bits};
use crate::kv::bucket_table::run::Run;

/// A bucket and its runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kv) struct Bucket {
    /// Name of the bucket.
    pub(crate) name: BucketName,
    /// Runs of the bucket, oldest first.
    pub(crate) runs: Vec<Run>,
}

/// All buckets of a table. They tile the keys exactly. The number of a bucket is its index in a list; it changes when
/// another bucket leaves the list.
#[derive(Clone, Debug)]
pub(in crate::kv) struct Buckets {
    list: Vec<Bucket>,
    slots: Vec<u32>,
    depth: u8,
}

impl Buckets {
    /// Makes empty buckets with prefixes of one length.
    pub(in crate::kv) fn empty(depth: u8) -> Self {
        let names = (0..1_u32 << depth).filter_map(|prefix| BucketName::new(prefix, depth));
        let list = names.map(|name| Bucket { name, runs: Vec::new() }).collect();
        Self::from_list(list).expect("all prefixes of one length tile the keys")
    }

    /// Takes buckets in order of their keys; `None` if they do not tile them exactly.
    pub(in crate::kv) fn from_list(list: Vec<Bucket>) -> Option<Self> {
        let depth = list.iter().map(|bucket| bucket.name.depth()).max()?;
        let mut slots = Vec::with_capacity(1 << depth);
        for (number, bucket) in (0..).zip(&list) {
            let width = 1 << (depth - bucket.name.depth());
            if slots.len() != bucket.name.prefix() as usize * width {
                return None;
            }
            slots.resize(slots.len() + width, number);
        }
        (slots.len() == 1 << depth).then_some(Self { list, slots, depth })
    }

    /// Returns the number of buckets.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of the bucket that holds the keys with this head.
    pub(in crate::kv) fn number_of(&self, head: u64) -> u32 {
        self.slots[first_bits(head, self.depth) as usize]
    }

    /// Returns the number of the bucket that has this name.
    pub(in crate::kv) fn number(&self, name: BucketName) -> u32 {
        self.number_of(name.first_head())
    }

    /// Returns true if there is a bucket with this name.
    pub(in crate::kv) fn contains(&self, name: BucketName) -> bool {
        self.get(self.number(name)).name == name
    }

    /// Returns a bucket by its number.
    pub(crate) fn get(&self, number: u32) -> &Bucket {
        &self.list[number as usize]
    }

    /// Returns a bucket by its number, to change its runs.
    pub(in crate::kv) fn get_mut(&mut self, number: u32) -> &mut Bucket {
        &mut self.list[number as usize]
    }

    /// Returns the numbers of all buckets in order of their keys.
    pub(in crate::kv) fn numbers(&self) -> impl Iterator<Item = u32> {
        let mut slot = 0;
        std::iter::from_fn(move || {
            let number = *self.slots.get(slot)?;
            slot += 1 << (self.depth - self.get(number).name.depth());
            Some(number)
        })
    }

    /// Returns all buckets, in no particular order.
    pub(in crate::kv) fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.list.iter()
    }

    /// Returns the memory of the directory and the list.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>() + self.list.capacity() * size_of::<Bucket>()
    }

    /// Splits a bucket without runs. The bucket becomes its first half; returns the number of the second.
    pub(in crate::kv) fn split(&mut self, number: u32) -> u32 {
        let bucket = &mut self.list[number as usize];
        let [first, second] = bucket.name.halves().expect("a bucket at the greatest depth is not split");
        if first.depth() > self.depth {
            self.slots = self.slots.iter().flat_map(|&slot| [slot, slot]).collect();
            self.depth += 1;
        }
        *bucket = Bucket { name: first, runs: Vec::new() };
        let other = u32::try_from(self.list.len()).expect("fewer than 2^32 buckets");
        self.list.push(Bucket { name: second, runs: Vec::new() });
        self.point(second, other);
        other
    }

    /// Joins two halves without runs. The first keeps its number; the last bucket of the list gets that of the second.
    pub(in crate::kv) fn join(&mut self, first: u32, second: u32) {
        let bucket = &mut self.list[first as usize];
        let name = bucket.name.parent().expect("a half has a whole");
        assert_eq!(self.list[second as usize].name.parent(), Some(name), "two halves of one bucket are joined");
        self.list[first as usize] = Bucket { name, runs: Vec::new() };
        self.list.swap_remove(second as usize);
        if let Some(moved) = self.list.get(second as usize) {
            self.point(moved.name, second);
        }
        // The first may have been the last of the list.
        let number = if first as usize == self.list.len() { second } else { first };
        self.point(name, number);
    }

    fn point(&mut self, name: BucketName, number: u32) {
        let width = 1_usize << (self.depth - name.depth());
        let start = name.prefix() as usize * width;
        self.slots[start..start + width].fill(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{KEY_LEN, Key};
    use crate::random::SplitMix64;

    fn check(buckets: &Buckets, random: &mut SplitMix64) {
        let mut next = 0_u128;
        for number in buckets.numbers() {
            let name = buckets.get(number).name;
            assert_eq!(u128::from(name.first_head()), next, "buckets tile the keys");
            next += 1 << (64 - name.depth());
        }
        assert_eq!(next, 1 << 64);
        for _ in 0..50 {
            let mut key = Key([0; KEY_LEN]);
            key.0[..8].copy_from_slice(&random.next_u64().to_be_bytes());
            assert!(buckets.get(buckets.number_of(key.head())).name.holds(&key));
        }
    }

    #[test]
    fn buckets_tile_the_keys_through_splits_and_joins() {
        let mut random = SplitMix64::new(21);
        let mut buckets = Buckets::empty(2);
        let (mut splits, mut joins) = (0, 0);
        for _ in 0..3_000 {
            let number = u32::try_from(random.below(buckets.count() as u64)).unwrap();
            let name = buckets.get(number).name;
            let halves = name.parent().and_then(BucketName::halves);
            let numbers = halves.map(|halves| halves.map(|half| buckets.number_of(half.first_head())));
            match numbers {
                Some([first, second])
                    if (random.below(2) == 0 || name.depth() > 8)
                        && buckets.get(first).name.depth() == buckets.get(second).name.depth() =>
                {
                    buckets.join(first, second);
                    joins += 1;
                }
                _ if name.depth() < 10 => {
                    let other = buckets.split(number);
                    assert_eq!(buckets.get(other).name.parent(), Some(name));
                    splits += 1;
                }
                _ => {}
            }
            check(&buckets, &mut random);
        }
        assert!(100 < splits, "{splits} splits");
        assert!(100 < joins, "{joins} joins");
    }

    #[test]
    fn gaps_and_overlaps_of_buckets_are_refused() {
        let list = |names: &[(u32, u8)]| {
            let named = |&(prefix, depth)| BucketName::new(prefix, depth).unwrap();
            Buckets::from_list(names.iter().map(named).map(|name| Bucket { name, runs: Vec::new() }).collect())
        };
        assert!(list(&[(0, 1), (2, 2), (3, 2)]).is_some());
        for wrong in [&[][..], &[(0, 1)], &[(0, 1), (3, 2)], &[(0, 1), (2, 2), (3, 2), (3, 2)], &[(1, 1), (0, 1)]] {
            assert!(list(wrong).is_none(), "{wrong:?}");
        }
        assert!(list(&[(0, 1), (0, 1), (1, 1)]).is_none());
    }
}
