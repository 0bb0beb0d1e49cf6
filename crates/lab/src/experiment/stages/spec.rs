//! Specification of stages around identification.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::coprocessor::code::Code;
use crate::coprocessor::fingerprint::{FingerprintJob, Hash};
use crate::experiment::chunking;
use crate::together::{THREADS_MAX, processors};

/// Stages that the points of an experiment do not have.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StageSpec {
    /// Views of them.
    pub shows: Shows,
    /// Data sets of which the paper has bytes, or numbers.
    pub data_sets: Vec<String>,
    /// The point that claims are about.
    pub of: String,
    /// The point that it is compared with, for throughput.
    pub to: Option<String>,
    /// Average of chunks in bytes.
    pub average: u32,
    /// Ways to do the stages.
    pub steps: Vec<StepSpec>,
    /// MiB that each thread cuts or names, with `--quick`.
    pub quick_mib: u32,
    /// The same by default.
    pub mib: u32,
}

/// Part of a paper's figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shows {
    /// Shares of chunking, fingerprints and identification in their sum.
    Shares,
    /// Throughput over the data, where the stages overlap.
    Throughput,
}

/// One way to do the stages.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StepSpec {
    /// Name.
    pub name: String,
    /// The chunker.
    pub chunker: String,
    /// Threads that cut; 0 for all.
    pub chunk_threads: usize,
    /// The hash.
    pub hash: Hash,
    /// Whether a device names chunks.
    #[serde(default)]
    pub on_device: bool,
    /// Instructions that the hash may use.
    pub code: Option<Code>,
    /// Threads that name chunks; 0 for all.
    #[serde(default)]
    pub fingerprint_threads: usize,
    /// Numbers of the paper.
    #[serde(default)]
    pub published: PublishedShares,
}

/// Shares that a paper prints: of chunking, fingerprints and identification.
#[derive(Clone, Copy, PartialEq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PublishedShares {
    /// Chunking.
    pub chunk: Option<f64>,
    /// Fingerprints.
    pub fingerprint: Option<f64>,
    /// Identification.
    pub identify: Option<f64>,
}

impl StageSpec {
    /// Refuses what cannot be measured. `points` and `data_sets` are those of the experiment.
    pub fn check(&self, points: &[&str], data_sets: &[String]) -> Result<()> {
        for point in std::iter::once(&self.of).chain(&self.to) {
            ensure!(points.contains(&&**point), "stages: there is no point {point:?}");
        }
        ensure!(self.data_sets.iter().all(|set| data_sets.contains(set)), "stages: data sets: {:?}", self.data_sets);
        ensure!(
            self.shows == Shows::Shares || self.to.is_some(),
            "stages: a throughput is compared with that of a point"
        );
        ensure!(!self.steps.is_empty() && self.mib != 0 && self.quick_mib != 0, "stages: nothing is measured");
        for step in &self.steps {
            chunking::named(&step.chunker, self.average)?;
            ensure!(step.chunk_threads.max(step.fingerprint_threads) <= THREADS_MAX, "threads: at most {THREADS_MAX}");
            self.job(step, 1).check()?;
        }
        Ok(())
    }

    /// Returns the measurement of the fingerprints of a step, of so many MiB in each thread.
    pub(super) fn job(&self, step: &StepSpec, mib: u32) -> FingerprintJob {
        let threads = if step.fingerprint_threads == 0 { processors() } else { step.fingerprint_threads };
        FingerprintJob { hash: step.hash, threads, chunk: self.average as usize, mib: u64::from(mib) }
    }
}
