//! Declaration of a dimension, and its values as text.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::identify::design::size::Size;

/// A dimension of points of some kind.
#[derive(Debug)]
pub struct Dimension<P: 'static> {
    /// Name in files and on the command line.
    pub name: &'static str,
    /// Help text.
    pub about: &'static str,
    /// Values.
    pub values: Values<P>,
}

/// The values of a dimension, and the field of a point that holds one.
///
/// A number or size whose field is missing has no effect at that point: other dimensions decide whether there is a field.
#[derive(Debug)]
pub enum Values<P: 'static> {
    /// One of several names.
    Choice(&'static dyn Choice<P>),
    /// A whole number.
    Number {
        /// Least and greatest value.
        limits: RangeInclusive<u64>,
        /// Returns the field.
        field: fn(&mut P) -> Option<Number<'_>>,
    },
    /// Bytes.
    Size {
        /// Least and greatest value.
        limits: RangeInclusive<u64>,
        /// Returns the field.
        field: fn(&mut P) -> Bytes<'_>,
    },
}

/// A field that holds a number. Its type has all values that the limits allow.
#[derive(Debug)]
pub enum Number<'a> {
    /// 32 bits.
    Narrow(&'a mut u32),
    /// 64 bits.
    Wide(&'a mut u64),
    /// As many as an address has.
    Count(&'a mut usize),
    /// 32 bits, or no limit.
    OrAll(&'a mut Option<u32>),
}

/// A field that holds a size.
#[derive(Debug)]
pub enum Bytes<'a> {
    /// A size that every point has.
    Always(&'a mut Size),
    /// A size that is a share of the memory if it is missing.
    OrShare(&'a mut Option<Size>),
}

/// The values of a field that have names.
#[derive(Debug)]
pub struct Named<P: 'static, T: 'static> {
    /// Returns the field.
    pub field: fn(&mut P) -> &mut T,
    /// Returns true if a value has the name of one of the list.
    pub same: fn(&T, &T) -> bool,
    /// The values, each with its name.
    pub values: &'static [(&'static str, T)],
}

/// A field with named values, whatever their type.
pub trait Choice<P>: Debug + Sync {
    /// Returns the names, in the order of listings.
    fn names(&self) -> Vec<&'static str>;
    /// Returns the name of the value that a point has; `None` if it has one without a name.
    fn get(&self, point: &mut P) -> Option<&'static str>;
    /// Sets the value with a name; returns false if there is none.
    fn set(&self, point: &mut P, name: &str) -> bool;
}

impl<P: Debug, T: Clone + Debug + Sync> Choice<P> for Named<P, T> {
    fn names(&self) -> Vec<&'static str> {
        self.values.iter().map(|(name, _)| *name).collect()
    }

    fn get(&self, point: &mut P) -> Option<&'static str> {
        let value = (self.field)(point);
        self.values.iter().find(|(_, named)| (self.same)(value, named)).map(|(name, _)| *name)
    }

    fn set(&self, point: &mut P, name: &str) -> bool {
        let found = self.values.iter().find(|(known, _)| *known == name);
        if let Some((_, value)) = found {
            *(self.field)(point) = value.clone();
        }
        found.is_some()
    }
}

impl Number<'_> {
    fn get(&self) -> Option<u64> {
        match self {
            Self::Narrow(number) => Some(u64::from(**number)),
            Self::Wide(number) => Some(**number),
            Self::Count(number) => Some(**number as u64),
            Self::OrAll(number) => number.map(u64::from),
        }
    }

    fn set(&mut self, value: u64) {
        match self {
            Self::Narrow(number) => **number = u32::try_from(value).unwrap_or(u32::MAX),
            Self::Wide(number) => **number = value,
            Self::Count(number) => **number = usize::try_from(value).unwrap_or(usize::MAX),
            Self::OrAll(number) => **number = Some(u32::try_from(value).unwrap_or(u32::MAX)),
        }
    }
}

impl Bytes<'_> {
    fn get(&self) -> Option<Size> {
        match self {
            Self::Always(size) => Some(**size),
            Self::OrShare(size) => **size,
        }
    }

    fn set(&mut self, value: Size) {
        match self {
            Self::Always(size) => **size = value,
            Self::OrShare(size) => **size = Some(value),
        }
    }
}

impl<P: Clone> Dimension<P> {
    /// Returns the accepted values, for people.
    pub fn accepted(&self) -> String {
        match &self.values {
            Values::Choice(choice) => choice.names().join(", "),
            Values::Number { limits, .. } => format!("{} to {}", limits.start(), limits.end()),
            Values::Size { limits, .. } if *limits == ANY_SIZE => "size".to_owned(),
            Values::Size { limits, .. } => {
                format!("size of {} to {}", Size(*limits.start()).text(), Size(*limits.end()).text())
            }
        }
    }

    /// Returns the value of a point as text that [`Dimension::set`] accepts; `None` if it has no effect there, is a share of the
    /// memory, or cannot be set by text.
    pub fn get(&self, point: &P) -> Option<String> {
        match &self.values {
            Values::Choice(choice) => choice.get(&mut point.clone()).map(str::to_owned),
            Values::Number { field, .. } => field(&mut point.clone())?.get().map(|number| number.to_string()),
            Values::Size { field, .. } => field(&mut point.clone()).get().map(Size::text),
        }
    }

    /// Refuses a value that exceeds the limits.
    pub fn check(&self, point: &P) -> Result<()> {
        self.get(point).map_or(Ok(()), |text| self.set(&mut point.clone(), &text))
    }

    /// Sets the value of a point by text. A number without an effect at this point is read, and left out.
    pub fn set(&self, point: &mut P, text: &str) -> Result<()> {
        let refused = || Error::invalid(format!("{}={text}: it takes {}", self.name, self.accepted()));
        match &self.values {
            Values::Choice(choice) => {
                if !choice.set(point, text) {
                    return Err(refused());
                }
            }
            Values::Number { limits, field } => {
                let number = text.parse().ok().filter(|number| limits.contains(number)).ok_or_else(refused)?;
                if let Some(mut field) = field(point) {
                    field.set(number);
                }
            }
            Values::Size { limits, field } => {
                let size = Size::parse(text).map_err(|reason| Error::invalid(format!("{}: {reason}", self.name)))?;
                if !limits.contains(&size.0) {
                    return Err(refused());
                }
                field(point).set(size);
            }
        }
        Ok(())
    }
}

/// Largest size: more than any machine has, and so little that sums do not overflow.
pub const SIZE_MAX: u64 = 1 << 44;
/// Limits of a size that may be any.
pub const ANY_SIZE: RangeInclusive<u64> = 0..=SIZE_MAX;
/// Limits of a number that may be any of 32 bits.
pub const ANY_NUMBER: RangeInclusive<u64> = 0..=u32::MAX as u64;

/// Compares values by their variant, whatever they contain.
pub fn same_variant<T>(one: &T, other: &T) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Sets the dimensions of a point by text, each name once, in the order of their declarations: a dimension that decides whether others have an
/// effect is declared before them. Names that are not declared are left to the caller.
pub fn set_all<'a, P: Clone>(
    dimensions: &[Dimension<P>],
    point: &mut P,
    value_of: impl Fn(&str) -> Option<&'a str>,
) -> Result<()> {
    dimensions.iter().try_for_each(|dimension| match value_of(dimension.name) {
        Some(text) => dimension.set(point, text),
        None => Ok(()),
    })
}
