//! Vector kernels for the two computations that read every byte of a source: boundaries of chunks, and fingerprints.
//!
//! One kernel of each computation is its specification. Tests compare the others, for the vector units of processors,
//! with it bit for bit. The fastest kernel that the processor supports is chosen at run time; tests and measurements
//! can select any kernel.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "functions with vector instructions must not be called on a processor that lacks them"
    )
)]

pub mod boundary;
pub mod device;
pub mod fingerprint;
pub mod memory;
#[cfg(test)]
mod random;
