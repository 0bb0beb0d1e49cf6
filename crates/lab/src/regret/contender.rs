//! The schedules that are compared, with equal memory.
//!
//! Each has the dimensions of its preset, or those of `adaptive` if there is no preset of it, but for what all must share. All
//! have the same memory, and the same rule for filter, memtable and reads of the table as `adaptive`: the memtable takes a
//! sixth, the filter grows from a 16th of the rest, and the cache has the memory that the filter has not grown to. What a
//! schedule keeps pending is taken from filter and cache. A schedule that keeps many chunks pending in a small memory would
//! have no cache, so their number is halved until they take at most a quarter of the memory.

use anyhow::{Context, Result, ensure};
use onefold_engine::identify::design::Size;
use onefold_engine::identify::{IndexOptions, Schedule};
use toml::Value;

use crate::point::preset::Preset;
use crate::point::{Point, dimension};

/// Schedules that adaptive is compared with.
pub const RIVALS: [&str; 4] = ["eager", "lazy", "pool", "exhaustive"];
/// The name of the schedule that is judged.
pub const ADAPTIVE: &str = "adaptive";

/// Lengths of windows, in records, by default.
pub const WINDOWS: [u32; 8] = [0, 16, 64, 256, 1024, 2048, 8192, 32_768];

/// Dimensions in which contenders differ, which cannot be set for all.
const OWN: [&str; 4] = ["store", "schedule", "window", "window-records"];
/// Dimensions of presets that all have as adaptive has them.
const SHARED: [&str; 6] = ["memory", "filter-size", "filter-hashes", "cache-size", "memtable-size", "reads"];

/// One part of the memory in so many may be taken by pending chunks.
const PENDING_SHARE: usize = 4;
/// Fewest pending chunks that their limit is lowered to.
const PENDING_MIN: usize = 64;

/// Rule for the length of windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Windows {
    /// The rule of the preset.
    Preset,
    /// In proportion to the runs of duplicates, with readahead.
    Adaptive,
    /// Always so many records, without readahead; 0: none.
    Fixed(u32),
}

impl std::fmt::Display for Windows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Preset => f.write_str("preset"),
            Self::Adaptive => f.write_str("adaptive"),
            Self::Fixed(records) => records.fmt(f),
        }
    }
}

/// A schedule with a rule for windows.
#[derive(Clone, PartialEq, Debug)]
pub struct Contender {
    /// Name of the schedule.
    pub schedule: &'static str,
    /// Rule for windows.
    pub windows: Windows,
    /// The point.
    pub point: Point,
}

/// Rules for all contenders.
#[derive(Clone, PartialEq, Debug)]
pub struct Rules {
    /// Dimensions that are set for each, as `dimension=value`.
    pub set: Vec<String>,
    /// Lengths of fixed windows.
    pub windows: Vec<u32>,
}

impl Rules {
    /// Returns adaptive as it is by default, first, and each rival with each rule for windows that fits in the memory.
    pub fn contenders(&self) -> Result<Vec<Contender>> {
        for assignment in &self.set {
            let name = assignment.split('=').next().unwrap_or_default().trim();
            ensure!(!OWN.contains(&name), "{name}: contenders differ in it, so it cannot be set for all");
        }
        let adaptive = self.point(ADAPTIVE, Windows::Preset)?;
        adaptive.index_options()?;
        let mut contenders = vec![Contender { schedule: ADAPTIVE, windows: Windows::Preset, point: adaptive }];
        for schedule in RIVALS {
            let fixed = self.windows.iter().map(|records| Windows::Fixed(*records));
            let mut points: Vec<Point> = Vec::new();
            for windows in fixed.chain([Windows::Adaptive, Windows::Preset]) {
                let point = self.point(schedule, windows)?;
                // Two rules may come to the same.
                if !points.contains(&point) && point.index_options().is_ok() {
                    points.push(point.clone());
                    contenders.push(Contender { schedule, windows, point });
                }
            }
            if points.is_empty() {
                self.point(schedule, Windows::Preset)?.index_options().with_context(|| schedule.to_owned())?;
            }
        }
        Ok(contenders)
    }

    /// Returns the memory of each contender.
    pub fn memory(&self) -> Result<Size> {
        Ok(self.point(ADAPTIVE, Windows::Preset)?.design.sizes.memory)
    }

    fn point(&self, schedule: &str, windows: Windows) -> Result<Point> {
        let has_preset = schedule != "pool";
        let mut dimensions = Preset::named(if has_preset { schedule } else { ADAPTIVE })?.dimensions;
        dimensions.retain(|name, _| !SHARED.contains(&name));
        let mut set = |name: &str, value: Value| dimensions.insert(name.to_owned(), value);
        set("schedule", Value::String(schedule.to_owned()));
        match windows {
            Windows::Preset => {}
            Windows::Adaptive => {
                set("window", Value::String("adaptive".to_owned()));
                set("read-on", Value::String("yes".to_owned()));
            }
            Windows::Fixed(records) => {
                set("window", Value::String("fixed".to_owned()));
                set("window-records", Value::Integer(records.into()));
                set("read-on", Value::String("no".to_owned()));
            }
        }
        self.set.iter().try_for_each(|assignment| dimension::set(&mut dimensions, assignment))?;
        let mut point = dimension::parse(&dimensions)?;
        self.lower_pending(&mut point);
        point.check().with_context(|| schedule.to_owned())?;
        Ok(point)
    }

