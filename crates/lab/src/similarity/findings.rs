//! Measurements in the form that reports draw.

use crate::counts::float;
use crate::findings::{Axis, Cell, Findings, Origin, Plot, PlotKind, Series, Table};

use super::Measured;
use super::point::Feature;
use super::run::Outcome;

const MB: f64 = 1e6;

/// A column of the table: its title and its number; `None` where nothing was measured.
type Column = (&'static str, fn(&Measured, &Outcome) -> Option<f64>);

const COLUMNS: [Column; 11] = [
    ("stored (MB)", |_, it| Some(float(it.stored_bytes()) / MB)),
    ("ratio to none", |all, it| Some(float(it.stored_bytes()) / float(all.none()?.stored_bytes().max(1)))),
    ("ratio after the first", |all, it| {
        let later = |it: &Outcome| float(it.stored.iter().skip(1).sum());
        let none = later(all.none()?);
        (0.0 < none).then(|| later(it) / none)
    }),
    ("ratio to one long stream", |all, it| Some(float(it.stored_bytes()) / float(all.long_stream.ok()?.max(1)))),
    ("regions with bases (%)", |_, it| Some(100.0 * float(it.with_bases) / float(it.regions.max(1)))),
    ("opened per region", |_, it| Some(float(it.loads) / float(it.regions.max(1)))),
    ("memory (bytes per chunk)", |all, it| Some(float(it.memory_bytes) / float(all.unique_chunks.max(1)))),
    ("features (ms per MB)", |all, it| Some(1e3 * it.times.features.as_secs_f64() / (float(all.unique_bytes) / MB))),
    ("new data (MB/s per thread)", |all, it| speed(all.unique_bytes, it.times.sum().as_secs_f64())),
    ("decoded for the last version (times its size)", |all, it| {
        Some(float(it.own_bytes + it.extra_bytes) / float(*all.versions.last()?).max(1.0))
    }),
    ("restore of the last version (MB/s per thread)", |all, it| {
        speed(all.versions.last().copied()?, it.restore.as_secs_f64())
    }),
];

fn speed(bytes: u64, seconds: f64) -> Option<f64> {
    (0.0 < seconds).then(|| float(bytes) / MB / seconds)
}

impl Measured {
    /// Returns the outcome without bases, of the first point of that kind.
    fn none(&self) -> Option<&Outcome> {
        self.outcomes.iter().find(|it| it.point.feature == Feature::None)
    }

    /// Returns it as findings. `command` is what makes it again.
    pub fn findings(&self, command: String, origin: Origin) -> Findings {
        Findings {
            experiment: "similarity".to_owned(),
            title: "What compression against similar regions saves".to_owned(),
            source: "new".to_owned(),
            command,
            origin,
            notes: self.notes(),
            tables: vec![self.table(), self.by_version()],
            plots: vec![self.sizes(), self.costs()],
            seconds: self.seconds,
            ..Findings::default()
        }
    }

    fn notes(&self) -> Vec<String> {
        let logical: u64 = self.versions.iter().sum();
        let mut notes = vec![
            format!(
                "{} versions, {:.1} MB; distinct chunks: {}, {:.1} MB",
                self.versions.len(),
                float(logical) / MB,
                self.unique_chunks,
                float(self.unique_bytes) / MB
            ),
            "stored: compressed regions, without directories and metadata; ratio to none: to the same regions without bases, \
             of the default length"
                .to_owned(),
            "times are processor times of one thread: features, choice, opening of bases, compression; what is read lies in the page \
             cache"
                .to_owned(),
            "decoded: each region and base that the last version needs, once".to_owned(),
        ];
        notes.push(match self.long_stream {
            Ok(bytes) => format!("one long stream (zstd --long) over all versions: {:.1} MB", float(bytes) / MB),
            Err(wanted) => {
                format!("one long stream is left out: it takes {} MiB of memory, see --memory", wanted >> 20)
            }
        });
        notes
    }

    fn table(&self) -> Table {
        let row = |it: &Outcome| {
            let numbers = COLUMNS.iter().map(|(_, number)| Cell::of(number(self, it), false));
            [Cell::Text(it.point.to_string())].into_iter().chain(numbers).collect()
        };
        Table {
            title: "Each point".to_owned(),
            columns: ["point"].into_iter().chain(COLUMNS.map(|(title, _)| title)).map(str::to_owned).collect(),
            rows: self.outcomes.iter().map(row).collect(),
        }
    }

    fn by_version(&self) -> Table {
        let columns = ["point".to_owned()]
            .into_iter()
            .chain((1..=self.versions.len()).map(|number| format!("version {number} (MB)")));
        let row = |it: &Outcome| {
            let stored = it.stored.iter().map(|bytes| Cell::Number(float(*bytes) / MB));
            [Cell::Text(it.point.to_string())].into_iter().chain(stored).collect()
        };
        Table {
            title: "Bytes that each version adds".to_owned(),
            columns: columns.collect(),
            rows: self.outcomes.iter().map(row).collect(),
        }
    }

    fn sizes(&self) -> Plot {
        let points =
            (0u32..).zip(&self.outcomes).map(|(number, it)| (f64::from(number), float(it.stored_bytes()) / MB));
        let names = self.outcomes.iter().map(|it| it.point.to_string()).collect();
        Plot {
            title: "Size of all versions".to_owned(),
            x: Axis { title: "point".to_owned(), is_logarithmic: false, names },
            y: Axis { title: "stored (MB)".to_owned(), is_logarithmic: false, names: Vec::new() },
            kind: PlotKind::Bars,
            series: vec![Series { name: "stored".to_owned(), is_published: false, points: points.collect() }],
        }
    }

    fn costs(&self) -> Plot {
        let axis = |title: &str| Axis { title: title.to_owned(), is_logarithmic: false, names: Vec::new() };
        let last = float(self.versions.last().copied().unwrap_or(0).max(1));
        let point = |it: &Outcome| (float(it.own_bytes + it.extra_bytes) / last, float(it.stored_bytes()) / MB);
        let series = |it: &Outcome| Series { name: it.point.to_string(), is_published: false, points: vec![point(it)] };
        Plot {
            title: "Size against what a restore of the last version decodes".to_owned(),
            x: axis("bytes decoded (times the size of the version)"),
            y: axis("stored (MB)"),
            kind: PlotKind::Lines,
            series: self.outcomes.iter().map(series).collect(),
        }
    }
}
