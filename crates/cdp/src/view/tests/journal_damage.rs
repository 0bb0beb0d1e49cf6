//! Damage to journals: every reader gives what was or an error, and the group goes on with nothing lost that is left.
//! `ONEFOLD_JOURNAL_DAMAGES` is the number of trials.
#![expect(clippy::print_stdout, reason = "a sweep says what it covered")]

use onefold_engine::testing::sim::CrashMode;

use super::*;
use crate::volume::{Resync, differing_blocks, open_journal};

/// The longest record fits into a segment.
const SIZE: JournalSize = JournalSize { segment_bytes: 1536 << 10, segments_max: 64 };
const TRIALS: u64 = 36;

fn trials() -> u64 {
    std::env::var("ONEFOLD_JOURNAL_DAMAGES").map_or(TRIALS, |text| text.parse().unwrap())
}

/// A group whose server has ended, and all that is known of it.
struct Ended {
    world: World,
    store: Store,
    model: Model,
    /// Its disk some records earlier.
    earlier: SimDisk,
    /// The last record in a checkpoint.
    stored: Lsn,
    /// Moments that are asked for, and what the whole journal gives.
    asked: Vec<(At, Option<(Lsn, Bytes)>)>,
    listed: HistoryListing,
}

fn on(disk: SimDisk, boot: u64) -> World {
    World { segment_bytes: SIZE.segment_bytes, ..World::on(disk, boot) }
}

fn identity(store: &Store) -> JournalIdentity {
    JournalIdentity { keys: (*store.keys).clone(), repository: store.config.repository, group: ID }
}

fn open_journal_of(world: &World, store: &Store) -> Result<Journal> {
    let disk: Arc<dyn Disk> = Arc::new(world.disk.clone());
    Ok(open_journal(&disk, Arc::clone(&world.host), Path::new(DIR), identity(store), SIZE)?.0)
}

impl Ended {
    fn new(seed: u64) -> Self {
        let (world, bytes) = World::new(seed);
        let world = World { segment_bytes: SIZE.segment_bytes, ..world };
        let mut model = Model::new(bytes);
        let mut random = SplitMix64::new(seed);
        let (mut earlier, mut stored) = (world.disk.fork(), Lsn(0));
        for use_of in 0..7 {
            let mut opened = world.open(TIGHT).unwrap();
            model.fill(&model.now(), opened.group.journal().next());
            for turn in 0..9 {
                model.step(&opened, &mut random).unwrap();
                if (use_of, turn) == (5, 4) {
                    earlier = world.disk.fork();
                }
                if (use_of, turn) == (2, 6) && !seed.is_multiple_of(3) {
                    opened.group.sync().unwrap();
                    while let Some(made) = world.checkpoint(&mut opened).unwrap() {
                        stored = made.last;
                    }
                    opened.group.release(Lsn(stored.0 + 1));
                }
            }
            opened.volumes[0].flush().unwrap();
            model.flushes.push(Lsn(opened.group.journal().next().0 - 1));
            if (seed + use_of).is_multiple_of(2) {
                opened.group.close().unwrap();
            }
            model.fill(&model.now(), opened.group.journal().next());
        }
        let store = world.store().unwrap();
        let mut ended =
            Self { asked: Vec::new(), listed: listing(&world, &store).unwrap(), world, store, model, earlier, stored };
        let mut moments = vec![At::Latest, At::FlushBack(0), At::FlushBack(5), At::Time(u64::MAX, TimeRule::Exact)];
        moments.extend((0..4).map(|mark| At::Mark(format!("moment {mark}"))));
        moments.extend((0..5).map(|_| At::Lsn(Lsn(random.index(ended.model.states.len()) as u64))));
        moments.push(At::Lsn(stored));
        let times = ended.listed.flushes.iter().filter_map(|flush| flush.time).collect::<Vec<_>>();
        moments.extend(
            (0..3).map(|_| At::Time(times[random.index(times.len())] + random.index(9) as u64, TimeRule::LastFlush)),
        );
        let journal = open_journal_of(&ended.fork(seed), &ended.store).unwrap();
        for at in moments {
            let point = ended.world.point(&ended.store, &at, Some(&journal)).ok();
            let found = point.map(|point| (point.moment().lsn, read_all(&point)));
            if let Some((lsn, bytes)) = &found {
                assert!(*bytes == ended.model.states[usize::try_from(lsn.0).unwrap()], "{at:?}");
            }
            ended.asked.push((at, found));
        }
        assert_eq!(ended.asked[0].1.as_ref().map(|(lsn, _)| *lsn), Some(ended.model.last()));
        ended
    }

