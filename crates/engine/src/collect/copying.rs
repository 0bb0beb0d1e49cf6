//! How a collector copies what is needed of the containers that it gives up (step C5 of docs/protocol.md).

use std::io::ErrorKind;

use crate::collect::collector::Collector;
use crate::collect::copy::copy_refreshed;
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::plan::numbers;
use crate::collect::request::PruneReport;
use crate::collect::survey::Planned;
use crate::error::Result;
use crate::store::base_reader::BaseReader;
use crate::store::commits::Commits;
use crate::store::container_set::{ContainerNumber, Containers};

impl Collector<'_> {
    /// Copies what is needed of the containers that a plan gives up (step C5). Returns those of them that may go, and whether the
    /// store lacked space for the others: then containers without a needed chunk go first, or as many as there is space for.
    pub(super) fn copy(
        &mut self,
        (listed, containers): (&Containers, &Containers),
        planned: &mut Planned,
        commits: &Commits,
        report: &mut PruneReport,
    ) -> Result<(Vec<u32>, bool)> {
        report.lacks_space = false;
        let Planned { usage, plan, found } = planned;
        if plan.copy.is_empty() {
            return Ok((Vec::new(), false));
        }
        let classes = LifetimeClasses::of_times(commits.snapshots().iter().rev().map(|(_, snapshot)| snapshot.time));
        let mut copy = plan.copy.clone();
        let bases = BaseReader::new(self.store, listed, self.survey.memory() / 16);
        let mut lacks_space = false;
        loop {
            let request = self.survey.copy_request(containers, &bases, &copy, &classes);
            let given_up = numbers(plan.remove.iter().chain(&copy));
            let mut refresher = self.survey.refresher(listed, given_up, found.as_mut(), &mut self.hinted)?;
            match copy_refreshed(&request, usage.live_chunks()?, &mut self.ordinals, Some(&mut refresher)) {
                Ok(copied) => {
                    report.count_copies(&copied);
                    for (number, error) in &copied.not_copied {
                        let container = containers.name(ContainerNumber(*number))?.id;
                        self.survey.find(container, error, report)?;
                    }
                    copy.retain(|number| !copied.not_copied.contains_key(number));
                    return Ok((copy, lacks_space));
                }
                Err(error) if error.io_kind() == Some(ErrorKind::StorageFull) => {
                    (report.lacks_space, lacks_space) = (true, true);
                    // Containers without a needed chunk go first.
                    if !plan.remove.is_empty() {
                        return Ok((Vec::new(), lacks_space));
                    }
                    if copy.len() < 2 {
                        // A prune that has freed something ends, and reports what is left.
                        return if report.deleted_containers == 0 { Err(error) } else { Ok((Vec::new(), false)) };
                    }
                    copy.sort_by_key(|number| usage.live_bytes(*number));
                    copy.truncate(copy.len() / 2);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
