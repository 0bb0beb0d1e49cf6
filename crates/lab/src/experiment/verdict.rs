//! Judgment of a claim: what was found in each repetition, against what a paper prints.

use crate::counts::float;
use crate::findings::Verdict;

/// A number of each repetition of a run, in the order of the seeds.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Samples(pub(super) Vec<f64>);

impl Samples {
    /// Returns true if nothing was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the median; of an even number, the mean of the middle two.
    pub(super) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(*sorted.get(middle - 1)?, upper)) }
    }

    /// Returns the smallest and the largest.
    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        let least = self.0.iter().copied().reduce(f64::min)?;
        Some((least, self.0.iter().copied().reduce(f64::max)?))
    }

    /// Divides the numbers of each repetition, which had the same data.
    pub(super) fn divided(&self, below: &Self) -> Self {
        let ratios = self.0.iter().zip(&below.0).filter(|(_, below)| **below != 0.0);
        Self(ratios.map(|(above, below)| above / below).collect())
    }

    /// Asks the curve of each repetition.
    pub(super) fn each(curve: &[(f64, Self)], ask: impl Fn(&[(f64, f64)]) -> Option<f64>) -> Self {
        let count = curve.iter().map(|(_, samples)| samples.0.len()).min().unwrap_or(0);
        let of = |at: usize| ask(&curve.iter().map(|(x, samples)| (*x, samples.0[at])).collect::<Vec<_>>());
        Self((0..count).filter_map(of).collect())
    }

    /// Describes the median, and the interval if there are repetitions.
    pub(super) fn words(&self) -> String {
        let Some((median, (least, most))) = self.median().zip(self.interval()) else { return String::new() };
        if self.0.len() == 1 {
            digits(median)
        } else {
            format!("{} ({} to {})", digits(median), digits(least), digits(most))
        }
    }
}

/// Prints three digits.
pub(super) fn digits(number: f64) -> String {
    let size = number.abs();
    match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if size < 0.001 => format!("{number:.1e}"),
        _ if size < 0.1 => format!("{number:.4}"),
        _ if size < 100.0 => format!("{number:.2}"),
        _ => format!("{number:.0}"),
    }
}

/// Factor by which a number may differ from the paper's by default. Repetitions of a run differ by up to a tenth on a shared
/// machine; a stream that is made up and another processor add more.
pub(super) const TOLERANCE: f64 = 1.25;

/// Requirement of a claim on a number.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Bound {
    /// To be the paper's, or not far away.
    Within {
        /// The least and the most that the paper prints.
        stated: (f64, f64),
        /// The least and the most that count.
        counts: (f64, f64),
    },
    /// To be more than 1; the paper prints no number.
    More,
    /// To be this or more; the paper prints no number.
    AtLeast(f64),
    /// The best value to be the paper's: the distance of [`Bound::distance_of_least`].
    LeastAt {
        /// The paper's.
        at: f64,
        /// Tolerance.
        factor: f64,
    },
    /// A crossing to be where the paper has it.
    CrossesAt {
        /// The paper's value.
        at: f64,
        /// Tolerance.
        factor: f64,
    },
    /// A crossing to be somewhere within the values; the paper prints no number.
    Crosses,
}

/// A best value is reproduced if it is within this factor of the paper's,
pub(super) const LEAST_FACTOR: f64 = 2.0;
/// or if the paper's takes at most so many times as long as the best here.
const LEAST_SLACK: f64 = 1.05;
/// A distance of what is not there.
const NOWHERE: f64 = f64::INFINITY;

impl Bound {
    /// Asks for a number that the paper prints, at most a factor away.
    pub(super) fn value(stated: f64, factor: f64) -> Self {
        Self::Within { stated: (stated, stated), counts: (stated / factor, stated * factor) }
    }

    /// Asks for a ratio that the paper prints, at most a factor away. The paper's winner has to win by at least half of what it wins by
    /// in the paper: otherwise a small advantage would count that was not found.
    pub(super) fn ratio(from: f64, to: f64, factor: f64) -> Self {
        let half = |ratio: f64| f64::midpoint(1.0, ratio);
        let least = if 1.0 < from { half(from) } else { 0.0 };
        let most = if to < 1.0 { 1.0 / half(1.0 / to) } else { f64::INFINITY };
        Self::Within { stated: (from, to), counts: ((from / factor).max(least), (to * factor).min(most)) }
    }

    /// Returns true if the paper prints a number.
    pub(super) fn is_printed(&self) -> bool {
        !matches!(self, Self::More | Self::AtLeast(_) | Self::Crosses)
    }

    fn is_met(&self, found: f64) -> bool {
        match self {
            Self::Within { counts: (least, most), .. } => *least <= found && found <= *most,
            Self::More => 1.0 < found,
            Self::AtLeast(least) => *least <= found,
            Self::LeastAt { factor, .. } | Self::CrossesAt { factor, .. } => found <= *factor,
            Self::Crosses => found < NOWHERE,
        }
    }

