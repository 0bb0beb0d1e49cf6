//! Hashes and ciphers with and without the processor's instructions: figures 7 and 8 of Ma et al., "Towards Fast De-duplication Using Low
//! Energy Coprocessor".

use std::collections::HashMap;

use anyhow::{Result, bail, ensure};
use onefold_engine::monitor::Monitor;
use serde::Deserialize;

use crate::coprocessor::code::{Code, Features};
use crate::coprocessor::kernel::{Kernel, KernelDone, KernelJob};
use crate::coprocessor::worker::{Done, Job, Worker};
use crate::counts::float;
use crate::experiment::compared::{Compared, Shown, axis};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE};
use crate::findings::{Cell, Plot, PlotKind, Series, Table};

/// An experiment on kernels.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KernelSpec {
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
    /// Hashes or ciphers.
    pub kernels: Vec<Kernel>,
    /// Bytes of the blocks that are hashed or encrypted.
    pub blocks: Vec<usize>,
    /// The block that claims are about.
    pub claimed: usize,
    /// Numbers that the paper prints.
    #[serde(default)]
    pub published: Vec<SlowDown>,
    /// Remark on numbers that differ.
    #[serde(default)]
    pub remark: String,
    /// Milliseconds of a measurement, with `--quick`.
    pub quick_millis: u64,
    /// The same by default.
    pub millis: u64,
}

/// A number that the paper prints.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SlowDown {
    /// The kernel.
    pub kernel: Kernel,
    /// Time without the coprocessor, compared with the time on it.
    pub times: f64,
}

impl KernelSpec {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.kernels.is_empty(), "no kernel is measured");
        ensure!(self.blocks.contains(&self.claimed), "claimed: one of blocks");
        for &block in &self.blocks {
            for millis in [self.quick_millis, self.millis] {
                self.kernels.iter().try_for_each(|&kernel| KernelJob { kernel, block, millis }.check())?;
            }
        }
        ensure!(self.published.iter().all(|it| self.kernels.contains(&it.kernel)), "published: one of kernels");
        Ok(())
    }
}

/// MB/s by kernel, block and code, of each round.
type Rates = HashMap<(Kernel, usize, Code), Samples>;

/// Returns the code that can be measured.
pub(super) fn codes(worker: &Worker, features: Features) -> &'static [Code] {
    if worker.can_mask() && features.can_be_masked { &Code::ALL } else { &Code::ALL[..1] }
}

/// Describes the code that was measured, with its masks.
pub(super) fn words_of_codes(codes: &[Code]) -> String {
    let words = |code: &Code| match code.mask() {
        None => format!("{} is all that the processor has", code.name()),
        Some(mask) => format!("{} has the mask {mask}", code.name()),
    };
    codes.iter().map(words).collect::<Vec<_>>().join("; ")
}

/// Measures, and returns what to show.
pub(super) fn measure(
    spec: &KernelSpec,
    millis: u64,
    rounds: u32,
    (worker, features): (&Worker, Features),
    monitor: &dyn Monitor,
) -> Result<Shown> {
    let codes = codes(worker, features);
    let mut rates = Rates::new();
    for &kernel in &spec.kernels {
        for &block in &spec.blocks {
            let job = Job::Kernel(KernelJob { kernel, block, millis });
            let mut check: Option<String> = None;
            for round in 0..rounds as usize {
                for turn in 0..codes.len() {
                    let code = codes[(round + turn) % codes.len()];
                    let done = kernel_done(worker.perform(&job, code, monitor)?)?;
                    let first = check.get_or_insert_with(|| done.check.clone());
                    if *first != done.check {
                        bail!(
                            "{}: the results of {} differ from those before: this is a defect",
                            kernel.name(),
                            code.name()
                        );
                    }
                    rates.entry((kernel, block, code)).or_default().0.push(done.rate());
                }
            }
            let shown =
                codes.iter().filter_map(|code| Some(format!("{:.0}", rates.get(&(kernel, block, *code))?.median()?)));
            let shown = shown.collect::<Vec<_>>().join(", ");
            monitor.note(&format!("{}: {}, blocks of {block} bytes: {shown} MB/s", spec.name, kernel.name()));
        }
    }
    let mut notes = vec![
        format!(
            "One thread. Medians of {rounds} rounds, by processor time; each round begins with another code than the one before."
        ),
        format!(
            "Each measurement is a process of its own. OPENSSL_ia32cap takes instructions away: {}. All computed the same.",
            words_of_codes(codes)
        ),
    ];
    if codes.len() == 1 {
        notes.push("Code without instructions was not measured.".to_owned());
    }
    Ok(Shown {
        notes,
        tables: vec![table(spec, codes, &rates)],
        plots: vec![plot(spec, codes, &rates)],
        claims: claims(spec, &rates, (worker, features)),
    })
}

