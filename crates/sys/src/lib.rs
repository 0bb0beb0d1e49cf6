//! Safe interfaces to parts of I/O that need `unsafe`: memory aligned for direct I/O, batches through `io_uring`,
//! mapped memory, the errors of `close`, limits of the heap, and an allocator that ends the process when the system refuses
//! memory.
//!
//! The crate is thin on purpose. Every item is safe to call, and every `unsafe` block states why it is sound.
#![expect(unsafe_code, reason = "one of the two crates that may; the engine has none")]

mod buffer;
mod closing;
mod heap;
mod mapping;
mod refusal;
mod ring;
mod ticks;
mod xattr;

pub use buffer::{ALIGNMENT, AlignedBuffer, advise_huge_pages};
pub use closing::report_close;
pub use heap::limit_arenas;
pub use mapping::{LINE_BYTES, LineFlush, Mapping, WORD_BYTES};
pub use refusal::{EndOnRefusal, answer_refusals};
pub use ring::{DEPTH, Memory, Operation, OwnedRead, ReadQueue, Ring};
pub use ticks::{ticks, ticks_in_order};
pub use xattr::xattr_names_len;
