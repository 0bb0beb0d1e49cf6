//! Fingerprints on several threads and on a device: table IX of Ma et al., "Lazy Exact Deduplication".

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::coprocessor::code::{Code, Features};
use crate::coprocessor::fingerprint::{FingerprintDone, FingerprintJob, Hash};
use crate::coprocessor::worker::{Done, Job, Worker};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::device::{Accelerator, Rates, TITLE};
use crate::experiment::kernels::{codes, words_of_codes};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE};
use crate::findings::{Cell, Claim, Plot, PlotKind, Series, Table};
use crate::together::{THREADS_MAX, processors};

/// Share of a thread's speed that each further thread has to add.
const GROWTH_MIN: f64 = 0.7;

/// An experiment on fingerprints.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FingerprintSpec {
    /// Name.
    #[serde(skip)]
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The paper and table that it reproduces.
    pub source: String,
    /// Notes for readers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Hashes that name chunks.
    pub fingerprints: Vec<Hash>,
    /// Bytes of a chunk.
    pub chunk: usize,
    /// Numbers of threads, from one on. Those that this machine cannot run at the same time are left out.
    pub threads: Vec<usize>,
    /// Numbers that the paper prints.
    pub published: PublishedRates,
    /// MiB that each thread names, with `--quick`.
    pub quick_mib: u64,
    /// The same by default.
    pub mib: u64,
}

/// SHA-1 in the paper, in MB/s.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PublishedRates {
    /// One thread of the processor.
    pub processor: f64,
    /// The device, with transfers.
    pub device: f64,
}

impl FingerprintSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(self.threads.first() == Some(&1), "threads: from one on");
        ensure!(
            self.fingerprints.first() == Some(&Hash::Sha1),
            "fingerprints: sha-1 first, with which others are compared"
        );
        ensure!(self.threads.iter().all(|threads| *threads <= THREADS_MAX), "threads: at most {THREADS_MAX}");
        for mib in [self.quick_mib, self.mib] {
            for &threads in &self.threads {
                let job = |&hash| FingerprintJob { hash, threads, chunk: self.chunk, mib }.check();
                self.fingerprints.iter().try_for_each(job)?;
            }
        }
        ensure!(0.0 < self.published.processor && 0.0 < self.published.device, "published: MB/s");
        Ok(())
    }

    /// Returns hash, code and threads of each row. Code without instructions has one thread.
    fn rows(&self, codes: &[Code], processors: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for &hash in &self.fingerprints {
            for &code in codes.iter().filter(|code| **code == Code::Instructions || hash.can_be_masked()) {
                let fits = |threads: &&usize| match code {
                    Code::Instructions => **threads <= processors,
                    Code::Vectors | Code::Baseline => **threads == 1,
                };
                rows.extend(self.threads.iter().filter(fits).map(|&threads| (hash, code, threads)));
            }
        }
        rows
    }
}

/// Hash, code and number of threads.
type Row = (Hash, Code, usize);

/// Measurements of a row, of each round.
#[derive(Clone, Default, Debug)]
struct Measured {
    /// MB/s.
    rates: Samples,
    /// Seconds of processor time for a GB.
    costs: Samples,
}

impl Measured {
    /// Returns MB/s of a core: for one thread, what other programs on the machine change least.
    fn of_a_core(&self) -> Samples {
        Samples(self.costs.0.iter().map(|cost| float(1000) / cost.max(1e-9)).collect())
    }
}

type Results = BTreeMap<Row, Measured>;

/// Measures, and returns what to show.
pub(super) fn measure(
    spec: &FingerprintSpec,
    mib: u64,
    rounds: u32,
    (worker, features, accelerator): (&Worker, Features, &Accelerator),
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let codes = codes(worker, features);
    let processors = processors();
    let rows = spec.rows(codes, processors);
    let (mut results, mut checks) = (Results::new(), BTreeMap::new());
    for round in 0..rounds as usize {
        for turn in 0..rows.len() {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted.into());
            }
            let row @ (hash, code, threads) = rows[(round + turn) % rows.len()];
            let job = FingerprintJob { hash, threads, chunk: spec.chunk, mib };
            let done = named(worker.perform(&Job::Fingerprint(job), code, monitor)?)?;
            let first = checks.entry(hash).or_insert_with(|| done.check.clone());
            if *first != done.check {
                bail!("{hash}: the names by {} differ from those before: this is a defect", code.name());
            }
            let measured = results.entry(row).or_default();
            measured.rates.0.push(done.rate);
            measured.costs.0.push(done.processor_per_gigabyte);
        }
        monitor.note(&format!("{}: round {} of {rounds}", spec.name, round + 1));
    }
    let on_device = on_device(spec, accelerator, rounds, monitor)?;
    let notes = vec![
        format!(
            "Chunks of {} bytes in memory; each thread names {mib} MiB of its own. Medians of {rounds} rounds, by the clock; each round begins with another row. \
             Claims about one thread are by processor time: the speed of a core that has nothing else to do.",
            spec.chunk
        ),
        format!("Code: {}. All code of a hash had equal results in each round.", words_of_codes(codes)),
        format!("This machine runs {processors} threads at the same time; larger numbers of threads were left out."),
        accelerator.note(),
    ];
    Ok(Shown {
        notes,
        tables: vec![table(spec, &rows, &results, (&on_device, accelerator))],
        plots: vec![plot(spec, &results)],
        claims: claims(spec, &results, processors, (&on_device, accelerator)),
    })
}

