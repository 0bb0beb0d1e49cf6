//! Messages of the laboratory, which are ours alone.

pub(crate) mod advise;
pub(crate) mod experiment;
pub(crate) mod image;
pub(crate) mod trace;
