//! Specification of an experiment with points of the parameter space.
//!
//! An experiment runs points on data sets and devices, and may vary one dimension. It names the measures for
//! tables and plots, the values that a paper states, and the claims. All names are checked when it is read.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::experiment::stages::spec::StageSpec;
use crate::experiment::verdict::TOLERANCE;
use crate::files::from_toml;
use crate::findings::PlotKind;
use crate::measure::{MEASURES, Measure};
use crate::point::dimension::unknown;

/// An experiment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spec {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The paper and figure that it reproduces, or "new".
    pub source: String,
    /// Notes for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Size by default, and with `--quick`.
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
    /// Varied dimension.
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
    /// Values stated by the paper.
    #[serde(default)]
    pub published: Vec<Published>,
    /// Stages of a backup around identification, which are measured by themselves.
    pub stages: Option<StageSpec>,
    /// Other streams with which one comparison is repeated.
    pub sensitivity: Option<Sensitivity>,
    /// Claims.
    #[serde(default)]
    pub claims: Vec<ClaimSpec>,
}

fn yes() -> bool {
    true
}

/// Sizes of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sizes {
    /// Chunks of a stream at most, with `--quick`.
    pub quick_chunks: u64,
    /// Most chunks of a stream by default.
    pub chunks: u64,
}

/// A point of an experiment.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PointSpec {
    /// Name within the experiment.
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

/// Varied dimension.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vary {
    /// Title of the axis.
    pub title: String,
    /// A dimension of points, or `device.` and a field of devices.
    pub dimension: String,
    /// Its values.
    pub values: Vec<String>,
    /// The same as numbers for an axis.
    pub numbers: Vec<f64>,
    /// Further dimensions that are set for each value.
    #[serde(default)]
    pub with: Vec<Vec<String>>,
}

/// A table with a row for each run.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TableSpec {
    /// Title.
    pub title: String,
    /// Points; all if none is named.
    #[serde(default)]
    pub points: Vec<String>,
    /// Devices; all if none is named.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Measures of each run.
    pub measures: Vec<String>,
}

/// A table of ratios.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RatioSpec {
    /// Title.
    pub title: String,
    /// Of what.
    pub measure: String,
    /// The point above the line.
    pub of: String,
    /// The point below it.
    pub to: String,
}

/// A comparison that is repeated with other streams.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sensitivity {
    /// Title of the table.
    pub title: String,
    /// Field of the data set.
    pub field: String,
    /// Its values.
    pub values: Vec<String>,
    /// Measure.
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
    /// Title.
    pub title: String,
    /// How it is drawn. Bars: data sets from left to right and a series for each point, or with several measures a
    /// bar for each data set and point, of which they are the parts. Lines: what is varied from left to right, or with
    /// `over-data` what has been read so far, and a series for each point; a plot for each data set.
    pub kind: PlotKind,
    /// Measures drawn.
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
    /// Whether the axis of the varied dimension is logarithmic.
    #[serde(default)]
    pub varies_logarithmically: bool,
    /// Whether the intervals of runs are drawn.
    #[serde(default)]
    pub over_data: bool,
    /// Draws multiples of this point's value with the same data set and device, here and in the paper: runs that are shorter than
    /// the paper's can be compared. Stacked bars are multiples of its `seconds`.
    pub relative_to: Option<String>,
    /// Unit of stacked bars, if it is not seconds.
    pub unit: Option<String>,
    /// The value of the varied dimension at which that point counts; by default, each value for itself.
    pub relative_at: Option<String>,
}

/// Value that a paper states for a run.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Published {
    /// The data set.
    pub data_set: String,
    /// The point.
    pub point: String,
    /// The device, if there are several.
    pub device: Option<String>,
    /// The value of the varied dimension, if any.
    pub value: Option<String>,
    /// Value stated.
    pub measures: BTreeMap<String, f64>,
    /// Whether the paper states multiples only, and no value.
    #[serde(default)]
    pub is_relative: bool,
}

/// A claim.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClaimSpec {
    /// Measure compared.
    pub what: String,
    /// Of what.
    pub measure: String,
    /// Comparison.
    #[serde(flatten)]
    pub kind: ClaimKind,
    /// For which data sets; all if none is named.
    #[serde(default)]
    pub data_sets: Vec<String>,
    /// For which devices; all if none is named.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Values of the varied dimension that it covers; all if none is named.
    #[serde(default)]
    pub values: Vec<String>,
    /// Why the number differs, if it does and that is known.
    #[serde(default)]
    pub remark: String,
    /// Statement of the paper if it prints no number, or a note that the claim is ours.
    pub qualitative: Option<String>,
    /// Factor by which the number may differ from the paper's.
    pub tolerance: Option<f64>,
    /// Requirements on a run, without which the effect cannot be seen.
    pub requires: Option<Requirement>,
}

impl ClaimSpec {
    /// Returns the factor by which the number may differ.
    pub fn tolerance(&self) -> f64 {
        self.tolerance.unwrap_or(TOLERANCE)
    }
}

/// A number without which an effect cannot be seen.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Requirement {
    /// The point.
    pub point: String,
    /// Its measure.
    pub measure: String,
    /// The value of the varied dimension, if any.
    pub value: Option<String>,
    /// Least number.
    pub at_least: f64,
    /// The scale at which it would be reached, in words.
    pub scale: String,
}

/// Kind of comparison.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum ClaimKind {
    /// One point has a multiple of another's value.
    Ratio(RatioClaim),
    /// A point has the number that the paper prints.
    Value {
        /// The point.
        point: String,
    },
    /// The minimum of a point lies at the value that the paper states, or its value there is within a factor of two.
    Least {
        /// The point.
        point: String,
        /// The value of the varied dimension.
        at: f64,
    },
    /// With growing values, a point overtakes another and stays ahead; the result names the value.
    Crossing {
        /// The point that has more in the end.
        of: String,
        /// The other.
        to: String,
        /// The value that the paper prints.
        stated: Option<f64>,
    },
}

