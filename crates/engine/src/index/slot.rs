//! The name of a pending chunk.

/// Names a pending chunk until it is resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot(pub(super) u32);
