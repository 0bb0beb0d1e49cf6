//! Containers that depend on others: what goes with a container that cannot stay, and what stays if that is not known.
//!
//! A damaged container goes, and so does what a collection with a damaged decision has condemned. Their dependents go with them,
//! since a region of these can be copied without its bases, as long as the bases are whole.

use std::collections::BTreeSet;

use crate::bitmap::Bitmap;
use crate::collect::dependents::needed_as_bases;
use crate::collect::request::PruneReport;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::ContainerKind;
use crate::pipeline::Driver;
use crate::store::Store;
use crate::store::container_set::Containers;

/// Returns the numbers of the containers among `given_up` that hold bases for a container that stays, or may hold some.
///
/// A container that stays and of which neither directory can be read may have its bases in any of its kind, and may be brought back from a
/// copy: then all containers of that kind are needed. The report says so.
pub(super) fn known_needed(
    store: &Store,
    listed: &Containers,
    given_up: &Bitmap,
    parties: (&Driver, &dyn Monitor),
    report: &mut PruneReport,
) -> Result<Bitmap> {
    let mut unknown = BTreeSet::new();
    let mut needed = needed_as_bases(store, listed, given_up, parties, &mut |name, error| {
        unknown.insert(name.kind);
        let kind = match name.kind {
            ContainerKind::Data => "data",
            ContainerKind::Metadata => "metadata",
        };
        report.find(&error.clone().context(format!(
            "which containers this one depends on is not known, so no container of {kind} is deleted until it is brought back from a \
             copy, or set aside with `onefold repair containers --quarantine`",
        )));
    })?;
    for kind in unknown {
        let of_kind = listed.of_kind(kind).filter(|number| given_up.contains(number.0));
        of_kind.for_each(|number| needed.insert(number.0));
    }
    Ok(needed)
}

/// Returns the numbers of the containers that have bases in some others, directly or over each other. Those of which no directory
/// can be read are not among them.
pub(super) fn dependents_of(
    store: &Store,
    listed: &Containers,
    of: &Bitmap,
    (driver, monitor): (&Driver, &dyn Monitor),
) -> Result<Bitmap> {
    let mut dependents = Bitmap::default();
    let mut others = listed.retain(|number, _| !of.contains(number.0));
    // A dependent may stand before the one that makes it one. Each pass goes one depth up, at most, and opens what is left.
    loop {
        let mut found = Bitmap::default();
        let opened = store.open_containers_ahead(driver, &others, others.numbers());
        for (number, opened) in others.numbers().zip(opened) {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let Ok(container) = opened?.1 else { continue };
            let mut bases = container.directory.regions.iter().flat_map(|region| region.bases.iter());
            let depends = |number: u32| of.contains(number) || dependents.contains(number) || found.contains(number);
            if bases.any(|base| listed.find(base.container).is_some_and(|number| depends(number.0))) {
                found.insert(number.0);
            }
        }
        if found.count() == 0 {
            return Ok(dependents);
        }
        for number in others.numbers().filter(|number| found.contains(number.0)) {
            dependents.insert(number.0);
        }
        others = others.retain(|number, _| !found.contains(number.0));
    }
}
