//! Test doubles and entry points that only tests and fuzz targets use.

#[cfg(test)]
mod conformance;
pub mod fuzzing;
pub mod mem_tree;
#[cfg(test)]
mod object_conformance;
#[cfg(test)]
pub(crate) mod object_sim;
pub mod preset_conformance;
pub mod sim;
pub mod store_conformance;
#[cfg(test)]
mod vectors;

/// Returns the fingerprint of the n-th chunk.
#[cfg(test)]
pub(crate) fn fingerprint(number: u64) -> crate::types::Fingerprint {
    crate::types::Fingerprint(blake3::hash(&number.to_le_bytes()).into())
}
