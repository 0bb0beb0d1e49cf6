//! Data sets of papers, as streams that are made up: `data-sets/*.toml`.
//!
//! The data themselves are not to be had. How much of them there is and how much of it is duplicate is known; in how long
//! runs and how far back duplicates come is not, and stated in each file.

use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::counts::float;
use crate::experiment::spec::{measure, names};
use crate::files::{Embedded, embedded, from_toml, text_of, text_of_path};
use crate::stream::{Lags, Part, Runs, Stream};

/// A data set.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DataSet {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub about: String,
    /// Source of the numbers.
    pub source: String,
    /// Chunks at full size.
    pub chunks: u64,
    /// Bytes of each.
    pub chunk_size: u32,
    /// Share of duplicates among all chunks.
    duplicates: f64,
    /// Lengths and distances of runs, if all are of one kind.
    runs: Option<Runs>,
    lags: Option<Lags>,
    /// Kinds of runs otherwise.
    #[serde(default)]
    mixture: Vec<Part>,
    /// Numbers of papers that runs and lags were chosen to match. What they are compared with is no result.
    #[serde(default)]
    pub fitted: Vec<Fit>,
}

/// A number of a paper that a data set was fitted to.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fit {
    /// The table, as the paper calls it.
    pub table: String,
    /// Experiments that show the number.
    pub experiments: Vec<String>,
    /// Measures that have the number in them.
    pub measures: Vec<String>,
    /// Points; the number is theirs.
    pub points: Vec<String>,
    /// Values of the varied dimension; all if none is named.
    #[serde(default)]
    pub values: Vec<String>,
}

/// Fewest and most chunks of a data set.
const CHUNKS: RangeInclusive<u64> = 1..=1 << 40;
/// Longest chunks: the bytes of a data set are counted with 64 bits.
const CHUNK_SIZE_MAX: u32 = 8 << 20;
/// Longest runs of duplicates.
const RUN_MAX: u64 = 1_000_000_000;
/// Most kinds of runs.
const PARTS_MAX: usize = 16;

const DATA_SETS: Embedded = embedded!["data-sets": "vm" "src" "fslhomes" "pm-src" "pm-fsl"];

impl DataSet {
    /// Returns the data set of this name, or if it has a slash or ends in `.toml`, the one in that file.
    pub fn named(name: &str) -> Result<Self> {
        if let Some(text) = text_of_path(name) {
            return text.and_then(|text| Self::parse(name, &text)).with_context(|| name.to_owned());
        }
        let text = text_of("data set", name, DATA_SETS)?;
        Self::parse(name, text).with_context(|| format!("data set {name}"))
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let mut set: Self = from_toml(text)?;
        name.clone_into(&mut set.name);
        set.check()?;
        Ok(set)
    }

    fn check(&self) -> Result<()> {
        ensure!((0.0..=1.0).contains(&self.duplicates), "duplicates is a share, 0 to 1, not {}", self.duplicates);
        ensure!(CHUNKS.contains(&self.chunks), "chunks: 1 to {}, not {}", CHUNKS.end(), self.chunks);
        let size = self.chunk_size;
        ensure!((1..=CHUNK_SIZE_MAX).contains(&size), "chunk-size: 1 to {CHUNK_SIZE_MAX} bytes, not {size}");
        match (self.runs, self.lags, self.mixture.len()) {
            (Some(_), Some(_), 0) | (None, None, 1..=PARTS_MAX) => {}
            (None | Some(_), None, 0) | (None, Some(_), 0) => bail!("runs and lags, or a mixture of them"),
            (None, None, _) => bail!("mixture: at most {PARTS_MAX} parts"),
            _ => bail!("runs and lags are those of the parts of a mixture"),
        }
        for Part { share, runs, lags } in self.parts() {
            ensure!((0.0..=1.0).contains(&share) && 0.0 < share, "share: above 0, up to 1, not {share}");
            match runs {
                Runs::Uniform(from, to) => {
                    let is_range = 1 <= from && from <= to && to <= RUN_MAX;
                    ensure!(is_range, "runs: from 1, up to {RUN_MAX}, not {from} to {to}");
                }
                Runs::Geometric(mean) => {
                    ensure!((1.0..=float(RUN_MAX)).contains(&mean), "runs: 1 to {RUN_MAX} on average, not {mean}");
                }
            }
            ensure!(lags != Lags::Recent(0), "lags: from among at least one chunk, not 0");
        }
        self.fitted.iter().flat_map(|fit| &fit.measures).try_for_each(|name| measure(name).map(drop))?;
        Ok(())
    }

    fn parts(&self) -> Vec<Part> {
        match (self.runs, self.lags) {
            (Some(runs), Some(lags)) => vec![Part { share: 1.0, runs, lags }],
            _ => self.mixture.clone(),
        }
    }

    /// Returns the fit by which the number of a point was chosen, if it was.
    pub fn fit(&self, experiment: &str, measure: &str, point: &str, value: Option<&str>) -> Option<&Fit> {
        self.fitted.iter().find(|fit| {
            fit.measures.iter().any(|it| it == measure)
                && fit.experiments.iter().any(|it| it == experiment)
                && fit.points.iter().any(|it| it == point)
                && value.is_none_or(|value| names(&fit.values, value))
        })
    }