    /// Describes the paper's number and the tolerance, or what a paper without a number says.
    pub(super) fn words(&self, unprinted: &str) -> String {
        match self {
            Self::Within { stated: (from, to), counts: (least, most) } => {
                let stated = if to <= from { digits(*from) } else { format!("{} to {}", digits(*from), digits(*to)) };
                format!("{stated}; {} to {} counts", digits(*least), digits(*most))
            }
            Self::More => format!("{unprinted}; more than 1 counts"),
            Self::AtLeast(least) => format!("{unprinted}; {} or more counts", digits(*least)),
            Self::LeastAt { at, factor } => format!(
                "least at {at}; {} to {} counts, or at most {LEAST_SLACK} times the least at {at}",
                at / factor,
                at * factor
            ),
            Self::CrossesAt { at, factor } => {
                format!("at {at}; {} to {} counts", digits(at / factor), digits(at * factor))
            }
            Self::Crosses => unprinted.to_owned(),
        }
    }

    /// Returns by which factor the best value of a curve misses a position: 1 if the position is about as good.
    pub(super) fn distance_of_least(curve: &[(f64, f64)], at: f64) -> Option<f64> {
        let (best, least) = least_of(curve)?;
        let there = curve.iter().find(|(number, _)| (number - at).abs() < 1e-9).map(|(_, measured)| *measured);
        let is_as_good = there.is_some_and(|there| there <= LEAST_SLACK * least);
        Some(if is_as_good { 1.0 } else { (best / at).max(at / best) })
    }

    /// Describes the best value of a curve.
    pub(super) fn words_of_least(curve: &[(f64, f64)], at: f64) -> String {
        let Some((best, least)) = least_of(curve) else { return String::new() };
        let there = curve.iter().find(|(number, _)| (number - at).abs() < 1e-9);
        let ratio = there.map(|(_, there)| format!(", {:.2} times that at {at}", there / least)).unwrap_or_default();
        format!("least at {best}{ratio}")
    }

    /// Returns by which factor a crossing of 1 misses the paper's, or 1 for any if the paper prints none.
    pub(super) fn distance_of_crossing(&self, curve: &[(f64, f64)]) -> f64 {
        let from = from_where_more(curve);
        let (Some((before, _)), Some((after, _))) = (from.checked_sub(1).and_then(|at| curve.get(at)), curve.get(from))
        else {
            return NOWHERE;
        };
        match self {
            Self::CrossesAt { at, .. } if at < before => before / at,
            Self::CrossesAt { at, .. } if after < at => at / after,
            _ => 1.0,
        }
    }

    /// Describes where a curve crosses 1.
    pub(super) fn words_of_crossing(curve: &[(f64, f64)]) -> String {
        let from = from_where_more(curve);
        let location = match (from.checked_sub(1).and_then(|at| curve.get(at)), curve.get(from)) {
            (Some((before, _)), Some((after, _))) => format!("between {before} and {after}"),
            (None, Some(_)) => "everywhere, so it crosses nowhere".to_owned(),
            (_, None) => "nowhere".to_owned(),
        };
        let all: Vec<_> = curve.iter().map(|(shown, ratio)| format!("{ratio:.2} at {shown}")).collect();
        format!("{location}: {}", all.join(", "))
    }
}

fn least_of(curve: &[(f64, f64)]) -> Option<(f64, f64)> {
    curve.iter().copied().reduce(|best, one| if one.1 < best.1 { one } else { best })
}

/// Returns the index from which on all ratios are above 1.
fn from_where_more(curve: &[(f64, f64)]) -> usize {
    curve.iter().rposition(|(_, ratio)| *ratio <= 1.0).map_or(0, |last| last + 1)
}

/// A verdict, and what noise does to it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    /// Note that repetitions disagree.
    pub(super) noise: Option<String>,
}