/// Rates of a device by hash.
type OnDevice = BTreeMap<Hash, Rates>;

/// Measures each hash on a device; empty rates without one.
fn on_device(
    spec: &FingerprintSpec,
    accelerator: &Accelerator,
    rounds: u32,
    monitor: &dyn Monitor,
) -> Result<OnDevice> {
    let mut all = OnDevice::new();
    for &hash in &spec.fingerprints {
        if monitor.is_interrupted() {
            return Err(Error::Interrupted.into());
        }
        all.insert(hash, accelerator.names(hash, u32::try_from(spec.chunk)?, rounds)?);
    }
    Ok(all)
}

fn named(done: Done) -> Result<FingerprintDone> {
    match done {
        Done::Fingerprint(done) => Ok(done),
        Done::Kernel(_) | Done::Pipeline(_) => bail!("the result of another job"),
    }
}

/// The paper compares with one thread.
const SINGLE: Row = (Hash::Sha1, Code::Instructions, 1);

fn rates(results: &Results, row: Row) -> Samples {
    results.get(&row).map(|measured| measured.rates.clone()).unwrap_or_default()
}

fn of_a_core(results: &Results, row: Row) -> Samples {
    results.get(&row).map(Measured::of_a_core).unwrap_or_default()
}

fn table(
    spec: &FingerprintSpec,
    rows: &[Row],
    results: &Results,
    (on_device, accelerator): (&OnDevice, &Accelerator),
) -> Table {
    let columns = [
        "hash",
        "code",
        "threads",
        "MB/s",
        "least",
        "most",
        "processor seconds per GB",
        "MB/s of a core",
        "times one thread of sha-1",
        "paper: MB/s",
    ];
    let mut cells = Vec::new();
    for &row @ (hash, code, threads) in rows {
        let measured = results.get(&row).cloned().unwrap_or_default();
        let (least, most) = measured.rates.interval().unzip();
        let times = measured.rates.divided(&rates(results, SINGLE)).median();
        let is_papers = hash == Hash::Sha1 && threads == 1 && code == Code::Baseline;
        let published = is_papers.then_some(spec.published.processor);
        let names = [hash.to_string(), code.name().to_owned()].map(Cell::Text);
        let core = measured.of_a_core().median();
        let numbers = [measured.rates.median(), least, most, measured.costs.median(), core, times, published];
        let threads = [Cell::Count(threads as u64)];
        cells.push(names.into_iter().chain(threads).chain(numbers.map(|number| Cell::of(number, false))).collect());
    }
    for &hash in &spec.fingerprints {
        let published = (hash == Hash::Sha1).then_some(spec.published.device);
        let names = [Cell::Text(hash.to_string()), Cell::Text(TITLE.to_owned()), Cell::Empty(())];
        let Rates { rates: found, costs } = on_device.get(&hash).cloned().unwrap_or_default();
        let numbers: Vec<_> = if found.is_empty() {
            accelerator.empty_cells(6).collect()
        } else {
            let (least, most) = found.interval().unzip();
            let times = found.divided(&rates(results, SINGLE)).median();
            let numbers = [found.median(), least, most, costs.median(), None, times];
            numbers.map(|number| Cell::of(number, false)).into()
        };
        cells.push(names.into_iter().chain(numbers).chain([Cell::of(published, false)]).collect());
    }
    Table { title: "Table IX".to_owned(), columns: columns.map(str::to_owned).to_vec(), rows: cells }
}

