//! Estimate of the distinct bytes of a source from those of a sample, with bounds.
//!
//! A sample of whole clusters has the duplicates within them in proportion. Duplicates between clusters thin out with the square
//! of the sampling rate, so the distinct bytes of the sample, divided by that rate, are too many. The sample's units form groups,
//! and the number of groups that each chunk came in shows how many more duplicates there are (Chao, "Estimating the population
//! size for capture-recapture data with unequal catchability", Biometrics 1987; Chao and Lin, "Nonparametric lower bounds for
//! species richness and shared species richness under sampling without replacement", Biometrics 2012).

use std::ops::Range;

use super::estimate::{Interval, deviation};
use super::survey::{CLASSES, CLASSES_ALIGNED, Covered, GROUPS};
use crate::counts::float;

/// Assumption about the number of copies of a chunk, from which the chunks that were not seen follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    /// All chunks have equally many: the fewest distinct chunks.
    Equal,
    /// As unequal as the chunks that came three times show.
    Likely,
    /// Very unequal.
    Unequal,
}

/// Limits of the coefficient of [`Copies::Likely`]: 2 is that of equal numbers, 1 that of a geometric distribution. Fitted to trees of
/// which docs/advise.md shows no figures.
const COEFFICIENTS: (f64, f64) = (0.35, 0.8);
/// Coefficient of [`Copies::Unequal`].
const COEFFICIENT_UNEQUAL: f64 = 0.1;
/// Quantile of the normal distribution for 19 of 20.
const QUANTILE: f64 = 1.96;

/// Bytes of distinct chunks in the sample: all, and those that came in one, two and three of its groups.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Seen {
    all: f64,
    times: [f64; 3],
}

impl Seen {
    fn add(&mut self, groups: u32, bytes: f64) {
        if groups != 0 {
            self.all += bytes;
        }
        if let Some(sum) = (groups as usize).checked_sub(1).and_then(|times| self.times.get_mut(times)) {
            *sum += bytes;
        }
    }

    /// Returns the distinct bytes of a source of which `share` is in the sample of `groups` groups.
    /// `missed` is the part of the chunks that may have come twice by chance, and did not.
    fn in_source(self, share: f64, groups: f64, missed: f64, copies: Copies) -> f64 {
        let [once, twice, thrice] = self.times;
        if once == 0.0 || 1.0 <= share {
            return self.all;
        }
        let coefficient = match copies {
            Copies::Equal => 2.0,
            // That of a negative binomial distribution, from its first three terms.
            Copies::Likely => (4.0 - 3.0 * thrice * once / (twice * twice).max(f64::MIN_POSITIVE))
                .clamp(COEFFICIENTS.0, COEFFICIENTS.1),
            Copies::Unequal => COEFFICIENT_UNEQUAL,
        };
        // As if groups were drawn with replacement.
        let twice = twice * (groups - share) / (groups - 1.0);
        let twice = twice + if copies == Copies::Equal { missed * once } else { 0.0 };
        self.all + once * once * (1.0 - share) / (share * once + coefficient * twice * (1.0 - share))
    }
}

/// Returns the groups of a class.
fn groups_of(class: usize) -> Range<usize> {
    match CLASSES_ALIGNED {
        [same_offset, _] if class == same_offset => 0..GROUPS / 2,
        [_, same_share] if class == same_share => GROUPS / 2..GROUPS,
        _ => 0..GROUPS,
    }
}

/// How often the chunks of each class came, and without each group.
#[derive(Clone, PartialEq, Debug)]
pub struct Captures {
    all: [Seen; CLASSES],
    without: [[Seen; CLASSES]; GROUPS],
}

impl Default for Captures {
    fn default() -> Self {
        Self { all: [Seen::default(); CLASSES], without: [[Seen::default(); CLASSES]; GROUPS] }
    }
}

impl Captures {
    /// Adds a chunk that came in some groups, a bit for each, and first in a class.
    pub fn add(&mut self, class: usize, groups: u32, bytes: f64) {
        if !CLASSES_ALIGNED.contains(&class) {
            return self.add_to(class, groups, bytes);
        }
        for class in CLASSES_ALIGNED {
            self.add_to(class, groups, bytes);
        }
    }

    /// Returns the bytes of all chunks of the sample.
    pub fn bytes(&self) -> f64 {
        let is_first = |class: &usize| Some(class) != CLASSES_ALIGNED.last();
        (0..CLASSES).filter(is_first).filter_map(|class| self.all.get(class)).map(|seen| seen.all).sum()
    }

