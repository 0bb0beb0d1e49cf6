//! Data sets of papers, as streams that are made up: `data-sets/*.toml`.
//!
//! The data themselves are not to be had. How much of them there is and how much of it is duplicate is known; in how long
//! runs and how far back duplicates come is not, and stated in each file.

use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::counts::float;
use crate::files::{Embedded, embedded, from_toml, text_of, text_of_path};
use crate::stream::{Lags, Runs, Shape};

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
    runs: Runs,
    lags: Lags,
}

/// Fewest and most chunks of a data set.
const CHUNKS: RangeInclusive<u64> = 1..=1 << 40;
/// Longest chunks: the bytes of a data set are counted with 64 bits.
const CHUNK_SIZE_MAX: u32 = 8 << 20;
/// Longest runs of duplicates.
const RUN_MAX: u64 = 1_000_000_000;

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
        match self.runs {
            Runs::Uniform(from, to) => {
                ensure!(1 <= from && from <= to && to <= RUN_MAX, "runs: from 1, up to {RUN_MAX}, not {from} to {to}");
            }
            Runs::Geometric(mean) => {
                ensure!((1.0..=float(RUN_MAX)).contains(&mean), "runs: 1 to {RUN_MAX} on average, not {mean}");
            }
        }
        ensure!(self.lags != Lags::Recent(0), "lags: from among at least one chunk, not 0");
        Ok(())
    }

    /// Returns one with a field set to another value: the share of duplicates, or the mean length of their runs.
    pub fn varied(mut self, field: &str, value: &str) -> Result<Self> {
        let number: f64 = value.parse().with_context(|| format!("data-set.{field}={value}"))?;
        match field {
            "duplicates" => self.duplicates = number,
            "runs" => self.runs = Runs::Geometric(number),
            _ => bail!("data-set.{field} is not varied"),
        }
        self.check()?;
        Ok(self)
    }

    /// Describes its stream.
    pub fn words(&self) -> String {
        let runs = match self.runs {
            Runs::Uniform(from, to) => format!("{from} to {to}"),
            Runs::Geometric(mean) => format!("{mean} on average"),
        };
        let lags = match self.lags {
            Lags::Uniform => "from anywhere before".to_owned(),
            Lags::Recent(chunks) => format!("from among the last {chunks}"),
            Lags::Passes => "in passes through all that was before".to_owned(),
        };
        format!("{:.0}% duplicates in runs of {runs}, {lags}", 100.0 * self.duplicates)
    }

    /// Returns what its stream is like.
    pub fn shape(&self) -> Shape {
        Shape { duplicates: self.duplicates, runs: self.runs, lags: self.lags }
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
