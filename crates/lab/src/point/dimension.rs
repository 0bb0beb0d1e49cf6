//! The declaration of dimensions, and setting one by text.

use std::fmt::Display;
use std::ops::RangeInclusive;

use anyhow::{Result, anyhow, bail, ensure};
use toml::{Table, Value};

use crate::point::memory::Size;
use crate::point::{DIMENSIONS, Point};

/// A dimension of points.
#[derive(Clone, Copy, Debug)]
pub struct Dimension {
    /// Name in `--set` and in files.
    pub name: &'static str,
    /// Accepted values, for people.
    pub values: &'static str,
    /// Help text.
    pub about: &'static str,
    pub(super) is_number: bool,
    /// Sets the field of a point. An error is the end of the message that begins with the name.
    pub(super) set: fn(&mut Point, &Value) -> Result<(), String>,
}

/// The type of a dimension's values.
pub(super) trait Setting: Sized {
    /// Accepted values, for people.
    const VALUES: &'static str;
    /// Whether values in files are numbers, not text.
    const IS_NUMBER: bool = false;
    /// The unit that follows limits in messages.
    const UNIT: &'static str = "";

    /// Reads a value of a file. An error is the end of the message that begins with the dimension's name.
    fn read(value: &Value, values: &str) -> Result<Self, String>;

    /// Returns the amount that limits apply to, if any.
    fn amount(&self) -> Option<u64> {
        None
    }
}

impl Setting for u32 {
    const VALUES: &'static str = "number";
    const IS_NUMBER: bool = true;

    fn read(value: &Value, values: &str) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| match values {
            Self::VALUES => refusal(value, format_args!(" a whole number from 0 to {}", Self::MAX)),
            values => refusal(value, format_args!(": {values}")),
        })
    }

    fn amount(&self) -> Option<u64> {
        Some(u64::from(*self))
    }
}

impl Setting for Size {
    const VALUES: &'static str = "size";
    const UNIT: &'static str = " bytes";

    fn read(value: &Value, _values: &str) -> Result<Self, String> {
        Self::read(value).map_err(|reason| format!(": {reason}"))
    }

    fn amount(&self) -> Option<u64> {
        Some(self.0)
    }
}

impl Setting for Option<Size> {
    const VALUES: &'static str = Size::VALUES;

    fn read(value: &Value, values: &str) -> Result<Self, String> {
        <Size as Setting>::read(value, values).map(Some)
    }
}

/// Returns the end of the message that refuses a value.
pub(super) fn refusal(value: &Value, accepted: impl Display) -> String {
    let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("={shown}: it takes{accepted}")
}

/// Checks the limits of a dimension.
pub(super) fn check_limits<T: Setting>(name: &str, value: &T, limits: &RangeInclusive<u64>) -> Result<()> {
    if let Some(amount) = value.amount() {
        let (least, most, unit) = (limits.start(), limits.end(), T::UNIT);
        ensure!(limits.contains(&amount), "{name}: {least} to {most}{unit}, not {amount}");
    }
    Ok(())
}

/// Declares the names of a type's values.
macro_rules! choices {
    ($type:ty: $first_name:literal => $first:expr $(, $name:literal => $value:expr)*) => {
        impl $crate::point::dimension::Setting for $type {
            const VALUES: &'static str = concat!($first_name $(, ", ", $name)*);

            fn read(value: &toml::Value, values: &str) -> Result<Self, String> {
                match value.as_str() {
                    Some($first_name) => Ok($first),
                    $(Some($name) => Ok($value),)*
                    Some(_) | None => Err($crate::point::dimension::refusal(value, format_args!(": {values}"))),
                }
            }
        }
    };
}
pub(super) use choices;