    fn add_to(&mut self, class: usize, groups: u32, bytes: f64) {
        let groups = groups & groups_of(class).map(|group| 1 << group).sum::<u32>();
        for (group, seen) in self.without.iter_mut().enumerate() {
            if let Some(seen) = seen.get_mut(class) {
                seen.add((groups & !(1 << group)).count_ones(), bytes);
            }
        }
        if let Some(seen) = self.all.get_mut(class) {
            seen.add(groups.count_ones(), bytes);
        }
    }
}

/// Part of a source that a sample covers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Coverage {
    /// Bytes of each class.
    pub class_bytes: [u64; CLASSES],
    /// Bytes of each class and group in chunks of the sample, or in holes.
    pub covered: Covered,
    /// Files and extents of files that were read.
    pub streams: u64,
    /// Whether that is everything.
    pub is_everything: bool,
}

impl Coverage {
    /// Returns the share of the source that was read.
    pub fn share(&self) -> f64 {
        let covered: u64 = self.covered.iter().flatten().sum();
        let all: u64 = self.class_bytes.iter().sum();
        if self.is_everything || all == 0 { 1.0 } else { (float(covered) / float(all)).min(1.0) }
    }

    /// Returns the distinct bytes of the source, as the sample shows them, or the sample without a group.
    pub fn distinct(&self, captures: &Captures, without: Option<usize>, copies: Copies) -> f64 {
        let seen = without.and_then(|group| captures.without.get(group)).unwrap_or(&captures.all);
        if self.is_everything {
            return seen.iter().map(|seen| seen.all).sum();
        }
        // One file more might have come twice.
        let once: f64 = seen.iter().map(|seen| seen.times[0]).sum();
        let covered: u64 = self.covered.iter().flatten().sum();
        let missed = float(covered) / float(self.streams.max(1)) / once.max(f64::MIN_POSITIVE);
        let aligned: u64 = CLASSES_ALIGNED.iter().filter_map(|class| self.class_bytes.get(*class)).sum();
        let mut shares: [Option<f64>; CLASSES] = std::array::from_fn(|class| {
            let bytes = if CLASSES_ALIGNED.contains(&class) { aligned } else { *self.class_bytes.get(class)? };
            let groups = groups_of(class).filter(|group| Some(*group) != without);
            let count = float(groups.clone().count() as u64);
            let covered = self.covered.get(class)?;
            let covered = float(groups.filter_map(|group| covered.get(group)).sum());
            let bytes = float(bytes);
            let distinct = seen.get(class)?.in_source((covered / bytes).min(1.0), count, missed, copies);
            (0.0 < covered).then(|| (distinct / bytes).min(1.0))
        });
        // Of two alignments of extents, the one that finds more duplicates.
        let better = CLASSES_ALIGNED.iter().filter_map(|class| *shares.get(*class)?).min_by(f64::total_cmp);
        for class in CLASSES_ALIGNED {
            if let Some(share) = shares.get_mut(class) {
                *share = better;
            }
        }
        let (mut distinct, mut represented) = (0.0, 0.0);
        for (share, bytes) in shares.iter().zip(self.class_bytes) {
            distinct += share.unwrap_or_default() * float(bytes);
            represented += if share.is_some() { float(bytes) } else { 0.0 };
        }
        let all = self.class_bytes.iter().copied().map(float).sum::<f64>();
        // A class of which nothing was read may have duplicates only, be as the others, or have none.
        let unread = match copies {
            Copies::Equal => 0.0,
            Copies::Likely => distinct / represented.max(1.0),
            Copies::Unequal => 1.0,
        };
        distinct + unread * (all - represented)
    }

    fn groups(&self) -> usize {
        (0..GROUPS).filter(|group| self.covered.iter().any(|groups| groups.get(*group) != Some(&0))).count()
    }

    /// Returns an estimate for the source. `estimate` makes it from the sample, or the sample without a group. `deviation` is that of errors that do not come from the sample's choice, as a share.
    pub fn interval(&self, deviation: f64, estimate: impl Fn(Option<usize>, Copies) -> f64) -> Interval {
        let bound = |copies: Copies, sign: f64| {
            let all = estimate(None, copies);
            let logarithm = |value: f64| value.max(f64::MIN_POSITIVE).ln();
            let without: Vec<f64> = (0..GROUPS).map(|group| logarithm(estimate(Some(group), copies))).collect();
            let chosen = self::deviation(&without) * (1.0 - self.share()).sqrt();
            all * (sign * self.quantile() * chosen.hypot(deviation)).exp()
        };
        let value = estimate(None, Copies::Likely);
        Interval { value, low: bound(Copies::Equal, -1.0).min(value), high: bound(Copies::Unequal, 1.0).max(value) }
    }

