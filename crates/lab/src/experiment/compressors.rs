//! Compressors on files of several kinds: figures 9 and 10 of Ma et al., "Towards Fast De-duplication Using Low Energy Coprocessor".

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use onefold_engine::Error;
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::coprocessor::codec::{Codec, Compressor};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::inputs::{Inputs, is_name, made_by};
use crate::experiment::verdict::{Bound, Samples};
use crate::files::open;
use crate::findings::{Axis, Cell, Plot, PlotKind, Series, Table};
use crate::processor::{processor_time, processor_time_since};

/// Most bytes of an input that are taken: it is held in memory.
const INPUT_BYTES_MAX: u64 = 512 << 20;
/// A compressor is "nearly the same" as another one if the smaller number is at least this part of the larger one.
const NEARLY: f64 = 0.8;

/// An experiment on compressors.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CompressorSpec {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The paper and figure that it reproduces.
    pub source: String,
    /// Notes for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Compressors.
    pub compressors: Vec<Codec>,
    /// The one that the paper chooses.
    pub chosen: Codec,
    /// The one that stands for the other one of the paper.
    pub other: Codec,
    /// Inputs.
    pub inputs: Vec<String>,
    /// Bytes that are compressed by themselves; 0 for each file.
    pub units: Vec<usize>,
    /// Quantity that is plotted and claimed.
    pub shows: Shows,
    /// Claims.
    pub claims: Vec<SetClaim>,
    /// MiB of each input at most, with `--quick`.
    pub quick_mib: u64,
    /// The same by default.
    pub mib: u64,
}

/// Quantity of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shows {
    /// Running time.
    Time,
    /// Compression ratio.
    Ratio,
}

/// Statement of the paper about an input.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SetClaim {
    /// The input.
    pub input: String,
    /// The paper's statement.
    pub says: String,
    /// Whether it says that the chosen one is better; otherwise, that both are nearly the same.
    pub is_better: bool,
}

impl CompressorSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(self.inputs.iter().all(|name| is_name(name)), "inputs: {:?}", self.inputs);
        let has = |codec| self.compressors.contains(codec);
        ensure!(has(&self.chosen) && has(&self.other), "chosen and other: two of compressors");
        ensure!(self.claims.iter().all(|claim| self.inputs.contains(&claim.input)), "claims: about inputs");
        ensure!(!self.units.is_empty() && self.mib != 0 && self.quick_mib != 0, "nothing is compressed");
        Ok(())
    }
}

/// Measurements of a compressor on an input, cut into units.
#[derive(Clone, Debug, Default)]
struct Compressed {
    plain: u64,
    stored: u64,
    seconds: Samples,
}

impl Compressed {
    fn ratio(&self) -> Option<f64> {
        (self.stored != 0).then(|| float(self.plain) / float(self.stored))
    }

    fn rates(&self) -> Samples {
        Samples(self.seconds.0.iter().map(|seconds| float(self.plain) / 1e6 / seconds.max(1e-9)).collect())
    }
}

/// An input, and for each length of units what each compressor did.
type OfInput = (String, Vec<(usize, Vec<Compressed>)>);

/// Compresses, and returns what to show.
pub(super) fn measure(
    spec: &CompressorSpec,
    mebibytes: u64,
    rounds: u32,
    inputs: &Inputs,
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let mut shown = Shown::default();
    shown.notes.push(format!(
        "One thread, by processor time; medians of {rounds} rounds, each of which begins with another compressor. All of an input, at most {mebibytes} MiB, lies in memory. \
         What was compressed was decompressed and compared."
    ));
    let mut results: Vec<OfInput> = Vec::new();
    for input in &spec.inputs {
        let Some(files) = inputs.files(input)? else {
            shown.notes.push(made_by(input));
            continue;
        };
        let contents = read(&files, (mebibytes << 20).min(INPUT_BYTES_MAX))?;
        let bytes: usize = contents.iter().map(Vec::len).sum();
        ensure!(bytes != 0, "--input {input}: all files are empty");
        let sum = contents
            .iter()
            .fold(blake3::Hasher::new(), |mut sum, content| std::mem::take(sum.update(content)))
            .finalize();
        shown.notes.push(format!("{input}: {} files, {bytes} bytes, BLAKE3 {}.", contents.len(), sum.to_hex()));
        let mut of_units = Vec::new();
        for &unit in &spec.units {
            of_units.push((unit, compress(spec, &contents, unit, rounds, monitor)?));
        }
        monitor.note(&format!("{}: {input}", spec.name));
        results.push((input.clone(), of_units));
    }
    shown.tables.push(table(spec, &results));
    shown.plots.push(plot(spec, &results));
    shown.claims = spec.claims.iter().map(|claim| judged(spec, claim, &results)).collect();
    Ok(shown)
}

