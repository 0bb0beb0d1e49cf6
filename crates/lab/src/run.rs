//! One point of the parameter space with one source of chunks on one device.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::identify::{Identifier, StoreKind};
use onefold_engine::kv::BucketReads;
use onefold_engine::monitor::Monitor;

use crate::bench::open_index;
use crate::counts::float;
use crate::device::clock::Traffic;
use crate::device::model::Model;
use crate::device::{Device, SetUp};
use crate::mapped::medium::LINE_BYTES;
use crate::mapped::{self, Durability, MappedIndex, MappedMemory};
use crate::measure::{Measured, Steps};
use crate::point::Point;
use crate::replay::{Outcome, Replay, Source};
use crate::sim::cost::{FILTER_BYTES, FINGERPRINT_BYTES};
use crate::sim::{Plan, Repository};

/// Setting of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The point.
    pub point: &'a Point,
    /// Divisor of its memory.
    pub scale: f64,
    /// Device of its index.
    pub device: &'a Device,
    /// Directory for files of a run, which are removed at its end. The real device is the one under it.
    pub scratch: &'a Path,
    /// Chunks of an interval that is reported by itself, if any.
    pub interval: Option<u64>,
    /// Decides when to stop.
    pub monitor: &'a dyn Monitor,
}

/// Chunks after which the monitor is asked.
const STEP_CHUNKS: u64 = 1 << 16;

/// Runs a point on a source: `chunks` of its chunks, or all of a shorter one. The index is closed after each session and
/// opened for the next, whose cache is empty.
pub fn run(setting: &Setting<'_>, source: &mut dyn Source, chunks: u64) -> Result<Measured> {
    simulate(setting, &Plan::default(), source, chunks)
}

/// Runs a point on a source as [`run`] does, and simulates a repository: each session is a version.
pub fn simulate(setting: &Setting<'_>, plan: &Plan, source: &mut dyn Source, chunks: u64) -> Result<Measured> {
    let scratch = scratch(setting)?;
    let rule = plan.layout.rule(setting.point.container_size.0);
    let repository = Repository::with_versions(rule, plan.clone(), scratch.path());
    if setting.point.is_mapped {
        run_mapped(setting, scratch.path(), repository, source, chunks)
    } else {
        run_engine(setting, scratch.path(), repository, source, chunks)
    }
}

/// Begins a session, which is a version.
fn begin(index: &mut dyn Identifier, repository: &mut Repository) -> Result<()> {
    if repository.plan().rewrite.history.is_some() {
        index.shun(&repository.shunned())?;
    }
    repository.begin_version()
}

/// Ends a session, whose containers are recorded.
fn end(measured: &mut Measured, repository: &mut Repository) -> Result<()> {
    measured.again = std::mem::take(&mut repository.again);
    measured.kept = repository.end_version()?;
    Ok(())
}

/// Returns true if stream segments end where files do: chunks alone do not tell.
fn has_file_segments(point: &Point) -> bool {
    let assignments = point.design.assignments();
    assignments.iter().any(|(name, value)| *name == "segmenting" && !matches!(&**value, "fixed" | "content"))
}

/// Returns the bytes of memory for each stored chunk, as Fu et al. (FAST 2015, section 2.1) count them.
fn memory_per_chunk(point: &Point, is_exact: bool) -> f64 {
    match point.design.options.store {
        _ if !is_exact => {
            let ratio = point.design.assignments().into_iter().find(|(name, _)| *name == "sampling-ratio");
            FINGERPRINT_BYTES / ratio.and_then(|(_, ratio)| ratio.parse().ok()).unwrap_or(1.0)
        }
        StoreKind::Memory { .. } => FINGERPRINT_BYTES,
        _ if point.is_mapped => FINGERPRINT_BYTES,
        _ => FILTER_BYTES,
    }
}

