//! What the engine's I/O needs and safe Rust cannot say: memory aligned for direct I/O.
//!
//! Thin on purpose: every item is safe to call, and every `unsafe` block says what makes it so.
#![expect(unsafe_code, reason = "one of the two crates that may; the engine has none")]

mod buffer;

pub use buffer::{ALIGNMENT, AlignedBuffer};
