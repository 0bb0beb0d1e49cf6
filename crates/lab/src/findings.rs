//! Findings of an experiment, in a form that can be printed, written as JSON and CSV, and plotted.
//!
//! Experiments make [`Findings`]; the report draws them. The JSON of one is what serde makes of it.

use serde::{Deserialize, Deserializer, Serialize};

/// Findings of one experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// The experiment's name, as on the command line.
    pub experiment: String,
    /// One-line description.
    pub title: String,
    /// Paper and table or figure that it reproduces, or "new".
    pub source: String,
    /// The command that makes it again.
    pub command: String,
    /// Version of the program, machine, and when.
    pub origin: Origin,
    /// Notes for readers of the numbers: sizes, streams, devices, measured or modeled.
    pub notes: Vec<String>,
    /// The numbers.
    pub tables: Vec<Table>,
    /// The same to look at.
    pub plots: Vec<Plot>,
    /// Numbers of which the color shows the size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heat_maps: Vec<HeatMap>,
    /// Claims: the paper's statement, the finding, and the outcome.
    pub claims: Vec<Claim>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Machine, program and date of findings.
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
    /// Title.
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
    /// Count.
    Count(u64),
    /// Amount; printed with a sensible number of digits.
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
    /// Title.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From below.
    pub y: Axis,
    /// Style of points.
    pub kind: PlotKind,
    /// Series.
    pub series: Vec<Series>,
}

/// Style of a plot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlotKind {
    /// Points joined by lines; `x` of a point is a number.
    Lines,
    /// Bars next to each other; `x` of a point is the index of a name in [`Axis::names`].
    Bars,
    /// Bars on each other.
    StackedBars,
}

/// An axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// Measure, with its unit.
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
    /// Name.
    pub name: String,
    /// Whether it is a paper's and not ours.
    pub is_published: bool,
    /// Points, from left to right. A number that is not finite is null in JSON, which is read as [`f64::NAN`].
    #[serde(deserialize_with = "points_or_null")]
    pub points: Vec<(f64, f64)>,
}

/// Numbers in rows and columns, colored by their logarithm.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Measure of all numbers, with its unit.
    pub measure: String,
    /// Titles of the columns.
    pub columns: Vec<String>,
    /// Rows, from above.
    pub rows: Vec<HeatRow>,
}

/// A row of a heat map.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HeatRow {
    /// Name.
    pub name: String,
    /// As many positive numbers as columns; none where nothing was measured.
    pub values: Vec<Option<f64>>,
}

/// A statement of a paper, compared with the finding.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "ReadClaim")]
pub struct Claim {
    /// Subject of the comparison.
    pub what: String,
    /// The paper's number and the tolerance, or what a paper without a number says.
    pub published: String,
    /// Finding.
    pub found: String,
    /// Outcome.
    pub verdict: Verdict,
    /// Whether repetitions disagree about the outcome.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_flip: bool,
    /// Remark: what a number was fitted to, why it differs, what size would show it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remark: String,
}

/// Outcome of a claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The paper's number was found, within the tolerance.
    Reproduced,
    /// Another number was found.
    NotReproduced,
    /// No number is printed, and what is said of it holds.
    Holds,
    /// No number is printed, and what is said of it does not hold.
    DoesNotHold,
    /// The number was found, and the data were fitted to it.
    ByConstruction,
    /// The runs are too small to show the effect.
    CannotBeShown,
}

impl Verdict {
    /// All outcomes, in the order in which they are counted.
    pub const ALL: [Self; 6] = [
        Self::Reproduced,
        Self::NotReproduced,
        Self::Holds,
        Self::DoesNotHold,
        Self::ByConstruction,
        Self::CannotBeShown,
    ];

    /// Returns it in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Holds => "holds qualitatively",
            Self::DoesNotHold => "does not hold",
            Self::ByConstruction => "by construction",
            Self::CannotBeShown => "cannot be shown at this scale",
        }
    }
}

/// A claim as it is read: files of version 0.1.0 have `holds` instead of a verdict.
#[derive(Deserialize)]
struct ReadClaim {
    what: String,
    published: String,
    found: String,
    #[serde(flatten)]
    outcome: ReadOutcome,
    #[serde(default)]
    can_flip: bool,
    #[serde(default)]
    remark: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "missing field `verdict`")]
enum ReadOutcome {
    Verdict { verdict: Verdict },
    Holds { holds: bool },
}

impl From<ReadClaim> for Claim {
    fn from(read: ReadClaim) -> Self {
        let verdict = match read.outcome {
            ReadOutcome::Verdict { verdict } => verdict,
            ReadOutcome::Holds { holds: true } => Verdict::Holds,
            ReadOutcome::Holds { holds: false } => Verdict::DoesNotHold,
        };
        let ReadClaim { what, published, found, can_flip, remark, .. } = read;
        Self { what, published, found, verdict, can_flip, remark }
    }
}

fn points_or_null<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let points: Vec<(Option<f64>, Option<f64>)> = Deserialize::deserialize(input)?;
    Ok(points.into_iter().map(|(x, y)| (x.unwrap_or(f64::NAN), y.unwrap_or(f64::NAN))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_of_version_0_1_0_has_held_or_not_and_one_without_an_outcome_is_refused() {
        let read = |outcome: &str| {
            serde_json::from_str::<Claim>(&format!(r#"{{"what": "w", "published": "2", "found": "1.9"{outcome}}}"#))
        };
        let verdict = |outcome: &str| read(outcome).unwrap().verdict;
        assert_eq!(verdict(r#", "holds": true"#), Verdict::Holds);
        assert_eq!(verdict(r#", "holds": false"#), Verdict::DoesNotHold);
        for wanted in Verdict::ALL {
            let name = serde_json::to_string(&wanted).unwrap();
            assert_eq!(verdict(&format!(r#", "verdict": {name}, "can_flip": true"#)), wanted);
        }
        let claim = read(r#", "verdict": "by-construction""#).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&serde_json::to_string(&claim).unwrap()).unwrap(), claim);
        assert!(read("").unwrap_err().to_string().contains("verdict"));
        assert!(read(r#", "verdict": "fine""#).is_err());
    }
}