fn run_engine(
    setting: &Setting<'_>,
    scratch: &Path,
    mut repository: Repository,
    source: &mut dyn Source,
    chunks: u64,
) -> Result<Measured> {
    let mut options = setting.point.index_options_scaled(setting.scale)?;
    if let (None, Device::Modeled { model, .. }) = (options.reads, setting.device) {
        // A real device is measured when an index that has a table is opened.
        options.reads = Some(BucketReads::ByDevice(model.profile()));
    }
    let SetUp { disk, host, clock } = setting.device.set_up(scratch);
    let mut total = Measured::default();
    loop {
        let mut index = open_index(Arc::clone(&disk), Arc::clone(&host), &options, &repository.live())?;
        begin(&mut index, &mut repository)?;
        let before = clock.as_ref().map(|clock| clock.traffic());
        let mut replay = Replay::new(index, Arc::clone(&host), repository);
        let has_file_segments = has_file_segments(setting.point);
        if has_file_segments {
            replay = replay.with_marks();
        }
        let mut measured = Measured { memory: options.memory_bytes() as u64, ..Measured::default() };
        let left = chunks - total.outcome.chunks;
        drive(setting, &mut replay, source, left, &mut measured, &mut |_| Duration::ZERO)?;
        ensure!(
            !has_file_segments || 1 < replay.files(),
            "segmenting: the trace has no marks of files, or only one file"
        );
        measured.traffic = clock.as_ref().zip(before).map(|(clock, before)| clock.traffic().since(&before));
        measured.memory_per_chunk = memory_per_chunk(setting.point, measured.is_exact);
        let before = replay.identifier().counters();
        let (mut index, recorded) = replay.finish()?;
        repository = recorded;
        index.end_stream();
        // Its time does not count, and neither does that of closing the index.
        measured.outcome.counters.add(&index.counters().since(&before));
        if let Some(reason) = index.degraded() {
            bail!("the index is degraded: {reason}");
        }
        end(&mut measured, &mut repository)?;
        total.add_session(source.session(), measured);
        if total.outcome.chunks == chunks || !source.next_session()? {
            return Ok(total);
        }
        index.close()?;
    }
}

/// On a modeled device, the fingerprints lie in this machine's memory, and the time of the model is added; on the
/// real one they lie in a file under the scratch directory, which may be on persistent memory or on tmpfs.
fn run_mapped(
    setting: &Setting<'_>,
    scratch: &Path,
    mut repository: Repository,
    source: &mut dyn Source,
    chunks: u64,
) -> Result<Measured> {
    let options = setting.point.mapped_options(setting.scale)?;
    let (mut medium, model) = match setting.device {
        Device::Real => (MappedMemory::of_file(&scratch.join("fingerprints"), Durability::Memory)?, None),
        Device::Modeled { model, .. } => (MappedMemory::anonymous(0)?, Some(model)),
    };
    let SetUp { host, .. } = setting.device.set_up(scratch);
    let mut total = Measured::default();
    loop {
        let (mut index, _) = MappedIndex::open(medium, &options)?;
        ensure!(index.attach(&repository.live())?.is_empty(), "the index misses containers");
        begin(&mut index, &mut repository)?;
        let mut replay = Replay::new(index, Arc::clone(&host), repository);
        let mut measured = mapped_session(setting, &mut replay, source, chunks - total.outcome.chunks, model)?;
        measured.memory_per_chunk = memory_per_chunk(setting.point, measured.is_exact);
        let (index, recorded) = replay.finish()?;
        repository = recorded;
        end(&mut measured, &mut repository)?;
        total.add_session(source.session(), measured);
        if total.outcome.chunks == chunks || !source.next_session()? {
            return Ok(total);
        }
        medium = index.close()?;
    }
}

/// Runs one session on mapped memory.
fn mapped_session(
    setting: &Setting<'_>,
    replay: &mut Replay<MappedIndex<MappedMemory>>,
    source: &mut dyn Source,
    chunks: u64,
    model: Option<&Model>,
) -> Result<Measured> {
    let index = replay.identifier();
    let (filter, cache) = index.memory();
    let mut measured = Measured { memory: (filter + cache) as u64, ..Measured::default() };
    let begun = index.traffic();
    let mut before = begun;
    let mut charge = |replay: &Replay<MappedIndex<MappedMemory>>| {
        let now = replay.identifier().traffic();
        let since = now.since(&std::mem::replace(&mut before, now));
        model.map_or(Duration::ZERO, |model| model.mapped(&since))
    };
    drive(setting, replay, source, chunks, &mut measured, &mut charge)?;
    let index = replay.identifier();
    let traffic = index.traffic().since(&begun);
    let report = index.order_report();
    measured.traffic = model.map(|model| Traffic {
        reads: traffic.waits(),
        writes: traffic.lines_flushed,
        syncs: traffic.fences,
        bytes_read: traffic.misses * LINE_BYTES as u64 + traffic.bytes_copied,
        bytes_written: traffic.bytes_written,
        time: model.mapped(&traffic),
    });
    let each = |traffic: mapped::Traffic, count: u64| {
        model.map_or(0.0, |model| model.mapped(&traffic).as_secs_f64() * 1e9 / float(count.max(1)))
    };
    let counters = &measured.outcome.counters;
    let lookup_device = each(index.lookup_traffic(), counters.lookups);
    let fill_device = each(index.fill_traffic(), counters.prefetches);
    measured.steps = Some(Steps { report, lookup_device, fill_device });
    Ok(measured)
}

fn scratch(setting: &Setting<'_>) -> Result<tempfile::TempDir> {
    let scratch = tempfile::Builder::new().prefix("onefold-lab-").tempdir_in(setting.scratch);
    scratch.with_context(|| setting.scratch.display().to_string())
}

