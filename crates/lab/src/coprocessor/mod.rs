//! Work that DedupCDP gives to a coprocessor: names and ciphertext of chunks, with the processor's instructions and without.
//!
//! [`code`] says which instructions may be used, [`kernel`] hashes and encrypts, and [`pipeline`] takes dumps through a deduplication server.
//! [`vector`] finds boundaries and names chunks with each of this program's kernels, and [`fingerprint`] names chunks on several threads.
//! [`worker`] runs a job in a process of its own, since the instructions are chosen when a process starts. [`codec`] compresses, with
//! LZJB among others, and [`energy`] reads the counters of the processor.

pub mod code;
pub mod codec;
pub mod energy;
pub mod fingerprint;
pub mod kernel;
pub mod pipeline;
pub mod vector;
pub mod worker;
