//! What a pending chunk is called.

/// Names a pending chunk until it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(pub(super) u32);

#[cfg(test)]
impl Slot {
    pub(crate) fn numbered(number: u32) -> Self {
        Self(number)
    }
}
