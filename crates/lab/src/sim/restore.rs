//! Restore caches, and the containers that each reads for a version.

use std::fmt;

use anyhow::{Result, bail, ensure};
use onefold_engine::restore::residency::{ForwardAssembly, LeastRecent, Optimal, Reference, Residency};

use crate::sim::containers::ContainerRule;
use crate::sim::references::Referred;

/// Uses of containers that the optimal cache knows ahead, as many as destor.
const HORIZON: usize = 1_000_000;

/// A restore cache and its size in containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cache {
    kind: Kind,
    containers: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    LeastRecent,
    ForwardAssembly,
    Optimal,
}

const KINDS: [(&str, Kind); 3] = [("lru", Kind::LeastRecent), ("asm", Kind::ForwardAssembly), ("opt", Kind::Optimal)];

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name);
        write!(f, "{name}:{}", self.containers)
    }
}

impl Cache {
    /// Reads caches with commas between them: `lru:32,asm:32,opt:256`.
    pub fn parse_list(text: &str) -> Result<Vec<Self>> {
        let mut caches = Vec::new();
        for part in text.split(',') {
            let cache = Self::parse(part.trim())?;
            ensure!(!caches.contains(&cache), "--restore: {part} twice");
            caches.push(cache);
        }
        Ok(caches)
    }

    fn parse(text: &str) -> Result<Self> {
        let (name, containers) = text.split_once(':').unwrap_or((text, ""));
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == name) else {
            bail!("--restore: {text:?} is no restore cache: take lru:N, asm:N or opt:N, with N containers");
        };
        let Ok(containers) = containers.parse() else {
            bail!("--restore: {text:?}: {name} takes a number of containers, as in {name}:32");
        };
        ensure!(containers != 0, "--restore: {text}: a restore cache has at least one container");
        Ok(Self { kind: *kind, containers })
    }

    /// Returns how many containers are read for these references.
    pub fn reads(&self, rule: &ContainerRule, references: impl Iterator<Item = Result<Referred>>) -> Result<u64> {
        let containers = self.containers as usize;
        let mut residency: Box<dyn Residency<u32>> = match self.kind {
            Kind::LeastRecent => Box::new(LeastRecent::new(containers)),
            // One container of the memory is for the one that is read, as in destor.
            Kind::ForwardAssembly => Box::new(ForwardAssembly::new(u64::from(self.containers - 1) * rule.file_bytes())),
            Kind::Optimal => Box::new(Optimal::new(containers, HORIZON)),
        };
        let (mut reads, mut count) = (Vec::new(), 0);
        for referred in references {
            let Referred { container, len, .. } = referred?;
            residency.push(Reference { unit: container, len }, &mut reads);
            count += reads.len() as u64;
            reads.clear();
        }
        residency.finish(&mut reads);
        Ok(count + reads.len() as u64)
    }
}
