//! The name of a pending chunk.

/// Names a pending chunk until it is resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub(in crate::identify) u32);
