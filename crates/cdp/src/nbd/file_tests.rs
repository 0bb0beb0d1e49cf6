#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]

use std::sync::{Arc, Mutex};

use tempfile::NamedTempFile;

use super::super::wire::reply::StatusExtent;
use super::*;

const MIB: u64 = 1 << 20;

struct Fixture {
    file: NamedTempFile,
    export: FileExport,
    messages: Arc<Mutex<Vec<String>>>,
}

/// An export of a file of 8 MiB, all of it a hole.
fn fixture(access: Access) -> Fixture {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(8 * MIB).unwrap();
    let messages = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&messages);
    let log = Log::new(move |line| heard.lock().unwrap().push(line.to_owned()));
    let export = FileExport::open(file.path(), access, log).unwrap();
    Fixture { file, export, messages }
}

fn status(export: &FileExport, range: Range<u64>, limit: usize) -> Vec<(u32, u32)> {
    let mut extents = StatusExtents::default();
    extents.begin((range.end - range.start) as u32, limit);
    export.block_status(range, Context::Allocation, &mut extents).unwrap();
    extents.as_slice().iter().map(|StatusExtent { len, flags }| (*len, *flags)).collect()
}

#[test]
fn writes_zeros_and_trims_are_read_and_change_the_allocation() {
    let Fixture { export, messages, .. } = fixture(Access::ReadWrite);
    assert_eq!(export.size(), 8 * MIB);
    let data: Vec<u8> = (0..4 * MIB).map(|at| (at % 251) as u8 + 1).collect();
    for fua in [Fua::No, Fua::Yes] {
        export.write(MIB, &data, fua).unwrap();
    }
    assert_eq!(status(&export, 0..8 * MIB, 9), [(1 << 20, 3), (4 << 20, 0), (3 << 20, 3)]);
    assert_eq!(status(&export, MIB + 1..6 * MIB, 1), [((4 << 20) - 1, 0)]);
    let options = ZeroOptions { fua: Fua::Yes, allocate: false, fast: false };
    export.write_zeroes(2 * MIB..3 * MIB, options).unwrap();
    export.write_zeroes(3 * MIB..4 * MIB + 1, ZeroOptions { allocate: true, ..options }).unwrap();
    export.trim(0..MIB, Fua::Yes).unwrap();
    export.cache(0..MIB).unwrap();
    export.flush().unwrap();
    let mut read = vec![9; 4 * MIB as usize];
    export.read(MIB, &mut read).unwrap();
    let (one, three) = (MIB as usize, 3 * MIB as usize + 1);
    assert!(read[..one] == data[..one] && read[three..] == data[three..]);
    assert!(read[one..three].iter().all(|byte| *byte == 0));
    assert_eq!(messages.lock().unwrap()[..], [""; 0]);
}

#[test]
fn a_file_that_shrinks_fails_reads_and_is_reported_a_limited_number_of_times() {
    let Fixture { file, export, messages } = fixture(Access::ReadWrite);
    export.write(0, &[1; 4096], Fua::No).unwrap();
    file.as_file().set_len(4096).unwrap();
    let mut read = [0; 4096];
    assert_eq!(export.read(2048, &mut read), Err(Errno::Io));
    export.read(0, &mut read).unwrap();
    assert_eq!(read, [1; 4096]);
    let messages = || messages.lock().unwrap().clone();
    assert_eq!(messages().len(), 1);
    assert!(
        messages()[0].ends_with("a read at 4096 found the end: the file was 8388608 bytes long"),
        "{:?}",
        messages()
    );
    for _ in 0..2 * MESSAGES_MAX {
        assert_eq!(export.read(2048, &mut read), Err(Errno::Io));
    }
    assert_eq!(messages().len(), MESSAGES_MAX as usize + 1);
    assert!(messages().last().unwrap().ends_with("further errors are not reported"));
}

#[test]
fn nothing_is_written_or_synced_after_a_failed_sync() {
    let Fixture { export, .. } = fixture(Access::ReadWrite);
    export.write(0, &[1], Fua::No).unwrap();
    assert_eq!(export.sync_failed(io::Errno::IO), Errno::Io);
    assert_eq!(export.flush(), Err(Errno::Io));
    assert_eq!(export.write(0, &[2], Fua::No), Err(Errno::Io));
    assert_eq!(export.trim(0..1, Fua::No), Err(Errno::Io));
    let options = ZeroOptions { fua: Fua::No, allocate: false, fast: false };
    assert_eq!(export.write_zeroes(0..1, options), Err(Errno::Io));
    let mut read = [0];
    export.read(0, &mut read).unwrap();
    assert_eq!(read, [1]);
}

#[test]
fn an_export_for_reading_announces_no_writes_and_directories_are_refused() {
    let Fixture { export, file, .. } = fixture(Access::ReadOnly);
    assert_eq!(export.flags() & (export_flag::READ_ONLY | export_flag::SEND_TRIM), export_flag::READ_ONLY);
    assert_eq!(export.write(0, &[1], Fua::No), Err(Errno::Io), "the descriptor is for reading");
    let directory = file.path().parent().unwrap();
    assert!(FileExport::open(directory, Access::ReadOnly, Log::none()).is_err());
}