    /// The world for other processes on a boot of the system.
    fn fork(&self, boot: u64) -> World {
        on(self.world.disk.fork(), boot)
    }
}

fn listing(world: &World, store: &Store) -> Result<HistoryListing> {
    let journal = open_journal_of(&World { disk: world.disk.fork(), ..world.clone() }, store)?;
    let request = HistoryRequest { flushes: FlushDetail::All, since: Lsn(0) };
    history(store, &world.options(), (GROUP, None), request, Some(&journal))
}

/// Damages the files of the journal; returns what was done.
fn damage(disk: &SimDisk, earlier: &SimDisk, random: &mut SplitMix64) -> String {
    let dir = Path::new(DIR).join("journal");
    let names = |disk: &SimDisk| -> Vec<PathBuf> {
        let entries = disk.list(&dir).unwrap_or_default();
        entries.iter().filter(|entry| entry.name.starts_with("segment")).map(|entry| dir.join(&entry.name)).collect()
    };
    let segments = names(disk);
    let Some(chosen) = segments.get(random.index(segments.len().max(1))) else { return "nothing".to_owned() };
    let bytes_of = |disk: &SimDisk, path: &Path| -> Option<Vec<u8>> {
        let file = disk.open(path, Access::Read).ok()?;
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        Some(bytes)
    };
    let all_gone = |disk: &SimDisk| {
        let entries = disk.list(&dir).unwrap();
        for entry in &entries {
            disk.remove(&dir.join(&entry.name)).unwrap();
        }
    };
    // Most bytes of a segment hold nothing.
    let offset = |random: &mut SplitMix64, len: usize| {
        let most = [4_096, 20_000, len][random.index(3)];
        random.index(most.min(len.max(1)))
    };
    match random.index(11) {
        0 | 1 => disk.remove(chosen).unwrap(),
        2 => all_gone(disk),
        3 => {
            all_gone(disk);
            disk.remove_dir(&dir).unwrap();
        }
        4 => segments.iter().skip_while(|path| *path != chosen).for_each(|path| disk.remove(path).unwrap()),
        5 => segments.iter().take_while(|path| *path <= chosen).for_each(|path| disk.remove(path).unwrap()),
        6 => disk.damage(chosen, |bytes| bytes.truncate(offset(random, bytes.len()))),
        7 => {
            for _ in 0..=random.index(3) {
                disk.damage(chosen, |bytes| {
                    let at = offset(random, bytes.len());
                    bytes[at] ^= 1 << random.index(8);
                });
            }
        }
        8 => {
            let other = &segments[random.index(segments.len())];
            let [one, two] = [chosen, other].map(|path| bytes_of(disk, path).unwrap());
            disk.damage(chosen, |bytes| *bytes = two);
            disk.damage(other, |bytes| *bytes = one);
        }
        9 => match bytes_of(earlier, chosen) {
            Some(old) => disk.damage(chosen, |bytes| *bytes = old),
            None => disk.remove(chosen).unwrap(),
        },
        _ => {
            all_gone(disk);
            for path in names(earlier) {
                disk.create(&path).unwrap().write_at(0, &bytes_of(earlier, &path).unwrap()).unwrap();
            }
        }
    }
    let name = chosen.file_name().unwrap().to_string_lossy().into_owned();
    let left = names(disk);
    format!("{name}, {} of {} segments left", left.len(), segments.len())
}

