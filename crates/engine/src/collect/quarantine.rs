//! How a collection gives up damaged containers (steps C3 to C6 of docs/protocol.md).

use std::collections::{BTreeMap, BTreeSet};

use crate::bitmap::Bitmap;
use crate::collect::collector::{Collector, Marked};
use crate::collect::copy::{Copied, CopyRequest, copy_forward};
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
use crate::object::names::CollectionStep;
use crate::snapshot::CollectionEncoder;
use crate::store::base_reader::BaseReader;
use crate::store::container_ids::{CONDEMNED_MAX, ContainerIds};
use crate::store::container_set::{ContainerNumber, Containers};
use crate::types::ContainerId;

impl Collector<'_> {
    /// Copies all that is whole in some containers. What cannot be read or copied is noted in [`Copied::not_copied`]. Also returns the
    /// containers in which not every chunk is whole.
    pub(super) fn copy_whole(
        &mut self,
        containers: &Containers,
        copy: &[u32],
        bases: &BaseReader,
        report: &mut PruneReport,
    ) -> Result<(Copied, ContainerIds)> {
        let (survey, mut unreadable, mut damaged) = (&self.survey, BTreeMap::new(), ContainerIds::default());
        let mut whole_of = |container: u32| {
            if survey.is_interrupted() {
                return Err(Error::Interrupted);
            }
            let name = containers.name(ContainerNumber(container))?;
            let whole = whole_chunks(survey.store, &name, bases).unwrap_or_else(|error| {
                unreadable.insert(container, error);
                Vec::new()
            });
            let opened = survey.store.open_container(&name);
            if !opened.is_ok_and(|container| container.directory.chunks.len() == whole.len()) {
                damaged.push(name.id);
            }
            let live = |WholeChunk { slot, len, .. }| LiveChunk { container, slot, rank: 0, len };
            Ok(whole.into_iter().map(live).collect::<Vec<_>>())
        };
        let live = copy.iter().flat_map(|number| match whole_of(*number) {
            Ok(live) => live.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        });
        let classes = LifetimeClasses::of_times([]);
        let request = CopyRequest { leaves_dead: true, ..survey.copy_request(containers, bases, copy, &classes) };
        let mut copied = copy_forward(&request, live, &mut self.ordinals)?;
        copied.not_copied.append(&mut unreadable);
        report.count_copies(&copied);
        damaged.sort();
        Ok((copied, damaged))
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
        let bases = BaseReader::new(self.store, &listed, self.survey.memory() / 16);
        let (Copied { not_copied, .. }, _) = self.copy_whole(&candidates, &condemned, &bases, report)?;
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
