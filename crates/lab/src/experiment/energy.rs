//! Energy of hashing and encrypting: table I of Ma et al., "Towards Fast De-duplication Using Low Energy Coprocessor".

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::coprocessor::code::{Code, Features};
use crate::coprocessor::energy::Meter;
use crate::coprocessor::kernel::{Kernel, KernelDone, KernelJob};
use crate::coprocessor::worker::{Done, Job, Worker};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown};
use crate::experiment::kernels::{codes, words_of_codes};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE};
use crate::findings::{Axis, Cell, Plot, PlotKind, Series, Table};

/// In place of a number that the machine does not give.
const NOT_READABLE: &str = "not readable";

/// An experiment on energy.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EnergySpec {
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
    /// Work for each byte: a hash, a cipher.
    pub energy: Vec<Kernel>,
    /// Bytes of a block.
    pub block: usize,
    /// Machines of the paper.
    pub machines: Vec<Machine>,
    /// Milliseconds of a measurement, with `--quick`.
    pub quick_millis: u64,
    /// The same by default.
    pub millis: u64,
}

/// A machine of the paper.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// Name.
    pub name: String,
    /// Whether it has the coprocessor.
    pub has_coprocessor: bool,
    /// Most watts.
    pub most: f64,
    /// Fewest.
    pub least: f64,
    /// Its throughput in figure 12, in MB/s.
    pub rate: f64,
}

impl Machine {
    /// Returns joules for a GB at full power.
    fn joules(&self) -> f64 {
        1000.0 * self.most / self.rate
    }

    /// Returns which share of its full power it takes when idle.
    fn idle(&self) -> f64 {
        self.least / self.most
    }
}

impl EnergySpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.energy.is_empty(), "energy of nothing");
        ensure!(
            self.machines.iter().any(|it| it.has_coprocessor) && self.machines.iter().any(|it| !it.has_coprocessor),
            "machines: with a coprocessor and without"
        );
        for millis in [self.quick_millis, self.millis] {
            self.energy.iter().try_for_each(|&kernel| KernelJob { kernel, block: self.block, millis }.check())?;
        }
        Ok(())
    }
}

/// Measurements of some code, of each round.
#[derive(Clone, Debug, Default)]
struct Taken {
    /// Seconds of processor time for a GB.
    processor: Samples,
    /// Joules for a GB of all packages, idle power included.
    joules: Samples,
    watts: Samples,
}

/// Measures, and returns what to show.
pub(super) fn measure(
    spec: &EnergySpec,
    millis: u64,
    rounds: u32,
    (worker, features, powercap): (&Worker, Features, &Path),
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let meter = Meter::in_directory(powercap);
    let codes = codes(worker, features);
    let mut taken = vec![Taken::default(); codes.len()];
    let mut idle = Samples::default();
    for round in 0..rounds as usize {
        if !meter.is_empty() {
            idle.0.extend(at_rest(&meter, millis));
        }
        for turn in 0..codes.len() {
            let at = (round + turn) % codes.len();
            let (mut processor, mut joules, mut watts) = (0.0, Some(0.0), Samples::default());
            for &kernel in &spec.energy {
                let job = Job::Kernel(KernelJob { kernel, block: spec.block, millis });
                let (before, start) = (meter.read(), Instant::now());
                let Done::Kernel(done) = worker.perform(&job, codes[at], monitor)? else {
                    bail!("the result of another job")
                };
                let (spent, elapsed) = (meter.joules_since(&before), start.elapsed().as_secs_f64());
                processor += per_gigabyte(&done, done.processor_seconds);
                // The process takes a moment to start and to make its noise, at the same power.
                let of_work = spent.map(|spent| per_gigabyte(&done, spent * done.seconds / elapsed));
                joules = joules.zip(of_work).map(|(sum, one)| sum + one);
                watts.0.extend(spent.map(|spent| spent / elapsed));
            }
            let of_code = &mut taken[at];
            of_code.processor.0.push(processor);
            of_code.joules.0.extend(joules.filter(|_| !meter.is_empty()));
            of_code.watts.0.extend(watts.median());
        }
    }
    let names: Vec<_> = spec.energy.iter().map(|kernel| kernel.name()).collect();
    let mut notes = vec![
        format!(
            "Each byte goes through {}, in blocks of {} bytes, in one thread; medians of {rounds} rounds.",
            names.join(" and "),
            spec.block
        ),
        format!("Code: {}.", words_of_codes(codes)),
    ];
    notes.push(if meter.is_empty() {
        format!("The energy of this machine is not readable: {} has no counter that can be read.", powercap.display())
    } else {
        "Joules are those of all packages and their memory as RAPL counts them, with all else that runs on them; not those of disks, fans and power supply, which \
         the paper's watts contain."
            .to_owned()
    });
    let claims = claims(spec, codes, &taken, &idle, (worker, features));
    Ok(Shown { notes, tables: vec![table(spec, codes, &taken, &idle)], plots: vec![plot(codes, &taken)], claims })
}

