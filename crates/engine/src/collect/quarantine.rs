//! How a collection gives up damaged containers (steps C3 to C6 of docs/protocol.md).

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::bitmap::Bitmap;
use crate::collect::collector::{Collector, Marked};
use crate::collect::copy::{CopyBudget, CopyRequest, copy_forward};
use crate::collect::depending::dependents_of;
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::plan::numbers;
use crate::collect::quick::QUICK_MAX;
use crate::collect::request::PruneReport;
use crate::collect::steps;
use crate::collect::survey::{Beating, listed_twice};
use crate::collect::usage::LiveChunk;
use crate::collect::whole::{WholeChunk, whole_chunks};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::CollectionStep;
use crate::snapshot::CollectionEncoder;
use crate::store::base_reader::BaseReader;
use crate::store::container_ids::CONDEMNED_MAX;
use crate::store::container_set::{ContainerNumber, Containers};
use crate::types::ContainerId;

impl Collector<'_> {
    /// Returns the chunks that are whole in a container. An error outside ends everything; one inside is the container's.
    fn whole_chunks_of(
        &self,
        containers: &Containers,
        number: u32,
        bases: &BaseReader,
    ) -> Result<Result<Vec<WholeChunk>>> {
        if Beating(&self.survey).is_interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(whole_chunks(self.store, &containers.name(ContainerNumber(number))?, bases))
    }

    /// Returns the containers that depend on some that are set aside. They go with them: left where they are, they would keep these,
    /// and a later backup would find what is damaged in them.
    fn dependents(&self, listed: &Containers, of: &Containers) -> Result<Bitmap> {
        if of.is_empty() || !self.store.read_commits()?.may_have_bases(self.store.config.format) {
            return Ok(Bitmap::default());
        }
        let of: Bitmap = numbers(of.numbers().map(|number| number.0).collect::<Vec<_>>().iter());
        let dependents = dependents_of(self.store, listed, &of, (&self.request.driver, &Beating(&self.survey)))?;
        if dependents.count() != 0 {
            self.survey.monitor.note(&format!(
                "{} containers that are compressed against the damaged ones are copied and set aside, too",
                dependents.count()
            ));
        }
        Ok(dependents)
    }

    /// Copies what is whole in damaged containers and in those that depend on them, and condemns all of them. Nothing is marked: all
    /// that is whole counts as needed. Returns `None` if there is nothing to do.
    pub(super) fn condemn_damaged(
        &mut self,
        number: u32,
        damaged: &BTreeSet<ContainerId>,
        report: &mut PruneReport,
    ) -> Result<Option<Marked>> {
        self.store.objects.refresh_collections(self.session.id)?;
        let absent = self.store.read_absent()?;
        let listed = self.store.list_sized_containers(&self.request.scratch)?.without(&absent.containers);
        let twice = listed_twice(&listed);
        for id in damaged.intersection(&twice) {
            report.find(&Error::damaged(format!("container {id}"), "there are two of this number; neither is touched"));
        }
        let named = listed.retain(|_, id| damaged.contains(&id) && !twice.contains(&id));
        let dependents = self.dependents(&listed, &named)?;
        let goes = |number: ContainerNumber, id| named.contains(id) || dependents.contains(number.0);
        let candidates = listed.retain(|number, id| goes(number, id) && !twice.contains(&id));
        let mut condemned: Vec<u32> = candidates.numbers().take(CONDEMNED_MAX).map(|number| number.0).collect();
        let is_partial = condemned.len() < candidates.len();
        let (unreadable, mut ordinals) = (RefCell::new(Vec::new()), self.ordinals);
        let bases = BaseReader::new(self.store, &listed, self.survey.memory() / 16);
        let live = condemned.iter().flat_map(|&container| match self.whole_chunks_of(&candidates, container, &bases) {
            Err(error) => vec![Err(error)],
            Ok(Err(error)) => {
                unreadable.borrow_mut().push((container, error));
                Vec::new()
            }
            Ok(Ok(whole)) => {
                let live = |WholeChunk { slot, len, .. }| Ok(LiveChunk { container, slot, rank: 0, len });
                whole.into_iter().map(live).collect()
            }
        });
        let budget = CopyBudget::of(
            (self.survey.memory() / 4 * 3).max(CopyBudget::BYTES_MIN),
            self.request.driver.compute_count(),
            self.request.copies,
        );
        let request = CopyRequest {
            store: self.store,
            session: Some(&self.session),
            containers: &candidates,
            bases: &bases,
            copy: &condemned,
            classes: &LifetimeClasses::of_times([]),
            leaves_dead: false,
            copies: self.request.copies,
            budget,
            scratch: &self.request.scratch,
            driver: &self.request.driver,
            monitor: self.survey.monitor,
        };
        let copied = copy_forward(&request, live, &mut ordinals)?;
        self.ordinals = ordinals;
        report.count_copies(&copied);
        let mut not_copied = copied.not_copied;
        not_copied.extend(unreadable.into_inner());
        for error in not_copied.values() {
            report.find(error);
        }
        condemned.retain(|number| !not_copied.contains_key(number));
        if condemned.is_empty() {
            // Another collector may work on this collection, and may have condemned some by now.
            if self.has_condemned(number)? {
                return Ok(Some(Marked { has_joined: true, ..Marked::default() }));
            }
            let count = self.store.count_quick()?.unwrap_or(QUICK_MAX);
            steps::give_up(self.store, self.session.id, number, count)?;
            return Ok(None);
        }
        let mut step = CollectionEncoder::new(CollectionStep::Condemn);
        for number in &condemned {
            let id = candidates.name(ContainerNumber(*number))?.id;
            step.container(id);
            step.quarantined(id);
        }
        let is_ours = steps::create(self.store, self.session.id, number, CollectionStep::Condemn, step)?;
        Ok(Some(Marked { is_partial, has_joined: !is_ours, ..Marked::default() }))
    }
}