/// Returns the result of a kernel.
pub(super) fn kernel_done(done: Done) -> Result<KernelDone> {
    match done {
        Done::Kernel(done) => Ok(done),
        Done::Pipeline(_) | Done::Fingerprint(_) => bail!("the result of another job"),
    }
}

/// Returns how many times as long one code takes as that with all instructions, in each round.
fn times(rates: &Rates, kernel: Kernel, block: usize, code: Code) -> Samples {
    let of = |code| rates.get(&(kernel, block, code)).cloned().unwrap_or_default();
    of(Code::Instructions).divided(&of(code))
}

fn table(spec: &KernelSpec, codes: &[Code], rates: &Rates) -> Table {
    let mut columns = vec!["kernel".to_owned(), "block, bytes".to_owned()];
    columns.extend(codes.iter().map(|code| format!("{}, MB/s", code.name())));
    columns.extend(codes.iter().skip(1).map(|code| format!("{}: times as long", code.name())));
    columns.push("paper: times as long".to_owned());
    let mut rows = Vec::new();
    for &kernel in &spec.kernels {
        let published = spec.published.iter().find(|it| it.kernel == kernel).map(|it| it.times);
        for &block in &spec.blocks {
            let mut row = vec![Cell::Text(kernel.name().to_owned()), Cell::Count(block as u64)];
            row.extend(
                codes.iter().map(|code| Cell::of(rates.get(&(kernel, block, *code)).and_then(Samples::median), false)),
            );
            row.extend(codes.iter().skip(1).map(|code| Cell::of(times(rates, kernel, block, *code).median(), false)));
            row.push(Cell::of(published, false));
            rows.push(row);
        }
    }
    Table { title: "Speed of a core".to_owned(), columns, rows }
}

fn plot(spec: &KernelSpec, codes: &[Code], rates: &Rates) -> Plot {
    let mut series = Vec::new();
    for &kernel in &spec.kernels {
        for &code in codes {
            let at = |block: &usize| Some((float(*block as u64), rates.get(&(kernel, *block, code))?.median()?));
            let name = format!("{}, {}", kernel.name(), code.name());
            series.push(Series { name, is_published: false, points: spec.blocks.iter().filter_map(at).collect() });
        }
    }
    let (x, y) = (axis("block, bytes", true), axis("MB/s", true));
    Plot { title: spec.title.clone(), x, y, kind: PlotKind::Lines, series }
}

