//! Messages of the laboratory's commands that run something.

use onefold_lab::findings::Findings;
use onefold_lab::point::dimension::text_of;
use onefold_lab::point::preset::Preset;
use serde::Serialize;

/// `lab run`, `lab paper`: what was found, of one experiment.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "findings")]
pub(crate) struct Found<'a> {
    #[serde(flatten)]
    findings: &'a Findings,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_rss_bytes: Option<u64>,
}

impl<'a> Found<'a> {
    /// Reports findings, and the peak memory of the process so far.
    pub(crate) fn of(findings: &'a Findings, peak_rss_bytes: Option<u64>) -> Self {
        Self { findings, peak_rss_bytes }
    }
}

/// `lab presets`: one of them.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "preset")]
pub(crate) struct PresetListed<'a> {
    name: &'a str,
    about: &'a str,
    source: &'a str,
    dimensions: std::collections::BTreeMap<&'a str, String>,
}

impl<'a> From<&'a Preset> for PresetListed<'a> {
    fn from(preset: &'a Preset) -> Self {
        let Preset { name, about, source, dimensions } = preset;
        let dimensions = dimensions.iter().map(|(name, value)| (&**name, text_of(value))).collect();
        Self { name, about, source, dimensions }
    }
}