/// Judges the median of what was found. A number that data were fitted to does not count as reproduced, and at a size that
/// cannot show the effect nothing does.
pub(super) fn judge(bound: &Bound, found: &Samples, is_fitted: bool, can_be_shown: bool) -> Judged {
    let is_met = found.median().is_some_and(|median| bound.is_met(median));
    let verdict = match (can_be_shown, bound.is_printed(), is_met) {
        (false, ..) => Verdict::CannotBeShown,
        (true, true, true) if is_fitted => Verdict::ByConstruction,
        (true, true, true) => Verdict::Reproduced,
        (true, true, false) => Verdict::NotReproduced,
        (true, false, true) => Verdict::Holds,
        (true, false, false) => Verdict::DoesNotHold,
    };
    let agree = found.0.iter().filter(|one| bound.is_met(**one) == is_met).count();
    let noise = (can_be_shown && agree != found.0.len())
        .then(|| format!("Noise can flip this: {agree} of {} runs agree.", float(found.0.len() as u64)));
    Judged { verdict, noise }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bound: &Bound, found: &[f64]) -> (Verdict, bool) {
        let Judged { verdict, noise } = judge(bound, &Samples(found.to_vec()), false, true);
        (verdict, noise.is_some())
    }

    #[test]
    fn a_number_counts_within_the_tolerance_on_both_sides() {
        let bound = Bound::value(2.0, 1.25);
        for (found, wanted) in [(1.59, false), (1.61, true), (2.0, true), (2.49, true), (2.51, false), (9.0, false)] {
            let verdict = if wanted { Verdict::Reproduced } else { Verdict::NotReproduced };
            assert_eq!(judged(&bound, &[found]), (verdict, false), "{found}");
        }
        assert_eq!(judge(&bound, &Samples(vec![2.0]), true, true).verdict, Verdict::ByConstruction);
        assert_eq!(judge(&bound, &Samples(vec![9.0]), true, true).verdict, Verdict::NotReproduced);
        assert_eq!(judge(&bound, &Samples(vec![2.0]), false, false).verdict, Verdict::CannotBeShown);
        assert_eq!(bound.words(""), "2.00; 1.60 to 2.50 counts");
    }

    #[test]
    fn a_small_advantage_is_found_if_the_winner_wins_by_half_of_it() {
        let counts = |from, to, found: f64| judged(&Bound::ratio(from, to, 1.25), &[found]).0 == Verdict::Reproduced;
        assert!(counts(1.3, 1.3, 1.16) && !counts(1.3, 1.3, 1.14) && counts(1.3, 1.3, 1.6) && !counts(1.3, 1.3, 1.7));
        assert!(counts(0.8, 0.8, 0.88) && !counts(0.8, 0.8, 0.9) && counts(0.8, 0.8, 0.65) && !counts(0.8, 0.8, 0.6));
        assert!(counts(3.0, 4.0, 2.5) && !counts(3.0, 4.0, 2.3) && counts(3.0, 4.0, 4.9) && !counts(3.0, 4.0, 5.1));
        assert!(counts(1.0, 1.0, 0.9) && counts(1.0, 1.0, 1.2) && !counts(1.0, 1.0, 0.7), "a paper without a winner");
    }

    #[test]
    fn the_median_decides_and_repetitions_that_disagree_are_told() {
        let bound = Bound::More;
        assert_eq!(judged(&bound, &[1.2, 0.9, 1.1]), (Verdict::Holds, true));
        assert_eq!(judged(&bound, &[0.8, 0.9, 1.1]), (Verdict::DoesNotHold, true));
        assert_eq!(judged(&bound, &[1.2, 1.3, 1.1]), (Verdict::Holds, false));
        assert_eq!(judged(&bound, &[1.0]), (Verdict::DoesNotHold, false));
        assert_eq!(Samples(vec![3.0, 1.0, 2.0]).words(), "2.00 (1.00 to 3.00)");
        assert_eq!(Samples(vec![4.0, 1.0]).median(), Some(2.5));
    }

    #[test]
    fn curves_have_their_least_and_their_crossing_near_the_papers_or_not() {
        let curve = |values: [f64; 4]| [1.0, 10.0, 20.0, 40.0].into_iter().zip(values).collect::<Vec<_>>();
        let least = |values| Bound::distance_of_least(&curve(values), 20.0).unwrap();
        assert!(
            least([9.0, 8.0, 7.0, 9.0]) <= 2.0
                && least([9.0, 7.0, 9.0, 9.0]) <= 2.0
                && least([9.0, 9.0, 9.2, 9.9]) <= 2.0
        );
        assert!(2.0 < least([5.0, 8.0, 9.0, 9.0]));
        let at = Bound::CrossesAt { at: 15.0, factor: 1.25 };
        let crossing = |values| at.distance_of_crossing(&curve(values));
        assert!(crossing([0.5, 0.9, 1.1, 2.0]) <= 1.0);
        assert!((crossing([0.5, 0.9, 0.9, 2.0]) - 20.0 / 15.0).abs() < 1e-9);
        assert!((crossing([0.5, 1.1, 1.1, 2.0]) - 1.5).abs() < 1e-9);
        assert!(crossing([2.0, 2.0, 2.0, 2.0]).is_infinite() && crossing([0.1; 4]).is_infinite());
        let judged =
            judge(&Bound::Crosses, &Samples(vec![Bound::Crosses.distance_of_crossing(&curve([2.0; 4]))]), false, true);
        assert_eq!(judged.verdict, Verdict::DoesNotHold, "what holds everywhere crosses nowhere");
    }
}
