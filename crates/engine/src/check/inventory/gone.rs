//! Containers that are gone, and those whose bases are.

use super::{ADVICE_LOST, Extent, Inventory};
use crate::check::objects::History;
use crate::error::Result;
use crate::object::names::Prefix;
use crate::store::container_set::Containers;
use crate::types::ContainerId;

/// Gaps in the numbers of one session that are looked into.
const GAPS_MAX: u32 = 1 << 16;

impl Inventory<'_> {
    /// Finds containers of committed sessions that are gone although no collection has deleted them, by the gaps in their
    /// numbers and by what a snapshot says its session has stored. Nothing is reported if a `final` cannot be read: it may
    /// name them.
    pub(in crate::check) fn find_gone(&mut self, history: &History, listed: &Containers) -> Result<()> {
        // A collection whose `final` was not there yet may have deleted containers before they were listed.
        if !self.read_finals()? {
            return Ok(());
        }
        for (session, commit) in &history.commits {
            let Some(snapshot) = &commit.body.snapshot else { continue };
            let none = Extent::default();
            let extent = self.sessions.get(session).unwrap_or(&none);
            let end = listed.ordinals_end(*session);
            let is_gone = |ordinal: &u32| {
                let id = ContainerId { session: *session, ordinal: *ordinal };
                !listed.contains(id) && !extent.quarantined.contains(ordinal) && !self.removed.contains(id)
            };
            let gaps: Vec<u32> = (0..end.min(GAPS_MAX)).filter(is_gone).collect();
            let stored = snapshot.summary.data_added_packed;
            // How long deleted containers were is not known. `judge` finds those that are missing behind the last one.
            let is_cut = extent.is_cut || self.removed.has_session(*session);
            if gaps.is_empty() && extent.bytes < stored && !is_cut {
                let problem = format!(
                    "holds {} bytes of containers where the snapshot has stored {stored}: containers from number \
                     {:08x} on are missing",
                    extent.bytes, end
                );
                let object = self.store.display(format_args!("{}/{session}", Prefix::Containers));
                let number = self.findings.add(object, problem, ADVICE_LOST);
                self.gone.push(number);
                self.suspects.insert(number);
            }
            for ordinal in gaps {
                let id = ContainerId { session: *session, ordinal };
                let number = self.add_missing(id);
                self.gone.push(number);
                self.conditions.lose(id, number);
                self.suspects.insert(number);
            }
        }
        Ok(())
    }

    /// Judges missing containers, and those that were published too late for anybody to keep their bases, once all references were
    /// followed: does anything need them?
    pub(in crate::check) fn judge_gone(&mut self) {
        self.gone.iter().for_each(|number| self.findings.relax(*number));
        for (number, id) in &self.late {
            if self.findings.relax_late(*number) {
                self.damaged.remove(id);
            }
        }
    }
}
