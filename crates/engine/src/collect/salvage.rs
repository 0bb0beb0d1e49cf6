//! Salvage: the chunks of quarantined containers that are whole and that no other container has are copied back.
//!
//! A container that a collection has quarantined never comes back under its own name: its `final` counts it as absent for good.
//! Its chunks come back in containers of a new session, as those of a backup do.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::codec::len_u32;
use crate::collect::copy::{CopyRequest, copy_forward};
use crate::collect::lifetime::LifetimeClasses;
use crate::collect::request::PruneRequest;
use crate::collect::survey::Survey;
use crate::collect::usage::LiveChunk;
use crate::collect::whole::whole_chunks;
use crate::compress::Compressor;
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::object::names::ObjectName;
use crate::snapshot::{CommitKind, SessionKind};
use crate::spill::SpillMap;
use crate::store::base_reader::BaseReader;
use crate::store::container_set::{ContainerNumber, ContainerSetBuilder, Containers};
use crate::store::{QuarantinedContainer, Session, Store};
use crate::types::ContainerId;

/// Outcome of a salvage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Salvaged {
    /// Quarantined containers.
    pub containers: u64,
    /// Chunks of them that were copied back.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub plain_bytes: u64,
    /// Containers that copies were written to.
    pub written_containers: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// What could not be brought back, in sentences: quarantined containers that could not be read for another reason than damage, and
    /// those with chunks that are whole nowhere, because of damage or because a base of theirs is gone.
    pub findings: Vec<String>,
    /// Quarantined containers that could not be read for another reason than damage.
    pub unreadable: BTreeSet<ContainerId>,
}

/// Copies the chunks of quarantined containers back that are whole and that no other container has. The quarantined containers
/// stay.
pub fn salvage(
    store: &Store,
    request: &PruneRequest,
    quarantined: &[QuarantinedContainer],
    monitor: &dyn Monitor,
) -> Result<Salvaged> {
    if quarantined.is_empty() {
        return Ok(Salvaged::default());
    }
    let session = Session::begin(store, &request.scratch, SessionKind::Collection, &request.hostname)?;
    let session = Arc::new(session);
    let survey = Survey { store, request, monitor, session: Some(Arc::clone(&session)) };
    let salvaged = Salvage { store, request, session: &session, survey: &survey }.run(quarantined);
    match salvaged.and_then(|salvaged| Ok((salvaged, session.end_durable()?))) {
        Ok((_, Some(CommitKind::Fence))) => Err(Error::Fenced { session: session.id }),
        Ok((salvaged, _)) => Ok(salvaged),
        Err(error) => Err(session.abandon(error)),
    }
}

/// State of a chunk of a quarantined container: whole there, and nowhere else.
const WHOLE: [u8; 1] = [0];
/// Another container keeps it, or will.
const KEPT: [u8; 1] = [1];
/// It is whole nowhere.
const LOST: [u8; 1] = [2];

struct Salvage<'a> {
    store: &'a Store,
    request: &'a PruneRequest,
    session: &'a Arc<Session>,
    survey: &'a Survey<'a>,
}

