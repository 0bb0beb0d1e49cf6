//! All experiments: `experiments/*.toml`.

use anyhow::{Context, Result};
use toml::Table;

use crate::experiment::chunking::ChunkingSpec;
use crate::experiment::compressors::CompressorSpec;
use crate::experiment::dumps::DumpSpec;
use crate::experiment::energy::EnergySpec;
use crate::experiment::fingerprints::FingerprintSpec;
use crate::experiment::halvings::HalvingSpec;
use crate::experiment::instructions::InstructionSpec;
use crate::experiment::kernels::KernelSpec;
use crate::experiment::references::ReferenceSpec;
use crate::experiment::spec::Spec;
use crate::experiment::steps::StepSpec;
use crate::files::{Embedded, embedded, from_toml, is_path, names_of, text_of};

/// An experiment.
#[derive(Clone, PartialEq, Debug)]
pub enum Experiment {
    /// Points of the parameter space, compared.
    Points(Box<Spec>),
    /// Threads that cut.
    Chunking(ChunkingSpec),
    /// Hashes and ciphers, with the processor's instructions and without.
    Kernels(KernelSpec),
    /// All computations of a backup, with each kind of instructions.
    Instructions(InstructionSpec),
    /// Hashes that name chunks, on several threads and on a device.
    Fingerprints(FingerprintSpec),
    /// Compressors.
    Compressors(CompressorSpec),
    /// Dumps of memory through a deduplication server.
    Dumps(Box<DumpSpec>),
    /// Energy.
    Energy(EnergySpec),
    /// Steps of two algorithms.
    Steps(StepSpec),
    /// Ways to find references.
    References(ReferenceSpec),
    /// Halving of an image.
    Halvings(HalvingSpec),
}

const EXPERIMENTS: Embedded = embedded! { "experiments":
    "lazy-table-3" "lazy-table-4" "lazy-table-5" "lazy-table-6" "lazy-table-7" "lazy-table-8" "lazy-table-9" "lazy-figure-9" "lazy-figure-12"
    "lazy-figure-13" "lazy-figure-14" "lazy-figure-15" "pm-figure-2a" "pm-figure-2b" "pm-figure-3" "pm-table-2" "pm-figure-4"
    "pm-inequality-8" "pm-injected" "crossover" "lazy-orders" "dedupcdp-table-1" "dedupcdp-figure-7" "dedupcdp-figure-8"
    "dedupcdp-figure-9" "dedupcdp-figure-10" "dedupcdp-figure-11" "dedupcdp-figure-12" "instructions"
    "sobe-table-1" "sobe-figure-4" "sobe-figure-5" "sobe-figure-6"
};

/// Returns the names of all experiments that are described by a file.
pub fn names() -> impl Iterator<Item = &'static str> {
    names_of(EXPERIMENTS)
}

impl Experiment {
    /// Returns the experiment of this name.
    pub fn named(name: &str) -> Result<Self> {
        let text = text_of("experiment", name, EXPERIMENTS)?;
        Self::parse(name, text).with_context(|| format!("experiment {name}"))
    }

    /// Reads one, and checks all names in it. The list that only one kind has tells the kind.
    fn parse(name: &str, text: &str) -> Result<Self> {
        let table: Table = from_toml(text)?;
        let has = |field: &str| table.contains_key(field);
        macro_rules! read {
            ($kind:expr, $spec:ty) => {{
                let mut spec: $spec = from_toml(text)?;
                name.clone_into(&mut spec.name);
                spec.check()?;
                Ok($kind(spec))
            }};
        }
        match () {
            () if has("chunkers") => read!(Self::Chunking, ChunkingSpec),
            () if has("kernels") => read!(Self::Kernels, KernelSpec),
            () if has("computations") => read!(Self::Instructions, InstructionSpec),
            () if has("fingerprints") => read!(Self::Fingerprints, FingerprintSpec),
            () if has("compressors") => read!(Self::Compressors, CompressorSpec),
            () if has("dumps") => read!(|spec| Self::Dumps(Box::new(spec)), DumpSpec),
            () if has("energy") => read!(Self::Energy, EnergySpec),
            () if has("processors") => read!(Self::Steps, StepSpec),
            () if has("referencing") => read!(Self::References, ReferenceSpec),
            () if has("halving") => read!(Self::Halvings, HalvingSpec),
            () => Ok(Self::Points(Box::new(Spec::parse(name, text)?))),
        }
    }

