//! Tables, plot and claims of a measurement of scaling.

use anyhow::Result;

use super::sequencer::{Parts, parts};
use super::{Cost, Scaling};
use crate::counts::float;
use crate::experiment::compared::{Compared, axis};
use crate::experiment::verdict::{Bound, Samples};
use crate::findings::{Cell, Claim, Findings, Origin, Plot, PlotKind, Series, Table};
use crate::together::processors;

/// Name of the findings.
pub const NAME: &str = "scaling";
/// Threads of the claim about throughput,
const CLAIMED_THREADS: usize = 16;
/// and its GB/s: chunking and fingerprints of 1.6 GB/s for each thread.
const CLAIMED_RATE: f64 = 25.0;
/// GB/s of the sequencer: more than 16 threads bring.
const CLAIMED_SEQUENCER: f64 = 35.0;

/// Measurements with a number of threads, of each round.
struct Row {
    threads: usize,
    apart: Vec<Cost>,
    pipeline: Vec<Cost>,
}

fn samples(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> Samples {
    Samples(costs.iter().map(of).collect())
}

/// Measures, and returns the findings.
pub fn findings(scaling: &Scaling<'_>, origin: Origin, command: String) -> Result<Findings> {
    scaling.check()?;
    let start = std::time::Instant::now();
    let directory = tempfile::Builder::new().prefix("onefold-lab-").tempdir_in(scaling.scratch)?;
    let file = scaling.file(directory.path())?;
    let fitting = scaling.fitting();
    let row = |threads: &usize| Row { threads: *threads, apart: Vec::new(), pipeline: Vec::new() };
    let mut rows: Vec<_> = fitting.iter().map(row).collect();
    let mut alone = Vec::new();
    for round in 0..scaling.rounds as usize {
        for turn in 0..rows.len() {
            scaling.go_on()?;
            let at = (round + turn) % rows.len();
            let row = &mut rows[at];
            row.apart.push(scaling.apart(row.threads)?);
            row.pipeline.push(scaling.pipeline(&file, row.threads)?);
        }
        alone.push(parts(scaling)?);
        scaling.monitor.note(&format!("{NAME}: round {} of {}", round + 1, scaling.rounds));
    }
    let mut findings = Findings {
        experiment: NAME.to_owned(),
        title: "Chunking and fingerprints by threads, and the sequencer alone".to_owned(),
        source: "new".to_owned(),
        command,
        origin,
        notes: notes(scaling, &rows),
        tables: vec![by_threads(&rows), of_sequencer(scaling, &rows, &alone)],
        plots: vec![plot(&rows)],
        claims: claims(scaling, &rows, &alone),
        ..Findings::default()
    };
    findings.seconds = start.elapsed().as_secs_f64();
    Ok(findings)
}

fn notes(scaling: &Scaling<'_>, rows: &[Row]) -> Vec<String> {
    let mut notes = vec![
        format!(
            "{} MiB of noise, chunks of {} bytes on average, keyed BLAKE3; medians of {} rounds, each of which begins with another number of threads.",
            scaling.bytes >> 20,
            scaling.average,
            scaling.rounds
        ),
        "Apart: each thread cuts and names memory of its own, with no order between threads. Pipeline: the stages of a backup up to identification read a \
         file from the page cache under --scratch; workers find candidates and name chunks, readers read, and one thread, the sequencer, cuts and keeps \
         the order. From 4 threads on, a backup identifies in another thread."
            .to_owned(),
        format!(
            "Sequencer alone: cutting at candidates found before, and submitting {} chunks in blocks of 512 KiB to an index on disk under --scratch: first new ones, \
             which are recorded, then the same again. All verdicts were checked.",
            scaling.chunks
        ),
    ];
    if rows.len() < scaling.threads.len() {
        notes.push(format!(
            "This machine runs {} threads at the same time; larger numbers were left out.",
            processors()
        ));
    }
    notes
}

fn by_threads(rows: &[Row]) -> Table {
    let columns = [
        "threads",
        "apart, GB/s",
        "apart, times one thread",
        "apart, processor s/GB",
        "pipeline, GB/s",
        "pipeline, times one thread",
        "pipeline, processor s/GB",
        "sequencer, processor s/GB",
        "sequencer's limit, GB/s",
    ];
    let cells = |row: &Row| {
        let (apart, pipeline) = (samples(&row.apart, Cost::rate), samples(&row.pipeline, Cost::rate));
        let times = |rates: &Samples, of: &dyn Fn(&Row) -> Samples| {
            rows.first().filter(|row| row.threads == 1).and_then(|first| rates.divided(&of(first)).median())
        };
        let sequencer = samples(&row.pipeline, |cost| cost.per_gigabyte(cost.sequencer)).median();
        let numbers = [
            apart.median(),
            times(&apart, &|row| samples(&row.apart, Cost::rate)),
            samples(&row.apart, |cost| cost.per_gigabyte(cost.processor)).median(),
            pipeline.median(),
            times(&pipeline, &|row| samples(&row.pipeline, Cost::rate)),
            samples(&row.pipeline, |cost| cost.per_gigabyte(cost.processor)).median(),
            sequencer,
            sequencer.map(|seconds| 1.0 / seconds.max(1e-12)),
        ];
        std::iter::once(Cell::Count(row.threads as u64)).chain(numbers.map(|number| Cell::of(number, false))).collect()
    };
    let columns = columns.map(str::to_owned).to_vec();
    Table { title: "By threads".to_owned(), columns, rows: rows.iter().map(cells).collect() }
}

/// Nanoseconds of a chunk in each part of the sequencer, of each round. Crossings are what the pipeline's sequencer takes more than cutting.
struct Nanoseconds {
    cut: Samples,
    new: Samples,
    known: Samples,
    crossings: Samples,
}

impl Nanoseconds {
    fn of(rows: &[Row], alone: &[Parts]) -> Self {
        let of = |part: &dyn Fn(&Parts) -> f64| Samples(alone.iter().map(part).collect());
        let cut = of(&|parts| parts.cut.nanoseconds());
        let costs = rows.last().map(|row| &*row.pipeline).unwrap_or_default();
        let per_chunk = |cost: &Cost| cost.sequencer.as_secs_f64() * 1e9 / float(cost.chunks.max(1));
        let crossings = costs.iter().zip(&cut.0).map(|(cost, cut)| (per_chunk(cost) - cut).max(0.0)).collect();
        Self {
            new: of(&|parts| parts.new.nanoseconds()),
            known: of(&|parts| parts.known.nanoseconds()),
            crossings: Samples(crossings),
            cut,
        }
    }

    /// Returns what the slower of two threads takes in each round: one cuts and crosses, the other one submits known chunks.
    fn slower(&self) -> Samples {
        let cutting = Self::sum(&[&self.cut, &self.crossings]);
        Samples(cutting.0.iter().zip(&self.known.0).map(|(cut, submit)| cut.max(*submit)).collect())
    }

    /// Adds parts of each round.
    fn sum(parts: &[&Samples]) -> Samples {
        let rounds = parts.iter().map(|part| part.0.len()).min().unwrap_or(0);
        Samples((0..rounds).map(|round| parts.iter().map(|part| part.0[round]).sum()).collect())
    }
}

/// Returns GB/s where a chunk takes so many nanoseconds.
fn gigabytes(nanoseconds: &Samples, average: u32) -> Samples {
    Samples(nanoseconds.0.iter().map(|nanoseconds| f64::from(average) / nanoseconds.max(1e-9)).collect())
}

fn of_sequencer(scaling: &Scaling<'_>, rows: &[Row], alone: &[Parts]) -> Table {
    let parts = Nanoseconds::of(rows, alone);
    let elapsed = |part: &dyn Fn(&Parts) -> f64| Samples(alone.iter().map(part).collect()).median();
    let Nanoseconds { cut, new, known, crossings } = &parts;
    let most = rows.last().map_or(0, |row| row.threads);
    let rows = [
        ("cut".to_owned(), cut.clone(), elapsed(&|parts| parts.cut.nanoseconds_elapsed())),
        ("submit, known chunks".to_owned(), known.clone(), elapsed(&|parts| parts.known.nanoseconds_elapsed())),
        ("submit and record, new chunks".to_owned(), new.clone(), elapsed(&|parts| parts.new.nanoseconds_elapsed())),
        ("cut and submit, known chunks".to_owned(), Nanoseconds::sum(&[cut, known]), None),
        (format!("crossings of the pipeline, {most} threads"), crossings.clone(), None),
        ("all of it in one thread, known chunks".to_owned(), Nanoseconds::sum(&[cut, crossings, known]), None),
        ("the slower of two threads, known chunks".to_owned(), parts.slower(), None),
    ];
    let cells = |(name, nanoseconds, elapsed): (String, Samples, Option<f64>)| {
        let millions = nanoseconds.median().map(|nanoseconds| 1e3 / nanoseconds.max(1e-9));
        let (least, most) = gigabytes(&nanoseconds, scaling.average).interval().unzip();
        let rate = gigabytes(&nanoseconds, scaling.average).median();
        let numbers = [nanoseconds.median(), elapsed, millions, rate, least, most];
        std::iter::once(Cell::Text(name)).chain(numbers.map(|number| Cell::of(number, false))).collect()
    };
    let columns =
        ["part", "processor ns per chunk", "ns per chunk by the clock", "million chunks/s", "GB/s", "least", "most"];
    let columns = columns.map(str::to_owned).to_vec();
    Table {
        title: format!("Sequencer alone, chunks of {} bytes", scaling.average),
        columns,
        rows: rows.into_iter().map(cells).collect(),
    }
}

fn plot(rows: &[Row]) -> Plot {
    let line = |name: &str, of: &dyn Fn(&Row) -> Samples| {
        let points = rows.iter().filter_map(|row| Some((float(row.threads as u64), of(row).median()?))).collect();
        Series { name: name.to_owned(), is_published: false, points }
    };
    Plot {
        title: "Chunking and fingerprints".to_owned(),
        x: axis("threads", false),
        y: axis("GB/s", false),
        kind: PlotKind::Lines,
        series: vec![
            line("apart", &|row| samples(&row.apart, Cost::rate)),
            line("pipeline", &|row| samples(&row.pipeline, Cost::rate)),
        ],
    }
}

fn claims(scaling: &Scaling<'_>, rows: &[Row], alone: &[Parts]) -> Vec<Claim> {
    let row = rows.iter().find(|row| row.threads == CLAIMED_THREADS);
    let missing = || format!("It needs {CLAIMED_THREADS} processors; this machine has {}.", processors());
    let parts = Nanoseconds::of(rows, alone);
    let of_parts = |parts: &[&Samples]| gigabytes(&Nanoseconds::sum(parts), scaling.average);
    let claims = [
        Compared {
            what: format!("chunking and fingerprints in the pipeline with {CLAIMED_THREADS} threads, GB/s"),
            bound: Bound::AtLeast(CLAIMED_RATE),
            unprinted: "ours",
            found: row.map(|row| samples(&row.pipeline, Cost::rate)).unwrap_or_default(),
            missing: row.is_none().then(missing),
            remark: "",
        },
        Compared {
            what: "cutting and submitting known chunks in one thread, GB/s".to_owned(),
            bound: Bound::AtLeast(CLAIMED_SEQUENCER),
            unprinted: "ours: more than 16 threads bring",
            found: of_parts(&[&parts.cut, &parts.known]),
            missing: None,
            remark: "",
        },
        Compared {
            what: "the same with the crossings between threads, in two threads, GB/s".to_owned(),
            bound: Bound::AtLeast(CLAIMED_SEQUENCER),
            unprinted: "ours: more than 16 threads bring",
            found: gigabytes(&parts.slower(), scaling.average),
            missing: None,
            remark: "A backup with fewer than 4 threads does all of it in one.",
        },
    ];
    claims.into_iter().map(Compared::claim).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onefold_engine::monitor::Silent;

    use super::super::sequencer::Part;
    use super::*;
    use crate::findings::Verdict;

    fn scaling(scratch: &std::path::Path) -> Scaling<'_> {
        Scaling {
            threads: vec![1, 2, 256],
            readers: Some(3),
            bytes: 2 << 20,
            average: 8192,
            chunks: 3_000,
            rounds: 2,
            scratch,
            monitor: &Silent,
        }
    }

    #[test]
    fn each_number_of_threads_and_each_part_has_a_row() {
        let dir = tempfile::tempdir().unwrap();
        let found = findings(&scaling(dir.path()), Origin::default(), String::new()).unwrap();
        let fitting = [1, 2].into_iter().filter(|threads| *threads <= processors()).count();
        assert_eq!(found.tables[0].rows.len(), fitting);
        assert_eq!((found.tables[1].rows.len(), found.claims.len()), (7, 3));
        for table in &found.tables {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
        }
        assert!(found.notes.iter().any(|note| note.contains("larger numbers were left out")), "{:?}", found.notes);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn each_claim_can_hold_fail_and_be_missing() {
        let verdicts = |threads: usize, scale: u32| {
            let times = |nanoseconds: u64| Duration::from_nanos(nanoseconds) * 1_000_000 * scale;
            let cost = Cost {
                bytes: 8_192_000_000,
                chunks: 1_000_000,
                elapsed: times(300),
                processor: times(5_000),
                sequencer: times(150),
            };
            let rows = [Row { threads, apart: vec![cost], pipeline: vec![cost] }];
            let part =
                |nanoseconds| Part { chunks: 1_000_000, processor: times(nanoseconds), elapsed: times(nanoseconds) };
            let alone = [Parts { cut: part(20), new: part(300), known: part(100) }];
            let dir = tempfile::tempdir().unwrap();
            claims(&scaling(dir.path()), &rows, &alone).into_iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(16, 1), [Verdict::Holds; 3]);
        assert_eq!(verdicts(16, 2), [Verdict::DoesNotHold; 3]);
        assert_eq!(verdicts(2, 2), [Verdict::CannotBeShown, Verdict::DoesNotHold, Verdict::DoesNotHold]);
    }
}
