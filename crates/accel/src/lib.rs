//! Vector kernels for the two things that read every byte of a source: where chunks may end, and what they are called.
//!
//! Each result has a kernel that says what it is, and kernels for the vector units of a processor, which are compared with
//! it bit for bit. Which one runs is chosen at run time, by what the processor has; all kernels can be asked for by name,
//! for tests and measurements.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector instructions are reached through functions that a processor may not have")
)]

pub mod boundary;
pub mod fingerprint;
pub mod memory;
#[cfg(test)]
mod random;
