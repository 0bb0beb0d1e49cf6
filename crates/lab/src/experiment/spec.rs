//! What an experiment with points of the parameter space is.
//!
//! An experiment runs points on data sets and devices, one dimension varied perhaps, and says which measures go into which
//! tables and plots, what a paper states of them, and what is claimed. All names are checked when it is read.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use toml::Table;

use crate::files::from_toml;
use crate::findings::PlotKind;
use crate::measure::{MEASURES, Measure};
use crate::point::dimension::unknown;

/// An experiment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spec {
    /// What it is called.
    #[serde(skip)]
    pub name: String,
    /// What it is about, in a line.
    pub title: String,
    /// What it reproduces, or that it is new.
    pub source: String,
    /// What a reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// How large it is run when nothing is said, and with `--quick`.
    pub size: Sizes,
    /// Whether the memory of a point shrinks with the data.
    #[serde(default = "yes")]
    pub scales_memory: bool,
    /// Streams.
    pub data_sets: Vec<String>,
    /// Devices.
    pub devices: Vec<String>,
    /// Ways of finding duplicates.
    pub points: Vec<PointSpec>,
    /// What is varied.
    pub vary: Option<Vary>,
    /// Tables with a row for each run.
    #[serde(default)]
    pub tables: Vec<TableSpec>,
    /// Tables of how much one point has of something for each of another's.
    #[serde(default)]
    pub ratios: Vec<RatioSpec>,
    /// Plots.
    #[serde(default)]
    pub plots: Vec<PlotSpec>,
    /// What the paper states.
    #[serde(default)]
    pub published: Vec<Published>,
    /// What is claimed.
    #[serde(default)]
    pub claims: Vec<ClaimSpec>,
}

fn yes() -> bool {
    true
}

/// How large an experiment is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sizes {
    /// Chunks of a stream at most, with `--quick`.
    pub quick_chunks: u64,
    /// Chunks of a stream at most, if nothing is said.
    pub chunks: u64,
}

/// A point of an experiment.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PointSpec {
    /// What the experiment calls it.
    pub name: String,
    /// The preset.
    pub preset: String,
    /// Dimensions that differ from it.
    #[serde(default)]
    pub set: Vec<String>,
    /// Devices that it is run on; all if none is named.
    #[serde(default)]
    pub devices: Vec<String>,
}

/// What is varied.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vary {
    /// What the axis is titled.
    pub title: String,
    /// A dimension of points, or `device.` and a field of devices.
    pub dimension: String,
    /// Its values.
    pub values: Vec<String>,
    /// The same as numbers for an axis.
    pub numbers: Vec<f64>,
    /// Dimensions that are set beside it, for each value.
    #[serde(default)]
    pub with: Vec<Vec<String>>,
}

/// A table with a row for each run.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TableSpec {
    /// What it shows.
    pub title: String,
    /// Points; all if none is named.
    #[serde(default)]
    pub points: Vec<String>,
    /// Devices; all if none is named.
    #[serde(default)]
    pub devices: Vec<String>,
    /// What is told of each run.
    pub measures: Vec<String>,
}

/// A table of ratios.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RatioSpec {
    /// What it shows.
    pub title: String,
    /// Of what.
    pub measure: String,
    /// The point above the line.
    pub of: String,
    /// The point below it.
    pub to: String,
}

/// A plot.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlotSpec {
    /// What it shows.
    pub title: String,
    /// How it is drawn. Bars: data sets from left to right and a series for each point, or with several measures a
    /// bar for each data set and point, of which they are the parts. Lines: what is varied from left to right, or with
    /// `over-data` what has been read so far, and a series for each point; a plot for each data set.
    pub kind: PlotKind,
    /// What is drawn.
    pub measures: Vec<String>,
    /// Points; all if none is named.
    #[serde(default)]
    pub points: Vec<String>,
    /// Devices; all if none is named.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Whether the axis from below is logarithmic.
    #[serde(default)]
    pub is_logarithmic: bool,
    /// Whether what is varied has a logarithmic axis.
    #[serde(default)]
    pub varies_logarithmically: bool,
    /// Whether the stretches of runs are drawn.
    #[serde(default)]
    pub over_data: bool,
}

/// What a paper states of a run.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Published {
    /// The data set.
    pub data_set: String,
    /// The point.
    pub point: String,
    /// The device, if there are several.
    pub device: Option<String>,
    /// The value of what is varied, if anything is.
    pub value: Option<String>,
    /// What is stated.
    pub measures: BTreeMap<String, f64>,
}

/// What is claimed.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClaimSpec {
    /// What is compared.
    pub what: String,
    /// Of what.
    pub measure: String,
    /// How.
    #[serde(flatten)]
    pub kind: ClaimKind,
    /// For which data sets; all if none is named.
    #[serde(default)]
    pub data_sets: Vec<String>,
    /// For which devices; all if none is named.
    #[serde(default)]
    pub devices: Vec<String>,
    /// For which values of what is varied; all if none is named.
    #[serde(default)]
    pub values: Vec<String>,
    /// Why a ratio falls short, if it does and that is known.
    #[serde(default)]
    pub remark: String,
}