/// Submits chunks until the source or the limit ends, and no chunk is pending. `charge` returns the time to add on
/// top of what the clock showed since it was last asked.
fn drive<I: Identifier>(
    setting: &Setting<'_>,
    replay: &mut Replay<I>,
    source: &mut dyn Source,
    chunks: u64,
    measured: &mut Measured,
    charge: &mut dyn FnMut(&Replay<I>) -> Duration,
) -> Result<()> {
    let mut left = chunks;
    let mut current = Outcome::default();
    while left != 0 {
        if setting.monitor.is_interrupted() {
            return Err(Error::Interrupted.into());
        }
        let until_end = setting.interval.map_or(left, |interval| interval.saturating_sub(current.chunks).max(1));
        let count = left.min(until_end).min(STEP_CHUNKS);
        let outcome = replay.advance(source, count, false)?;
        current.add(&outcome);
        current.time += charge(replay);
        if setting.interval.is_some_and(|interval| interval <= current.chunks) {
            measured.end_interval(&mut current);
        }
        left -= outcome.chunks;
        if outcome.chunks < count {
            break;
        }
    }
    current.add(&replay.advance(source, 0, true)?);
    current.time += charge(replay);
    measured.end_interval(&mut current);
    ensure!(replay.stored_again == 0, "{} chunks were declared unique a second time", replay.stored_again);
    measured.unique = replay.unique();
    measured.is_exact = replay.identifier().is_exact();
    Ok(())
}

