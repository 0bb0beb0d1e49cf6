//! Containers that are read whole in a repository of format 2.

use crate::bitmap::Bitmap;
use crate::check::comparing::CompareNames;
use crate::check::inventory::Inventory;
use crate::check::order::{find_dependents, order};
use crate::check::verify::ReadWhole;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::pipeline::{Driver, Ordered, TaskQueue};
use crate::store::container_set::{ContainerNumber, Containers};

impl Inventory<'_> {
    /// Reads containers whole: those that depend on others first. Some stay in the queues.
    pub(super) fn read_by_bases(
        &mut self,
        (listed, mut numbers): (&Containers, Bitmap),
        (read, verify): (&mut TaskQueue<ReadWhole>, &mut CompareNames),
        (driver, monitor): (&Driver, &dyn Monitor),
    ) -> Result<()> {
        let dependents = order(find_dependents(self.store, listed, &numbers, (driver, monitor))?);
        for number in &dependents {
            numbers.remove(*number);
        }
        let others = listed.numbers().filter(|number| numbers.contains(number.0));
        for number in dependents.into_iter().map(ContainerNumber).chain(others) {
            if monitor.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if let Some(examined) = read.push(listed.name(number)?).and_then(|whole| verify.push(whole)) {
                self.take(examined, monitor)?;
            }
        }
        Ok(())
    }

    /// Returns how many regions were opened, and how often each.
    pub(in crate::check) fn regions_read(&self) -> u64 {
        self.counts.regions_read + self.bases.counts().read
    }
}