/// Reads files from their start, in order, until so many bytes.
fn read(files: &[PathBuf], bytes_max: u64) -> Result<Vec<Vec<u8>>> {
    let mut left = bytes_max;
    let mut contents = Vec::new();
    for path in files {
        let mut bytes = Vec::new();
        let read = open(path)
            .and_then(|file| Ok(std::io::Read::read_to_end(&mut std::io::Read::take(file, left), &mut bytes)?));
        left -= read.with_context(|| path.display().to_string())? as u64;
        if !bytes.is_empty() {
            contents.push(bytes);
        }
    }
    Ok(contents)
}

/// Compresses all files with each compressor.
fn compress(
    spec: &CompressorSpec,
    contents: &[Vec<u8>],
    unit: usize,
    rounds: u32,
    monitor: &dyn Monitor,
) -> Result<Vec<Compressed>> {
    let mut results = vec![Compressed::default(); spec.compressors.len()];
    let units = || contents.iter().flat_map(|content| content.chunks(if unit == 0 { content.len() } else { unit }));
    let mut out = Vec::new();
    for round in 0..rounds as usize {
        for turn in 0..results.len() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted.into());
            }
            let which = (round + turn) % results.len();
            let codec = spec.compressors[which];
            let mut compressor = Compressor::new(codec)?;
            let (mut plain_bytes, mut stored) = (0, 0);
            let start = processor_time();
            for plain in units() {
                compressor.compress(plain, &mut out)?;
                plain_bytes += plain.len() as u64;
                // As it is, if it does not get shorter.
                stored += out.len().min(plain.len()) as u64;
                std::hint::black_box(&out);
            }
            results[which].seconds.0.push(processor_time_since(start).as_secs_f64());
            (results[which].plain, results[which].stored) = (plain_bytes, stored);
            for plain in units().take(if round == 0 { usize::MAX } else { 0 }) {
                compressor.compress(plain, &mut out)?;
                ensure!(compressor.decompress(&out, plain.len())? == plain, "{codec} loses bytes: this is a defect");
            }
        }
    }
    Ok(results)
}

fn words_of_unit(unit: usize) -> String {
    if unit == 0 { "file".to_owned() } else { unit.to_string() }
}

fn table(spec: &CompressorSpec, results: &[OfInput]) -> Table {
    let columns = ["input", "unit, bytes", "compressor", "MB/s", "least", "most", "ratio"].map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for (input, units) in results {
        for (unit, compressed) in units {
            for (codec, it) in spec.compressors.iter().zip(compressed) {
                let rates = it.rates();
                let (least, most) = rates.interval().unzip();
                let numbers = [rates.median(), least, most, it.ratio()].map(|number| Cell::of(number, false));
                let mut row =
                    vec![Cell::Text(input.clone()), Cell::Text(words_of_unit(*unit)), Cell::Text(codec.to_string())];
                row.extend(numbers);
                rows.push(row);
            }
        }
    }
    Table { title: "Compressors".to_owned(), columns, rows }
}

/// Bars of what the figure shows, for whole files or the longest units.
fn plot(spec: &CompressorSpec, results: &[OfInput]) -> Plot {
    let mut series = Vec::new();
    for (which, codec) in spec.compressors.iter().enumerate() {
        let of_input = |(index, (_, units)): (usize, &OfInput)| {
            let it = units.last()?.1.get(which)?;
            let value = match spec.shows {
                Shows::Time => it.seconds.median()?,
                Shows::Ratio => it.ratio()?,
            };
            Some((float(index as u64), value))
        };
        let points = results.iter().enumerate().filter_map(of_input).collect();
        series.push(Series { name: codec.to_string(), is_published: false, points });
    }
    let names = results.iter().map(|(input, _)| input.clone()).collect();
    let y = match spec.shows {
        Shows::Time => "seconds",
        Shows::Ratio => "ratio",
    };
    let unit = spec.units.last().copied().unwrap_or_default();
    Plot {
        title: format!(
            "{}, units of {}",
            spec.title,
            if unit == 0 { "a file".to_owned() } else { format!("{unit} bytes") }
        ),
        x: Axis { title: "input".to_owned(), is_logarithmic: false, names },
        y: axis(y, false),
        kind: PlotKind::Bars,
        series,
    }
}

