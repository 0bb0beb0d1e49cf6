//! The names of dimensions, and setting one by text.

use anyhow::{Result, bail};
use toml::{Table, Value};

use crate::point::Point;

/// A dimension: its name, the values it takes, what it is.
#[derive(Clone, Copy, Debug)]
pub struct Dimension {
    /// As in `--set` and in files.
    pub name: &'static str,
    /// What may be set.
    pub values: &'static str,
    /// What it decides.
    pub about: &'static str,
}

macro_rules! dimensions {
    ($($name:literal, $values:literal, $about:literal;)*) => {
        &[$(Dimension { name: $name, values: $values, about: $about },)*]
    };
}

/// All dimensions, in the order in which they are told.
pub const DIMENSIONS: &[Dimension] = dimensions! {
    "store", "table, cuckoo", "where fingerprints are: the bucket table on a disk; a log and a cuckoo table on mapped memory";
    "schedule", "eager, lazy, pool, exhaustive, adaptive", "when chunks that may be duplicates are looked up";
    "threshold", "number", "chunks of a bucket that bring about its lookup (lazy, exhaustive)";
    "candidates", "number", "chunks that bring about a lookup (pool, adaptive)";
    "buckets", "number", "buckets that chunks wait in (lazy, exhaustive)";
    "pending-max", "number", "chunks that wait at most";
    "pending-age-max", "number", "chunks that arrive at most while one waits";
    "unique-run-max", "number", "unique chunks in a row after which a cycle is closed";
    "rank-max", "number", "largest rank in a cycle";
    "tries-max", "number", "fruitless windows after which a chunk leaves its cycle";
    "run-at-once", "number", "duplicates for each lookup from which on adaptive looks up at once";
    "prelookup", "always, never, adaptive", "when the cache is asked as a chunk arrives";
    "order", "filter-first, cache-first, none, auto", "what is asked first; none: there is no filter";
    "filter", "blocked, scattered", "whether the bits of a chunk lie in one cache line of the filter";
    "filter-hashes", "1 to 10", "bits of a chunk in the filter";
    "filter-size", "size", "memory of the filter; else what is left";
    "cache", "lru, fifo", "windows of the log by recent use; a read buffer, oldest first";
    "cache-size", "size", "memory of the cache; else what is left if filter-size is set, or what the filter has not grown to";
    "neighbors", "number", "fingerprints behind a hit that a read buffer takes in (fifo)";
    "window", "fixed, adaptive", "whether a hit reads as much of the log as runs are long";
    "window-records", "number", "records of the log that a hit reads: always, or at most";
    "read-on", "yes, no", "whether the log is read on, without a lookup, where the stream is expected to go on";
    "reads", "device, pages, whole, bucket", "how lookups read the table: as suits the device, single pages, from the first to the last, all of the bucket";
    "probes", "one-by-one, together", "whether lines of mapped memory are waited for one at a time";
    "injected-ns", "number", "nanoseconds that each wait for mapped memory takes longer";
    "staging-size", "size", "memory of entries that are not written out yet; else a sixth";
    "runs-max", "number", "longest chain of sorted runs in a bucket of the table";
    "memory", "size", "all memory of the point";
    "container-size", "size", "bytes of chunks that are stored together";
};

/// Values that are numbers in a file; others are text.
const NUMBERS: [&str; 14] = [
    "threshold",
    "candidates",
    "buckets",
    "pending-max",
    "pending-age-max",
    "unique-run-max",
    "rank-max",
    "tries-max",
    "run-at-once",
    "filter-hashes",
    "neighbors",
    "window-records",
    "runs-max",
    "injected-ns",
];

/// Returns the name that is most like one that does not exist; none is like an empty one.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |other: &&str| strsim::jaro_winkler(name, other);
    names.filter(|_| !name.is_empty()).max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
}

/// Says that there is no such name, and which one may be meant.
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
    let (name, value) = (name.trim(), value.trim());
    if !DIMENSIONS.iter().any(|dimension| dimension.name == name) {
        return Err(unknown("dimension", name, DIMENSIONS.iter().map(|dimension| dimension.name)));
    }
    // What is no number stays text, which a number refuses.
    let number = value.parse::<u32>().ok().filter(|_| NUMBERS.contains(&name));
    let value = number.map_or_else(|| Value::String(value.to_owned()), |number| Value::Integer(number.into()));
    // Each by itself, so that the error is about this one.
    parse(&Table::from_iter([(name.to_owned(), value.clone())]))?;
    point.insert(name.to_owned(), value);
    Ok(())
}

/// Reads a point from a file's form.
pub fn parse(table: &Table) -> Result<Point> {
    for (name, value) in table {
        let Some(dimension) = DIMENSIONS.iter().find(|dimension| dimension.name == name) else {
            return Err(unknown("dimension", name, DIMENSIONS.iter().map(|dimension| dimension.name)));
        };
        // One at a time: what is said of a value does not name the field.
        if let Err(error) = Table::from_iter([(name.clone(), value.clone())]).try_into::<Point>() {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match dimension.values {
                "size" => bail!("{name}: {}", error.message()),
                "number" => bail!("{name}={shown}: it takes a whole number from 0 to {}", u32::MAX),
                values => bail!("{name}={shown}: it takes: {values}"),
            }
        }
    }
    table.clone().try_into().map_err(|error: toml::de::Error| anyhow::anyhow!("{}", error.message().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::memory::Size;
    use crate::point::{Order, Schedule};

    #[test]
    fn every_dimension_can_be_set_and_every_field_is_one() {
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
        let fields = format!("{:?}", Point::default()).matches(": ").count();
        assert_eq!(fields, DIMENSIONS.len());
    }

    #[test]
    fn what_does_not_exist_is_refused_with_what_is_like_it() {
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