/// Declares all dimensions: points with their default and limits, and the table of dimensions.
macro_rules! dimensions {
    (@values $type:ty) => { <$type as $crate::point::dimension::Setting>::VALUES };
    (@values $type:ty, $values:literal) => { $values };
    ($($name:literal, $field:ident: $type:ty $(as $values:literal)? = $default:expr, $limits:expr => $about:literal;)*) => {
        /// A point. A size that is missing is a share of the memory; see [`memory`].
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Point {
            $(#[doc = $about] pub $field: $type,)*
        }

        impl Default for Point {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Point {
            fn check_limits(&self) -> anyhow::Result<()> {
                $($crate::point::dimension::check_limits($name, &self.$field, &$limits)?;)*
                Ok(())
            }
        }

        /// All dimensions, in the order of listings.
        pub const DIMENSIONS: &[$crate::point::dimension::Dimension] = &[$($crate::point::dimension::Dimension {
            name: $name,
            values: dimensions!(@values $type $(, $values)?),
            about: $about,
            is_number: <$type as $crate::point::dimension::Setting>::IS_NUMBER,
            set: |point, value| {
                let values = dimensions!(@values $type $(, $values)?);
                point.$field = $crate::point::dimension::Setting::read(value, values)?;
                Ok(())
            },
        },)*];
    };
}
pub(super) use dimensions;

/// Returns the name most similar to an unknown one; `None` for an empty one.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |other: &&str| strsim::jaro_winkler(name, other);
    names.filter(|_| !name.is_empty()).max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
}

/// Returns the error for an unknown name, which suggests the most similar one.
pub fn unknown<'a>(kind: &str, name: &str, names: impl Iterator<Item = &'a str>) -> anyhow::Error {
    match nearest(name, names) {
        Some(nearest) => anyhow::anyhow!("there is no {kind} {name:?}; did you mean {nearest:?}?"),
        None => anyhow::anyhow!("there is no {kind} {name:?}"),
    }
}

/// Sets a dimension of a point in a file's form by text: `dimension=value`.
pub fn set(point: &mut Table, assignment: &str) -> Result<()> {
    let Some((name, value)) = assignment.split_once('=') else {
        bail!("{assignment:?}: write dimension=value");
    };
    let (dimension, value) = (find(name.trim())?, value.trim());
    // Text that is no number stays text, which a number refuses.
    let number = value.parse::<u32>().ok().filter(|_| dimension.is_number);
    let value = number.map_or_else(|| Value::String(value.to_owned()), |number| Value::Integer(number.into()));
    dimension.apply(&mut Point::default(), &value)?;
    point.insert(dimension.name.to_owned(), value);
    Ok(())
}

/// Reads a point from a file's form.
pub fn parse(table: &Table) -> Result<Point> {
    let mut point = Point::default();
    table.iter().try_for_each(|(name, value)| find(name)?.apply(&mut point, value))?;
    Ok(point)
}

fn find(name: &str) -> Result<&'static Dimension> {
    let found = DIMENSIONS.iter().find(|dimension| dimension.name == name);
    found.ok_or_else(|| unknown("dimension", name, DIMENSIONS.iter().map(|dimension| dimension.name)))
}

impl Dimension {
    fn apply(&self, point: &mut Point, value: &Value) -> Result<()> {
        (self.set)(point, value).map_err(|reason| anyhow!("{}{reason}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::Order;
    use crate::point::Schedule;

    #[test]
    fn every_dimension_can_be_set() {
        let mut table = Table::new();
        for Dimension { name, values, .. } in DIMENSIONS {
            let value = match *values {
                "number" | "1 to 10" => "7",
                "size" => "9M",
                names => names.split(", ").last().unwrap(),
            };
            set(&mut table, &format!("{name}={value}")).unwrap();
        }
        let point = parse(&table).unwrap();
        assert_eq!((point.schedule, point.order, point.runs_max), (Schedule::Adaptive, Order::Auto, 7));
        assert_eq!((point.memory, point.cache_size), (Size(9 << 20), Some(Size(9 << 20))));
        assert_eq!((point.pending_max, point.follows_successors, point.memtable_size), (7, false, Some(Size(9 << 20))));
    }

    #[test]
    fn an_unknown_name_or_value_is_refused_with_the_nearest_name_or_the_accepted_values() {
        let refused = |text: &str| set(&mut Table::new(), text).unwrap_err().to_string();
        assert_eq!(refused("treshold=4"), "there is no dimension \"treshold\"; did you mean \"threshold\"?");
        assert_eq!(refused("threshold"), "\"threshold\": write dimension=value");
        assert_eq!(refused("=4"), "there is no dimension \"\"");
        for value in ["many", "-1", "4294967296", ""] {
            let said = format!("threshold={value}: it takes a whole number from 0 to 4294967295");
            assert_eq!(refused(&format!("threshold={value}")), said);
        }
        assert_eq!(refused("schedule=lasy"), "schedule=lasy: it takes: eager, lazy, pool, exhaustive, adaptive");
        assert!(refused("memory=lots").starts_with("memory: \"lots\": not a size; "), "{}", refused("memory=lots"));
        assert!(refused("memory=99999999T").starts_with("memory: \"99999999T\": more than "));
    }
}
