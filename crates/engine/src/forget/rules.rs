//! Rules that keep snapshots.

use std::fmt;

use crate::forget::calendar::{Period, Span, Zone};
use crate::types::Timestamp;

/// Number of periods that a rule keeps a snapshot of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The newest ones, this many.
    Newest(u32),
    /// All of them.
    Unlimited,
}

impl Limit {
    /// Reads a number or `unlimited`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "unlimited" => Ok(Self::Unlimited),
            Ok(count) => Ok(Self::Newest(count)),
            Err(_) => Err(format!("{text:?}: neither a number nor \"unlimited\"")),
        }
    }
}

/// One rule. A snapshot that satisfies any rule is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeepRule {
    /// Keeps snapshots that have all of these tags. The empty tag stands for no tags at all.
    Tags(Vec<String>),
    /// Keeps the newest snapshot of each of a number of periods.
    Count(Period, Limit),
    /// Keeps the newest snapshot of each period in the span that ends where [`WithinFrom`] says.
    Within(Period, Span),
}

impl KeepRule {
    /// Returns true if the rule keeps nothing, as with the number 0.
    fn is_empty(&self) -> bool {
        match self {
            Self::Tags(_) => false,
            Self::Count(_, limit) => *limit == Limit::Newest(0),
            Self::Within(_, span) => span.is_empty(),
        }
    }
}

/// The end of the span of [`KeepRule::Within`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WithinFrom {
    /// The newest snapshot, as in restic.
    #[default]
    Newest,
    /// The time of the run.
    Now,
}

/// The rules of a policy, in the order in which reasons are reported.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct KeepRules {
    rules: Vec<KeepRule>,
    within_from: WithinFrom,
}

impl KeepRules {
    /// Takes the rules that keep something.
    pub fn new(rules: impl IntoIterator<Item = KeepRule>) -> Self {
        let rules = rules.into_iter().filter(|rule| !rule.is_empty()).collect();
        Self { rules, within_from: WithinFrom::default() }
    }

    /// Chooses the end of spans.
    #[must_use]
    pub fn within_from(self, within_from: WithinFrom) -> Self {
        Self { within_from, ..self }
    }

    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// Writes the policy as restic does.
impl fmt::Display for KeepRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut first, mut last, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        for rule in &self.rules {
            let name = |period: Period| if period == Period::Last { "latest" } else { period.name() };
            match rule {
                KeepRule::Tags(tags) => lists.push(format!("[{}]", tags.join(", "))),
                KeepRule::Count(period, Limit::Newest(count)) => first.push(format!("{count} {}", name(*period))),
                KeepRule::Count(period, Limit::Unlimited) => first.push(format!("all {}", name(*period))),
                KeepRule::Within(Period::Last, span) => {
                    let end = if self.within_from == WithinFrom::Now { "now" } else { "the newest" };
                    last.push(format!("all snapshots within {span} of {end}"));
                }
                KeepRule::Within(..) => {}
            }
        }
        let mut counts = first.join(", ");
        counts.push_str(if first.is_empty() { "" } else { " snapshots" });
        let within = self.rules.iter().filter_map(|rule| match rule {
            KeepRule::Within(period, span) if *period != Period::Last => {
                Some(format!("{} snapshots within {span}", period.name()))
            }
            KeepRule::Within(..) | KeepRule::Tags(_) | KeepRule::Count(..) => None,
        });
        let periods: Vec<String> = Some(counts).filter(|text| !text.is_empty()).into_iter().chain(within).collect();
        let tags = (!lists.is_empty()).then(|| format!("all snapshots with tags [{}]", lists.join(" ")));
        let periods = Some(periods.join(", ")).filter(|text| !text.is_empty());
        let parts: Vec<String> = periods.into_iter().chain(tags).chain(last).collect();
        f.write_str(&if parts.is_empty() { "keep nothing".to_owned() } else { format!("keep {}", parts.join(" and ")) })
    }
}

/// A rule that keeps a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// The rule.
    pub rule: KeepRule,
    /// True if the rule keeps it only since it is the oldest and the rule is not yet full.
    pub is_oldest: bool,
}

