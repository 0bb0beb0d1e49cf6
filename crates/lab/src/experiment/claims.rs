//! Claims of an experiment, and their check.

use anyhow::Result;

use crate::experiment::spec::{ClaimKind, ClaimSpec, RatioClaim};
use crate::experiment::tables::{divided, names};
use crate::experiment::{Results, RunId};
use crate::findings::Claim;

/// Checks what an experiment claims.
pub(super) fn claims(results: &Results<'_>) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for claim in &results.spec.claims {
        match &claim.kind {
            ClaimKind::Ratio(bound) => {
                let to = results.spec.point(&bound.to)?;
                for id in wanted(results, claim, results.spec.point(&bound.of)?) {
                    claims.extend(ratio(results, claim, [id, RunId { point: to, ..id }], bound)?);
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

/// Describes the subject of a claim, with data set, device and value.
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

fn ratio(results: &Results<'_>, claim: &ClaimSpec, [of, to]: [RunId; 2], bound: &RatioClaim) -> Result<Option<Claim>> {
    let found = divided(results.value(of, &claim.measure)?, results.value(to, &claim.measure)?);
    let published = divided(results.published(of, &claim.measure), results.published(to, &claim.measure));
    let stated = bound.stated.or(published);
    let Some(found) = found else { return Ok(None) };
    let of_stated = stated.zip(bound.of_published).map(|(stated, share)| {
        // The winner of the paper must win.
        if 1.0 < stated { (stated * share).max(1.0) } else { stated * share }
    });
    let least = bound.at_least.or(of_stated);
    let stated = stated.map(|stated| format!("{stated:.2}"));
    let least_shown = least.map(|least| format!("at least {least:.2} wanted"));
    let holds = least.map_or(1.0 < found, |least| least <= found);
    Ok(Some(Claim {
        what: what(results, claim, of, true),
        published: stated.into_iter().chain(least_shown).collect::<Vec<_>>().join("; "),
        found: format!("{found:.2}"),
        holds,
        remark: if holds { String::new() } else { claim.remark.clone() },
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
        // The minimum of a flat curve may be anywhere, so the paper's position needs to be about as good.
        let is_as_good = there.is_some_and(|there| there <= 1.05 * least);
        let ratio = there.map(|there| format!(", {:.2} times that at {at}", there / least)).unwrap_or_default();
        claims.push(Claim {
            what: what(results, claim, first, false),
            published: format!("least at {at}"),
            found: format!("least at {number}{ratio}"),
            holds: is_as_good || (0.5..=2.0).contains(&(number / at)),
            remark: String::new(),
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
        let has_more = |(_, ratio): &(&String, f64)| 1.0 < *ratio;
        // From where on it always has more.
        let from = ratios.iter().rposition(|pair| !has_more(pair)).map_or(0, |last| last + 1);
        let all: Vec<_> = ratios.iter().map(|(shown, ratio)| format!("{ratio:.2} at {shown}")).collect();
        let location = match (from.checked_sub(1).and_then(|before| ratios.get(before)), ratios.get(from)) {
            (Some((before, _)), Some((from, _))) => format!("between {before} and {from}"),
            (None, Some(_)) => "everywhere".to_owned(),
            (_, None) => "nowhere".to_owned(),
        };
        claims.push(Claim {
            what: what(results, claim, first, false),
            published: String::new(),
            found: format!("{location}: {}", all.join(", ")),
            holds: from < ratios.len(),
            remark: String::new(),
        });
    }
    Ok(claims)
}