fn per_gigabyte(done: &KernelDone, amount: f64) -> f64 {
    amount / (float(done.bytes.max(1)) / 1e9)
}

/// Returns the watts of a machine on which this program does nothing.
fn at_rest(meter: &Meter, millis: u64) -> Option<f64> {
    let (before, start) = (meter.read(), Instant::now());
    std::thread::sleep(Duration::from_millis(millis));
    Some(meter.joules_since(&before)? / start.elapsed().as_secs_f64())
}

fn table(spec: &EnergySpec, codes: &[Code], taken: &[Taken], idle: &Samples) -> Table {
    let columns =
        ["machine", "least, W", "most, W", "J per GB", "processor seconds per GB"].map(str::to_owned).to_vec();
    let read = |samples: &Samples| match samples.median() {
        Some(number) => Cell::Number(number),
        None => Cell::Text(NOT_READABLE.to_owned()),
    };
    let mut rows = Vec::new();
    for (code, taken) in codes.iter().zip(taken) {
        rows.push(vec![
            Cell::Text(format!("this one, {}", code.name())),
            read(idle),
            read(&taken.watts),
            read(&taken.joules),
            Cell::of(taken.processor.median(), false),
        ]);
    }
    for machine in &spec.machines {
        rows.push(vec![
            Cell::Text(format!("paper: {}", machine.name)),
            Cell::Number(machine.least),
            Cell::Number(machine.most),
            Cell::Number(machine.joules()),
            Cell::Empty(()),
        ]);
    }
    Table { title: "Power and energy".to_owned(), columns, rows }
}

fn plot(codes: &[Code], taken: &[Taken]) -> Plot {
    let points = (0_u64..).zip(taken).filter_map(|(at, taken)| Some((float(at), taken.processor.median()?))).collect();
    let names = codes.iter().map(|code| code.name().to_owned()).collect();
    Plot {
        title: "Processor time for a GB".to_owned(),
        x: Axis { title: "code".to_owned(), is_logarithmic: false, names },
        y: Axis { title: "seconds".to_owned(), is_logarithmic: false, names: Vec::new() },
        kind: PlotKind::Bars,
        series: vec![Series { name: "this machine".to_owned(), is_published: false, points }],
    }
}

fn claims(
    spec: &EnergySpec,
    codes: &[Code],
    taken: &[Taken],
    idle: &Samples,
    (worker, features): (&Worker, Features),
) -> Vec<crate::findings::Claim> {
    let of_code =
        |code| codes.iter().position(|one| *one == code).and_then(|at| taken.get(at)).cloned().unwrap_or_default();
    let (with, without) = (of_code(Code::Instructions), of_code(Code::Baseline));
    let unmasked = || (!worker.can_mask()).then(|| "It needs a program that can be started again.".to_owned());
    let missing = || spec.energy.iter().find_map(|kernel| kernel.missing(features)).or_else(unmasked);
    let unreadable =
        |samples: &Samples| samples.is_empty().then(|| "The energy of this machine is not readable.".to_owned());
    let machine = |has: bool| spec.machines.iter().find(|machine| machine.has_coprocessor == has);
    let mut claims = Vec::new();
    if let Some((fast, slow)) = machine(true).zip(machine(false)) {
        let stated = slow.joules() / fast.joules();
        claims.push(Compared {
            what: "energy for a GB without instructions to that with them".to_owned(),
            bound: Bound::ratio(stated, stated, TOLERANCE),
            unprinted: "",
            missing: missing().or_else(|| unreadable(&with.joules)),
            found: without.joules.divided(&with.joules),
            remark: "The paper compares two machines with their disks and power supplies, and this is one processor.",
        });
        let (least, most) = (fast.idle().min(slow.idle()), fast.idle().max(slow.idle()));
        claims.push(Compared {
            what: "power at rest to power at work".to_owned(),
            bound: Bound::ratio(least, most, TOLERANCE),
            unprinted: "",
            missing: unreadable(idle),
            found: idle.divided(&with.watts),
            remark: "The paper's watts are those of whole machines.",
        });
    }
    claims.push(Compared {
        what: "processor time for a GB without instructions to that with them".to_owned(),
        bound: Bound::More,
        unprinted: "ours, as energy follows processor time",
        found: without.processor.divided(&with.processor),
        missing: missing(),
        remark: "",
    });
    claims.into_iter().map(Compared::claim).collect()
}