    /// Returns one with a field set to another value: the share of duplicates, the mean length of all runs, or all lags. It
    /// is fitted to nothing.
    pub fn varied(mut self, field: &str, value: &str) -> Result<Self> {
        let number = || value.parse::<f64>().with_context(|| format!("data-set.{field}={value}"));
        let mut mixture = self.parts();
        match field {
            "duplicates" => self.duplicates = number()?,
            "runs" => {
                let runs = Runs::Geometric(number()?);
                for part in &mut mixture {
                    part.runs = runs;
                }
            }
            "lags" => {
                let lags = Lags::parse(value)?;
                for part in &mut mixture {
                    part.lags = lags;
                }
            }
            _ => bail!("data-set.{field} is not varied"),
        }
        (self.runs, self.lags, self.mixture) = (None, None, mixture);
        self.fitted.clear();
        self.check()?;
        Ok(self)
    }

    /// Describes its stream.
    pub fn words(&self) -> String {
        let parts = self.parts();
        let all: f64 = parts.iter().map(|part| part.share).sum();
        let words = |part: &Part| {
            let runs = match part.runs {
                Runs::Uniform(from, to) => format!("{from} to {to}"),
                Runs::Geometric(mean) => format!("{mean} on average"),
            };
            let lags = match part.lags {
                Lags::Uniform => "from anywhere before".to_owned(),
                Lags::Recent(chunks) => format!("from among the last {chunks}"),
                Lags::Passes => "in passes through all that was before".to_owned(),
            };
            let share =
                if parts.len() == 1 { String::new() } else { format!("{:.0}% of them ", 100.0 * part.share / all) };
            format!("{share}in runs of {runs}, {lags}")
        };
        let words: Vec<_> = parts.iter().map(words).collect();
        format!("{:.0}% duplicates {}", 100.0 * self.duplicates, words.join("; "))
    }

    /// Says which numbers it was fitted to; nothing if to none.
    pub fn fits(&self) -> Option<String> {
        let mut words: Vec<_> = self.fitted.iter().map(|fit| fit.table.clone()).collect();
        words.dedup();
        (!words.is_empty()).then(|| format!("fitted to {}", words.join("; ")))
    }

    /// Starts its stream.
    pub fn stream(&self, seed: u64) -> Stream {
        Stream::mixed(seed, self.duplicates, &self.parts(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{names_in, names_of, sorted};

    #[test]
    fn all_files_are_known_and_sound() {
        assert_eq!(names_in("data-sets"), sorted(names_of(DATA_SETS)));
        for (name, _) in DATA_SETS {
            assert_eq!(DataSet::named(name).unwrap().name, *name);
        }
        assert!(DataSet::named("vn").unwrap_err().to_string().contains("did you mean \"vm\""));
    }

    #[test]
    fn a_file_that_cannot_be_is_refused_with_its_name_and_the_field() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        let name = path.to_str().unwrap();
        std::fs::write(&path, DATA_SETS[0].1).unwrap();
        assert_eq!(DataSet::named(name).unwrap(), DataSet { name: name.to_owned(), ..DataSet::named("vm").unwrap() });
        let sound = "about = \"x\"\nsource = \"x\"\nchunks = 9\nchunk-size = 4096\nduplicates = 0.5\n\
                     runs = { uniform = [1, 9] }\nlags = { recent = 5 }\n";
        for (from, to, wanted) in [
            ("", "", ""),
            ("= 0.5", "= 3.5", "duplicates is a share, 0 to 1, not 3.5"),
            ("= 0.5", "= nan", "duplicates is a share, 0 to 1, not NaN"),
            ("chunks = 9", "chunks = 0", "chunks: 1 to 1099511627776, not 0"),
            ("4096", "9_000_000", "chunk-size: 1 to 8388608 bytes, not 9000000"),
            ("[1, 9]", "[0, 9]", "runs: from 1, up to 1000000000, not 0 to 9"),
            ("[1, 9]", "[9, 1]", "runs: from 1, up to 1000000000, not 9 to 1"),
            ("uniform = [1, 9]", "geometric = 0.5", "runs: 1 to 1000000000 on average, not 0.5"),
            ("recent = 5", "recent = 0", "lags: from among at least one chunk, not 0"),
            ("lags = { recent = 5 }", "lags = \"never\"", "lags"),
            ("duplicates", "duplicate", "unknown field `duplicate`"),
            ("chunks = 9\n", "", "missing field `chunks`"),
            ("runs = { uniform = [1, 9] }\n", "", "runs and lags, or a mixture of them"),
            (
                "lags = { recent = 5 }",
                "lags = { recent = 5 }\nmixture = [{ share = 1, runs = { geometric = 2.0 }, lags = \"uniform\" }]",
                "runs and lags are those of the parts",
            ),
            (
                "runs = { uniform = [1, 9] }\nlags = { recent = 5 }",
                "mixture = [{ share = 1, runs = { geometric = 2.0 }, lags = \"uniform\" }]",
                "",
            ),
            (
                "runs = { uniform = [1, 9] }\nlags = { recent = 5 }",
                "mixture = [{ share = 0, runs = { geometric = 2.0 }, lags = \"uniform\" }]",
                "share: above 0, up to 1, not 0",
            ),
            (
                "lags = { recent = 5 }",
                "lags = { recent = 5 }\nfitted = [{ table = \"I\", experiments = [], measures = [\"second\"], points = [] }]",
                "did you mean \"seconds\"",
            ),
            ("chunks = 9", "chunks = \"9\"", "chunks = \"9\""),
        ] {
            std::fs::write(&path, sound.replacen(from, to, 1)).unwrap();
            let found = DataSet::named(name).map_err(|error| format!("{error:#}"));
            match found {
                Ok(_) => assert!(wanted.is_empty(), "{wanted}"),
                Err(error) => {
                    assert!(!wanted.is_empty() && error.starts_with(name) && error.contains(wanted), "{error}");
                }
            }
        }
        assert!(format!("{:#}", DataSet::named("./none.toml").unwrap_err()).starts_with("./none.toml: No such file"));
    }
}
