//! The link between the machine that serves volumes and the one that deduplicates and stores their history.
//!
//! A [`Sender`] reads the durable frames of a group's journal and sends them, compressed, over TLS 1.3. A [`Receiver`] appends them to a
//! journal of its own, with the same log sequence numbers and times, and acknowledges them when they are durable there. Both sides
//! have certificates. `docs/link.md` describes every byte.
//!
//! The sender goes on from the last record that is durable at the receiver, after any interruption of either side. It never has more
//! than [`WINDOW_BYTES`] under way, so the receiver takes all that is sent without waiting for its journal, and silence means that the
//! other side is gone.

mod compress;
mod failure;
mod frames;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod host;
mod receive;
mod reception;
mod send;
mod serve;
mod session;
mod stream;
mod tls;
mod window;
pub mod wire;

pub use compress::Codec;
pub use host::ReceiverHost;
pub use receive::MEMORY_BYTES as RECEIVER_MEMORY_BYTES;
pub use reception::{Reception, ReceptionStatus};
pub use send::{LinkStatus, MEMORY_BYTES as SENDER_MEMORY_BYTES, Sender};
pub use serve::Receiver;
pub use session::Peer;
pub use tls::{LinkCertificates, ReceiverTls, SenderTls};

use std::time::Duration;

/// Most bytes of frames that the receiver has not acknowledged, each with [`FRAME_COST`]. With a round trip and a sync of 50 ms
/// together, 160 MiB/s pass.
pub const WINDOW_BYTES: usize = 8 << 20;
/// Bytes that a frame counts for in addition to its records: what a queue takes for it, so that many short frames are limited too.
pub const FRAME_COST: usize = 256;
/// Bytes of the blocks that are compared by fingerprints.
pub const BLOCK_BYTES: usize = 4096;
/// Most bytes of a volume whose fingerprints one message has.
pub const COMPARED_BYTES_MAX: u32 = 1 << 20;

/// How long a side sends nothing before it shows that it is there.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// How long a side hears nothing before it gives the other one up: four messages are missing.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long a connection may take until the first records pass: TLS, and the first message of each side.
pub const OPENING_TIME_MAX: Duration = Duration::from_secs(10);
/// First and longest pause before the sender connects again. The longest one is the loss of history that the receiver may have when it
/// comes back.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`PAUSE_MIN`].
pub const PAUSE_MAX: Duration = Duration::from_secs(4);
/// How long records that are not durable wait until the sender syncs the journal for them.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
