//! Points that have names: `presets/*.toml`, and files of the same form.

use anyhow::{Context, Result};
use onefold_engine::identify::IndexPreset;
use serde::Deserialize;
use toml::{Table, Value};

use crate::files::{Embedded, embedded, from_toml, names_of, text_of, text_of_path};
use crate::point::Point;
use crate::point::dimension::{self, unknown};

/// A point with a name.
#[derive(Clone, PartialEq, Debug)]
pub struct Preset {
    /// Name.
    pub name: String,
    /// One-line description.
    pub about: String,
    /// Source.
    pub source: String,
    /// Its dimensions, in a file's form.
    pub dimensions: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    source: String,
    /// The preset of backups whose dimensions it has, unless it sets others.
    index: Option<String>,
    #[serde(default)]
    point: Table,
}

/// The presets that come with the program, in the order of listings.
const PRESETS: Embedded = embedded!["presets":
    "adaptive" "lazy" "eager" "exhaustive" "ddfs" "edpl" "chunkstash" "blc" "edll" "sampled-index" "ndpl" "sparse-indexing" "silo" "extreme-binning" "ndll" "dedupcdp" "pm-oblivious" "pm-buffer-f" "pm-buffer-l" "pm-auto"];

impl Preset {
    /// Reads a preset.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let File { about, source, index, mut point } = from_toml(text).with_context(|| format!("preset {name}"))?;
        if let Some(index) = index {
            let names = IndexPreset::all().map(IndexPreset::name);
            let preset = IndexPreset::named(&index).ok_or_else(|| unknown("preset of backups", &index, names));
            for (dimension, value) in preset.with_context(|| format!("preset {name}"))?.dimensions() {
                point.entry(*dimension).or_insert_with(|| Value::String((*value).to_owned()));
            }
        }
        dimension::parse(&point).with_context(|| format!("preset {name}"))?;
        Ok(Self { name: name.to_owned(), about, source, dimensions: point })
    }

    /// Returns the preset of this name, or if it has a slash or ends in `.toml`, the one in that file.
    pub fn named(name: &str) -> Result<Self> {
        if let Some(text) = text_of_path(name) {
            return Self::parse(name, &text.with_context(|| name.to_owned())?);
        }
        Self::parse(name, text_of("preset", name, PRESETS)?)
    }

    /// Returns the point with dimensions changed by `assignments`.
    pub fn with(&self, assignments: &[String]) -> Result<Point> {
        let mut dimensions = self.dimensions.clone();
        for assignment in assignments {
            dimension::set(&mut dimensions, assignment)?;
        }
        let point = dimension::parse(&dimensions)?;
        point.check().with_context(|| format!("preset {}", self.name))?;
        Ok(point)
    }
}

/// Returns the names of the presets that come with the program.
pub fn names() -> impl Iterator<Item = &'static str> {
    names_of(PRESETS)
}

/// Returns all presets.
pub fn all() -> Result<Vec<Preset>> {
    PRESETS.iter().map(|(name, text)| Preset::parse(name, text)).collect()
}

#[cfg(test)]
mod tests {
    use onefold_engine::identify::{IndexOptions, PrefetchUnit, Schedule, StoreKind};

    use super::*;
    use crate::files::{names_in, sorted};

    #[test]
    fn all_files_are_known_and_can_work() {
        assert_eq!(names_in("presets"), sorted(names()));
        for preset in all().unwrap() {
            let point = preset.with(&[]).unwrap();
            if point.is_mapped {
                point.mapped_options(1.0).unwrap();
            } else {
                point.index_options().unwrap();
                point.index_options_scaled(64.0).unwrap();
            }
        }
    }

    #[test]
    fn presets_of_backups_do_the_same_in_the_laboratory() {
        let of = |options: &IndexOptions| {
            let IndexOptions { schedule, order, prelookup, unit, follows_successors, run_order, .. } = *options;
            let is_in_memory = matches!(options.store, StoreKind::Memory { .. });
            let of_streams = (options.segmenting, options.sampling);
            (schedule, order, prelookup, unit, follows_successors, run_order, is_in_memory, of_streams)
        };
        for preset in IndexPreset::all() {
            let point = Preset::named(preset.name()).unwrap().with(&[]).unwrap();
            assert_eq!(of(&point.index_options().unwrap()), of(&preset.options(512 << 20)), "{}", preset.name());
        }
    }

    #[test]
    fn the_default_of_the_engine_is_the_first() {
        let adaptive = Preset::named("adaptive").unwrap().with(&[]).unwrap();
        assert_eq!(adaptive, Point::default());
        let lazy = Preset::named("lazy").unwrap();
        let sets = |assignment: &str| lazy.with(&[assignment.to_owned()]);
        let schedule = |assignment: &str| sets(assignment).unwrap().design.options.schedule;
        assert_eq!(schedule("threshold=4"), Schedule::Lazy { threshold: 4 });
        assert_eq!(schedule("schedule=pool"), Schedule::Pool { candidates: 2_048 });
        let error = format!("{:#}", sets("store=cuckoo").unwrap_err());
        assert!(error.starts_with("preset lazy: store=cuckoo answers each chunk at once"), "{error}");
        let of = |index: &str| {
            Preset::parse("own", &format!("about = ''\nsource = ''\nindex = '{index}'\n[point]\nfollowing = 2"))
        };
        let unit = of("edll").unwrap().with(&[]).unwrap().design.options.unit;
        assert_eq!(unit, PrefetchUnit::Segment { following: 2 });
        let error = format!("{:#}", of("edl").unwrap_err());
        assert_eq!(error, "preset own: there is no preset of backups \"edl\"; did you mean \"edll\"?");
        let error = Preset::named("lasy").unwrap_err().to_string();
        assert_eq!(error, "there is no preset \"lasy\"; did you mean \"lazy\"?");
        assert!(Preset::named("./nothing.toml").unwrap_err().to_string().contains("./nothing.toml"));
    }
}
