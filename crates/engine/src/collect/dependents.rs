//! Containers that others depend on: those that hold bases of regions (step C8 of docs/protocol.md).
//!
//! Every region of a container that stays can be read after a collection, those with dead chunks included: a later backup may find
//! any chunk of it, and then refers to it. So all containers that hold a base of a region in a container that stays must stay, and all
//! that hold bases of theirs. What is read for that are directories, as they are at the time of the decision. Containers of data and those
//! of metadata are treated alike.

use crate::bitmap::Bitmap;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::ContainerName;
use crate::pipeline::Driver;
use crate::store::Store;
use crate::store::container_set::Containers;

/// Returns the numbers of the containers among `given_up` that hold bases for a container that stays, directly or over
/// others that stay for this reason. `listed` are all containers.
///
/// A damaged container has no bases that still mean anything, and goes to `unreadable`. Fails if a directory cannot be read for
/// another reason: then nothing is known of what depends on what.
pub(super) fn needed_as_bases(
    store: &Store,
    listed: &Containers,
    given_up: &Bitmap,
    (driver, monitor): (&Driver, &dyn Monitor),
    unreadable: &mut dyn FnMut(&ContainerName, &Error),
) -> Result<Bitmap> {
    let mut needed = Bitmap::default();
    let mut stays = listed.retain(|number, _| !given_up.contains(number.0));
    loop {
        let mut found = Bitmap::default();
        for opened in store.open_containers_ahead(driver, &stays, stays.numbers()) {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let (name, opened) = opened?;
            let container = match opened {
                Ok(container) => container,
                // Another collection has deleted it.
                Err(Error::Missing { .. }) => continue,
                Err(error) if error.is_loss() => {
                    unreadable(&name, &error);
                    continue;
                }
                Err(error) => {
                    return Err(error.context("which containers others depend on is not known, so nothing is deleted"));
                }
            };
            for base in container.directory.regions.iter().flat_map(|region| region.bases.iter()) {
                let number = listed.find(base.container).map(|number| number.0);
                if let Some(number) = number.filter(|number| given_up.contains(*number) && !needed.contains(*number)) {
                    needed.insert(number);
                    found.insert(number);
                }
            }
        }
        if found.count() == 0 {
            return Ok(needed);
        }
        stays = listed.retain(|number, _| found.contains(number.0));
    }
}
