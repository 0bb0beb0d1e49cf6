//! Interruptions of the link: nothing is lost, and nothing comes twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::CrashMode;

use super::world::*;
use crate::journal::{JournalSize, Lsn, Op};
use crate::link::Codec;
use crate::nbd::export::{Export, Fua};
use crate::volume::{LastUse, ProtectedVolume};

/// Writes and flushes, one record each.
fn write_some(volume: &ProtectedVolume, random: &mut SplitMix64, written: &mut Vec<Option<(u64, Vec<u8>)>>) {
    if random.index(12) == 0 {
        volume.flush().unwrap();
        written.push(None);
        return;
    }
    let len = [512, 4096, 30_000][random.index(3)];
    let offset = random.index(usize::try_from(VOLUME_BYTES).unwrap() - len) as u64;
    let byte = (random.next_u64() & 0xff) as u8;
    let data: Vec<u8> =
        (0..len).map(|at| if at % 3 == 0 { byte } else { u8::try_from((at >> 5) % 256).unwrap() }).collect();
    volume.write(offset, &data, Fua::No).unwrap();
    written.push(Some((offset, data)));
}

/// The records of a receiver are those that were written, in their order.
fn check_received(receiver: &RunningReceiver, written: &[Option<(u64, Vec<u8>)>]) {
    let mut next = 0;
    let mut frames = receiver.host.reception.journal().frames(Lsn(1));
    let mut last_time = 0;
    while frames
        .next_frame(&mut |entry| {
            assert_eq!(entry.lsn, Lsn(next as u64 + 1));
            assert!(last_time <= entry.time, "times ascend");
            last_time = entry.time;
            match &written[next] {
                None => assert_eq!(entry.record.op, Op::Flush),
                Some((offset, data)) => {
                    assert_eq!((entry.record.op, entry.record.offset), (Op::Write, *offset));
                    assert!(entry.record.payload == data, "record {}", entry.lsn);
                }
            }
            next += 1;
            Ok(())
        })
        .unwrap()
    {}
    assert_eq!(next, written.len());
}

#[test]
fn after_a_hundred_cuts_the_receiver_has_every_record_once() {
    let cuts: u64 = std::env::var("ONEFOLD_LINK_CUTS").map_or(100, |text| text.parse().unwrap()) / 2;
    for (codec, seed) in [(Codec::Zstd, 11), (Codec::Off, 12)] {
        let (group, disk) = (open_group(&new_group_disk()), new_reception_disk());
        let (of_sender, of_receiver) = (Lines::default(), Lines::default());
        let mut receiver = RunningReceiver::sized(&disk, of_receiver.log());
        let proxy = Proxy::start(receiver.address, seed, cuts);
        let running = RunningSender::start(&group, proxy.port, codec, of_sender.log());
        let volume = ProtectedVolume::new(group.clone(), 0);
        let (mut random, mut written) = (SplitMix64::new(seed), Vec::new());
        let mut crashes = 0;
        while proxy.cuts.load(Ordering::SeqCst) < cuts || written.len() < 500 {
            write_some(&volume, &mut random, &mut written);
            assert!((written.len() as u64) < 2000 * cuts, "{} cuts", proxy.cuts.load(Ordering::SeqCst));
            if random.index(4) == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            // Now and then the receiver loses its power.
            if crashes < proxy.cuts.load(Ordering::SeqCst) / 10 {
                crashes += 1;
                let disk = receiver.disk.clone();
                // It must not acknowledge what the image does not have.
                drop(receiver);
                receiver = RunningReceiver::sized(&disk.crash(CrashMode::Torn(crashes)), of_receiver.log());
                *proxy.target.lock().unwrap() = receiver.address;
            }
        }
        group.journal().sync().unwrap();
        let next = group.journal().next();
        assert!(running.sender.wait_acknowledged(next, Duration::from_secs(20)), "{:?}", running.sender.status());
        check_received(&receiver, &written);
        let status = running.sender.status();
        assert_eq!((status.lag_records, status.lag_bytes, status.lag), (0, 0, Duration::ZERO), "{status:?}");
        println!(
            "{codec:?}: {} cuts, {crashes} power cuts, {} records, {status:?}",
            proxy.cuts.load(Ordering::SeqCst),
            written.len()
        );
        if codec == Codec::Zstd {
            assert!(status.sent_bytes < status.plain_bytes / 2);
        }
        // The sender's journal gives back what the receiver has.
        running.sender.maintain().unwrap();
        drop((running, proxy));
    }
}

#[test]
fn a_receiver_whose_journal_is_full_lets_the_sender_wait_and_not_lose_the_link() {
    let (group, disk) = (open_group(&new_group_disk()), new_reception_disk());
    let lines = Lines::default();
    let size = JournalSize { segment_bytes: 4 << 20, segments_max: 3 };
    let receiver = RunningReceiver::start(&disk, size, lines.log());
    let running = RunningSender::start(&group, receiver.address.port(), Codec::Lzjb, lines.log());
    let volume = ProtectedVolume::new(group.clone(), 0);
    let data = vec![7; 1 << 20];
    for _ in 0..32 {
        volume.write(0, &data, Fua::No).unwrap();
    }
    volume.flush().unwrap();
    assert!(!running.sender.wait_acknowledged(group.journal().next(), Duration::from_millis(700)));
    let status = running.sender.status();
    assert!(status.is_connected && status.lag_records != 0 && status.lag_bytes > 8 << 20, "{status:?}");
    // Checkpoints give space back.
    let reception = receiver.host.reception.clone();
    wait_for(
        "all records",
        || {
            reception.release(Lsn(reception.status().durable.0 + 1));
            running.sender.wait_acknowledged(group.journal().next(), Duration::from_millis(50))
        },
        || format!("{:?}", running.sender.status()),
    );
    let status = running.sender.status();
    assert_eq!(status.losses, 0, "{status:?}");
    assert_eq!(reception.status().last, Lsn(33));
}