fn claims(spec: &KernelSpec, rates: &Rates, (worker, features): (&Worker, Features)) -> Vec<crate::findings::Claim> {
    let mut claims = Vec::new();
    for &kernel in &spec.kernels {
        let missing = || {
            let unmasked = "It needs a program that can be started again.".to_owned();
            kernel.missing(features).or_else(|| (!worker.can_mask()).then_some(unmasked))
        };
        let what = |code: Code| {
            format!(
                "{} of {} bytes takes so many times as long with the code {} as with instructions",
                kernel.name(),
                spec.claimed,
                code.name()
            )
        };
        if let Some(published) = spec.published.iter().find(|it| it.kernel == kernel) {
            let bound = Bound::ratio(published.times, published.times, TOLERANCE);
            let found = times(rates, kernel, spec.claimed, Code::Baseline);
            claims.push(Compared {
                what: what(Code::Baseline),
                bound,
                unprinted: "",
                found,
                missing: missing(),
                remark: &spec.remark,
            });
        }
        let found = times(rates, kernel, spec.claimed, Code::Vectors);
        claims.push(Compared {
            what: what(Code::Vectors),
            bound: Bound::More,
            unprinted: "ours",
            found,
            missing: missing(),
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
    use crate::findings::Verdict;

    const FEATURES: Features = Features { sha: true, aes: true, can_be_masked: true };

    fn specs() -> [KernelSpec; 2] {
        ["dedupcdp-figure-7", "dedupcdp-figure-8"].map(|name| {
            let Experiment::Kernels(spec) = Experiment::named(name).unwrap() else { panic!("{name}") };
            spec
        })
    }

    fn worker() -> Worker {
        Worker::of_program("/bin/false".into(), Vec::new())
    }

    /// Returns the verdicts of the claims about numbers of the paper, and of those that are ours, where code takes so many times as long.
    fn verdicts(spec: &KernelSpec, factor: f64, features: Features) -> [Vec<Verdict>; 2] {
        let mut rates = Rates::new();
        for &kernel in &spec.kernels {
            let times = spec.published.iter().find(|it| it.kernel == kernel).map_or(2.0, |it| it.times);
            for (code, rate) in
                [(Code::Instructions, 100.0 * times), (Code::Vectors, 100.0 / factor), (Code::Baseline, 100.0 / factor)]
            {
                rates.insert((kernel, spec.claimed, code), Samples(vec![rate; 5]));
            }
        }
        let of = |is_ours: bool| {
            let all = claims(spec, &rates, (&worker(), features)).into_iter();
            all.filter(|claim| claim.published.starts_with("ours") == is_ours).map(|claim| claim.verdict).collect()
        };
        [of(false), of(true)]
    }

    #[test]
    fn each_claim_can_get_each_verdict() {
        for spec in specs() {
            let (published, ours) = (spec.published.len(), spec.kernels.len());
            assert_eq!(
                verdicts(&spec, 1.0, FEATURES),
                [vec![Verdict::Reproduced; published], vec![Verdict::Holds; ours]]
            );
            assert_eq!(verdicts(&spec, 1.3, FEATURES)[0], vec![Verdict::NotReproduced; published]);
            assert_eq!(
                verdicts(&spec, 0.01, FEATURES),
                [vec![Verdict::NotReproduced; published], vec![Verdict::DoesNotHold; ours]]
            );
            // A processor without the instructions shows nothing, whatever was measured.
            for features in
                [Features { sha: false, aes: false, ..FEATURES }, Features { can_be_masked: false, ..FEATURES }]
            {
                let cannot = [vec![Verdict::CannotBeShown; published], vec![Verdict::CannotBeShown; ours]];
                assert_eq!(verdicts(&spec, 1.0, features), cannot);
            }
        }
    }

    #[test]
    fn every_kernel_has_a_speed_and_one_process_cannot_show_a_difference() {
        for spec in specs() {
            let shown = measure(&spec, 1, 1, (&Worker::in_process(), FEATURES), &Silent).unwrap();
            assert_eq!(shown.tables[0].rows.len(), spec.kernels.len() * spec.blocks.len());
            assert!(shown.tables[0].rows.iter().all(|row| matches!(row[2], Cell::Number(rate) if 0.0 < rate)));
            assert!(
                shown
                    .claims
                    .iter()
                    .all(|claim| claim.verdict == Verdict::CannotBeShown && claim.remark.contains("started again"))
            );
            let missing = measure(&spec, 1, 1, (&worker(), FEATURES), &Silent).unwrap_err();
            assert!(missing.to_string().contains("/bin/false"), "{missing}");
        }
    }

    #[test]
    fn results_that_depend_on_the_code_are_a_defect() {
        let done =
            |mask: &str| format!(r#"{{"kernel":{{"bytes":1,"seconds":1,"processor_seconds":1,"check":"{mask}"}}}}"#);
        let script = format!(
            "cat >/dev/null; if [ -n \"$OPENSSL_ia32cap\" ]; then echo '{}'; else echo '{}'; fi",
            done("a"),
            done("b")
        );
        let worker = Worker::of_program("/bin/sh".into(), vec!["-c".into(), script.into()]);
        let [spec, _] = specs();
        let error = measure(&spec, 1, 1, (&worker, FEATURES), &Silent).unwrap_err();
        assert!(error.to_string().contains("this is a defect"), "{error}");
    }
}
