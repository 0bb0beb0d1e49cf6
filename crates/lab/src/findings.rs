//! What an experiment found, in a form that can be printed, written as JSON and CSV, and plotted.
//!
//! Experiments make [`Findings`]; the report draws them. The JSON of one is what serde makes of it.

use serde::{Deserialize, Deserializer, Serialize};

/// What one experiment found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The experiment's name, as on the command line.
    pub experiment: String,
    /// What it is about, in a line.
    pub title: String,
    /// What it reproduces: paper, table or figure; or that it is new.
    pub source: String,
    /// The command that makes it again.
    pub command: String,
    /// Version of the program, machine, and when.
    pub origin: Origin,
    /// What a reader must know to read the numbers: sizes, streams, devices, what is measured and what modelled.
    pub notes: Vec<String>,
    /// The numbers.
    pub tables: Vec<Table>,
    /// The same to look at.
    pub plots: Vec<Plot>,
    /// What the paper says, what was found, whether the shape holds.
    pub claims: Vec<Claim>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Where and when something was found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Version of the program.
    pub version: String,
    /// Processor, as the kernel calls it.
    pub processor: String,
    /// Processors that can be used.
    pub processors: usize,
    /// Memory in bytes; 0 where the kernel does not say.
    pub memory: u64,
    /// Kernel.
    pub kernel: String,
    /// Time in UTC, as in RFC 3339.
    pub time: String,
}

/// Rows of numbers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Titles of the columns, with their units.
    pub columns: Vec<String>,
    /// As many cells as columns each.
    pub rows: Vec<Vec<Cell>>,
}

/// A place in a table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// How many.
    Count(u64),
    /// How much; printed with so many digits as make sense.
    Number(f64),
    /// A name.
    Text(String),
    /// Nothing was measured here.
    Empty(()),
}

impl Cell {
    /// Makes a cell of what may not have been measured; a count is whole and not negative.
    pub fn of(value: Option<f64>, is_count: bool) -> Self {
        match value {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as its documentation says")]
            Some(value) if is_count => Self::Count(value as u64),
            Some(value) => Self::Number(value),
            None => Self::Empty(()),
        }
    }
}

/// Series of points in one frame.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From below.
    pub y: Axis,
    /// How points are drawn.
    pub kind: PlotKind,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// How a plot is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlotKind {
    /// Points joined by lines; `x` of a point is a number.
    Lines,
    /// Bars beside each other; `x` of a point is the place of a name in [`Axis::names`].
    Bars,
    /// Bars on each other.
    StackedBars,
}

/// An axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// What it measures, with its unit.
    pub title: String,
    /// Whether equal distances are equal ratios.
    pub is_logarithmic: bool,
    /// Names of places 0, 1, ... where they are names and not numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// One line, or bars of one color.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Whether it is a paper's and not ours.
    pub is_published: bool,
    /// Points, from left to right. A number that is not finite is null in JSON, which is read as [`f64::NAN`].
    #[serde(deserialize_with = "points_or_null")]
    pub points: Vec<(f64, f64)>,
}

/// Something that a paper says, beside what was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// What is compared.
    pub what: String,
    /// What the paper states; empty for an experiment of ours.
    pub published: String,
    /// What was found.
    pub found: String,
    /// Whether the shape holds: who wins, about how much, where it turns.
    pub holds: bool,
    /// Why not, if it does not and that is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remark: String,
}

fn points_or_null<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let points: Vec<(Option<f64>, Option<f64>)> = Deserialize::deserialize(input)?;
    Ok(points.into_iter().map(|(x, y)| (x.unwrap_or(f64::NAN), y.unwrap_or(f64::NAN))).collect())
}
