//! Objects of JSON whose fields stay in the order in which they are written.

use std::path::Path;

use onefold_engine::repo::{LongRepositoryId, SnapshotId};
use onefold_engine::types::{ContainerId, Fingerprint, Timestamp};
use serde::{Serialize, Serializer};

use crate::text;

/// A value.
#[derive(Serialize, Debug)]
#[serde(untagged)]
pub(crate) enum Value {
    Null(()),
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Object(Object),
}

/// Names and values.
#[derive(Default, Debug)]
pub(crate) struct Object(Vec<(&'static str, Value)>);

impl Object {
    /// Adds a field.
    pub(crate) fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    /// Adds all fields of another object.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<V: Into<Value>> FromIterator<(&'static str, V)> for Object {
    fn from_iter<T: IntoIterator<Item = (&'static str, V)>>(fields: T) -> Self {
        Self(fields.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}

/// Makes values of types by an expression for each.
macro_rules! values {
    ($($kind:ident of $($from:ty),+: $value:ident => $made:expr;)*) => {
        $($(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                Self::$kind($made)
            }
        })+)*
    };
}

values! {
    Bool of bool: value => value;
    Unsigned of u64: value => value;
    Unsigned of u16, u32: value => value.into();
    Unsigned of usize: value => value as u64;
    Signed of i64: value => value;
    Float of f64: value => value;
    Text of String: value => value;
    Text of &str: value => value.to_owned();
    Text of &[u8]: value => String::from_utf8_lossy(value).into_owned();
    Text of &Path: value => value.to_string_lossy().into_owned();
    Text of SnapshotId, LongRepositoryId, Fingerprint, ContainerId: value => value.to_string();
    // With its zone and all its nanoseconds.
    Text of Timestamp: value => text::rfc3339(value);
    Object of Object: value => value;
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(T::into).collect())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null(()), T::into)
    }
}

/// Makes an object. `name: value,` is a field, and `name,` is one of that name; `name?: option,` is left out if there is no
/// value; `report { name, name },` takes fields of a report that have these names; `..object,` takes all fields.
macro_rules! object {
    ($($fields:tt)*) => {{
        let mut object = $crate::json::Object::default();
        $crate::json::fields!(object, $($fields)*);
        object
    }};
}

macro_rules! fields {
    ($object:ident,) => {};
    ($object:ident, ..$more:expr, $($rest:tt)*) => {
        $object.extend($more);
        $crate::json::fields!($object, $($rest)*);
    };
    ($object:ident, $report:ident { $($name:ident),+ }, $($rest:tt)*) => {
        $($object.put(stringify!($name), $report.$name);)+
        $crate::json::fields!($object, $($rest)*);
    };
    ($object:ident, $name:ident?: $value:expr, $($rest:tt)*) => {
        if let Some(value) = $value {
            $object.put(stringify!($name), value);
        }
        $crate::json::fields!($object, $($rest)*);
    };
    ($object:ident, $name:ident: $value:expr, $($rest:tt)*) => {
        $object.put(stringify!($name), $value);
        $crate::json::fields!($object, $($rest)*);
    };
    ($object:ident, $name:ident, $($rest:tt)*) => {
        $object.put(stringify!($name), $name);
        $crate::json::fields!($object, $($rest)*);
    };
}

pub(crate) use {fields, object};
