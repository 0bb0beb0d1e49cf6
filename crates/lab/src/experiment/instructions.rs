//! Every computation of a backup with each kind of instructions, in one program: after Ma et al., "Towards Fast De-duplication Using Low
//! Energy Coprocessor".

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::monitor::Monitor;
use onefold_engine::random::SplitMix64;
use serde::Deserialize;

use crate::coprocessor::code::{Code, Features};
use crate::coprocessor::codec::{Codec, Compressor};
use crate::coprocessor::kernel::{Kernel, KernelJob};
use crate::coprocessor::vector::{Computation, VectorJob};
use crate::coprocessor::worker::{Job, Worker};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::kernels::{codes, kernel_done, words_of_codes};
use crate::experiment::verdict::{Bound, Samples};
use crate::findings::{Axis, Cell, Claim, Plot, PlotKind, Series, Table};
use crate::processor::{processor_time, processor_time_since};

/// In place of a number that this processor cannot give.
const NOT_HERE: &str = "not on this processor";
/// Bytes of text that compressors take: more than a core's own caches.
const TEXT_BYTES: usize = 4 << 20;
/// Bytes that are compressed by themselves: a cluster of blocks, far below a region.
const UNIT_BYTES: usize = 128 << 10;
/// Rows of compressors, whose code the compiler chose.
const COMPILED: &str = "as compiled";

/// An experiment on instructions.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct InstructionSpec {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The paper that it follows.
    pub source: String,
    /// Notes for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Hashes and ciphers of the library, whose instructions a variable takes away.
    pub hashes: Vec<Kernel>,
    /// Bytes of a block that is hashed or encrypted.
    pub block: usize,
    /// Computations of this program's own kernels.
    pub computations: Vec<Computation>,
    /// Average of chunks in bytes.
    pub average: usize,
    /// Compressors.
    pub codecs: Vec<Codec>,
    /// Claims.
    pub claims: Vec<InstructionClaim>,
    /// Milliseconds of a measurement, with `--quick`.
    pub quick_millis: u64,
    /// The same by default.
    pub millis: u64,
}

/// A claim about a computation.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct InstructionClaim {
    /// The computation, by name.
    pub of: String,
    /// The code that is faster,
    pub fast: String,
    /// so many times as fast as this one; without it, MB/s.
    pub slow: Option<String>,
    /// Least number.
    pub at_least: f64,
    /// Origin of the number.
    pub says: String,
}

/// A computation by some code: both by name.
type Key = (String, String);

/// Something to measure.
enum Task {
    /// In a process of its own.
    Job(Job, Code),
    /// In this process.
    Compress(Codec),
    /// Not on this processor, or not by this program.
    Missing,
}

impl InstructionSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        for millis in [self.quick_millis, self.millis] {
            let job = |kernel| KernelJob { kernel, block: self.block, millis };
            self.hashes.iter().try_for_each(|&kernel| job(kernel).check())?;
            for &computation in &self.computations {
                for instructions in computation.kernels() {
                    VectorJob { computation, instructions, average: self.average, millis }.check()?;
                }
            }
        }
        let keys = self.keys();
        for claim in &self.claims {
            for code in std::iter::once(&claim.fast).chain(&claim.slow) {
                let is_known = keys.iter().any(|(of, name)| *of == claim.of && name == code);
                ensure!(is_known, "claims: {} has no {code:?}", claim.of);
            }
            ensure!(0.0 < claim.at_least, "claims: {}: a number that can be missed", claim.of);
        }
        Ok(())
    }

    /// Returns every row of the table.
    fn keys(&self) -> Vec<Key> {
        self.tasks(1, &Code::ALL).into_iter().map(|(key, _)| key).collect()
    }

    /// Returns what to measure, in the order of the rows; code that is not among `codes` is missing.
    fn tasks(&self, millis: u64, codes: &[Code]) -> Vec<(Key, Task)> {
        let mut tasks = Vec::new();
        for &kernel in &self.hashes {
            for code in Code::ALL {
                let job = Job::Kernel(KernelJob { kernel, block: self.block, millis });
                let task = if codes.contains(&code) { Task::Job(job, code) } else { Task::Missing };
                tasks.push(((kernel.name().to_owned(), code.name().to_owned()), task));
            }
        }
        for &computation in &self.computations {
            for instructions in computation.kernels() {
                let job = Job::Vector(VectorJob { computation, instructions, average: self.average, millis });
                let here = computation.has(instructions);
                let task = if here { Task::Job(job, Code::Instructions) } else { Task::Missing };
                tasks.push(((computation.name().to_owned(), instructions.name().to_owned()), task));
            }
        }
        let codecs = self.codecs.iter();
        tasks.extend(codecs.map(|&codec| ((codec.to_string(), COMPILED.to_owned()), Task::Compress(codec))));
        tasks
    }
}