fn plot(spec: &FingerprintSpec, results: &Results) -> Plot {
    let of_hash = |&hash: &Hash| {
        let at = |&threads: &usize| {
            Some((float(threads as u64), rates(results, (hash, Code::Instructions, threads)).median()?))
        };
        Series { name: hash.to_string(), is_published: false, points: spec.threads.iter().filter_map(at).collect() }
    };
    let series = spec.fingerprints.iter().map(of_hash).collect();
    let (x, y) = (axis("threads", false), axis("MB/s", false));
    Plot { title: spec.title.clone(), x, y, kind: PlotKind::Lines, series }
}

fn claims(
    spec: &FingerprintSpec,
    results: &Results,
    processors: usize,
    (on_device, accelerator): (&OnDevice, &Accelerator),
) -> Vec<Claim> {
    let PublishedRates { processor, device } = spec.published;
    let most = spec.threads.iter().copied().filter(|threads| *threads <= processors).max().unwrap_or(1);
    let at = |hash, threads| rates(results, (hash, Code::Instructions, threads));
    let single = of_a_core(results, SINGLE);
    let times = on_device.get(&Hash::Sha1).cloned().unwrap_or_default().rates.divided(&single);
    let missing = || accelerator.missing().map(|(_, sentence)| sentence);
    let mut claims = vec![
        Compared {
            what: "SHA-1 on a device is so many times as fast as in one thread of the processor".to_owned(),
            bound: Bound::ratio(device / processor, device / processor, TOLERANCE),
            unprinted: "",
            found: times.clone(),
            missing: missing(),
            remark: "The paper's machine is of 2012, and its processor has no instructions for SHA-1.",
        },
        Compared {
            what: "SHA-1 on a device, as a multiple of one thread with instructions".to_owned(),
            bound: Bound::AtLeast(device / processor),
            unprinted: "ours: at least what the paper's device gains over a thread without them",
            found: times,
            missing: missing(),
            remark: "",
        },
        Compared {
            what: "SHA-1 in one thread without instructions for it, MB/s".to_owned(),
            bound: Bound::value(processor, TOLERANCE),
            unprinted: "",
            found: of_a_core(results, (Hash::Sha1, Code::Baseline, 1)),
            missing: None,
            remark: "The paper's processor is of 2012.",
        },
        Compared {
            what: "SHA-1 in one thread with instructions, as a multiple of the paper's device".to_owned(),
            bound: Bound::AtLeast(1.0),
            unprinted: "ours: an instruction does what took a device",
            found: Samples(single.0.iter().map(|rate| rate / device).collect()),
            missing: None,
            remark: "",
        },
        Compared {
            what: format!("SHA-1 with {most} threads is so many times as fast as with one"),
            bound: Bound::AtLeast(GROWTH_MIN * float(most as u64)),
            unprinted: "ours: about linear, up to the number of processors",
            found: at(Hash::Sha1, most).divided(&at(Hash::Sha1, 1)),
            missing: (most == 1).then(|| "This machine runs one thread at a time.".to_owned()),
            remark: "",
        },
    ];
    if spec.fingerprints.contains(&Hash::Blake3) {
        claims.push(Compared {
            what: "keyed BLAKE3 in one thread is so many times as fast as SHA-1".to_owned(),
            bound: Bound::More,
            unprinted: "ours: that of repositories",
            found: of_a_core(results, (Hash::Blake3, Code::Instructions, 1)).divided(&single),
            missing: None,
            remark: "",
        });
    }
    claims.into_iter().map(Compared::claim).collect()
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::experiment::device::tests::{host, none};
    use crate::findings::Verdict;

    const FEATURES: Features = Features { sha: true, aes: true, can_be_masked: true };

    fn spec() -> FingerprintSpec {
        let Experiment::Fingerprints(spec) = Experiment::named("lazy-table-9").unwrap() else { panic!("another kind") };
        spec
    }

    #[test]
    fn every_hash_has_a_speed_and_a_device_that_is_not_there_is_not_judged() {
        let spec = spec();
        let shown = measure(&spec, 1, 2, (&Worker::in_process(), FEATURES, &none()), &Silent).unwrap();
        let table = &shown.tables[0];
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        let (others, on_device) = table.rows.split_at(table.rows.len() - spec.fingerprints.len());
        assert!(others.iter().all(|row| matches!(row[3], Cell::Number(rate) if 0.0 < rate)), "{others:?}");
        assert!(on_device.iter().all(|row| row[3] == Cell::Text("no device".to_owned())), "{on_device:?}");
        assert_eq!(on_device[0][9], Cell::Number(1563.0));
        let (on_device, rest) = shown.claims.split_at(2);
        for claim in on_device {
            assert_eq!(claim.verdict, Verdict::CannotBeShown);
            assert!(claim.remark.contains("not judged") && claim.published.contains("4.62"), "{claim:?}");
        }
        // In one process there is no code without instructions.
        assert_eq!(rest[0].verdict, Verdict::CannotBeShown);
        assert_ne!(rest[1].verdict, Verdict::CannotBeShown);
    }

    #[test]
    fn a_device_has_a_rate_for_each_hash_and_its_claims_are_judged() {
        let spec = spec();
        let shown = measure(&spec, 1, 2, (&Worker::in_process(), FEATURES, &host()), &Silent).unwrap();
        let table = &shown.tables[0];
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        for (row, hash) in table.rows[table.rows.len() - spec.fingerprints.len()..].iter().zip(&spec.fingerprints) {
            assert_eq!(row[..2], [Cell::Text(hash.to_string()), Cell::Text(TITLE.to_owned())]);
            let rates: Vec<_> = [4, 3, 5].map(|at| if let Cell::Number(rate) = row[at] { rate } else { 0.0 }).into();
            assert!(0.0 < rates[0] && rates.is_sorted(), "{row:?}");
            assert!(matches!(row[8], Cell::Number(times) if 0.0 < times), "{row:?}");
        }
        assert!(
            shown.claims[..2].iter().all(|claim| claim.verdict != Verdict::CannotBeShown && !claim.found.is_empty())
        );
        assert!(shown.notes.iter().any(|note| note.starts_with("Device: the host, ")), "{:?}", shown.notes);
    }

    #[test]
    fn each_claim_that_is_judged_can_hold_and_fail() {
        let spec = spec();
        let verdicts = |on_device: f64, [baseline, single, many, blake3]: [f64; 4]| {
            let row = |hash, code, threads, rate| {
                (
                    (hash, code, threads),
                    Measured { rates: Samples(vec![rate; 3]), costs: Samples(vec![1000.0 / rate; 3]) },
                )
            };
            let results = Results::from([
                row(Hash::Sha1, Code::Baseline, 1, baseline),
                row(Hash::Sha1, Code::Instructions, 1, single),
                row(Hash::Sha1, Code::Instructions, 4, many),
                row(Hash::Blake3, Code::Instructions, 1, blake3),
            ]);
            let rates = Rates { rates: Samples(vec![on_device; 3]), costs: Samples::default() };
            let on_device = OnDevice::from([(Hash::Sha1, rates)]);
            let claims = claims(&spec, &results, 4, (&on_device, &host()));
            claims.into_iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        let (holds, fails) = (Verdict::Holds, Verdict::DoesNotHold);
        let (reproduced, not) = (Verdict::Reproduced, Verdict::NotReproduced);
        let good = [reproduced, holds, reproduced, holds, holds, holds];
        assert_eq!(verdicts(5.0 * 1600.0, [338.0, 1600.0, 6400.0, 1700.0]), good);
        assert_eq!(verdicts(3000.0, [500.0, 1500.0, 3000.0, 1400.0]), [not, fails, not, fails, fails, fails]);
        // Faster than the paper's: its ratio is not reproduced, and ours holds.
        assert_eq!(verdicts(25.0 * 1600.0, [338.0, 1600.0, 6400.0, 1700.0])[..2], [not, holds]);
    }

    #[test]
    fn names_that_depend_on_the_code_are_a_defect_and_unsound_files_are_refused() {
        let script = r#"cat >/dev/null; echo '{"fingerprint":{"rate":1,"processor_per_gigabyte":1,"check":"'$OPENSSL_ia32cap'"}}'"#;
        let worker = Worker::of_program("/bin/sh".into(), vec!["-c".into(), script.into()]);
        let error = measure(&spec(), 1, 1, (&worker, FEATURES, &none()), &Silent).unwrap_err();
        assert!(error.to_string().contains("this is a defect"), "{error}");
        let refused = |spec: FingerprintSpec| spec.check().unwrap_err().to_string();
        assert_eq!(refused(FingerprintSpec { threads: vec![2], ..spec() }), "threads: from one on");
        assert!(refused(FingerprintSpec { fingerprints: vec![Hash::Sha256], ..spec() }).contains("sha-1 first"));
        assert!(refused(FingerprintSpec { threads: vec![1, 1000], ..spec() }).contains("at most 256"));
    }
}
