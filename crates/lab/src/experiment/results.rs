//! Runs of an experiment, and what a paper states of them.

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::Result;

use crate::experiment::data_set::DataSet;
use crate::experiment::spec::{self, Spec};
use crate::experiment::verdict::Samples;
use crate::measure::Measured;

/// Identity of a run: indexes of data set, device, point and value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RunId {
    pub(crate) data_set: usize,
    pub(crate) device: usize,
    pub(crate) value: usize,
    pub(crate) point: usize,
}

/// An experiment and what its runs measured.
#[derive(Debug)]
pub(crate) struct Results<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) data_sets: Vec<DataSet>,
    /// The repetitions of each run.
    pub(crate) runs: HashMap<RunId, Vec<Rc<Measured>>>,
}

impl Results<'_> {
    /// Returns all runs, in the order of the file.
    pub(crate) fn ids(&self) -> Vec<RunId> {
        let mut ids: Vec<_> = self.runs.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns a measure of a run: the median of its repetitions.
    pub(crate) fn value(&self, id: RunId, measure: &str) -> Result<Option<f64>> {
        Ok(self.samples(id, measure)?.median())
    }

    /// Returns a measure of each repetition.
    pub(super) fn samples(&self, id: RunId, measure: &str) -> Result<Samples> {
        let measure = spec::measure(measure)?;
        let runs = self.runs.get(&id).into_iter().flatten();
        Ok(Samples(runs.filter_map(|measured| measure.of(measured)).collect()))
    }

    /// Returns the table that the number of a run was fitted to, if it was.
    pub(super) fn fit(&self, id: RunId, measure: &str) -> Option<String> {
        let value = self.spec.vary.as_ref().and_then(|vary| vary.values.get(id.value)).map(String::as_str);
        let point = &self.spec.points.get(id.point)?.name;
        self.data_sets.get(id.data_set)?.fit(&self.spec.name, measure, point, value).map(|fit| fit.table.clone())
    }

    /// Returns what the paper states of a run, if that is no multiple.
    pub(crate) fn printed(&self, id: RunId, measure: &str) -> Option<f64> {
        self.stated(id, measure)
            .filter(|stated| !stated.is_relative)
            .and_then(|stated| stated.measures.get(measure).copied())
    }

    /// Returns what the paper states of a run, or a multiple.
    pub(crate) fn published(&self, id: RunId, measure: &str) -> Option<f64> {
        self.stated(id, measure).and_then(|stated| stated.measures.get(measure).copied())
    }

    fn stated(&self, id: RunId, measure: &str) -> Option<&spec::Published> {
        let spec = self.spec;
        let value = spec.vary.as_ref().and_then(|vary| vary.values.get(id.value));
        let fits = |stated: &&spec::Published| {
            spec.data_sets.get(id.data_set) == Some(&stated.data_set)
                && spec.points.get(id.point).is_some_and(|point| point.name == stated.point)
                && stated.device.as_ref().is_none_or(|device| spec.devices.get(id.device) == Some(device))
                && stated.value.as_ref().is_none_or(|stated| value == Some(stated))
        };
        spec.published.iter().filter(fits).find(|stated| stated.measures.contains_key(measure))
    }

    /// Returns true if there is more than one device.
    pub(crate) fn names_devices(&self) -> bool {
        1 < self.spec.devices.len()
    }
}