#[cfg(test)]
mod tests {
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::experiment::catalog::Experiment;
    use crate::findings::Verdict;

    const FEATURES: Features = Features { sha: true, aes: true, can_be_masked: true };

    fn spec() -> EnergySpec {
        let Experiment::Energy(spec) = Experiment::named("dedupcdp-table-1").unwrap() else { panic!("another kind") };
        spec
    }

    #[test]
    fn a_machine_without_counters_shows_processor_time_and_says_not_readable() {
        let dir = tempfile::tempdir().unwrap();
        let shown = measure(&spec(), 1, 1, (&Worker::in_process(), FEATURES, dir.path()), &Silent).unwrap();
        let rows = &shown.tables[0].rows;
        assert_eq!(rows.len(), 3);
        assert!(rows[0][1..4].iter().all(|cell| *cell == Cell::Text("not readable".to_owned())), "{rows:?}");
        assert!(matches!(rows[0][4], Cell::Number(seconds) if 0.0 < seconds));
        assert!(shown.claims.iter().all(|claim| claim.verdict == Verdict::CannotBeShown), "{:?}", shown.claims);
        assert!(shown.claims[1].remark.contains("not readable"), "{:?}", shown.claims);
    }

    #[test]
    fn a_counter_that_grows_gives_joules_and_watts() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("intel-rapl:0");
        std::fs::create_dir(&package).unwrap();
        for (file, text) in [("name", "package-0"), ("energy_uj", "0"), ("max_energy_range_uj", "1000000000000")] {
            std::fs::write(package.join(file), text).unwrap();
        }
        // As a program that takes 5 joules each time.
        let energy = package.join("energy_uj");
        let done = r#"{"kernel":{"bytes":1000000000,"seconds":1,"processor_seconds":0.5,"check":""}}"#;
        let script =
            format!("cat >/dev/null; n=$(cat {0}); echo $((n + 5000000)) >{0}; echo '{done}'", energy.display());
        let worker = Worker::of_program("/bin/sh".into(), vec!["-c".into(), script.into()]);
        let shown = measure(&spec(), 1, 1, (&worker, FEATURES, dir.path()), &Silent).unwrap();
        let rows = &shown.tables[0].rows;
        assert!(
            rows[..3]
                .iter()
                .all(|row| row[1] == Cell::Number(0.0) && matches!(row[2], Cell::Number(watts) if 0.0 < watts)),
            "{rows:?}"
        );
        assert!(rows[..3].iter().all(|row| matches!(row[3], Cell::Number(joules) if 0.0 < joules)), "{rows:?}");
        assert_eq!(rows[0][4], Cell::Number(1.0));
        assert!(shown.claims.iter().all(|claim| claim.verdict != Verdict::CannotBeShown), "{:?}", shown.claims);
    }

    #[test]
    fn each_claim_can_get_each_verdict() {
        let spec = spec();
        let worker = Worker::of_program("/bin/false".into(), Vec::new());
        let verdicts = |joules: f64, idle: f64, processor: f64, features| {
            let taken = |processor, joules| Taken {
                processor: Samples(vec![processor]),
                joules: Samples(vec![joules]),
                watts: Samples(vec![1.0]),
            };
            let taken = [taken(processor, 1.0), taken(0.9, 2.0), taken(1.0, joules)];
            let all = claims(&spec, &Code::ALL, &taken, &Samples(vec![idle]), (&worker, features));
            all.into_iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(15.95, 0.65, 0.5, FEATURES), [Verdict::Reproduced, Verdict::Reproduced, Verdict::Holds]);
        assert_eq!(
            verdicts(2.0, 0.2, 2.0, FEATURES),
            [Verdict::NotReproduced, Verdict::NotReproduced, Verdict::DoesNotHold]
        );
        let without = Features { aes: false, ..FEATURES };
        assert_eq!(
            verdicts(16.0, 0.65, 0.5, without),
            [Verdict::CannotBeShown, Verdict::Reproduced, Verdict::CannotBeShown]
        );
    }
}