    /// Returns the quantile of Student's distribution for 19 of 20, by its expansion.
    fn quantile(&self) -> f64 {
        if self.is_everything {
            return QUANTILE;
        }
        let freedom = float(self.groups().saturating_sub(1).max(1) as u64);
        let power = |exponent| QUANTILE.powi(exponent);
        let first = (power(3) + QUANTILE) / 4.0;
        let second = (5.0 * power(5) + 16.0 * power(3) + 3.0 * QUANTILE) / 96.0;
        QUANTILE + first / freedom + second / freedom.powi(2)
    }
}

#[cfg(test)]
mod tests {
    use onefold_engine::random::SplitMix64;

    use super::*;

    /// Chunks of a byte: how many there are with each number of copies.
    struct Population<'a>(&'a [(u64, u64)]);

    impl Population<'_> {
        /// Draws each copy with probability `share` into a random group. Returns the captures, and the copies drawn.
        fn draw(&self, seed: u64, share: f64) -> (Captures, Coverage) {
            let mut random = SplitMix64::new(seed);
            let (mut captures, mut covered) = (Captures::default(), Covered::default());
            for (chunks, copies) in self.0 {
                for _ in 0..*chunks {
                    let mut groups = 0_u32;
                    for _ in 0..*copies {
                        let draw = random.next_u64();
                        if float(draw >> 11) < share * float(1 << 53) {
                            let group = usize::try_from(random.next_u64() % GROUPS as u64).unwrap();
                            groups |= 1 << group;
                            covered[0][group] += 1;
                        }
                    }
                    if groups != 0 {
                        captures.add(0, groups, 1.0);
                    }
                }
            }
            let bytes: u64 = self.0.iter().map(|(chunks, copies)| chunks * copies).sum();
            (captures, Coverage { class_bytes: [bytes, 0, 0, 0, 0, 0], covered, streams: bytes, is_everything: false })
        }

        fn distinct(&self) -> f64 {
            float(self.0.iter().map(|(chunks, _)| chunks).sum())
        }
    }

    #[test]
    fn distinct_bytes_are_within_their_interval_in_19_of_20_samples() {
        let populations: [&[(u64, u64)]; 5] = [
            &[(20_000, 1)],
            &[(10_000, 2)],
            &[(10_000, 1), (4000, 3)],
            &[(5000, 1), (2000, 6)],
            &[(8000, 1), (20, 900)],
        ];
        for population in populations.map(Population) {
            for share in [0.05, 0.2, 0.6] {
                let held = (0..40).filter(|seed| {
                    let (captures, coverage) = population.draw(*seed, share);
                    let interval =
                        coverage.interval(0.005, |without, copies| coverage.distinct(&captures, without, copies));
                    assert!(interval.low <= interval.value && interval.value <= interval.high, "{interval:?}");
                    // But for rounding.
                    let distinct = population.distinct();
                    interval.low - 1e-6 <= distinct && distinct <= interval.high + 1e-6
                });
                let held = held.count();
                assert!(37 <= held, "{held} of 40 for {:?} at {share}", population.0);
            }
        }
    }

    #[test]
    fn a_class_without_a_sample_may_be_as_the_others_or_not() {
        let (captures, mut coverage) = Population(&[(1000, 1)]).draw(1, 0.5);
        coverage.class_bytes[2] = 1000;
        let distinct = |copies| coverage.distinct(&captures, None, copies);
        assert!((1990.0..2010.0).contains(&distinct(Copies::Likely)));
        assert!(distinct(Copies::Equal) < 1010.0 && 1990.0 < distinct(Copies::Unequal));
    }

    #[test]
    fn of_two_alignments_the_one_with_more_duplicates_counts() {
        let mut captures = Captures::default();
        // In the first half of the groups, and in the second.
        let [class, other] = CLASSES_ALIGNED;
        captures.add(class, 1, 50.0);
        captures.add(other, 1 << (GROUPS - 1), 10.0);
        let mut coverage =
            Coverage { class_bytes: [0; CLASSES], covered: Covered::default(), streams: 10, is_everything: false };
        for (class, group) in [(class, 0), (other, GROUPS - 1)] {
            coverage.class_bytes[class] = 500;
            coverage.covered[class][group] = 100;
        }
        assert!((coverage.distinct(&captures, None, Copies::Likely) - 100.0).abs() < 1e-6);
    }
}