/// MB/s by computation and code, of each round.
type Rates = BTreeMap<Key, Samples>;

/// Measures, and returns what to show.
pub(super) fn measure(
    spec: &InstructionSpec,
    millis: u64,
    rounds: u32,
    (worker, features): (&Worker, Features),
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let codes = codes(worker, features);
    let tasks = spec.tasks(millis, codes);
    let text = text();
    let (mut rates, mut checks, mut ratios) = (Rates::new(), BTreeMap::new(), BTreeMap::new());
    for round in 0..rounds as usize {
        for turn in 0..tasks.len() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted.into());
            }
            let (key, task) = &tasks[(round + turn) % tasks.len()];
            let rate = match task {
                Task::Missing => continue,
                Task::Job(job, code) => {
                    let done = kernel_done(worker.perform(job, *code, monitor)?)?;
                    let first = checks.entry(key.0.clone()).or_insert_with(|| done.check.clone());
                    if *first != done.check {
                        bail!("{}: the results of {} differ from those before: this is a defect", key.0, key.1);
                    }
                    done.rate()
                }
                Task::Compress(codec) => {
                    let (rate, ratio) = compress(*codec, &text, millis)?;
                    ratios.insert(key.clone(), ratio);
                    rate
                }
            };
            rates.entry(key.clone()).or_default().0.push(rate);
        }
        monitor.note(&format!("{}: round {} of {rounds}", spec.name, round + 1));
    }
    let equal = checks.len();
    let notes = vec![
        format!("One thread. Medians of {rounds} rounds, by processor time; each round begins with another row."),
        format!(
            "Each hash, cipher and kernel ran in a process of its own. OPENSSL_ia32cap takes instructions away from hashes and ciphers: {}. Kernels for \
             boundaries (gear) and fingerprints (blake3) were chosen by name. In each round, all code of one computation had equal results: \
             {equal} computations were compared.",
            words_of_codes(codes)
        ),
        format!(
            "Compressors took {} MiB of text that a seed makes, in units of {} KiB. Their code is chosen when the program is compiled (zstd also asks for BMI2 \
             at run time); the result was decompressed and compared.",
            TEXT_BYTES >> 20,
            UNIT_BYTES >> 10
        ),
    ];
    let rows: Vec<Key> = tasks.into_iter().map(|(key, _)| key).collect();
    Ok(Shown {
        notes,
        tables: vec![table(&rows, &rates, &ratios)],
        plots: vec![plot(spec, &rows, &rates)],
        claims: spec.claims.iter().map(|claim| judged(claim, &rates)).collect(),
    })
}

