//! Messages of the laboratory, which are ours alone.

pub(crate) mod trace;
