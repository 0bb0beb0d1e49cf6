//! Buckets: each holds the keys that begin with its prefix, and they split and join one at a time.
//!
//! A directory of 2^d slots, d the longest prefix, maps the first d bits of a key to its bucket (extendible hashing:
//! Fagin, Nievergelt, Pippenger and Strong, TODS 1979; keys are uniform, so nothing is hashed). A bucket whose prefix is
//! shorter stands in several slots.

use crate::kv::Key;
use crate::kv::run::Run;

/// Longest prefix of a bucket in bits: beyond, the runs of any sensible staging are shorter than a page.
pub const DEPTH_MAX: u8 = 20;

/// The keys of a bucket: those whose first `depth` bits are `prefix`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BucketName {
    prefix: u32,
    depth: u8,
}

impl BucketName {
    /// All keys.
    pub const WHOLE: Self = Self { prefix: 0, depth: 0 };

    /// Names a bucket; `None` if the prefix has more bits than `depth`, or that exceeds [`DEPTH_MAX`].
    pub fn new(prefix: u32, depth: u8) -> Option<Self> {
        (depth <= DEPTH_MAX && u64::from(prefix) < 1 << depth).then_some(Self { prefix, depth })
    }

    /// Returns the bits that all keys begin with.
    pub fn prefix(self) -> u32 {
        self.prefix
    }

    /// Returns the length of the prefix in bits.
    pub fn depth(self) -> u8 {
        self.depth
    }

    /// Says whether a key belongs to the bucket.
    pub fn holds(self, key: &Key) -> bool {
        first_bits(key.head(), self.depth) == self.prefix
    }

    /// Returns where a key of the bucket falls in it, in units of 1/65,536: the 16 bits after the prefix of its head.
    pub fn place(self, head: u64) -> u16 {
        let [high, low, ..] = (head << self.depth).to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Returns the smallest head of a key of the bucket.
    pub fn first_head(self) -> u64 {
        u64::from(self.prefix).checked_shl(64 - u32::from(self.depth)).unwrap_or(0)
    }

    /// Returns the largest head of a key of the bucket.
    pub fn last_head(self) -> u64 {
        self.first_head() | u64::MAX.checked_shr(u32::from(self.depth)).unwrap_or(0)
    }

    /// Returns the two halves of the bucket, in order; `None` at the greatest depth.
    pub fn halves(self) -> Option<[Self; 2]> {
        let depth = self.depth + 1;
        (depth <= DEPTH_MAX).then(|| [self.prefix << 1, self.prefix << 1 | 1].map(|prefix| Self { prefix, depth }))
    }

    /// Returns the bucket that this one is a half of, unless it is the whole.
    pub fn parent(self) -> Option<Self> {
        Some(Self { prefix: self.prefix >> 1, depth: self.depth.checked_sub(1)? })
    }
}

fn first_bits(head: u64, bits: u8) -> u32 {
    // A shift by 64 overflows: of a prefix without bits nothing is left.
    let bits = head.checked_shr(64 - u32::from(bits)).unwrap_or(0);
    u32::try_from(bits).expect("a prefix has at most DEPTH_MAX bits")
}

/// A bucket and its runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Which keys it holds.
    pub name: BucketName,
    /// Its runs, oldest first.
    pub runs: Vec<Run>,
}

/// All buckets of a table. They tile the keys exactly. A bucket's number is its place in a list, and changes when
/// another one goes.
#[derive(Clone, Debug)]
pub struct Buckets {
    list: Vec<Bucket>,
    slots: Vec<u32>,
    depth: u8,
}

impl Buckets {
    /// Makes empty buckets with prefixes of one length.
    pub fn empty(depth: u8) -> Self {
        let names = (0..1_u32 << depth).filter_map(|prefix| BucketName::new(prefix, depth));
        let list = names.map(|name| Bucket { name, runs: Vec::new() }).collect();
        Self::from_list(list).expect("all prefixes of one length tile the keys")
    }

    /// Takes buckets in order of their keys; `None` if they do not tile them exactly.
    pub fn from_list(list: Vec<Bucket>) -> Option<Self> {
        let depth = list.iter().map(|bucket| bucket.name.depth).max()?;
        let mut slots = Vec::with_capacity(1 << depth);
        for (number, bucket) in (0..).zip(&list) {
            let width = 1 << (depth - bucket.name.depth);
            if slots.len() != bucket.name.prefix as usize * width {
                return None;
            }
            slots.resize(slots.len() + width, number);
        }
        (slots.len() == 1 << depth).then_some(Self { list, slots, depth })
    }