impl Measured {
    fn end_interval(&mut self, current: &mut Outcome) {
        let ended = std::mem::take(current);
        self.outcome.add(&ended);
        match self.intervals.last_mut() {
            // Chunks still pending at the end belong to the previous interval.
            Some(last) if ended.chunks == 0 => last.add(&ended),
            _ => self.intervals.push(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use onefold_engine::identify::{Completeness, StoreKind};
    use onefold_engine::monitor::Silent;

    use super::*;
    use crate::point::preset;
    use crate::replay::{Joined, Traced, UniqueSet};
    use crate::sim::restore::Cache;
    use crate::sim::rewriting::Rewrite;
    use crate::trace::synth::{Synth, SynthSpec};
    use crate::trace::{Event, Events};

    fn spec(seed: u64) -> SynthSpec {
        SynthSpec { seed, versions: 5, objects: 500, modified: 0.4, pooled: 0.3, ..SynthSpec::default() }
    }

    fn truth(spec: SynthSpec) -> UniqueSet {
        let mut known = HashMap::new();
        let mut events = Synth::new(spec).unwrap();
        while let Some(event) = events.next_event().unwrap() {
            if let Event::Chunk(chunk) = event {
                known.insert(chunk.hash, chunk.chunk());
            }
        }
        let mut set = UniqueSet::default();
        for chunk in known.values() {
            set.add(chunk);
        }
        set
    }

    #[test]
    fn every_preset_finds_the_same_unique_chunks_on_every_device() {
        let scratch = tempfile::tempdir().unwrap();
        let devices = ["real", "hdd", "nvme"].map(|name| Device::named(name).unwrap());
        let expected = truth(spec(1));
        assert!(40_000 < expected.chunks, "{expected:?}");
        for preset in preset::all().unwrap() {
            let point = preset.with(&[]).unwrap();
            if point.design.options.completeness == Completeness::NearExact {
                continue;
            }
            for device in &devices {
                let setting = Setting {
                    point: &point,
                    scale: 128.0,
                    device,
                    scratch: scratch.path(),
                    interval: None,
                    monitor: &Silent,
                };
                let mut events = Synth::new(spec(1)).unwrap();
                let measured = run(&setting, &mut Joined(&mut Traced::new(&mut events)), u64::MAX).unwrap();
                assert_eq!(measured.unique, expected, "{} on {}", preset.name, device.name());
                assert!(expected.chunks < measured.outcome.chunks);
                let counters = &measured.outcome.counters;
                let is_in_memory = matches!(point.design.options.store, StoreKind::Memory { .. });
                let found = if is_in_memory { counters.memtable_hits } else { counters.disk_hits };
                assert!(0 < found, "{}: the store has answered no lookup", preset.name);
                assert!(!is_in_memory || counters.disk_hits == 0, "{}: a store in memory has read", preset.name);
            }
        }
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn each_version_is_a_session_that_begins_with_an_empty_cache() {
        let scratch = tempfile::tempdir().unwrap();
        let device = Device::named("nvme").unwrap();
        let expected = truth(spec(2));
        for name in ["adaptive", "lazy", "pm-buffer-l"] {
            let point = preset::Preset::named(name).unwrap().with(&[]).unwrap();
            let setting = Setting {
                point: &point,
                scale: 128.0,
                device: &device,
                scratch: scratch.path(),
                interval: None,
                monitor: &Silent,
            };
            let [divided, whole] = [true, false].map(|is_divided| {
                let mut events = Synth::new(spec(2)).unwrap();
                let mut versions = Traced::new(&mut events);
                if is_divided {
                    run(&setting, &mut versions, u64::MAX).unwrap()
                } else {
                    run(&setting, &mut Joined(&mut versions), u64::MAX).unwrap()
                }
            });
            assert_eq!((divided.unique, whole.unique), (expected, expected), "{name}");
            let numbers: Vec<_> = divided.sessions.iter().map(|session| session.number).collect();
            assert_eq!((numbers, whole.sessions.len()), (vec![0, 1, 2, 3, 4], 1), "{name}");
            let sum = divided.sessions.iter().map(|session| session.measured.outcome.chunks).sum::<u64>();
            assert_eq!((sum, divided.outcome.chunks), (whole.outcome.chunks, whole.outcome.chunks), "{name}");
            let time = divided.sessions.iter().map(|session| session.measured.traffic.unwrap().time);
            assert_eq!(divided.traffic.unwrap().time, time.sum::<std::time::Duration>(), "{name}");
            // Every version but the first repeats chunks, which a cold cache has to read.
            let reads: Vec<_> =
                divided.sessions.iter().map(|session| session.measured.outcome.counters.disk_hits).collect();
            assert!(reads[1..].iter().all(|reads| 0 < *reads), "{name}: {reads:?}");
            // The small buffer of the mapped index has lost the chunks of the version before in either case, and adaptive may find
            // that looking up again costs less than windows.
            if name == "lazy" {
                assert!(whole.outcome.counters.disk_hits < divided.outcome.counters.disk_hits, "{name}: {reads:?}");
            }
        }
    }

    #[test]
    fn what_an_exact_preset_stores_twice_was_rewritten_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let device = Device::named("nvme").unwrap();
        let expected = truth(spec(4));
        for (name, rewrite) in [
            ("adaptive", "har-paper+capping"),
            ("eager", "capping"),
            ("lazy", "cbr"),
            ("edpl", "har-paper"),
            ("edll", "har-paper+cfl"),
            ("blc", "capping"),
            ("chunkstash", "har-paper+cbr"),
        ] {
            let point = preset::Preset::named(name).unwrap().with(&["container-size=256k".to_owned()]).unwrap();
            let setting = Setting {
                point: &point,
                scale: 128.0,
                device: &device,
                scratch: scratch.path(),
                interval: None,
                monitor: &Silent,
            };
            let restores = Cache::parse_list("lru:8,opt:8").unwrap();
            let plan = Plan { rewrite: Rewrite::parse(rewrite).unwrap(), restores, ..Plan::default() };
            let mut events = Synth::new(spec(4)).unwrap();
            let measured = simulate(&setting, &plan, &mut Traced::new(&mut events), u64::MAX).unwrap();
            let kept = measured.kept.unwrap();
            assert_eq!(measured.unique, expected, "{name}, {rewrite}");
            assert_ne!(measured.again.rewritten_chunks, 0, "{name}, {rewrite}");
            assert_eq!(kept.stored_chunks, expected.chunks + measured.again.rewritten_chunks, "{name}, {rewrite}");
            assert_eq!((kept.bytes, measured.again.missed_chunks), (measured.outcome.bytes, 0), "{name}, {rewrite}");
            assert!(kept.reads[1] <= kept.reads[0] && kept.containers_used <= kept.reads[1], "{name}: {kept:?}");
        }
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_device_part_of_a_modeled_time_is_always_the_same() {
        let scratch = tempfile::tempdir().unwrap();
        for (name, set) in [("lazy", "threshold=8"), ("adaptive", "candidates=500"), ("eager", "window=adaptive")] {
            let point = preset::Preset::named(name).unwrap().with(&[set.to_owned()]).unwrap();
            let device = Device::named("ssd").unwrap();
            let setting = Setting {
                point: &point,
                scale: 128.0,
                device: &device,
                scratch: scratch.path(),
                interval: Some(40_000),
                monitor: &Silent,
            };
            let [one, other] = [0; 2].map(|_| {
                let mut events = Synth::new(spec(3)).unwrap();
                run(&setting, &mut Joined(&mut Traced::new(&mut events)), 150_000).unwrap()
            });
            let traffic = one.traffic.unwrap();
            assert_eq!(one.traffic, other.traffic, "{name}");
            assert!(0 < traffic.reads && traffic.time < one.outcome.time, "{name}: {traffic:?}");
            let chunks: Vec<_> = one.intervals.iter().map(|it| it.chunks).collect();
            assert_eq!(chunks, [40_000, 40_000, 40_000, 30_000]);
            assert_eq!(one.intervals.iter().map(|it| it.time).sum::<std::time::Duration>(), one.outcome.time);
        }
    }
}