impl Salvage<'_> {
    fn run(&self, quarantined: &[QuarantinedContainer]) -> Result<Salvaged> {
        let mut builder = ContainerSetBuilder::new(&self.store.host, &self.request.scratch);
        for container in quarantined {
            builder.push(&container.name, container.len)?;
        }
        let containers: Containers = builder.finish()?.into();
        let aside = containers.retain(|_, id| !self.session.live.contains(id));
        let store = Store { quarantined: Some(Arc::new(aside)), ..self.store.clone() };
        let mut salvaged = Salvaged { containers: containers.len() as u64, ..Salvaged::default() };
        let memory = self.survey.memory();
        // A quarantined container may have bases in another one, which was set aside with it.
        let bases = BaseReader::new(&store, &self.all(quarantined)?, memory / 16);
        let (mut missing, readable) = self.missing((&store, &bases), &containers, &mut salvaged)?;
        let live = readable.numbers().flat_map(|number| self.live((&store, &bases), &readable, number, &mut missing));
        let copy: Vec<u32> = containers.numbers().map(|number| number.0).collect();
        let classes = LifetimeClasses::of_times([]);
        let request = CopyRequest { store: &store, ..self.survey.copy_request(&containers, &bases, &copy, &classes) };
        let copied = copy_forward(&request, live, &mut 0)?;
        salvaged.findings.extend(copied.not_copied.values().map(ToString::to_string));
        (salvaged.chunks, salvaged.plain_bytes) = (copied.chunks, copied.plain_bytes);
        (salvaged.written_containers, salvaged.written_bytes) = (copied.written_containers, copied.written_bytes);
        self.report_lost((&store, &bases), &readable, &mut missing, &mut salvaged)?;
        Ok(salvaged)
    }

    /// Lists live containers and quarantined ones.
    fn all(&self, quarantined: &[QuarantinedContainer]) -> Result<Containers> {
        let live = &self.session.live;
        let mut builder = ContainerSetBuilder::new(&self.store.host, &self.request.scratch);
        for number in live.numbers() {
            let (name, len) = live.sized(number)?;
            builder.push(&name, len)?;
        }
        for container in quarantined.iter().filter(|container| !live.contains(container.name.id)) {
            builder.push(&container.name, container.len)?;
        }
        Ok(builder.finish()?.into())
    }

    /// Reports the chunks of quarantined containers that are lost: they are not whole there, and no other container has them.
    fn report_lost(
        &self,
        (store, bases): (&Store, &BaseReader),
        containers: &Containers,
        missing: &mut SpillMap,
        salvaged: &mut Salvaged,
    ) -> Result<()> {
        let mut compressor = Compressor::default();
        for opened in store.open_containers(containers, containers.numbers()) {
            self.go_on()?;
            // Nobody knows what was in one of which no directory can be read.
            let Ok(container) = opened?.1 else { continue };
            let (mut lost, mut reason) = (0_u64, None);
            for region in 0..len_u32(container.directory.regions.len()) {
                let mut lost_here = 0_u64;
                for chunk in container.directory.chunks.get(container.chunks_of(region)).unwrap_or_default() {
                    let Some(fingerprint) = chunk.fingerprint else { continue };
                    lost_here += u64::from(missing.get(&fingerprint.0)?.as_deref() == Some(&LOST));
                }
                if 0 < lost_here && reason.is_none() {
                    reason = store.read_region(&container, region, bases, &mut compressor).err();
                }
                lost += lost_here;
            }
            if 0 < lost {
                let reason =
                    reason.map_or_else(|| "they are not what their names say".to_owned(), |error| error.to_string());
                let object = self.store.display(ObjectName::Quarantined(container.name));
                salvaged.findings.push(format!(
                    "{object}: {lost} chunks of it are in no container, and cannot be brought back: {reason}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the chunks of quarantined containers, each with its state: whole there, kept by another container, or lost. And
    /// the containers that can be read.
    fn missing(
        &self,
        (quarantined, bases): (&Store, &BaseReader),
        containers: &Containers,
        salvaged: &mut Salvaged,
    ) -> Result<(SpillMap, Containers)> {
        let memory = self.survey.memory() / 4;
        let mut missing = self.request.scratch.map(&self.store.host, "chunks of quarantined containers", memory)?;
        for name in containers.names() {
            self.go_on()?;
            let name = name?;
            match whole_chunks(quarantined, &name, bases) {
                Ok(whole) => whole.iter().try_for_each(|chunk| missing.insert(chunk.fingerprint.0, &WHOLE))?,
                Err(error) => {
                    salvaged.findings.push(error.to_string());
                    salvaged.unreadable.insert(name.id);
                }
            }
        }
        let readable = containers.retain(|_, id| !salvaged.unreadable.contains(&id));
        for opened in quarantined.open_containers(&readable, readable.numbers()) {
            self.go_on()?;
            let Ok(container) = opened?.1 else { continue };
            for fingerprint in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
                if !missing.contains(&fingerprint.0)? {
                    missing.insert(fingerprint.0, &LOST)?;
                }
            }
        }
        let live = &self.session.live;
        let live_bases = BaseReader::new(self.store, live, memory / 4);
        for opened in self.store.open_containers(live, live.numbers()) {
            self.go_on()?;
            // One that cannot be opened has none of them.
            let (name, Ok(container)) = opened? else { continue };
            let mut is_listed = false;
            for fingerprint in container.directory.chunks.iter().filter_map(|chunk| chunk.fingerprint) {
                is_listed |= missing.contains(&fingerprint.0)?;
            }
            if !is_listed {
                continue;
            }
            // The quarantined containers may be removed next, so that a copy counts only if it is what its name says, and depends on
            // none of them.
            for chunk in whole_chunks(self.store, &name, &live_bases).unwrap_or_default() {
                if missing.contains(&chunk.fingerprint.0)? {
                    missing.insert(chunk.fingerprint.0, &KEPT)?;
                }
            }
        }
        Ok((missing, readable))
    }

    /// Returns the chunks of a container that are still missing; they are not missing any more then.
    fn live(
        &self,
        (store, bases): (&Store, &BaseReader),
        containers: &Containers,
        number: ContainerNumber,
        missing: &mut SpillMap,
    ) -> Vec<Result<LiveChunk>> {
        let live = || {
            self.go_on()?;
            let whole = whole_chunks(store, &containers.name(number)?, bases)?;
            let mut live = Vec::new();
            for chunk in whole {
                if missing.get(&chunk.fingerprint.0)?.as_deref() == Some(&WHOLE) {
                    missing.insert(chunk.fingerprint.0, &KEPT)?;
                    live.push(LiveChunk { container: number.0, slot: chunk.slot, rank: 0, len: chunk.len });
                }
            }
            Ok(live)
        };
        match { live }() {
            Ok(live) => live.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        }
    }

    fn go_on(&self) -> Result<()> {
        if self.survey.is_interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
