//! Advice in the form that a report draws.

use crate::counts::float;
use crate::findings::{Axis, Cell, Findings, Origin, Plot, PlotKind, Series, Table};

use super::Scanned;
use super::predict::Prediction;
use super::recommend::Recommendation;

const MIB: f64 = 1024.0 * 1024.0;

/// A column of the table: its title and its number.
type Column = (&'static str, fn(&Prediction) -> f64);

const COLUMNS: [Column; 14] = [
    ("dedup ratio", |it| it.dedup_ratio.value),
    ("at least", |it| it.dedup_ratio.low),
    ("at most", |it| it.dedup_ratio.high),
    ("stored : unique bytes", |it| it.compressed_share.value),
    ("repository (MiB)", Prediction::stored_mebibytes),
    ("at least (MiB)", |it| it.stored_bytes.low / MIB),
    ("at most (MiB)", |it| it.stored_bytes.high / MIB),
    ("of that metadata (MiB)", |it| it.overhead_bytes / MIB),
    ("index (MiB)", |it| it.index_bytes / MIB),
    ("memory wanted (MiB)", Prediction::memory_mebibytes),
    ("filter bits per chunk", |it| it.filter_bits),
    ("first backup (s)", |it| it.first.time),
    ("read again (s)", |it| it.read_again.time),
    ("unchanged (s)", |it| it.unchanged.time),
];

/// Advice, and its basis.
#[derive(Clone, Copy, Debug)]
pub struct Advised<'a> {
    /// Sources.
    pub scanned: &'a Scanned,
    /// Prediction for each rule.
    pub predictions: &'a [Prediction],
    /// Which one to choose.
    pub recommendation: Option<&'a Recommendation>,
    /// Memory that was given, in bytes.
    pub memory_bytes: usize,
    /// Threads.
    pub threads: usize,
}

impl Advised<'_> {
    /// Returns it as findings. `command` is what makes it again.
    pub fn findings(&self, command: String, origin: Origin) -> Findings {
        Findings {
            experiment: "advise".to_owned(),
            title: "What a repository of this data would take, for each chunk size".to_owned(),
            source: "new".to_owned(),
            command,
            origin,
            notes: self.notes(),
            tables: vec![self.table()],
            plots: vec![
                self.plot("Size of the repository", "MiB", Prediction::stored_mebibytes),
                self.plot("Memory that the index wants", "MiB", Prediction::memory_mebibytes),
            ],
            seconds: self.scanned.time.as_secs_f64(),
            ..Findings::default()
        }
    }

    fn notes(&self) -> Vec<String> {
        let (totals, reading) = (&self.scanned.survey.totals, &self.scanned.reading);
        let mut notes = vec![format!("{} bytes in {} files, {} bytes read", totals.bytes, totals.files, reading.bytes)];
        if !self.scanned.survey.is_everything() {
            notes.push("estimated from a sample: bounds hold the truth in 19 of 20 cases".to_owned());
        }
        let given = float(self.memory_bytes as u64) / MIB;
        notes.push(format!(
            "bits of the filter, and times, are for {given:.0} MiB of memory and {} threads",
            self.threads
        ));
        notes.push(
            "times: reading, cutting, naming, compressing and sealing measured on this machine, the rest as in \
                    docs/advise.md; the repository's disk is taken to keep up"
                .to_owned(),
        );
        if let Some((it, similar)) = self.predictions.iter().find_map(|it| Some((it, it.similar_bytes?))) {
            let [value, low, high] = [similar.value, similar.low, similar.high].map(|bytes| bytes / MIB);
            notes.push(format!(
                "with similar data, {}: {value:.1} MiB, at least {low:.1}, at most {high:.1}; each path is a backup after \
                 the one before",
                it.rule
            ));
        }
        if let Some(recommendation) = self.recommendation {
            notes.push(format!("recommended: {}: {}", recommendation.rule, recommendation.reason));
        }
        notes
    }

    fn table(&self) -> Table {
        let row = |it: &Prediction| {
            let numbers = COLUMNS.map(|(_, number)| Cell::Number(number(it)));
            [Cell::Text(it.rule.to_string())].into_iter().chain(numbers).collect()
        };
        Table {
            title: "Each chunk size".to_owned(),
            columns: ["chunks"].into_iter().chain(COLUMNS.map(|(title, _)| title)).map(str::to_owned).collect(),
            rows: self.predictions.iter().map(row).collect(),
        }
    }

    fn plot(&self, title: &str, unit: &str, value: impl Fn(&Prediction) -> f64) -> Plot {
        let series = |name: &str, is_fixed: bool| Series {
            name: name.to_owned(),
            is_published: false,
            points: self
                .predictions
                .iter()
                .filter(|it| it.rule.is_fixed() == is_fixed)
                .map(|it| (f64::from(it.rule.bytes()) / 1024.0, value(it)))
                .collect(),
        };
        let axis = |title: String| Axis { title, is_logarithmic: true, names: Vec::new() };
        Plot {
            title: title.to_owned(),
            x: axis("length of a chunk, on average (KiB)".to_owned()),
            y: axis(format!("{title} ({unit})")),
            kind: PlotKind::Lines,
            series: vec![series("content-defined", false), series("fixed", true)],
        }
    }
}

impl Prediction {
    fn stored_mebibytes(&self) -> f64 {
        self.stored_bytes.value / MIB
    }

    fn memory_mebibytes(&self) -> f64 {
        float(self.memory_bytes) / MIB
    }
}
