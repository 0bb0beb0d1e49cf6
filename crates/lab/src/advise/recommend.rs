//! Which chunk size to choose, and what would change the choice.

use onefold_engine::backup::Budget;

use super::predict::Prediction;
use super::rules::{AVERAGE_DEFAULT, Rule};
use crate::counts::float;

/// A repository that is larger by no more than this share counts as no larger: larger chunks, with their smaller index, are then
/// taken, and blocks of a fixed length never.
pub const SAME_SIZE: f64 = 0.01;

/// Recommendation.
#[derive(Clone, PartialEq, Debug)]
pub struct Recommendation {
    /// The rule.
    pub rule: Rule,
    /// Why.
    pub reason: String,
    /// Conditions under which another rule is better.
    pub otherwise: Vec<String>,
}

/// Chooses the rule with the smallest repository among those whose index works well in the memory that is given; among
/// content-defined ones that are as good within [`SAME_SIZE`], the one with the longest chunks.
pub fn recommend(predictions: &[Prediction], memory_bytes: u64) -> Option<Recommendation> {
    let fits = |prediction: &Prediction| prediction.memory_bytes <= memory_bytes;
    // If nothing fits, the rule that needs least memory remains.
    let best =
        choose(predictions, &fits).or_else(|| predictions.iter().min_by_key(|prediction| prediction.memory_bytes))?;
    let unbound = choose(predictions, &|_| true).unwrap_or(best);
    let memory = mebibytes(memory_bytes);
    let bound =
        if unbound.rule == best.rule { String::new() } else { format!(" of those whose index works well in {memory}") };
    let smallest = predictions.iter().filter(|it| fits(it)).min_by(|a, b| stored(a).total_cmp(&stored(b)));
    let reason = match smallest {
        None => format!("no index works well in {memory}; this one wants least, {}", mebibytes(best.memory_bytes)),
        Some(smallest) if smallest.rule == best.rule => format!("the smallest repository{bound}, {}", size(best)),
        Some(smallest) => format!(
            "{}, within {:.0}% of the smallest repository{bound} ({}, {:.1}% less)",
            size(best),
            100.0 * SAME_SIZE,
            smallest.rule,
            100.0 * (1.0 - stored(smallest) / stored(best))
        ),
    };
    let mut otherwise = Vec::new();
    if unbound.rule != best.rule {
        otherwise.push(format!(
            "with {} or more of memory, {}: {}, {:.1}% less",
            mebibytes(unbound.memory_bytes),
            unbound.rule,
            size(unbound),
            100.0 * (1.0 - stored(unbound) / stored(best))
        ));
    }
    otherwise.extend(with_least(predictions, best));
    otherwise.extend(with_default(predictions, best));
    Some(Recommendation { rule: best.rule, reason, otherwise })
}

fn choose<'a>(predictions: &'a [Prediction], fits: &dyn Fn(&Prediction) -> bool) -> Option<&'a Prediction> {
    let among = || predictions.iter().filter(|prediction| fits(prediction));
    let least = among().map(stored).min_by(f64::total_cmp)?;
    let is_as_good = |prediction: &&Prediction| stored(prediction) <= least * (1.0 + SAME_SIZE);
    let is_content = |prediction: &&Prediction| matches!(prediction.rule, Rule::Content(_));
    let content = among().filter(is_as_good).filter(is_content).max_by_key(|prediction| prediction.rule.bytes());
    // Later insertions do not harm content-defined cuts.
    content.or_else(|| among().filter(is_as_good).max_by_key(|prediction| prediction.rule.bytes()))
}

/// Describes the effect of the smallest budget.
fn with_least(predictions: &[Prediction], best: &Prediction) -> Option<String> {
    let least = Budget::BYTES_MIN as u64;
    let fits = |prediction: &Prediction| prediction.memory_bytes <= least;
    let other = choose(predictions, &fits)?;
    let more = 100.0 * (stored(other) / stored(best) - 1.0);
    (best.memory_bytes > least && other.rule != best.rule).then(|| {
        format!(
            "with {} of memory, the least that works, {}: {}, {more:.1}% more",
            mebibytes(least),
            other.rule,
            size(other)
        )
    })
}

