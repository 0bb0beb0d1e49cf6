//! One step of a process, and the list of all steps that a state allows.

use std::fmt;

use crate::set::Set;
use crate::state::State;
use crate::world::{Sights, World};

/// A step, as a trace shows it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub(crate) actor: Actor,
    pub(crate) text: &'static str,
    pub(crate) detail: Detail,
    pub(crate) sights: Sights,
}

/// The process that does a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Actor {
    Writer(usize),
    Collector(usize),
    Reader,
    User,
    Power,
    Disk,
}

/// The objects that a step is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail {
    Nothing,
    Session(usize),
    Collection(usize),
    Containers(Set),
    Chunks(Set),
    CondemnedAndCopied(Set, Set),
}

impl Step {
    pub(crate) const fn new(actor: Actor, text: &'static str, detail: Detail) -> Self {
        Self { actor, text, detail, sights: Sights::NONE }
    }

    pub(crate) const fn showing(self, sights: Sights) -> Self {
        Self { sights: self.sights.or(sights), ..self }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.actor {
            Actor::Writer(number) => write!(formatter, "writer {number}: ")?,
            Actor::Collector(number) => write!(formatter, "collector {number}: ")?,
            Actor::Reader => write!(formatter, "reader: ")?,
            Actor::User => write!(formatter, "user: ")?,
            Actor::Disk => write!(formatter, "disk: ")?,
            Actor::Power => write!(formatter, "power cut: ")?,
        }
        write!(formatter, "{}", self.text)?;
        match self.detail {
            Detail::Nothing => Ok(()),
            Detail::Session(number) | Detail::Collection(number) => write!(formatter, " {number}"),
            Detail::Containers(set) | Detail::Chunks(set) => write!(formatter, " {set:?}"),
            Detail::CondemnedAndCopied(condemned, copied) => write!(formatter, " {condemned:?}, copies {copied:?}"),
        }
    }
}

/// The steps that lead on from a state.
#[derive(Debug)]
pub(crate) struct Successors<'a> {
    pub(crate) world: &'a World,
    pub(crate) found: Vec<(Step, State)>,
}

impl Successors<'_> {
    /// Adds a step.
    pub(crate) fn push(&mut self, step: Step, mut state: State) {
        state.normalize();
        self.found.push((step, state));
    }
}