/// How things are compared.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum ClaimKind {
    /// One point has so many times as much as another.
    #[serde(rename_all = "kebab-case")]
    Ratio {
        /// The point above the line.
        of: String,
        /// The point below it.
        to: String,
        /// At least so much; if nothing is said, more than 1.
        at_least: Option<f64>,
        /// The ratio, where the paper states no more than that.
        stated: Option<f64>,
        /// At least this share of what the paper states, and more than 1 where the paper has more: 1 for as much, less where
        /// the shape is what counts.
        of_published: Option<f64>,
    },
    /// A point has least of it where the paper says, or within a factor of two of there.
    Least {
        /// The point.
        point: String,
        /// The value of what is varied.
        at: f64,
    },
    /// A point, with growing values, comes to have more than another, and has more in the end; told is where.
    Crossing {
        /// The point that has more in the end.
        of: String,
        /// The other.
        to: String,
    },
}

impl Spec {
    /// Reads one, and checks all names in it.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut spec: Self = from_toml(text)?;
        name.clone_into(&mut spec.name);
        check_claims(&from_toml(text)?)?;
        spec.check()?;
        Ok(spec)
    }

    /// Returns the place of a point.
    pub fn point(&self, name: &str) -> Result<usize> {
        let index = self.points.iter().position(|point| point.name == name);
        index.ok_or_else(|| unknown("point", name, self.points.iter().map(|point| &*point.name)))
    }

    fn check(&self) -> Result<()> {
        let data_set = |name: &String| is_among("data set", name, &self.data_sets);
        let device = |name: &String| is_among("device", name, &self.devices);
        let points = |names: &[String]| names.iter().try_for_each(|name| self.point(name).map(drop));
        let measures = |names: &[String]| names.iter().try_for_each(|name| measure(name).map(drop));
        for table in &self.tables {
            points(&table.points)?;
            table.devices.iter().try_for_each(device)?;
            measures(&table.measures)?;
        }
        for plot in &self.plots {
            points(&plot.points)?;
            plot.devices.iter().try_for_each(device)?;
            measures(&plot.measures)?;
            let lines = plot.kind == PlotKind::Lines;
            ensure!(!plot.over_data || lines, "{}: only lines are drawn over data", plot.title);
            ensure!(!lines || plot.over_data || self.vary.is_some(), "{}: nothing is varied", plot.title);
            ensure!(!lines || plot.measures.len() == 1, "{}: lines show one measure", plot.title);
        }
        for ratio in &self.ratios {
            points(&[ratio.of.clone(), ratio.to.clone()])?;
            measure(&ratio.measure)?;
        }
        for published in &self.published {
            data_set(&published.data_set)?;
            self.point(&published.point)?;
            published.device.iter().try_for_each(device)?;
            published.measures.keys().try_for_each(|name| measure(name).map(drop))?;
            published.value.iter().try_for_each(|value| self.check_value(value))?;
        }
        for claim in &self.claims {
            measure(&claim.measure)?;
            claim.data_sets.iter().try_for_each(data_set)?;
            claim.devices.iter().try_for_each(device)?;
            claim.values.iter().try_for_each(|value| self.check_value(value))?;
            match &claim.kind {
                ClaimKind::Ratio { of, to, .. } | ClaimKind::Crossing { of, to } => {
                    points(&[of.clone(), to.clone()])?;
                }
                ClaimKind::Least { point, .. } => points(std::slice::from_ref(point))?,
            }
            match &claim.kind {
                ClaimKind::Ratio { stated, of_published, .. } => {
                    let is_stated = stated.is_some() || !self.published.is_empty();
                    ensure!(of_published.is_none() || is_stated, "{}: the paper states nothing", claim.what);
                }
                ClaimKind::Least { .. } | ClaimKind::Crossing { .. } => {
                    ensure!(self.vary.is_some(), "{}: nothing is varied", claim.what);
                    ensure!(claim.values.is_empty(), "{}: is about all values", claim.what);
                }
            }
        }
        if let Some(vary) = &self.vary {
            let (values, with) = (vary.values.len(), vary.with.len());
            ensure!(values == vary.numbers.len(), "vary: as many numbers as values");
            ensure!(with == 0 || with == values, "vary: as many sets beside as values, or none");
        }
        Ok(())
    }

    fn check_value(&self, value: &String) -> Result<()> {
        match &self.vary {
            Some(vary) => is_among("value", value, &vary.values),
            None => bail!("{value:?}: nothing is varied"),
        }
    }
}

/// What stands in a claim.
const CLAIM_FIELDS: [&str; 14] = [
    "what",
    "measure",
    "kind",
    "of",
    "to",
    "point",
    "at",
    "at-least",
    "stated",
    "of-published",
    "data-sets",
    "devices",
    "values",
    "remark",
];

/// Refuses fields of claims that do not exist, which is not done where kinds of them have fields of their own.
fn check_claims(file: &Table) -> Result<()> {
    let claims = file.get("claims").and_then(|claims| claims.as_array()).into_iter().flatten();
    for name in claims.filter_map(|claim| claim.as_table()).flat_map(|claim| claim.keys()) {
        if !CLAIM_FIELDS.contains(&&**name) {
            return Err(unknown("field of a claim", name, CLAIM_FIELDS.into_iter()));
        }
    }
    Ok(())
}

fn is_among(kind: &str, name: &String, names: &[String]) -> Result<()> {
    if names.contains(name) {
        return Ok(());
    }
    Err(unknown(kind, name, names.iter().map(|name| &**name)))
}

/// Returns the measure of this name.
pub fn measure(name: &str) -> Result<&'static Measure> {
    Measure::named(name).ok_or_else(|| unknown("measure", name, MEASURES.iter().map(|measure| measure.name)))
}