    /// Halves the limits of pending chunks until these take their share of the memory, unless a limit is set for all.
    fn lower_pending(&self, point: &mut Point) {
        if self.set.iter().any(|assignment| assignment.trim_start().starts_with("pending-")) {
            return;
        }
        let memory = usize::try_from(point.design.sizes.memory.0).unwrap_or(usize::MAX);
        let options = &mut point.design.options;
        while PENDING_MIN < options.pending_max && memory / PENDING_SHARE < pending_bytes(options) {
            options.pending_max = (options.pending_max / 2).max(PENDING_MIN);
            options.pending_age_max = (options.pending_age_max / 2).max(PENDING_MIN as u64);
        }
    }
}

/// Returns the memory that an index takes for pending chunks.
fn pending_bytes(options: &IndexOptions) -> usize {
    let with = |pending_max, pending_age_max| {
        let schedule = Schedule::Eager;
        IndexOptions { schedule, pending_max, pending_age_max, ..IndexOptions::for_memory(0) }.memory_bytes()
    };
    with(options.pending_max, options.pending_age_max).saturating_sub(with(0, 0))
}

#[cfg(test)]
mod tests {
    use onefold_engine::identify::WindowRule;

    use super::*;

    fn contenders(set: &[&str], windows: &[u32]) -> Result<Vec<Contender>> {
        let set = set.iter().map(|it| (*it).to_owned()).collect();
        Rules { set, windows: windows.to_vec() }.contenders()
    }

    #[test]
    fn adaptive_is_as_it_is_by_default_and_rivals_have_its_memory_filter_and_reads() {
        let all = contenders(&[], &WINDOWS).unwrap();
        assert_eq!(all[0].point, Point::default());
        // Four rivals with eight windows, and with those of adaptive; the preset's are the same as one of them.
        assert_eq!(all.len(), 1 + 4 * 9);
        for Contender { schedule, windows, point } in &all {
            let default = Point::default();
            assert_eq!(point.design.sizes, default.design.sizes, "{schedule}");
            let options = point.index_options().unwrap();
            assert_eq!((options.filter_hashes, options.reads), (default.design.options.filter_hashes, None));
            assert_eq!(options.memory_bytes(), 256 << 20, "{schedule} {windows}");
            if let Windows::Fixed(records) = windows {
                let rule = WindowRule::Fixed(*records);
                assert_eq!((options.window, options.follows_successors), (rule, false));
            }
        }
        let lazy = all.iter().find(|contender| contender.schedule == "lazy").unwrap();
        let options = &lazy.point.design.options;
        assert_eq!(options.schedule, Schedule::Lazy { threshold: 32 });
        assert_eq!((options.pending_max, options.pending_age_max), (65_536, 1 << 20));
    }

    #[test]
    fn in_a_small_memory_fewer_chunks_are_pending_and_windows_that_do_not_fit_are_left_out() {
        let all = contenders(&["memory=24M"], &[16, 1 << 18]).unwrap();
        for Contender { schedule, point, .. } in &all[1..] {
            assert!(pending_bytes(&point.design.options) <= 6 << 20, "{schedule}: {point:?}");
            point.index_options().unwrap();
        }
        let lazy: Vec<_> = all.iter().filter(|contender| contender.schedule == "lazy").collect();
        assert_eq!(
            lazy.iter().map(|it| it.windows).collect::<Vec<_>>(),
            [Windows::Fixed(16), Windows::Adaptive, Windows::Preset]
        );
        assert!(4096 < lazy[0].point.design.options.pending_max && lazy[0].point.design.options.pending_max < 65_536);
        let set = contenders(&["pending-max=20000"], &[16]).unwrap();
        assert!(set.iter().all(|contender| contender.point.design.options.pending_max == 20_000));
    }

    #[test]
    fn what_contenders_differ_in_cannot_be_set_for_all() {
        let refused = |set: &[&str], windows: &[u32]| format!("{:#}", contenders(set, windows).unwrap_err());
        assert!(refused(&["schedule=lazy"], &[]).starts_with("schedule: contenders differ in it"));
        assert!(refused(&[" window-records =3"], &[]).starts_with("window-records: contenders differ in it"));
        assert!(refused(&["treshold=3"], &[]).contains("did you mean \"threshold\""));
        assert!(refused(&["memory=2M"], &[]).contains("more than 2 MiB"));
    }
}
