//! Data sets of papers, as streams that are made up: `data-sets/*.toml`.
//!
//! The data themselves are not to be had. How much of them there is and how much of it is duplicate is known; in how long
//! runs and how far back duplicates come is not, and stated in each file.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::files::{Embedded, embedded, from_toml, text_of};
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

const DATA_SETS: Embedded = embedded!["data-sets": "vm" "src" "fslhomes" "pm-src" "pm-fsl"];

impl DataSet {
    /// Returns the data set of this name.
    pub fn named(name: &str) -> Result<Self> {
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
        ensure!(self.chunks != 0 && self.chunk_size != 0, "a data set has chunks, and they have bytes");
        let sound = match self.runs {
            Runs::Uniform(from, to) => 1 <= from && from <= to,
            Runs::Geometric(mean) => (1.0..1e9).contains(&mean),
        };
        ensure!(sound, "runs: {:?}", self.runs);
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
        let text = DATA_SETS[0].1.replace("0.35", "3.5");
        assert_eq!(DataSet::parse("x", &text).unwrap_err().to_string(), "duplicates is a share, 0 to 1, not 3.5");
    }
}
