//! Claims of an experiment, and their check.
//!
//! A claim about a number that a paper prints is compared with that number. Any other claim says why there is none, and holds
//! qualitatively or does not.

use anyhow::Result;

use crate::experiment::spec::{ClaimKind, ClaimSpec, RatioClaim, Requirement, names};
use crate::experiment::verdict::{Bound, Judged, LEAST_FACTOR, Samples, judge};
use crate::experiment::{Results, RunId};
use crate::files::is_path;
use crate::findings::{Claim, Verdict};

/// Returns a measure of a run, once for each repetition; nothing if it was not measured.
pub(super) type Numbers<'a> = dyn Fn(RunId, &str) -> Result<Samples> + 'a;

/// Checks what an experiment claims.
pub(super) fn claims(results: &Results<'_>, numbers: &Numbers<'_>) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for claim in &results.spec.claims {
        let checked = Check { results, claim, numbers };
        match &claim.kind {
            ClaimKind::Ratio(ratio) => checked.ratios(ratio, &mut claims)?,
            ClaimKind::Value { point } => checked.values(results.spec.point(point)?, &mut claims)?,
            ClaimKind::Least { point, at } => checked.least(results.spec.point(point)?, *at, &mut claims)?,
            ClaimKind::Crossing { of, to, stated } => {
                let points = [results.spec.point(of)?, results.spec.point(to)?];
                checked.crossing(points, *stated, &mut claims)?;
            }
        }
    }
    Ok(claims)
}

/// A claim that is checked.
struct Check<'a> {
    results: &'a Results<'a>,
    claim: &'a ClaimSpec,
    numbers: &'a Numbers<'a>,
}

