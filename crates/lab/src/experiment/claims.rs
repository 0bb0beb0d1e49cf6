//! What an experiment claims, and whether it holds.

use anyhow::Result;

use crate::experiment::spec::{ClaimKind, ClaimSpec};
use crate::experiment::tables::{divided, names};
use crate::experiment::{Results, RunId};
use crate::findings::Claim;

/// Checks what an experiment claims.
pub(super) fn claims(results: &Results<'_>) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for claim in &results.spec.claims {
        match &claim.kind {
            ClaimKind::Ratio { of, to, at_least, of_published } => {
                let (of, to) = (results.spec.point(of)?, results.spec.point(to)?);
                for id in wanted(results, claim, of) {
                    let ids = [id, RunId { point: to, ..id }];
                    claims.extend(ratio(results, claim, ids, *at_least, *of_published)?);
                }
            }
            ClaimKind::Least { point, at } => claims.extend(least(results, claim, results.spec.point(point)?, *at)?),
            ClaimKind::Crossing { of, to } => {
                let (of, to) = (results.spec.point(of)?, results.spec.point(to)?);
                claims.extend(crossing(results, claim, of, to)?);
            }
        }
    }
    Ok(claims)
}

fn wanted(results: &Results<'_>, claim: &ClaimSpec, point: usize) -> Vec<RunId> {
    let spec = results.spec;
    let is_wanted = |id: &RunId| {
        let value = spec.vary.as_ref().map(|vary| &vary.values[id.value]);
        id.point == point
            && names(&claim.data_sets, &spec.data_sets[id.data_set])
            && names(&claim.devices, &spec.devices[id.device])
            && value.is_none_or(|value| names(&claim.values, value))
    };
    results.ids().into_iter().filter(is_wanted).collect()
}

/// Says what a claim is about, with data set, device and value.
fn what(results: &Results<'_>, claim: &ClaimSpec, id: RunId, names_value: bool) -> String {
    let mut of = vec![results.spec.data_sets[id.data_set].clone()];
    if results.names_devices() {
        of.push(results.spec.devices[id.device].clone());
    }
    if let Some(vary) = results.spec.vary.as_ref().filter(|_| names_value) {
        of.push(format!("{} {}", vary.title, vary.values[id.value]));
    }
    format!("{} ({})", claim.what, of.join(", "))
}

fn ratio(
    results: &Results<'_>,
    claim: &ClaimSpec,
    [of, to]: [RunId; 2],
    at_least: Option<f64>,
    of_published: Option<f64>,
) -> Result<Option<Claim>> {
    let found = divided(results.value(of, &claim.measure)?, results.value(to, &claim.measure)?);
    let stated = divided(results.published(of, &claim.measure), results.published(to, &claim.measure));
    let Some(found) = found else { return Ok(None) };
    let least = at_least.or(stated.zip(of_published).map(|(stated, share)| stated * share));
    let stated = stated.map(|stated| format!("{stated:.2}"));
    let wanted = at_least.map(|least| format!("at least {least:.2} wanted"));
    let published = stated.into_iter().chain(wanted).collect::<Vec<_>>().join("; ");
    Ok(Some(Claim {
        what: what(results, claim, of, true),
        published,
        found: format!("{found:.2}"),
        holds: least.map_or(1.0 < found, |least| least <= found),
        remark: claim.remark.clone(),
    }))
}

fn least(results: &Results<'_>, claim: &ClaimSpec, point: usize, at: f64) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    let Some(vary) = &results.spec.vary else { return Ok(claims) };
    for first in wanted(results, claim, point).into_iter().filter(|id| id.value == 0) {
        let mut best: Option<(f64, f64)> = None;
        let mut all = Vec::new();
        for (value, number) in vary.numbers.iter().enumerate() {
            let Some(measured) = results.value(RunId { value, ..first }, &claim.measure)? else { continue };
            all.push((*number, measured));
            if best.is_none_or(|(_, least)| measured < least) {
                best = Some((*number, measured));
            }
        }
        let Some((number, least)) = best else { continue };
        let there = all.iter().find(|(number, _)| (number - at).abs() < 1e-9).map(|(_, measured)| *measured);
        // A flat curve has its least place anywhere: what counts is whether the paper's is as good.
        let is_as_good = there.is_some_and(|there| there <= 1.05 * least);
        let beside = there.map(|there| format!(", {:.2} times that at {at}", there / least)).unwrap_or_default();
        claims.push(Claim {
            what: what(results, claim, first, false),
            published: format!("least at {at}"),
            found: format!("least at {number}{beside}"),
            holds: is_as_good || (0.5..=2.0).contains(&(number / at)),
            remark: claim.remark.clone(),
        });
    }
    Ok(claims)
}

fn crossing(results: &Results<'_>, claim: &ClaimSpec, of: usize, to: usize) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    let Some(vary) = &results.spec.vary else { return Ok(claims) };
    for first in wanted(results, claim, of).into_iter().filter(|id| id.value == 0) {
        let mut ratios = Vec::new();
        for (value, shown) in vary.values.iter().enumerate() {
            let id = RunId { value, ..first };
            let of = results.value(id, &claim.measure)?;
            let to = results.value(RunId { point: to, ..id }, &claim.measure)?;
            ratios.extend(divided(of, to).map(|ratio| (shown, ratio)));
        }
        let crosses = ratios.windows(2).find(|pair| pair[0].1 <= 1.0 && 1.0 < pair[1].1);
        let all: Vec<_> = ratios.iter().map(|(shown, ratio)| format!("{ratio:.2} at {shown}")).collect();
        claims.push(Claim {
            what: what(results, claim, first, false),
            published: String::new(),
            found: match crosses {
                Some(pair) => format!("between {} and {}: {}", pair[0].0, pair[1].0, all.join(", ")),
                None => format!("nowhere: {}", all.join(", ")),
            },
            holds: crosses.is_some(),
            remark: claim.remark.clone(),
        });
    }
    Ok(claims)
}