/// Returns text like that of a log: lines of words and numbers that a seed draws.
fn text() -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "connection",
        "from",
        "client",
        "opened",
        "closed",
        "read",
        "write",
        "of",
        "bytes",
        "at",
        "offset",
        "took",
        "after",
        "retry",
        "file",
        "done",
    ];
    let mut random = SplitMix64::new(7);
    let mut text = Vec::with_capacity(TEXT_BYTES + 256);
    while text.len() < TEXT_BYTES {
        for _ in 0..4 + random.index(8) {
            text.extend_from_slice(WORDS[random.index(WORDS.len())].as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(format!("{} {:08x}\n", random.index(10_000), random.next_u64() >> 32).as_bytes());
    }
    text.truncate(TEXT_BYTES);
    text
}

/// Compresses text for some time; returns MB/s and the ratio of sizes.
fn compress(codec: Codec, text: &[u8], millis: u64) -> Result<(f64, f64)> {
    let mut compressor = Compressor::new(codec)?;
    let (mut out, mut stored) = (Vec::new(), 0);
    for unit in text.chunks(UNIT_BYTES) {
        compressor.compress(unit, &mut out)?;
        stored += out.len() as u64;
        ensure!(compressor.decompress(&out, unit.len())? == unit, "{codec} loses bytes: this is a defect");
    }
    let (start, mut bytes) = (processor_time(), 0);
    let seconds = loop {
        for unit in text.chunks(UNIT_BYTES) {
            compressor.compress(unit, &mut out)?;
            std::hint::black_box(&out);
            bytes += unit.len() as u64;
        }
        let taken = processor_time_since(start);
        if u128::from(millis) <= taken.as_millis() {
            break taken.as_secs_f64();
        }
    };
    Ok((float(bytes) / 1e6 / seconds.max(1e-9), float(text.len() as u64) / float(stored.max(1))))
}

fn table(rows: &[Key], rates: &Rates, ratios: &BTreeMap<Key, f64>) -> Table {
    let columns = ["computation", "code", "MB/s", "least", "most", "times as fast as the slowest", "ratio of sizes"];
    let slowest = |of: &str| {
        let all = rates.iter().filter(|((name, _), _)| name == of).filter_map(|(_, rates)| rates.median());
        all.reduce(f64::min)
    };
    let row = |key: &Key| {
        let mut row = vec![Cell::Text(key.0.clone()), Cell::Text(key.1.clone())];
        let found = rates.get(key);
        let (least, most) = found.and_then(Samples::interval).unzip();
        let median = found.and_then(Samples::median);
        row.push(median.map_or_else(|| Cell::Text(NOT_HERE.to_owned()), Cell::Number));
        let times = median.zip(slowest(&key.0)).map(|(median, slowest)| median / slowest);
        // A single row is its own slowest.
        let times = times.filter(|_| 1 < rows.iter().filter(|(of, _)| *of == key.0).count());
        row.extend([least, most, times, ratios.get(key).copied()].map(|number| Cell::of(number, false)));
        row
    };
    let columns = columns.map(str::to_owned).to_vec();
    Table { title: "Speed of a core, by instructions".to_owned(), columns, rows: rows.iter().map(row).collect() }
}

/// Bars of every row that was measured.
fn plot(spec: &InstructionSpec, rows: &[Key], rates: &Rates) -> Plot {
    let mut names = Vec::new();
    let mut points = Vec::new();
    for key in rows {
        if let Some(rate) = rates.get(key).and_then(Samples::median) {
            points.push((float(names.len() as u64), rate));
            names.push(format!("{}, {}", key.0, key.1));
        }
    }
    Plot {
        title: spec.title.clone(),
        x: Axis { title: "code".to_owned(), is_logarithmic: false, names },
        y: axis("MB/s", true),
        kind: PlotKind::Bars,
        series: vec![Series { name: "this processor".to_owned(), is_published: false, points }],
    }
}

fn judged(claim: &InstructionClaim, rates: &Rates) -> Claim {
    let InstructionClaim { of, fast, slow, at_least, says } = claim;
    let find = |code: &String| rates.get(&(of.clone(), code.clone())).cloned().unwrap_or_default();
    let missing = std::iter::once(fast).chain(slow).find(|code| find(code).is_empty());
    let missing = missing.map(|code| format!("{of}: {code} is {NOT_HERE}, or cannot be taken away."));
    let (what, found) = match slow {
        Some(slow) => (format!("{of}: {fast} is so many times as fast as {slow}"), find(fast).divided(&find(slow))),
        None => (format!("{of}, {fast}: MB/s of a core"), find(fast)),
    };
    Compared { what, bound: Bound::AtLeast(*at_least), unprinted: says, found, missing, remark: "" }.claim()
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    const FEATURES: Features = Features { sha: true, aes: true, can_be_masked: true };

    fn spec() -> InstructionSpec {
        let Experiment::Instructions(spec) = Experiment::named("instructions").unwrap() else { panic!("another kind") };
        spec
    }

    #[test]
    fn every_row_has_a_speed_or_says_that_this_processor_has_none() {
        let spec = spec();
        let shown = measure(&spec, 1, 1, (&Worker::in_process(), FEATURES), &Silent).unwrap();
        let rows = &shown.tables[0].rows;
        assert_eq!(rows.len(), spec.keys().len());
        let is_here = |row: &Vec<Cell>| matches!(row[2], Cell::Number(rate) if 0.0 < rate);
        let is_missing = |row: &Vec<Cell>| row[2] == Cell::Text(NOT_HERE.to_owned());
        assert!(rows.iter().all(|row| is_here(row) || is_missing(row)), "{rows:?}");
        // This process cannot do without instructions: two kinds of code for each hash and cipher are missing.
        let of_hashes = &rows[..3 * spec.hashes.len()];
        assert_eq!(of_hashes.iter().filter(|row| is_missing(row)).count(), 2 * spec.hashes.len());
        assert!(rows.iter().any(|row| row[1] == Cell::Text("portable".to_owned()) && is_here(row)));
        assert!(shown.claims.iter().any(|claim| claim.verdict == Verdict::CannotBeShown));
        assert_eq!(shown.claims.len(), spec.claims.len());
    }

    #[test]
    fn each_claim_can_hold_and_fail_and_be_missing() {
        for claim in spec().claims {
            let verdict = |times: f64| {
                let of = |code: &String, rate| ((claim.of.clone(), code.clone()), Samples(vec![rate; 5]));
                let slow = claim.slow.iter().map(|slow| of(slow, 1.0));
                judged(&claim, &std::iter::once(of(&claim.fast, times)).chain(slow).collect()).verdict
            };
            assert_eq!(verdict(1.01 * claim.at_least), Verdict::Holds, "{claim:?}");
            assert_eq!(verdict(0.99 * claim.at_least), Verdict::DoesNotHold, "{claim:?}");
            assert_eq!(judged(&claim, &Rates::new()).verdict, Verdict::CannotBeShown);
        }
        let unknown = InstructionClaim { fast: "sse5".to_owned(), ..spec().claims[0].clone() };
        assert!(InstructionSpec { claims: vec![unknown], ..spec() }.check().unwrap_err().to_string().contains("sse5"));
    }

    #[test]
    fn results_that_depend_on_the_code_are_a_defect() {
        let script = r#"cat >/dev/null; echo '{"kernel":{"bytes":1,"seconds":1,"processor_seconds":1,"check":"'$OPENSSL_ia32cap'"}}'"#;
        let worker = Worker::of_program("/bin/sh".into(), vec!["-c".into(), script.into()]);
        let error = measure(&spec(), 1, 1, (&worker, FEATURES), &Silent).unwrap_err();
        assert!(error.to_string().contains("this is a defect"), "{error}");
    }

    #[test]
    fn text_is_the_same_each_time_and_compresses() {
        let text = text();
        assert_eq!((text.len(), &text), (TEXT_BYTES, &super::text()));
        let (rate, ratio) = compress(Codec::Lz4, &text, 1).unwrap();
        assert!(0.0 < rate && 1.5 < ratio, "{rate} {ratio}");
    }
}
