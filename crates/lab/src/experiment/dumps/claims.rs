//! Claims about dumps.

use crate::coprocessor::pipeline::{Dump, Interval, PipelineDone};
use crate::counts::float;
use crate::experiment::compared::Compared;
use crate::experiment::dumps::{DumpSpec, Ran, ratio};
use crate::experiment::verdict::{Bound, Samples, TOLERANCE};
use crate::findings::Claim;

/// Returns how many times as fast the half of the intervals with the most cache hits is as the other half.
fn peaks(run: &PipelineDone) -> Option<f64> {
    let mut intervals: Vec<_> = run.intervals.iter().filter(|interval| interval.bytes != 0).collect();
    intervals.sort_by(|one, other| one.hit_share().total_cmp(&other.hit_share()));
    let (few, many) = intervals.split_at(intervals.len() / 2);
    let rate = |part: &[&Interval]| {
        let mut sum = Interval::default();
        for interval in part {
            sum.add(interval);
        }
        (sum.bytes != 0).then(|| sum.rate())
    };
    Some(rate(many)? / rate(few)?)
}

/// Returns the ratio of all dumps.
fn whole(run: &PipelineDone) -> Option<f64> {
    let mut sum = Dump::default();
    for dump in &run.dumps {
        sum.bytes += dump.bytes;
        sum.stored_bytes += dump.stored_bytes;
    }
    ratio(&sum)
}

/// Returns how much larger the first dump is as stored than a later one.
fn first_to_later(run: &PipelineDone) -> Option<f64> {
    let (first, later) = run.dumps.split_first()?;
    let mean = later.iter().map(|dump| float(dump.stored_bytes)).sum::<f64>() / float(later.len() as u64);
    (0.0 < mean).then(|| float(first.stored_bytes) / mean)
}

/// Returns for how many new blocks one passes the filter; for all of them, if none does.
fn blocks_for_one(run: &PipelineDone) -> Option<f64> {
    let all = run.negatives + run.false_positives;
    (all != 0).then(|| float(all) / float(run.false_positives.max(1)))
}

/// Claims of an experiment.
struct Claims<'a> {
    spec: &'a DumpSpec,
    with: Option<&'a Ran<'a>>,
    without: Option<&'a Ran<'a>>,
    /// With all instructions, on the last device.
    last: Option<&'a Ran<'a>>,
    missing: Option<&'a str>,
    made: Vec<Claim>,
}

/// Makes the claims, or says why they cannot be shown.
pub(super) fn claims(spec: &DumpSpec, all: &[Ran<'_>], missing: Option<&str>) -> Vec<Claim> {
    let is_of = |ran: &Ran<'_>, code| Some(ran.way) == spec.ways.first() && Some(&ran.code) == code;
    let of_code = |code| all.iter().find(|ran| is_of(ran, code));
    let last = all.iter().rev().find(|ran| is_of(ran, spec.codes.first()));
    let without = of_code(spec.codes.last().filter(|_| 1 < spec.codes.len()));
    let mut claims = Claims { spec, with: of_code(spec.codes.first()), without, last, missing, made: Vec::new() };
    claims.sizes();
    claims.rates();
    claims.made
}

impl Claims<'_> {
    fn push(&mut self, what: &str, bound: Bound, unprinted: &str, found: Samples, remark: &str) {
        let missing = self.missing.map(str::to_owned);
        self.made.push(Compared { what: what.to_owned(), bound, unprinted, found, missing, remark }.claim());
    }

    fn of_runs(&self, of: fn(&PipelineDone) -> Option<f64>) -> Samples {
        Samples(self.with.iter().flat_map(|ran| &ran.runs).filter_map(of).collect())
    }

    fn sizes(&mut self) {
        if let Some(stated) = self.spec.published.ratio {
            let remark = "The dumps are others: the ratio is that of the data.";
            let (bound, found) = (Bound::value(stated, TOLERANCE), self.of_runs(whole));
            self.push("original size to stored size, of all dumps", bound, "", found, remark);
            let what = "stored size of the first dump to that of a later one, in the mean";
            let found = self.of_runs(first_to_later);
            self.push(what, Bound::More, "different dumps have a part in common", found, "");
        }
        if let Some(percent) = self.spec.published.false_positive_percent {
            let found = self.of_runs(blocks_for_one);
            let found = Samples(found.0.iter().map(|blocks| blocks * percent / 100.0).collect());
            let what = format!("{percent}% to the share of new blocks that pass the filter");
            self.push(&what, Bound::More, &format!("less than {percent}%"), found, "");
        }
    }

    fn rates(&mut self) {
        let Some([stated_with, stated_without]) = self.spec.published.rates else { return };
        let another = "Processor and memory are others than in the paper.";
        let rates = |ran: Option<&Ran<'_>>| ran.map(|ran| ran.samples(Interval::rate)).unwrap_or_default();
        let (with, without) = (rates(self.with), rates(self.without));
        let times = stated_with / stated_without;
        let bound = Bound::ratio(times, times, TOLERANCE);
        self.push("throughput with instructions to that without", bound, "", with.divided(&without), "");
        let bound = |stated| Bound::value(stated, TOLERANCE);
        self.push("mean throughput with instructions, MB/s", bound(stated_with), "", with, another);
        self.push("mean throughput without, MB/s", bound(stated_without), "", without, another);
        let what =
            "intervals in which the cache has more of what it is asked for are so many times as fast as the others";
        let found = self.of_runs(peaks);
        self.push(what, Bound::More, "peaks are hits of the cache, and troughs are misses", found, "");
        if let Some(goal) = self.spec.published.goal {
            let (bound, unprinted) = (Bound::AtLeast(goal), "ours: five times the paper's");
            let what = format!(
                "mean throughput with instructions on {}, MB/s",
                self.last.map_or("a device", |ran| ran.device)
            );
            self.push(&what, bound, unprinted, rates(self.last), "");
        }
    }
}
