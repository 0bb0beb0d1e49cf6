//! Moments that cannot be reached, and the sentences that say so.

use super::*;
use crate::journal::{Op, Record};

fn append(opened: &Opened, op: Op, blocks: Range<u64>) -> Lsn {
    let len = (blocks.end - blocks.start) * 4096;
    let lsn = opened.group.journal().append(&Record::range(op, 1, blocks.start * 4096, len)).unwrap();
    opened.group.journal().commit(lsn).unwrap();
    lsn
}

#[test]
fn moments_inside_a_gap_are_refused_by_a_sentence_that_names_it() {
    let (world, bytes) = World::new(1);
    let mut model = Model::new(bytes);
    let mut opened = world.open(TIGHT).unwrap();
    let change = |opened: &Opened, model: &mut Model, byte: u8| {
        let mut state = model.now();
        state[1][8_192..12_288].fill(byte);
        opened.volumes[1].write(8_192, &[byte; 4096], Fua::Yes).unwrap();
        model.fill(&state, opened.group.journal().next());
    };
    change(&opened, &mut model, 1);
    let gap = append(&opened, Op::Gap, 2..9);
    change(&opened, &mut model, 2);
    // A checkpoint has nothing but these: its index begins with the gap.
    for _ in 0..9 {
        opened.volumes[0].flush().unwrap();
    }
    let begin = append(&opened, Op::ResyncBegin, 2..9);
    change(&opened, &mut model, 3);
    let end = append(&opened, Op::ResyncEnd, 2..9);
    change(&opened, &mut model, 4);
    model.fill(&model.now(), opened.group.journal().next());
    let last = model.last();
    for stored in 0..8 {
        for lsn in 0..=last.0 {
            let journal = Some(opened.group.journal());
            let point = world.point(&opened.store, &At::Lsn(Lsn(lsn)), journal);
            if (gap.0..end.0).contains(&lsn) {
                let refused = point.unwrap_err().to_string();
                let named = "on, changes may be missing in bytes 8192 to 36864 of volume `log`";
                let earlier = named.replacen("on,", "on or earlier,", 1);
                let is_named = refused.contains(&format!("from record {gap} {named}")) || refused.contains(&earlier);
                assert!(is_named && refused.contains("is inside a gap"), "{stored}, {lsn}: {refused}");
            } else {
                let state = read_all(&point.unwrap_or_else(|error| panic!("{stored}, {lsn}: {error}")));
                assert!(
                    state[1][8_192]
                        == u8::try_from(if lsn == 0 {
                            0
                        } else if lsn < gap.0 {
                            1
                        } else if lsn <= end.0 {
                            3
                        } else {
                            4
                        })
                        .unwrap()
                        || lsn == 0
                );
            }
        }
        let request = HistoryRequest { flushes: FlushDetail::PerMinute, since: Lsn(0) };
        let journal = Some(opened.group.journal());
        let listed = history(&opened.store, &world.options(), (GROUP, None), request, journal).unwrap();
        let [only] = &listed.gaps[..] else { panic!("{stored}: {:?}", listed.gaps) };
        assert_eq!((&only.volume, only.bytes.clone(), only.from.lsn), (&"log".to_owned(), 8_192..36_864, gap));
        assert_eq!(only.to.map(|moment| moment.lsn), Some(end));
        assert_eq!(listed.flushes.len(), 1, "one of the minute");
        assert!(begin < end);
        if world.checkpoint(&mut opened).unwrap().is_none() {
            assert!(3 < stored, "the gap is open during a whole checkpoint");
            return;
        }
    }
    panic!("the checkpoints do not end");
}

#[test]
fn a_journal_that_does_not_continue_the_checkpoints_is_refused() {
    let mut random = SplitMix64::new(3);
    let (world, bytes) = World::new(3);
    let before = world.disk.fork();
    let mut model = Model::new(bytes);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    for _ in 0..120 {
        model.step(&opened, &mut random).unwrap();
    }
    // Records were released that no checkpoint has.
    opened.group.sync().unwrap();
    opened.group.release(Lsn(model.last().0 + 1));
    let first = opened.group.journal().status().first;
    assert!(Lsn(1) < first);
    let sentence = format!("ends with record 0, and the journal begins with {first}");
    let refused = world.checkpoint(&mut opened).unwrap_err().to_string();
    assert!(refused.contains(&sentence), "{refused}");
    let journal = Some(opened.group.journal());
    for at in [At::Lsn(first), At::Latest, At::Lsn(Lsn(0)), At::Time(u64::MAX, TimeRule::Exact)] {
        let refused = world.point(&opened.store, &at, journal).unwrap_err().to_string();
        assert!(refused.contains(&sentence), "{at:?}: {refused}");
    }
    let listed = history(&opened.store, &world.options(), (GROUP, None), HistoryRequest::default(), journal);
    assert!(listed.unwrap_err().to_string().contains(&sentence));
    drop(opened);

    // The repository is ahead of an older copy of the journal.
    let world = World::on(before, 3);
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    let volume = &opened.volumes[0];
    for _ in 0..3 {
        volume.write(0, &[1; 4096], Fua::Yes).unwrap();
    }
    world.checkpoint(&mut opened).unwrap().unwrap();
    drop(opened);
    let journal: Vec<_> = world.disk.list(Path::new("group/journal")).unwrap();
    for entry in journal {
        world.disk.remove(&Path::new("group/journal").join(entry.name)).unwrap();
    }
    Journal::create(&world.disk, Path::new("group/journal")).unwrap();
    world.disk.remove(Path::new("group/activity")).unwrap();
    crate::volume::ActivityLog::create(&world.disk, Path::new("group/activity")).unwrap();
    let mut opened = world.open(CheckpointLimits::DEFAULT).unwrap();
    let refused = world.checkpoint(&mut opened).unwrap_err().to_string();
    assert!(refused.contains("it is an older copy"), "{refused}");
}