impl Check<'_> {
    fn wanted(&self, point: usize) -> Vec<RunId> {
        let (spec, claim) = (self.results.spec, self.claim);
        let is_wanted = |id: &RunId| {
            let value = spec.vary.as_ref().map(|vary| &vary.values[id.value]);
            id.point == point
                && names(&claim.data_sets, &spec.data_sets[id.data_set])
                && names(&claim.devices, &spec.devices[id.device])
                && value.is_none_or(|value| names(&claim.values, value))
        };
        self.results.ids().into_iter().filter(is_wanted).collect()
    }

    /// Describes the subject, with data set, device and value.
    fn what(&self, id: RunId, names_value: bool) -> String {
        let spec = self.results.spec;
        let mut of = vec![spec.data_sets[id.data_set].clone()];
        if self.results.names_devices() {
            of.push(spec.devices[id.device].clone());
        }
        if let Some(vary) = spec.vary.as_ref().filter(|_| names_value) {
            of.push(format!("{} {}", vary.title, vary.values[id.value]));
        }
        format!("{} ({})", self.claim.what, of.join(", "))
    }

    /// Returns the table of the paper that the number was fitted to, if it was.
    fn fit(&self, ids: &[RunId]) -> Option<String> {
        ids.iter().find_map(|id| self.results.fit(*id, &self.claim.measure))
    }

    /// Makes the claim of a judgment.
    fn claim(&self, what: String, published: String, found: String, judged: &Judged, fit: Option<String>) -> Claim {
        let is_good = matches!(judged.verdict, Verdict::Reproduced | Verdict::Holds | Verdict::ByConstruction);
        let mut remarks = Vec::new();
        if let Some(fit) = fit {
            remarks.push(format!("The data set was fitted to {fit}."));
        }
        if judged.verdict == Verdict::CannotBeShown {
            remarks.extend(self.claim.requires.as_ref().map(|requires| requires.scale.clone()));
        } else if !is_good && !self.claim.remark.is_empty() {
            remarks.push(self.claim.remark.clone());
        }
        remarks.extend(judged.noise.clone());
        Claim {
            what,
            published,
            found,
            verdict: judged.verdict,
            can_flip: judged.noise.is_some(),
            remark: remarks.join(" "),
        }
    }

    /// Statement of a paper that prints no number.
    fn unprinted(&self) -> String {
        self.claim.qualitative.clone().unwrap_or_else(|| "no number for this data set".to_owned())
    }

    /// Returns true if the runs are of a size at which the effect can be seen.
    fn can_be_shown(&self, id: RunId) -> Result<bool> {
        let Some(Requirement { point, measure, value, at_least, .. }) = &self.claim.requires else { return Ok(true) };
        let values = self.results.spec.vary.as_ref().map(|vary| &vary.values);
        let value = value.as_ref().and_then(|value| values?.iter().position(|one| one == value));
        let id = RunId { point: self.results.spec.point(point)?, value: value.unwrap_or(id.value), ..id };
        Ok((self.numbers)(id, measure)?.median().is_some_and(|found| *at_least <= found))
    }

    fn judge(&self, id: RunId, bound: &Bound, found: &Samples, fit: Option<&String>) -> Result<Judged> {
        Ok(judge(bound, found, fit.is_some(), self.can_be_shown(id)?))
    }

    fn ratios(&self, ratio: &RatioClaim, claims: &mut Vec<Claim>) -> Result<()> {
        let spec = self.results.spec;
        let (of, to) = (spec.point(&ratio.of)?, spec.point(&ratio.to)?);
        let at = |value: &Option<String>, id: RunId| {
            let values = spec.vary.as_ref().map(|vary| &vary.values);
            let value = value.as_ref().and_then(|value| values?.iter().position(|one| one == value));
            RunId { value: value.unwrap_or(id.value), ..id }
        };
        let is_between_values = ratio.of_value.is_some();
        for id in self.wanted(of).into_iter().filter(|id| !is_between_values || id.value == 0) {
            let (above, below) = (at(&ratio.of_value, id), at(&ratio.to_value, RunId { point: to, ..id }));
            let found =
                (self.numbers)(above, &self.claim.measure)?.divided(&(self.numbers)(below, &self.claim.measure)?);
            if found.is_empty() {
                continue;
            }
            let bound = self.bound_of_ratio(ratio, above, below);
            let fit = self.fit(&[above, below]).filter(|_| bound.is_printed());
            let judged = self.judge(id, &bound, &found, fit.as_ref())?;
            let published = bound.words(&self.unprinted());
            claims.push(self.claim(self.what(id, !is_between_values), published, found.words(), &judged, fit));
        }
        Ok(())
    }

    fn bound_of_ratio(&self, ratio: &RatioClaim, above: RunId, below: RunId) -> Bound {
        let of_table = || {
            let (of, to) = (
                self.results.published(above, &self.claim.measure)?,
                self.results.published(below, &self.claim.measure)?,
            );
            (to != 0.0).then_some(of / to)
        };
        let stated = ratio.stated.filter(|_| !self.is_own(above));
        let stated = stated.map(|stated| (stated, ratio.stated_to.unwrap_or(stated)));
        match stated.or_else(|| of_table().map(|ratio| (ratio, ratio))) {
            Some((from, to)) => Bound::ratio(from, to, self.claim.tolerance()),
            None => ratio.at_least.map_or(Bound::More, Bound::AtLeast),
        }
    }

    /// Returns true if the data set is the user's own: numbers of a paper do not apply to it.
    fn is_own(&self, id: RunId) -> bool {
        is_path(&self.results.spec.data_sets[id.data_set])
    }

    fn values(&self, point: usize, claims: &mut Vec<Claim>) -> Result<()> {
        for id in self.wanted(point) {
            let found = (self.numbers)(id, &self.claim.measure)?;
            let Some(stated) = self.results.published(id, &self.claim.measure).filter(|_| !found.is_empty()) else {
                continue;
            };
            let bound = Bound::value(stated, self.claim.tolerance());
            let fit = self.fit(&[id]);
            let judged = self.judge(id, &bound, &found, fit.as_ref())?;
            claims.push(self.claim(self.what(id, true), bound.words(""), found.words(), &judged, fit));
        }
        Ok(())
    }

    fn least(&self, point: usize, at: f64, claims: &mut Vec<Claim>) -> Result<()> {
        let Some(vary) = &self.results.spec.vary else { return Ok(()) };
        for first in self.wanted(point).into_iter().filter(|id| id.value == 0 && !self.is_own(*id)) {
            let mut columns = Vec::new();
            for (value, number) in vary.numbers.iter().enumerate() {
                let found = (self.numbers)(RunId { value, ..first }, &self.claim.measure)?;
                if !found.is_empty() {
                    columns.push((*number, found));
                }
            }
            // The minimum of a flat curve may be anywhere, so the paper's position may be about as good.
            let bound = Bound::LeastAt { at, factor: LEAST_FACTOR };
            let positions = Samples::each(&columns, |curve| Bound::distance_of_least(curve, at));
            if positions.is_empty() {
                continue;
            }
            let medians: Vec<_> =
                columns.iter().filter_map(|(number, found)| Some((*number, found.median()?))).collect();
            let found = Bound::words_of_least(&medians, at);
            let judged = self.judge(first, &bound, &positions, None)?;
            claims.push(self.claim(self.what(first, false), bound.words(""), found, &judged, None));
        }
        Ok(())
    }

    fn crossing(&self, [of, to]: [usize; 2], stated: Option<f64>, claims: &mut Vec<Claim>) -> Result<()> {
        let Some(vary) = &self.results.spec.vary else { return Ok(()) };
        for first in self.wanted(of).into_iter().filter(|id| id.value == 0) {
            let mut ratios = Vec::new();
            for (value, number) in vary.numbers.iter().enumerate() {
                let id = RunId { value, ..first };
                let above = (self.numbers)(id, &self.claim.measure)?;
                let ratio = above.divided(&(self.numbers)(RunId { point: to, ..id }, &self.claim.measure)?);
                if !ratio.is_empty() {
                    ratios.push((*number, ratio));
                }
            }
            let bound = match stated.filter(|_| !self.is_own(first)) {
                Some(stated) => Bound::CrossesAt { at: stated, factor: self.claim.tolerance() },
                None => Bound::Crosses,
            };
            let crossings = Samples::each(&ratios, |curve| Some(bound.distance_of_crossing(curve)));
            if crossings.is_empty() {
                continue;
            }
            let medians: Vec<_> =
                ratios.iter().filter_map(|(number, found)| Some((*number, found.median()?))).collect();
            let judged = self.judge(first, &bound, &crossings, None)?;
            let published = bound.words(&self.unprinted());
            claims.push(self.claim(
                self.what(first, false),
                published,
                Bound::words_of_crossing(&medians),
                &judged,
                None,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;
    use crate::experiment::catalog::{self, Experiment};
    use crate::experiment::data_set::DataSet;
    use crate::experiment::spec::Spec;

    /// All experiments, one for each claim, which is its only one.
    fn each_claim() -> Vec<Spec> {
        let mut specs = Vec::new();
        for name in catalog::names() {
            let Experiment::Points(spec) = Experiment::named(name).unwrap() else { continue };
            specs.extend(spec.claims.iter().map(|claim| Spec { claims: vec![claim.clone()], ..(*spec).clone() }));
        }
        specs
    }

    /// An experiment with a run, in which nothing was measured, for each identity.
    fn planned(spec: &Spec) -> Results<'_> {
        let data_sets: Vec<_> = spec.data_sets.iter().map(|name| DataSet::named(name).unwrap()).collect();
        let mut runs = HashMap::new();
        for data_set in 0..data_sets.len() {
            for device in 0..spec.devices.len() {
                for value in 0..spec.vary.as_ref().map_or(1, |vary| vary.values.len()) {
                    for point in 0..spec.points.len() {
                        runs.insert(RunId { data_set, device, value, point }, Vec::new());
                    }
                }
            }
        }
        Results { spec, data_sets, runs }
    }

    #[test]
    fn each_claim_has_the_number_of_its_paper_or_says_why_there_is_none() {
        for spec in each_claim() {
            let results = planned(&spec);
            let claim = &spec.claims[0];
            let check = Check { results: &results, claim, numbers: &|_, _| Ok(Samples::default()) };
            let what = format!("{}: {}", spec.name, claim.what);
            let printed: BTreeSet<bool> = match &claim.kind {
                ClaimKind::Ratio(ratio) => {
                    let [of, to] = [&ratio.of, &ratio.to].map(|name| spec.point(name).unwrap());
                    let ids = check.wanted(of).into_iter();
                    ids.map(|id| check.bound_of_ratio(ratio, id, RunId { point: to, ..id }).is_printed()).collect()
                }
                ClaimKind::Value { point } => {
                    let ids = check.wanted(spec.point(point).unwrap()).into_iter();
                    BTreeSet::from([ids.map(|id| results.published(id, &claim.measure)).any(|stated| stated.is_some())])
                }
                ClaimKind::Least { .. } => BTreeSet::from([true]),
                ClaimKind::Crossing { stated, .. } => BTreeSet::from([stated.is_some()]),
            };
            let is_explained = claim.qualitative.as_ref().is_some_and(|words| !words.is_empty());
            assert_eq!(printed, BTreeSet::from([!is_explained]), "{what}");
            assert!(spec.source != "new" || is_explained, "{what}: a claim of ours has no paper's number");
        }
    }

    #[test]
    fn each_number_that_a_paper_prints_in_a_table_is_claimed_or_shown_next_to_ours() {
        for name in catalog::names() {
            let Experiment::Points(spec) = Experiment::named(name).unwrap() else { continue };
            for stated in &spec.published {
                for measure in stated.measures.keys() {
                    let is_claimed = spec.claims.iter().any(|claim| claim.measure == *measure);
                    let is_shown = spec.tables.iter().any(|table| table.measures.contains(measure));
                    assert!(is_claimed || is_shown, "{name}: {measure} of {}", stated.point);
                }
            }
            assert!(!spec.claims.is_empty() || spec.stages.is_some(), "{name} claims nothing");
        }
    }

    /// Returns the verdicts that a claim gets, for numbers above and below the line, as a curve over the values, and for what it
    /// requires.
    fn verdicts(spec: &Spec, numbers: &dyn Fn(RunId, bool) -> Vec<f64>, required: f64) -> BTreeSet<(Verdict, bool)> {
        let results = planned(spec);
        let claim = &spec.claims[0];
        let of = match &claim.kind {
            ClaimKind::Ratio(RatioClaim { of, .. }) | ClaimKind::Crossing { of, .. } => of,
            ClaimKind::Value { point } | ClaimKind::Least { point, .. } => point,
        };
        let (of, vary) = (spec.point(of).unwrap(), spec.vary.as_ref());
        let is_above = |id: RunId| match &claim.kind {
            ClaimKind::Ratio(RatioClaim { of_value: Some(value), .. }) => {
                vary.is_some_and(|vary| vary.values.get(id.value) == Some(value))
            }
            _ => id.point == of,
        };
        let all = claims(&results, &|id, measure| {
            let requires = claim.requires.as_ref().is_some_and(|requires| requires.measure == measure);
            Ok(Samples(if requires { vec![required] } else { numbers(id, is_above(id)) }))
        });
        all.unwrap().iter().map(|claim| (claim.verdict, claim.can_flip)).collect()
    }

    #[test]
    fn each_claim_can_get_each_verdict() {
        for spec in each_claim() {
            let claim = &spec.claims[0];
            let what = format!("{}: {}", spec.name, claim.what);
            let results = planned(&spec);
            let vary = spec.vary.as_ref();
            let stated = |id: RunId| match &claim.kind {
                ClaimKind::Ratio(ratio) => {
                    let check = Check { results: &results, claim, numbers: &|_, _| Ok(Samples::default()) };
                    let at = |value: &Option<String>| {
                        value.as_ref().and_then(|value| vary?.values.iter().position(|one| one == value))
                    };
                    let above = RunId { value: at(&ratio.of_value).unwrap_or(id.value), ..id };
                    let point = spec.point(&ratio.to).unwrap();
                    let below = RunId { point, value: at(&ratio.to_value).unwrap_or(id.value), ..id };
                    match check.bound_of_ratio(ratio, above, below) {
                        Bound::Within { stated: (from, _), .. } => from,
                        Bound::AtLeast(least) => 1.1 * least,
                        _ => 1.1,
                    }
                }
                ClaimKind::Value { .. } => results.published(id, &claim.measure).unwrap_or(1.0),
                ClaimKind::Least { at, .. } => {
                    // Least at the paper's value.
                    let number = vary.unwrap().numbers[id.value];
                    1.0 + (number / at).ln().abs()
                }
                ClaimKind::Crossing { stated, .. } => {
                    let numbers = &vary.unwrap().numbers;
                    let at = stated.unwrap_or(f64::midpoint(numbers[0], numbers[1]));
                    if at < numbers[id.value] { 2.0 } else { 0.5 }
                }
            };
            let as_stated = |id: RunId, is_above: bool| if is_above { stated(id) } else { 1.0 };
            // Wrong in one direction, and in the other.
            let wrong = |id: RunId, is_above: bool| match &claim.kind {
                ClaimKind::Least { .. } => 1.0 / as_stated(id, true),
                ClaimKind::Crossing { .. } => 0.5,
                _ if is_above => as_stated(id, true) / 3.0,
                _ => 1.0,
            };
            let good = verdicts(&spec, &|id, is_above| vec![as_stated(id, is_above)], f64::INFINITY);
            let bad = verdicts(&spec, &|id, is_above| vec![wrong(id, is_above)], f64::INFINITY);
            let is_good =
                |verdict: Verdict| matches!(verdict, Verdict::Reproduced | Verdict::Holds | Verdict::ByConstruction);
            let is_bad = |verdict: Verdict| matches!(verdict, Verdict::NotReproduced | Verdict::DoesNotHold);
            assert!(!good.is_empty() && good.iter().all(|(verdict, _)| is_good(*verdict)), "{what}: {good:?}");
            assert!(!bad.is_empty() && bad.iter().all(|(verdict, _)| is_bad(*verdict)), "{what}: {bad:?}");
            let mixed = |id, is_above| vec![as_stated(id, is_above), wrong(id, is_above), as_stated(id, is_above)];
            let mixed = verdicts(&spec, &mixed, f64::INFINITY);
            assert!(mixed.iter().all(|(verdict, can_flip)| is_good(*verdict) && *can_flip), "{what}: {mixed:?}");
            let small = verdicts(&spec, &|id, is_above| vec![as_stated(id, is_above)], 0.0);
            let is_required = claim.requires.is_some();
            let cannot = BTreeSet::from([(Verdict::CannotBeShown, false)]);
            assert!(if is_required { small == cannot } else { small == good }, "{what}: {small:?}");
        }
    }

    #[test]
    fn numbers_that_data_were_fitted_to_are_by_construction() {
        let is_of = |spec: &Spec, name: &str| spec.name == name && spec.claims[0].qualitative.is_none();
        for (name, wanted) in [("lazy-table-3", Verdict::ByConstruction), ("lazy-figure-15", Verdict::Reproduced)] {
            let spec = each_claim().into_iter().find(|spec| is_of(spec, name)).unwrap();
            let results = planned(&spec);
            let measure = spec.claims[0].measure.clone();
            let all = claims(&results, &|id, _| Ok(Samples(results.published(id, &measure).into_iter().collect())));
            let all = all.unwrap();
            assert_eq!(all.len(), 3);
            assert!(all.iter().all(|claim| claim.verdict == wanted), "{all:?}");
            assert!(wanted == Verdict::Reproduced || all[0].remark.contains("was fitted to"), "{all:?}");
        }
    }
}