/// Describes the cost of the default.
fn with_default(predictions: &[Prediction], best: &Prediction) -> Option<String> {
    let default = predictions.iter().find(|prediction| prediction.rule == Rule::Content(AVERAGE_DEFAULT))?;
    let more = 100.0 * (stored(default) / stored(best) - 1.0);
    (default.rule != best.rule).then(|| {
        format!(
            "{}, the default of repositories, would take {} ({more:+.1}%) and an index of {}",
            default.rule,
            size(default),
            bytes(default.index_bytes)
        )
    })
}

fn stored(prediction: &Prediction) -> f64 {
    prediction.stored_bytes.value
}

fn size(prediction: &Prediction) -> String {
    bytes(stored(prediction))
}

/// Writes bytes in units of 1,024.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count;
    let mut unit = 0;
    while 1024.0 <= value && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || 100.0 <= value {
        0
    } else if 10.0 <= value {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS.get(unit).copied().unwrap_or_default())
}

fn mebibytes(count: u64) -> String {
    bytes(float(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::estimate::{Estimate, Interval};
    use crate::advise::predict::Seconds;

    fn exact(value: f64) -> Interval {
        Interval { value, low: value, high: value }
    }

    /// A rule with this size of the repository in GiB and of the index in MiB.
    fn prediction(rule: Rule, gibibytes: f64, mebibytes: u64) -> Prediction {
        let (none, seconds) = (Estimate::counted(1.0), Seconds { time: 1.0, processor: 1.0 });
        Prediction {
            rule,
            sample_chunks: 1,
            sample_unique_chunks: none,
            sample_unique_bytes: none,
            dedup_ratio: exact(1.0),
            compressed_share: none,
            unique_chunks: 1.0,
            stored_bytes: exact(gibibytes * 1024.0 * 1024.0 * 1024.0),
            similar_bytes: None,
            overhead_bytes: 1.0,
            index_bytes: 1e9,
            filter_bits: 8.0,
            false_positives: 0.0,
            memory_bytes: mebibytes << 20,
            first: seconds,
            read_again: seconds,
            unchanged: seconds,
        }
    }

    fn predictions() -> Vec<Prediction> {
        [
            (Rule::Content(4 << 10), 100.0, 1024),
            (Rule::Content(8 << 10), 100.5, 512),
            (Rule::Content(64 << 10), 120.0, 64),
            (Rule::Fixed(4 << 10), 99.9, 1024),
        ]
        .map(|(rule, stored, memory)| prediction(rule, stored, memory))
        .to_vec()
    }

    #[test]
    fn the_longest_content_defined_chunks_within_a_percent_are_chosen() {
        let chosen = recommend(&predictions(), 1 << 30).unwrap();
        assert_eq!(chosen.rule, Rule::Content(8 << 10));
        assert_eq!(chosen.reason, "100 GiB, within 1% of the smallest repository (fixed 4k, 0.6% less)");
        assert_eq!(chosen.otherwise, ["with 64.0 MiB of memory, the least that works, 64k: 120 GiB, 19.4% more"]);
    }

    #[test]
    fn memory_bounds_the_choice_and_it_is_said_what_more_would_bring() {
        let chosen = recommend(&predictions(), 256 << 20).unwrap();
        assert_eq!(chosen.rule, Rule::Content(64 << 10));
        assert!(chosen.reason.starts_with("the smallest repository of those whose index works well in 256 MiB"));
        assert_eq!(chosen.otherwise[0], "with 512 MiB or more of memory, 8k: 100 GiB, 16.2% less");
        let chosen = recommend(&predictions()[..2], 256 << 20).unwrap();
        assert_eq!(chosen.rule, Rule::Content(8 << 10));
        assert_eq!(chosen.reason, "no index works well in 256 MiB; this one wants least, 512 MiB");
        assert_eq!(recommend(&[], 1 << 30), None);
    }

    #[test]
    fn bytes_are_written_in_the_unit_that_suits() {
        assert_eq!(
            [0.0, 1023.0, 1536.0, 12.34 * 1_048_576.0, 5e15].map(bytes),
            ["0 B", "1023 B", "1.50 KiB", "12.3 MiB", "4.44 PiB"]
        );
    }
}
