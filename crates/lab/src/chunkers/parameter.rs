//! What some algorithms have besides sizes.

use std::ops::RangeInclusive;

use crate::chunkers::{Algorithm, Sizes, tttd};

/// A value that an algorithm has besides its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// Of `tttd`: the easier test.
    BackupDivisor,
    /// Of `seqcdc`: rises in a row with which a chunk ends.
    SequenceLength,
    /// Of `seqcdc`: falls with which bytes are skipped.
    SkipTrigger,
    /// Of `seqcdc`: how many bytes are skipped.
    SkipSize,
}

impl Parameter {
    /// Returns its name, as the command has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::BackupDivisor => "backup-divisor",
            Self::SequenceLength => "sequence-length",
            Self::SkipTrigger => "skip-trigger",
            Self::SkipSize => "skip-size",
        }
    }

    /// Returns the values that can be asked for.
    pub fn values(self, sizes: Sizes) -> RangeInclusive<u32> {
        match self {
            Self::BackupDivisor => 2..=tttd::divisor_for(sizes),
            // 17 bytes in a row rise hardly ever, but in data that rises forever.
            Self::SequenceLength => 1..=16,
            Self::SkipTrigger => 1..=sizes.max,
            Self::SkipSize => 0..=sizes.max,
        }
    }
}

impl Algorithm {
    /// Returns what it has besides sizes.
    pub fn parameters(self) -> &'static [Parameter] {
        match self {
            Self::Tttd => &[Parameter::BackupDivisor],
            Self::SeqCdc => &[Parameter::SequenceLength, Parameter::SkipTrigger, Parameter::SkipSize],
            _ => &[],
        }
    }
}

/// A value of each parameter; an algorithm does not look at those that it does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    pub(crate) backup_divisor: u32,
    pub(crate) sequence_length: u32,
    pub(crate) skip_trigger: u32,
    pub(crate) skip_size: u32,
}

impl Parameters {
    /// Returns the values of the sources.
    pub fn for_sizes(sizes: Sizes) -> Self {
        let backup_divisor = (tttd::divisor_for(sizes) / 2).max(2);
        Self { backup_divisor, sequence_length: 5, skip_trigger: 50, skip_size: sizes.average / 32 }
    }

    /// Returns a value.
    pub fn get(&self, parameter: Parameter) -> u32 {
        match parameter {
            Parameter::BackupDivisor => self.backup_divisor,
            Parameter::SequenceLength => self.sequence_length,
            Parameter::SkipTrigger => self.skip_trigger,
            Parameter::SkipSize => self.skip_size,
        }
    }

    pub(crate) fn set(&mut self, parameter: Parameter, value: u32) {
        *match parameter {
            Parameter::BackupDivisor => &mut self.backup_divisor,
            Parameter::SequenceLength => &mut self.sequence_length,
            Parameter::SkipTrigger => &mut self.skip_trigger,
            Parameter::SkipSize => &mut self.skip_size,
        } = value;
    }
}