#[test]
fn questions_are_answered_with_the_state_after_a_record() {
    let (group, disk) = (open_group(&new_group_disk()), new_reception_disk());
    let lines = Lines::default();
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let running = RunningSender::start(&group, receiver.address.port(), Codec::Lz4, lines.log());
    let volume = ProtectedVolume::new(group.clone(), 0);
    let mut data: Vec<u8> = (0..64_u32 << 10).map(|at| (at >> 6).to_le_bytes()[0]).collect();
    volume.write(64 << 10, &data, Fua::Yes).unwrap();
    lines.wait_for("linked to");
    let at = Lsn(group.journal().next().0 - 1);
    volume.write(64 << 10, &[1; 4096], Fua::No).unwrap();
    let mut differing = Vec::new();
    running.sender.find_differences(at, (0, 64 << 10), &data, &mut differing).unwrap();
    assert_eq!(differing, []);
    data[5 * 4096] ^= 1;
    data[15 * 4096 + 4095] ^= 1;
    running.sender.find_differences(at, (0, 64 << 10), &data, &mut differing).unwrap();
    assert_eq!(differing, [5, 15]);
    let done = running.sender.checkpoint().unwrap();
    assert!(
        matches!(done, crate::link::wire::Done::Made { last, .. } if last.0 == group.journal().next().0 - 1),
        "{done:?}"
    );
    let failed = running.sender.checkpoint().unwrap();
    assert!(matches!(&failed, crate::link::wire::Done::Failed(sentence) if sentence.contains("second")), "{failed:?}");
    drop(receiver);
    lines.wait_for("no link to");
    assert!(running.sender.checkpoint().unwrap_err().to_string().contains("no link to 127.0.0.1"));
}

#[test]
fn a_record_is_durable_at_the_receiver_within_five_seconds() {
    let (group, disk) = (open_group(&new_group_disk()), new_reception_disk());
    let lines = Lines::default();
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let running = RunningSender::start(&group, receiver.address.port(), Codec::Zstd, lines.log());
    let volume = ProtectedVolume::new(group.clone(), 0);
    lines.wait_for("linked to");
    for _ in 0..5 {
        // No client flushes.
        volume.write(0, &[3; 4096], Fua::No).unwrap();
        assert!(running.sender.wait_acknowledged(group.journal().next(), Duration::from_secs(5)));
    }
}

#[test]
fn after_a_power_cut_of_the_sender_the_history_of_the_receiver_equals_the_volume() {
    let disk = new_reception_disk();
    let lines = Lines::default();
    let receiver = RunningReceiver::sized(&disk, lines.log());
    let port = receiver.address.port();
    let mut group_disk = new_group_disk();
    let mut random = SplitMix64::new(5);
    let (mut compared, mut lost) = (0, 0);
    for boot in 1..=24 {
        let (group, opened) = open_group_at(&group_disk, boot);
        let running = RunningSender::start(&group, port, Codec::Zstd, lines.log());
        let next = group.journal().next();
        assert!(running.sender.wait_acknowledged(next, Duration::from_secs(20)), "{:?}", lines.all());
        let volume = ProtectedVolume::new(group.clone(), 0);
        if opened.last == LastUse::PowerCut {
            if boot % 5 == 0 {
                group.skip_comparison(&opened.suspect).unwrap();
                while group.resync_step().unwrap() != crate::volume::Resync::Done {}
            } else {
                let at = Lsn(next.0 - 1);
                compared += group
                    .compare(&opened.suspect, &mut |volume, offset, found, differing| {
                        running.sender.find_differences(at, (volume, offset), found, differing)
                    })
                    .unwrap();
            }
        }
        volume.flush().unwrap();
        let next = group.journal().next();
        assert!(running.sender.wait_acknowledged(next, Duration::from_secs(20)));
        let mut bytes = vec![0; usize::try_from(VOLUME_BYTES).unwrap()];
        volume.read(0, &mut bytes).unwrap();
        assert!(TestHost::volume_at(&receiver.host.reception, Lsn(u64::MAX)) == bytes, "boot {boot}");
        let mut written = Vec::new();
        for _ in 0..random.index(30) {
            write_some(&volume, &mut random, &mut written);
        }
        let last = group.journal().next();
        group_disk = group_disk
            .crash([CrashMode::Subset(boot), CrashMode::Torn(boot), CrashMode::LoseUnsynced][random.index(3)]);
        let received = receiver.host.reception.status().durable;
        lost += u64::from(received.0 + 1 < last.0);
    }
    println!("{compared} blocks differed after power cuts; {lost} of 24 took records that the receiver did not have");
    assert!(compared != 0 && lost != 0);
}

#[test]
fn a_write_that_waits_for_a_receiver_ends_when_the_server_stops() {
    let group = open_group(&new_group_disk());
    let volume = ProtectedVolume::new(group.clone(), 0);
    let data = vec![1; 1 << 18];
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (0..10_000).find_map(|_| volume.write(0, &data, Fua::No).err()));
        let status = || group.journal().status();
        // Nobody takes the records.
        wait_for("a full journal", || status().segments == status().segments_max, || format!("{:?}", status()));
        std::thread::sleep(Duration::from_millis(50));
        group.end_waits();
        assert_eq!(writing.join().unwrap(), Some(crate::nbd::wire::Errno::NoSpace));
    });
    group.close().unwrap();
}