    /// Returns how many buckets there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of the bucket that holds the keys with this head.
    pub fn number_of(&self, head: u64) -> u32 {
        self.slots[first_bits(head, self.depth) as usize]
    }

    /// Returns a bucket by its number.
    pub fn get(&self, number: u32) -> &Bucket {
        &self.list[number as usize]
    }

    /// Returns a bucket by its number, for changing its runs.
    pub fn get_mut(&mut self, number: u32) -> &mut Bucket {
        &mut self.list[number as usize]
    }

    /// Returns the numbers of all buckets in order of their keys.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let mut slot = 0;
        std::iter::from_fn(move || {
            let number = *self.slots.get(slot)?;
            slot += 1 << (self.depth - self.get(number).name.depth);
            Some(number)
        })
    }

    /// Returns all buckets, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Bucket> {
        self.list.iter()
    }

    /// Returns the memory of the directory and the list.
    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>() + self.list.capacity() * size_of::<Bucket>()
    }

    /// Divides a bucket, whose runs are taken out: it becomes its first half, and the number of the other is returned.
    pub fn split(&mut self, number: u32) -> u32 {
        let bucket = &mut self.list[number as usize];
        let [first, second] = bucket.name.halves().expect("a bucket at the greatest depth is not split");
        if first.depth > self.depth {
            self.slots = self.slots.iter().flat_map(|&slot| [slot, slot]).collect();
            self.depth += 1;
        }
        *bucket = Bucket { name: first, runs: Vec::new() };
        let other = u32::try_from(self.list.len()).expect("fewer than 2^32 buckets");
        self.list.push(Bucket { name: second, runs: Vec::new() });
        self.point(second, other);
        other
    }

    /// Makes one bucket of two halves, whose runs are taken out. The first keeps its number; that of the second goes
    /// to the last bucket of the list.
    pub fn join(&mut self, first: u32, second: u32) {
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
        let width = 1_usize << (self.depth - name.depth);
        let start = name.prefix as usize * width;
        self.slots[start..start + width].fill(number);
    }
}

/// Decides how many runs of a chain, from the oldest, stay as they are when `recent` entries are written out.
///
/// A chain that is short enough stays whole. Else the youngest runs are merged, as far back as a run is at most f times
/// the sum of all younger ones; f of 1..=4 and the allowed length are drawn per bucket, to spread merges over time.
pub fn kept_runs(name: BucketName, runs_max: u32, recent: u64, chain: &[Run]) -> usize {
    let drawn = name.prefix.wrapping_mul(0x9e37_79b9); // 2^32 / golden ratio: neighbors draw differently
    let ratio = u64::from(drawn >> 30) + 1;
    let runs_max = (runs_max - (drawn >> 29 & 1).min(runs_max - 1)) as usize;
    if chain.len() < runs_max {
        return chain.len();
    }
    let mut kept = chain.len();
    let mut sum = recent;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KEY_LEN;
    use crate::random::SplitMix64;

    fn check(buckets: &Buckets, random: &mut SplitMix64) {
        let mut next = 0_u128;
        for number in buckets.numbers() {
            let name = buckets.get(number).name;
            assert_eq!(u128::from(name.first_head()), next, "buckets tile the keys");
            next += 1 << (64 - name.depth);
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
                    if (random.below(2) == 0 || name.depth > 8)
                        && buckets.get(first).name.depth == buckets.get(second).name.depth =>
                {
                    buckets.join(first, second);
                    joins += 1;
                }
                _ if name.depth < 10 => {
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
    fn places_grow_with_the_key_and_names_are_checked() {
        let name = BucketName::new(5, 3).unwrap();
        assert_eq!(name.place(name.first_head()), 0);
        assert_eq!(name.place(name.first_head() + (u64::MAX >> 3)), u16::MAX);
        assert_eq!(BucketName::WHOLE.place(0x1234_5678 << 32), 0x1234);
        assert!(BucketName::new(8, 3).is_none());
        assert!(BucketName::new(0, DEPTH_MAX + 1).is_none());
        assert!(BucketName::new(1, 0).is_none());
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
