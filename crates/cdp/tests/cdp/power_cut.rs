//! A group behind the server, over two connections, and a power cut.

use std::path::Path;
use std::sync::Arc;

use onefold_cdp::journal::{GroupId, JournalIdentity, JournalSize};
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::wire::request::command;
use onefold_cdp::sim_origin::SimOrigin;
use onefold_cdp::volume::{Durability, EXTENT_BYTES, Group, GroupOptions, ProtectedVolume, WhenBehind};
use onefold_engine::crypto::{Keys, MasterKey};
use onefold_engine::io::{Access, Disk};
use onefold_engine::random::SplitMix64;
use onefold_engine::testing::sim::{CrashMode, SimDisk, SimHost};
use onefold_engine::types::RepositoryId;

use crate::client::Client;
use crate::fixture::Fixture;

const ORIGIN: &str = "origin";
const GROUP: &str = "group";
const BLOCK: u64 = 4096;
const BLOCKS: usize = 64;
const ROUNDS: u64 = 24;

fn world() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir(Path::new(GROUP)).unwrap();
    let file = disk.create(Path::new(ORIGIN)).unwrap();
    file.set_len(EXTENT_BYTES).unwrap();
    file.sync().unwrap();
    Group::create(&disk, Path::new(GROUP), &[EXTENT_BYTES]).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk
}

fn origin(disk: &SimDisk) -> SimOrigin {
    let file = disk.open(Path::new(ORIGIN), Access::ReadWrite).unwrap();
    SimOrigin { file, size: EXTENT_BYTES, knows_holes: false }
}

fn open(disk: &SimDisk, boot: u64, durability: Durability) -> Arc<Group> {
    let repository = RepositoryId([1; 16]);
    let keys = Keys::derive(&MasterKey([7; 32]), repository);
    let identity = JournalIdentity { keys, repository, group: GroupId([2; 16]) };
    let size = JournalSize { segment_bytes: 1 << 20, segments_max: 16 };
    let options = GroupOptions { size, durability, when_behind: WhenBehind::Fail };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let host = Arc::new(SimHost::new(boot));
    let origins: Vec<Arc<dyn Export>> = vec![Arc::new(origin(disk))];
    Arc::new(Group::open(&shared, host, Path::new(GROUP), identity, origins, options).unwrap().0)
}

/// Writes on one connection and flushes on another. Returns the contents of each block that was flushed, and what came after it.
fn write_and_flush(disk: &SimDisk, seed: u64, durability: Durability) -> [Vec<u8>; 2] {
    let group = open(disk, 1, durability);
    let fixture = Fixture::one(Arc::new(ProtectedVolume::new(group, 0)));
    let [mut writer, mut flusher] = [(); 2].map(|()| Client::open(&fixture.socket(), ""));
    let mut random = SplitMix64::new(seed);
    let (mut flushed, mut answered) = (vec![0; BLOCKS], vec![0; BLOCKS]);
    for turn in 1..=40_u8 {
        let block = random.index(BLOCKS);
        writer.write(0, block as u64 * BLOCK, &[turn; BLOCK as usize]).unwrap();
        answered[block] = turn;
        // The last writes are not flushed.
        if turn < 35 && random.index(4) == 0 {
            flusher.call(command::FLUSH, 0, 0, 0, &[]).unwrap();
            flushed.clone_from(&answered);
        }
    }
    [flushed, answered]
}

#[test]
fn a_flush_on_one_connection_keeps_what_another_has_written() {
    let mut images = 0;
    for seed in 0..ROUNDS {
        let durability = if seed % 2 == 0 { Durability::Both } else { Durability::Journal };
        let disk = world();
        let [flushed, answered] = write_and_flush(&disk, seed, durability);
        for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll, CrashMode::Torn(seed)] {
            let image = disk.crash(mode);
            let _group = open(&image, 2, durability);
            let volume = origin(&image);
            for block in 0..BLOCKS {
                let mut found = [0; BLOCK as usize];
                volume.read(block as u64 * BLOCK, &mut found).unwrap();
                // A later write may have reached the disk, in part.
                let is_kept = found
                    .iter()
                    .all(|byte| *byte == flushed[block] || *byte == answered[block] || flushed[block] < *byte);
                assert!(
                    is_kept,
                    "seed {seed}, {durability:?}, {mode:?}: block {block} is {}, was flushed as {}",
                    found[0], flushed[block]
                );
            }
            images += 1;
        }
    }
    println!("{images} images: what was written on one connection and flushed on another is there");
}