/// Goes on after a loss as a server does; returns the group, and the record up to which moments stay.
fn go_on(world: &World, store: &Store, stored: Lsn) -> (Opened, Lsn) {
    let disk: Arc<dyn Disk> = Arc::new(world.disk.clone());
    let (host, dir) = (|| Arc::clone(&world.host), Path::new(DIR));
    let begun = Group::begin_after_loss((&disk, host()), dir, (identity(store), SIZE), &SIZES, stored);
    let (journal, left) = begun.unwrap();
    let last = Lsn(left.next.0 - 1);
    let view = world.point(store, &At::Lsn(last), Some(&journal)).unwrap();
    Group::end_loss(&*disk, dir, journal, &SIZES, left.time + 1).unwrap();
    let opened = world.open(TIGHT).unwrap();
    let mut expected = Vec::new();
    let compared = opened.group.compare_behind(&mut |volume, offset, found, differing| {
        expected.resize(found.len(), 0);
        view.read(usize::from(volume), offset, &mut expected)?;
        differing_blocks(found, &expected, differing);
        Ok(())
    });
    compared.unwrap();
    // The history has a gap until the volumes are recorded.
    assert!(world.point(store, &At::Latest, Some(opened.group.journal())).is_err());
    while opened.group.resync_step().unwrap() != Resync::Done {}
    (opened, last)
}

#[test]
fn a_damaged_journal_gives_what_was_or_an_error_and_a_new_one_goes_on() {
    let ended: Vec<Ended> = (0..6).map(Ended::new).collect();
    let (mut refused, mut given, mut unnoticed, mut continued) = (0_u64, 0_u64, 0_u64, 0_u64);
    for trial in 0..trials() {
        let Ended { world: base, store, model, earlier, stored, asked, listed } =
            &ended[usize::try_from(trial % 6).unwrap()];
        let mut random = SplitMix64::new(trial);
        let boot = if random.index(2) == 0 { trial % 6 } else { 1_000 };
        let world = on(base.disk.fork(), boot);
        let what: Vec<String> = (0..=random.index(2)).map(|_| damage(&world.disk, earlier, &mut random)).collect();
        let what = format!("trial {trial}, boot {boot}: {}", what.join("; "));
        let fork = || on(world.disk.fork(), boot);
        for (at, whole) in asked {
            let reader = fork();
            let found = open_journal_of(&reader, store)
                .and_then(|journal| reader.point(store, at, Some(&journal)))
                .map(|point| (point.moment().lsn, read_all(&point)));
            match found {
                Ok(found) => {
                    assert!(Some(&found) == whole.as_ref(), "{what}: {at:?} is LSN {}", found.0);
                    given += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
        if let Ok(found) = listing(&fork(), store) {
            assert!(found == *listed, "{what}: {found:?}");
        }
        // A server finds the loss, or has all; then it goes on.
        let server = fork();
        let whole = open_journal_of(&fork(), store).and_then(|journal| {
            journal.check_continues(*stored)?;
            let mut frames = journal.frames(Lsn(stored.0 + 1));
            while frames.next_frame(&mut |_| Ok(()))? {}
            Ok(())
        });
        if whole.is_ok() {
            unnoticed += 1;
            let point =
                open_journal_of(&server, store).and_then(|journal| server.point(store, &At::Latest, Some(&journal)));
            assert!(read_all(&point.unwrap()) == model.now(), "{what}");
            continue;
        }
        continued += 1;
        let (opened, left) = go_on(&server, store, *stored);
        let journal = opened.group.journal();
        assert!(read_all(&server.point(store, &At::Latest, Some(journal)).unwrap()) == model.now(), "{what}");
        for (at, whole) in asked.iter().filter(|(at, _)| matches!(at, At::Lsn(lsn) if *lsn <= left) && left >= *stored)
        {
            let point =
                server.point(store, at, Some(journal)).unwrap_or_else(|error| panic!("{what}: {at:?}: {error}"));
            assert!(Some(&read_all(&point)) == whole.as_ref().map(|(_, bytes)| bytes), "{what}: {at:?}");
        }
        for (at, whole) in asked.iter().filter(|(at, _)| matches!(at, At::Time(time, _) if *time != u64::MAX)) {
            if let Ok(point) = server.point(store, at, Some(journal)) {
                assert!(Some(&read_all(&point)) == whole.as_ref().map(|(_, bytes)| bytes), "{what}: {at:?}");
            }
        }
        opened.group.close().unwrap();
        drop(opened);
        let again = on(server.disk.crash(CrashMode::KeepAll), 2_000);
        let journal = open_journal_of(&again, store).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read_all(&again.point(store, &At::Latest, Some(&journal)).unwrap()) == model.now(), "{what}");
    }
    println!(
        "{} damaged journals: {given} moments given as they were, {refused} refused, 0 wrong; {continued} groups went on, {unnoticed} had lost nothing",
        trials()
    );
    assert!(0 < refused && 0 < given && 0 < continued);
}