/// Writes the reason as restic does.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let oldest = if self.is_oldest { "oldest " } else { "" };
        match &self.rule {
            KeepRule::Tags(tags) => write!(f, "has tags [{}]", tags.join(", ")),
            KeepRule::Count(period, _) => write!(f, "{oldest}{} snapshot", period.name()),
            KeepRule::Within(Period::Last, span) => write!(f, "within {span}"),
            KeepRule::Within(period, span) => write!(f, "{oldest}{} within {span}", period.name()),
        }
    }
}

/// What a rule needs to know of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dated<'a> {
    pub(super) time: Timestamp,
    pub(super) tags: &'a [String],
}

/// The clock and the calendar of a run.
#[derive(Clone, Copy)]
pub(super) struct Clock<'a> {
    /// The time of the run.
    pub(super) now: Timestamp,
    /// Local time.
    pub(super) zone: &'a Zone<'a>,
}

/// Applies the rules to the snapshots of a group, newest first. Returns all reasons for each snapshot; none means that no
/// rule keeps it.
///
/// This is restic's `ApplyPolicy`: a period keeps its newest snapshot, and each rule that has counts left at the oldest
/// snapshot keeps that one too.
pub(super) fn apply(rules: &KeepRules, newest_first: &[Dated<'_>], clock: Clock<'_>) -> Vec<Vec<Reason>> {
    // A snapshot from the future does not shorten the time that the others are kept for.
    let latest = match rules.within_from {
        WithinFrom::Newest => newest_first.iter().map(|dated| dated.time).find(|time| *time < clock.now),
        WithinFrom::Now => Some(clock.now),
    };
    let mut counters: Vec<_> = rules.rules.iter().map(|rule| Counter::new(rule, latest, clock.zone)).collect();
    let oldest = newest_first.len().saturating_sub(1);
    let reasons = newest_first.iter().enumerate().map(|(number, dated)| {
        let kept = counters.iter_mut().filter_map(|counter| {
            let is_oldest = counter.keeps(dated, number, number == oldest, clock.zone)?;
            Some(Reason { rule: counter.rule.clone(), is_oldest })
        });
        kept.collect()
    });
    reasons.collect()
}

/// A rule on its way from the newest snapshot to the oldest.
struct Counter<'a> {
    rule: &'a KeepRule,
    /// Periods that it may still keep a snapshot of; without a number, all.
    left: Option<u32>,
    /// Only later snapshots count.
    after: Option<Timestamp>,
    /// Period of the snapshot that it kept last.
    period: Option<i64>,
}

impl<'a> Counter<'a> {
    fn new(rule: &'a KeepRule, latest: Option<Timestamp>, zone: &Zone<'_>) -> Self {
        let (left, after) = match rule {
            KeepRule::Count(_, Limit::Newest(count)) => (Some(*count), None),
            KeepRule::Within(_, span) => (None, latest.map(|latest| span.before(latest, zone))),
            KeepRule::Count(_, Limit::Unlimited) | KeepRule::Tags(_) => (None, None),
        };
        Self { rule, left, after, period: None }
    }

    /// Returns whether it keeps a snapshot only as the oldest; `None` if it does not keep it.
    fn keeps(&mut self, dated: &Dated<'_>, number: usize, is_oldest: bool, zone: &Zone<'_>) -> Option<bool> {
        let period = match self.rule {
            KeepRule::Tags(tags) => return has_tags(dated.tags, tags).then_some(false),
            KeepRule::Count(period, _) | KeepRule::Within(period, _) => period.number(dated.time, number, zone),
        };
        let is_new = self.period != Some(period);
        let is_too_old = self.after.is_some_and(|after| dated.time <= after);
        if self.left == Some(0) || is_too_old || !(is_new || is_oldest) {
            return None;
        }
        self.period = Some(period);
        self.left = self.left.map(|left| left - 1);
        Some(!is_new)
    }
}

/// Returns true if a snapshot has all of the tags.
fn has_tags(own: &[String], wanted: &[String]) -> bool {
    for tag in wanted {
        if tag.is_empty() && own.is_empty() {
            return true;
        }
        if !own.contains(tag) {
            return false;
        }
    }
    true
}
