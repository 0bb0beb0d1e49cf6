//! The two stages that give batches of blocks to a device: the search for candidates, and naming.

mod names;
mod search;

pub(crate) use names::DeviceNames;
pub(crate) use search::DeviceSearch;