/// Comparison of two points.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RatioClaim {
    /// The point above the line.
    pub of: String,
    /// The point below it.
    pub to: String,
    /// Minimum where the paper prints no number; by default, any ratio above 1.
    pub at_least: Option<f64>,
    /// The ratio, where the paper states no more than that,
    pub stated: Option<f64>,
    /// or the largest, where it states a range.
    pub stated_to: Option<f64>,
    /// The value of the varied dimension above the line, if not the same one as below,
    pub of_value: Option<String>,
    /// and the one below.
    pub to_value: Option<String>,
}

impl Spec {
    /// Reads one, and checks all names in it.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut spec: Self = from_toml(text)?;
        name.clone_into(&mut spec.name);
        spec.check()?;
        Ok(spec)
    }

    /// Returns the index of a point.
    pub fn point(&self, name: &str) -> Result<usize> {
        let index = self.points.iter().position(|point| point.name == name);
        index.ok_or_else(|| unknown("point", name, self.points.iter().map(|point| &*point.name)))
    }

    fn check(&self) -> Result<()> {
        let data_set = |name: &String| is_among("data set", name, &self.data_sets);
        let device = |name: &String| is_among("device", name, &self.devices);
        let value = |value: &String| self.check_value(value);
        let point = |name: &String| self.point(name).map(drop);
        let measure = |name: &String| measure(name).map(drop);
        for table in &self.tables {
            table.points.iter().try_for_each(point)?;
            table.devices.iter().try_for_each(device)?;
            table.measures.iter().try_for_each(measure)?;
        }
        for plot in &self.plots {
            plot.points.iter().try_for_each(point)?;
            plot.devices.iter().try_for_each(device)?;
            plot.measures.iter().try_for_each(measure)?;
            let lines = plot.kind == PlotKind::Lines;
            ensure!(!plot.over_data || lines, "{}: only lines are drawn over data", plot.title);
            ensure!(!lines || plot.over_data || self.vary.is_some(), "{}: nothing is varied", plot.title);
            ensure!(!lines || plot.measures.len() == 1, "{}: lines show one measure", plot.title);
            plot.relative_to.iter().try_for_each(point)?;
            plot.relative_at.iter().try_for_each(value)?;
            ensure!(!plot.over_data || plot.relative_to.is_none(), "{}: intervals are not relative", plot.title);
        }
        if let Some(Sensitivity { measure: name, of, to, .. }) = &self.sensitivity {
            [of, to].into_iter().try_for_each(point)?;
            measure(name)?;
            ensure!(self.vary.is_none(), "sensitivity: another dimension is varied");
        }
        for ratio in &self.ratios {
            [&ratio.of, &ratio.to].into_iter().try_for_each(point)?;
            measure(&ratio.measure)?;
        }
        for published in &self.published {
            data_set(&published.data_set)?;
            point(&published.point)?;
            published.device.iter().try_for_each(device)?;
            published.measures.keys().try_for_each(measure)?;
            published.value.iter().try_for_each(value)?;
        }
        self.check_claims()?;
        if let Some(stages) = &self.stages {
            let points: Vec<_> = self.points.iter().map(|point| &*point.name).collect();
            stages.check(&points, &self.data_sets)?;
            ensure!(self.vary.is_none() && self.devices.len() == 1, "stages: of one device, and nothing is varied");
        }
        if let Some(vary) = &self.vary {
            let (values, with) = (vary.values.len(), vary.with.len());
            ensure!(values == vary.numbers.len(), "vary: as many numbers as values");
            ensure!(with == 0 || with == values, "vary: as many sets in `with` as values, or none");
        }
        Ok(())
    }

    fn check_claims(&self) -> Result<()> {
        let data_set = |name: &String| is_among("data set", name, &self.data_sets);
        let device = |name: &String| is_among("device", name, &self.devices);
        let value = |value: &String| self.check_value(value);
        let point = |name: &String| self.point(name).map(drop);
        for claim in &self.claims {
            measure(&claim.measure)?;
            claim.data_sets.iter().try_for_each(data_set)?;
            claim.devices.iter().try_for_each(device)?;
            claim.values.iter().try_for_each(value)?;
            ensure!(claim.tolerance.is_none_or(|factor| 1.0 <= factor), "{}: a tolerance is a factor", claim.what);
            if let Some(requires) = &claim.requires {
                point(&requires.point)?;
                measure(&requires.measure)?;
                requires.value.iter().try_for_each(value)?;
            }
            match &claim.kind {
                ClaimKind::Ratio(RatioClaim { of, to, of_value, to_value, .. }) => {
                    [of, to].into_iter().try_for_each(point)?;
                    of_value.iter().chain(to_value).try_for_each(value)?;
                    ensure!(of_value.is_some() == to_value.is_some(), "{}: a value above and below", claim.what);
                    continue;
                }
                ClaimKind::Value { point: name } => {
                    point(name)?;
                    continue;
                }
                ClaimKind::Least { point: name, .. } => point(name)?,
                ClaimKind::Crossing { of, to, .. } => [of, to].into_iter().try_for_each(point)?,
            }
            ensure!(self.vary.is_some(), "{}: nothing is varied", claim.what);
            ensure!(claim.values.is_empty(), "{}: is about all values", claim.what);
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

/// Returns true if a list contains a name; an empty list contains all.
pub(super) fn names(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|other| other == name)
}
