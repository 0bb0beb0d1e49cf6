//! Rules that keep moments, as options and the file of a group have them.

use anyhow::{Context, Result};
use onefold_cdp::retention::KeepMoments;
use serde::{Deserialize, Serialize};

use crate::args::cdp::KeepMomentsArgs;
use crate::text;

/// The rules of a group. Durations are as options have them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct KeepFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    writes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minutes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hours: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    days: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    marks: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pins: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
}

impl KeepFile {
    /// Takes the options of a command line; `None` if there are none.
    pub(super) fn of(args: &KeepMomentsArgs) -> Option<Self> {
        let KeepMomentsArgs { keep_writes, keep_minutes, keep_hours, keep_days, keep_marks, pin, keep_tag } = args;
        let keep = Self {
            writes: keep_writes.clone(),
            minutes: keep_minutes.clone(),
            hours: keep_hours.clone(),
            days: keep_days.clone(),
            marks: keep_marks.clone(),
            pins: pin.clone(),
            tags: keep_tag.clone(),
        };
        (keep != Self::default()).then_some(keep)
    }

    /// Returns these rules, with others where these have none, and the pins and tags of both.
    pub(super) fn or(self, other: Self) -> Self {
        let pins = self.pins.into_iter().chain(other.pins).collect();
        let tags = self.tags.into_iter().chain(other.tags).collect();
        let has_ages = self.writes.is_some() || self.minutes.is_some() || self.hours.is_some() || self.days.is_some();
        let marks = self.marks.or(other.marks);
        if has_ages {
            return Self { marks, pins, tags, ..self };
        }
        let Self { writes, minutes, hours, days, .. } = other;
        Self { writes, minutes, hours, days, marks, pins, tags }
    }

    /// Returns the rules. Fails if none of them keeps anything by its age.
    pub(super) fn rules(&self) -> Result<KeepMoments> {
        let duration = |name: &'static str, value: &Option<String>| {
            value.as_ref().map(|text| text::parse_duration(text).context(name)).transpose()
        };
        let rules = KeepMoments {
            writes: duration("--keep-writes", &self.writes)?.unwrap_or_default(),
            minutes: duration("--keep-minutes", &self.minutes)?.unwrap_or_default(),
            hours: duration("--keep-hours", &self.hours)?.unwrap_or_default(),
            days: duration("--keep-days", &self.days)?.unwrap_or_default(),
            marks: duration("--keep-marks", &self.marks)?,
            pins: self.pins.clone(),
            tags: self.tags.clone(),
        };
        anyhow::ensure!(
            !rules.is_empty(),
            "no rule keeps anything by its age: give --keep-writes, --keep-minutes, --keep-hours or --keep-days"
        );
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_the_command_line_go_before_those_of_the_group() {
        let text = r#"{"writes": "1h", "days": "90d", "pins": ["release"], "marks": "7d"}"#;
        let group: KeepFile = serde_json::from_str(text).unwrap();
        let typed = KeepFile { hours: Some("7d".into()), pins: vec!["audit".into()], ..KeepFile::default() };
        let rules = typed.or(group.clone()).rules().unwrap();
        assert!(rules.days.is_zero() && rules.writes.is_zero());
        assert_eq!((rules.hours.as_secs(), rules.marks.unwrap().as_secs()), (604_800, 604_800));
        assert_eq!(rules.pins, ["audit", "release"]);
        let pinned = KeepFile { pins: vec!["audit".into()], ..KeepFile::default() };
        assert_eq!(pinned.clone().or(group).rules().unwrap().days.as_secs(), 90 * 86_400);
        assert!(pinned.rules().unwrap_err().to_string().contains("no rule keeps anything by its age"));
        let wrong = KeepFile { days: Some("soon".into()), ..KeepFile::default() };
        assert!(format!("{:#}", wrong.rules().unwrap_err()).contains("--keep-days: \"soon\": not a duration"));
    }
}