    /// Returns name, title and source.
    fn words(&self) -> [&str; 3] {
        match self {
            Self::Points(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Chunking(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Kernels(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Instructions(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Fingerprints(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Compressors(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Dumps(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Energy(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Steps(spec) => [&spec.name, &spec.title, &spec.source],
            Self::References(spec) => [&spec.name, &spec.title, &spec.source],
            Self::Halvings(spec) => [&spec.name, &spec.title, &spec.source],
        }
    }

    /// Returns what it is called.
    pub fn name(&self) -> &str {
        self.words()[0]
    }

    /// Returns what it is about, in a line.
    pub fn title(&self) -> &str {
        self.words()[1]
    }

    /// Returns what it reproduces, or that it is new.
    pub fn source(&self) -> &str {
        self.words()[2]
    }

    /// Returns the data sets that it is run on.
    pub fn data_sets(&self) -> &[String] {
        match self {
            Self::Points(spec) => &spec.data_sets,
            _ => &[],
        }
    }

    /// Leaves out all data sets but these, and adds those of them that are files.
    pub fn keep_data_sets(&mut self, names: &[String]) {
        if let Self::Points(spec) = self {
            spec.data_sets.retain(|name| names.contains(name));
            spec.data_sets.extend(names.iter().filter(|name| is_path(name)).cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::experiment::data_set::DataSet;
    use crate::files::{names_in, sorted};
    use crate::point::preset::Preset;

    #[test]
    fn all_files_are_known_and_name_what_exists() {
        assert_eq!(names_in("experiments"), sorted(names()));
        for name in names() {
            let spec = match Experiment::named(name).unwrap() {
                Experiment::Points(spec) => spec,
                Experiment::Dumps(spec) => {
                    Preset::named(&spec.preset).unwrap().with(&spec.set).unwrap();
                    spec.devices.iter().for_each(|device| drop(Device::named(device).unwrap()));
                    continue;
                }
                _ => continue,
            };
            spec.data_sets.iter().for_each(|set| drop(DataSet::named(set).unwrap()));
            spec.devices.iter().for_each(|device| drop(Device::named(device).unwrap()));
            for point in &spec.points {
                Preset::named(&point.preset).unwrap().with(&point.set).unwrap();
                assert!(point.devices.iter().all(|device| spec.devices.contains(device)), "{name}: {point:?}");
            }
            assert!(!spec.tables.is_empty() && !spec.plots.is_empty(), "{name} shows nothing");
        }
        let error = Experiment::named("lazy-table-33").unwrap_err().to_string();
        assert_eq!(error, "there is no experiment \"lazy-table-33\"; did you mean \"lazy-table-3\"?");
    }

    #[test]
    fn a_name_that_does_not_exist_is_refused() {
        let sound = EXPERIMENTS[0].1;
        let refused =
            |from: &str, to: &str| format!("{:#}", Experiment::parse("x", &sound.replacen(from, to, 1)).unwrap_err());
        assert!(refused("of = \"eager\"", "of = \"eagre\"").contains("did you mean \"eager\""));
        assert!(refused("measure = \"seconds\"", "measure = \"second\"").contains("did you mean \"seconds\""));
        assert!(refused("data-set = \"vm\"", "data-set = \"vmm\"").contains("did you mean \"vm\""));
        assert!(refused("qualitative", "qualitativ").contains("unknown field `qualitativ`"));
        assert!(refused("title", "titel").contains("unknown field"));
    }
}
