//! Test doubles and entry points that only tests and fuzz targets use.

#[cfg(test)]
mod conformance;
pub mod fuzzing;
#[cfg(test)]
pub(crate) mod mem_disk;
pub mod mem_tree;
#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod vectors;
