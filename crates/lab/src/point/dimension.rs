//! Setting dimensions of points by text, and the list of all dimensions.

use anyhow::{Result, bail, ensure};
use onefold_engine::identify::design::dimension::{Dimension, set_all};
use onefold_engine::identify::design::{DIMENSIONS, Design};
use toml::{Table, Value};

use crate::point::{ADDED_DIMENSIONS, ADDED_VALUES, AddedValue, Point};

/// A dimension, for people.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name in `--set` and in files.
    pub name: &'static str,
    /// Accepted values.
    pub values: String,
    /// The value of a point that does not set it; `None` if the dimension has no effect there, or if it is a share of the memory.
    pub default: Option<String>,
    /// Help text.
    pub about: String,
}

/// Returns all dimensions, those of the engine first.
pub fn listed() -> Vec<Listed> {
    let default = Point::default();
    let of_engine = DIMENSIONS.iter().map(|dimension| {
        let abouts = [dimension.about].into_iter().chain(added_values(dimension.name).map(|added| added.about));
        let about = abouts.collect::<Vec<_>>().join("; ");
        Listed { name: dimension.name, values: accepted(dimension), default: dimension.get(&default.design), about }
    });
    let added = ADDED_DIMENSIONS.iter().map(|dimension| Listed {
        name: dimension.name,
        values: dimension.accepted(),
        default: dimension.get(&default),
        about: dimension.about.to_owned(),
    });
    of_engine.chain(added).collect()
}

/// Returns the accepted values of a dimension of the engine, for people.
fn accepted(dimension: &Dimension<Design>) -> String {
    let values = [dimension.accepted()].into_iter();
    values.chain(added_values(dimension.name).map(|added| added.value.to_owned())).collect::<Vec<_>>().join(", ")
}

/// Returns the values that the laboratory adds to a dimension.
fn added_values(name: &str) -> impl Iterator<Item = &'static AddedValue> {
    ADDED_VALUES.iter().filter(move |added| added.dimension == name)
}

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
    let (name, value) = (name.trim().to_owned(), Value::String(value.trim().to_owned()));
    parse(&Table::from_iter([(name.clone(), value.clone())]))?;
    point.insert(name, value);
    Ok(())
}

/// Reads a point from a file's form.
pub fn parse(table: &Table) -> Result<Point> {
    let names = || DIMENSIONS.iter().map(|it| it.name).chain(ADDED_DIMENSIONS.iter().map(|it| it.name));
    if let Some(name) = table.keys().find(|name| names().all(|known| known != *name)) {
        return Err(unknown("dimension", name, names()));
    }
    let mut texts: Vec<(&str, String)> = table.iter().map(|(name, value)| (&**name, text_of(value))).collect();
    let mut point = Point::default();
    texts.retain(|(name, text)| match added_values(name).find(|added| added.value == text) {
        Some(added) => {
            *(added.field)(&mut point) = true;
            false
        }
        None => true,
    });
    for dimension in DIMENSIONS {
        let text = texts.iter().find(|(name, _)| *name == dimension.name).map(|(_, text)| text);
        let Some(text) = text.filter(|_| added_values(dimension.name).next().is_some()) else { continue };
        let is_known = dimension.set(&mut Design::default(), text).is_ok();
        ensure!(is_known, "{}={text}: it takes {}", dimension.name, accepted(dimension));
    }
    let value_of = |name: &str| texts.iter().find(|(known, _)| *known == name).map(|(_, text)| &**text);
    set_all(DIMENSIONS, &mut point.design, value_of)?;
    set_all(ADDED_DIMENSIONS, &mut point, value_of)?;
    Ok(point)
}

/// Returns a value of a file as text.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the default point with assignments.
#[cfg(test)]
pub(crate) fn point_of(assignments: &[&str]) -> Result<Point> {
    let mut table = Table::new();
    assignments.iter().try_for_each(|assignment| set(&mut table, assignment))?;
    parse(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dimension_of_the_list_can_be_set_to_each_of_its_names_and_to_its_default() {
        let listed = listed();
        for Listed { name, values, default, .. } in &listed {
            let names = values.split(", ").filter(|value| !value.contains(' ') && *value != "size");
            for value in names.chain(default.as_deref()) {
                point_of(&[&format!("{name}={value}")]).unwrap();
            }
        }
        // The default point is the one that all of its own values make.
        let defaults = listed.iter().filter_map(|it| Some(format!("{}={}", it.name, it.default.as_ref()?)));
        let defaults: Vec<_> = defaults.collect();
        assert_eq!(point_of(&defaults.iter().map(|it| &**it).collect::<Vec<_>>()).unwrap(), Point::default());
        let names: std::collections::BTreeSet<_> = listed.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), listed.len());
    }

    #[test]
    fn values_of_files_are_numbers_or_text() {
        let read = |text: &str| parse(&toml::from_str(text).unwrap());
        let point =
            read("store = 'cuckoo'\nneighbors = 7\ncache-size = '9M'\nmemory = 4194304\norder = 'auto'").unwrap();
        assert!(point.is_mapped && point.weighs_order && point.neighbors == 7);
        let sizes = point.design.sizes;
        assert_eq!((sizes.memory.0, sizes.cache.map(|it| it.0)), (4 << 20, Some(9 << 20)));
        for refused in ["memory = -1", "memory = '3 apples'", "memory = 1.5", "threshold = [1]", "read-on = true"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn an_unknown_name_or_value_is_refused_with_the_nearest_name_or_the_accepted_values() {
        let refused = |text: &str| point_of(&[text]).unwrap_err().to_string();
        assert_eq!(refused("treshold=4"), "there is no dimension \"treshold\"; did you mean \"threshold\"?");
        assert_eq!(refused("threshold"), "\"threshold\": write dimension=value");
        assert_eq!(refused("=4"), "there is no dimension \"\"");
        assert_eq!(refused("threshold=many"), "threshold=many: it takes 1 to 1048576");
        assert_eq!(refused("schedule=lasy"), "schedule=lasy: it takes eager, lazy, pool, exhaustive, adaptive");
        assert_eq!(refused("store=tabel"), "store=tabel: it takes table, memory, cuckoo");
        assert_eq!(refused("container-size=1"), "container-size=1: it takes size of 4k to 1G");
    }

    #[test]
    fn the_documentation_lists_all_dimensions() {
        let page = include_str!("../../../../docs/lab.md");
        let row = |Listed { name, values, default, about }: Listed| {
            let default = default.map(|it| format!("`{it}`")).unwrap_or_default();
            format!("| `{name}` | {values} | {default} | {about} |\n")
        };
        let head = ["| Dimension | Values | Default | Effect |\n|---|---|---|---|\n".to_owned()];
        let list = head.into_iter().chain(listed().into_iter().map(row)).collect::<String>();
        assert!(page.contains(&list), "docs/lab.md must have this list:\n{list}");
    }
}
