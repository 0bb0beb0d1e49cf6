//! Small sets as bits of an integer.

use std::fmt;

/// A set of sessions, of containers or of chunks, by number. Container `i` is the one that session `i` stores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Set(u16);

impl Set {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of these members.
    pub const fn of(members: &[usize]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < members.len() {
            bits |= 1 << members[at];
            at += 1;
        }
        Self(bits)
    }

    /// Returns the set of one member.
    pub const fn one(member: usize) -> Self {
        Self(1 << member)
    }

    /// Returns the set of the first members.
    pub const fn first(count: usize) -> Self {
        Self((1 << count) - 1)
    }

    /// Returns the set with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the bits of the set.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns true if the set has no member.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the number is a member.
    pub const fn has(self, member: usize) -> bool {
        self.0 >> member & 1 == 1
    }

    /// Returns the members of either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the members of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the members that the other set has not.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set with this member.
    #[must_use]
    pub const fn with(self, member: usize) -> Self {
        Self(self.0 | 1 << member)
    }

    /// Returns the set without this member.
    #[must_use]
    pub const fn without(self, member: usize) -> Self {
        Self(self.0 & !(1 << member))
    }

    /// Returns the members in ascending order.
    pub fn members(self) -> impl Iterator<Item = usize> {
        (0..16).filter(move |&member| self.has(member))
    }

    /// Returns every subset, the empty one and the set itself included.
    pub fn subsets(self) -> impl Iterator<Item = Self> {
        let mut next = Some(self.0);
        std::iter::from_fn(move || {
            let bits = next?;
            next = (bits != 0).then(|| (bits - 1) & self.0);
            Some(Self(bits))
        })
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.members()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_different_and_none_is_missing() {
        let mut subsets: Vec<Set> = Set::of(&[1, 4, 9]).subsets().collect();
        subsets.sort_unstable();
        subsets.dedup();
        assert_eq!(subsets.len(), 8);
        assert_eq!(Set::EMPTY.subsets().collect::<Vec<_>>(), [Set::EMPTY]);
    }
}