fn judged(spec: &CompressorSpec, claim: &SetClaim, results: &[OfInput]) -> crate::findings::Claim {
    let compressed = results.iter().find(|(input, _)| *input == claim.input).and_then(|(_, units)| units.last());
    let of = |codec| {
        let which = spec.compressors.iter().position(|one| *one == codec)?;
        compressed.and_then(|(_, compressed)| compressed.get(which))
    };
    // More is better for the chosen one.
    let found = of(spec.chosen).zip(of(spec.other)).map(|(chosen, other)| match spec.shows {
        Shows::Time => other.seconds.divided(&chosen.seconds),
        Shows::Ratio => {
            Samples(chosen.ratio().zip(other.ratio()).map(|(chosen, other)| chosen / other).into_iter().collect())
        }
    });
    let found = found.unwrap_or_default();
    let (chosen, other) = (spec.chosen, spec.other);
    let subject = match spec.shows {
        Shows::Time => format!("the time of {other} to that of {chosen}"),
        Shows::Ratio => format!("the ratio of {chosen} to that of {other}"),
    };
    let (what, bound, found) = if claim.is_better {
        (format!("{subject} ({})", claim.input), Bound::More, found)
    } else {
        let nearer = |value: &f64| value.min(1.0 / value);
        let what = format!("{subject}, or the other way round, whichever is less ({})", claim.input);
        (what, Bound::AtLeast(NEARLY), Samples(found.0.iter().map(nearer).collect()))
    };
    let missing = found.is_empty().then(|| made_by(&claim.input));
    let remark = "LZ4 stands for QuickLZ: this does not disprove what the paper says of QuickLZ.";
    Compared { what, bound, unprinted: &claim.says, found, missing, remark }.claim()
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    fn specs() -> [CompressorSpec; 2] {
        ["dedupcdp-figure-9", "dedupcdp-figure-10"].map(|name| {
            let Experiment::Compressors(spec) = Experiment::named(name).unwrap() else { panic!("{name}") };
            spec
        })
    }

    #[test]
    fn every_compressor_is_measured_on_every_input_and_without_inputs_nothing_can_be_shown() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("text"), include_bytes!("compressors.rs")).unwrap();
        std::fs::write(dir.path().join("more"), b"seventeen bytes..".repeat(300)).unwrap();
        let path = dir.path().to_str().unwrap();
        let inputs = Inputs::parse(&[format!("common={path}"), format!("dup={path}/more")]).unwrap();
        for spec in specs() {
            let shown = measure(&spec, 1, 1, &inputs, &Silent).unwrap();
            let rows = spec.compressors.len() * spec.units.len() * 2;
            assert_eq!((shown.tables[0].rows.len(), shown.claims.len()), (rows, 2));
            assert!(shown.claims.iter().all(|claim| matches!(claim.verdict, Verdict::Holds | Verdict::DoesNotHold)));
            assert!(shown.plots[0].series.iter().all(|series| series.points.len() == 2));
            assert!(shown.notes.iter().any(|note| note.starts_with("common: 2 files, ")), "{:?}", shown.notes);
            let shown = measure(&spec, 1, 1, &Inputs::default(), &Silent).unwrap();
            assert!(shown.claims.iter().all(|claim| claim.verdict == Verdict::CannotBeShown), "{:?}", shown.claims);
            assert!(shown.claims.iter().all(|claim| claim.remark.contains("bench/datasets/")), "{:?}", shown.claims);
        }
    }

    #[test]
    fn each_claim_holds_or_does_not_by_what_was_measured() {
        let of = |plain, stored, seconds: f64| Compressed { plain, stored, seconds: Samples(vec![seconds]) };
        for spec in specs() {
            for claim in &spec.claims {
                // The chosen one as good as the other one, slightly better, much better, and worse.
                let verdict = |factor: f64| {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
                    let stored = (1000.0 * factor) as u64;
                    let compressed = spec.compressors.iter().map(|codec| {
                        if *codec == spec.chosen { of(4000, 1000, 1.0) } else { of(4000, stored, factor) }
                    });
                    let results = [(claim.input.clone(), vec![(0, compressed.collect())])];
                    judged(&spec, claim, &results).verdict
                };
                let wanted = if claim.is_better { [false, true, true, false] } else { [true, true, false, false] };
                for (factor, wanted) in [1.0, 1.1, 2.0, 0.5].into_iter().zip(wanted) {
                    let wanted = if wanted { Verdict::Holds } else { Verdict::DoesNotHold };
                    assert_eq!(verdict(factor), wanted, "{}, {}: {factor}", spec.name, claim.input);
                }
            }
        }
    }
}
