//! What the engine's I/O needs and safe Rust cannot say: memory aligned for direct I/O, and batches through `io_uring`.
//!
//! Thin on purpose: every item is safe to call, and every `unsafe` block says what makes it so.
#![expect(unsafe_code, reason = "one of the two crates that may; the engine has none")]

mod buffer;
mod ring;

pub use buffer::{ALIGNMENT, AlignedBuffer};
pub use ring::{DEPTH, Memory, Operation, Ring};
