//! What every disk must do, run over each of them.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::os::{IoBackend, OsDisk};
use crate::io::{Access, AlignedBuffer, BatchRead, BatchWrite, DIRECT_ALIGN, Disk, DiskEntry, DiskFile, Linked};
use crate::testing::sim::SimDisk;

/// Runs a property over an empty directory of every disk there is.
#[expect(clippy::print_stdout, reason = "who reads along should know what was not tested")]
fn on_every_disk(property: impl Fn(&dyn Disk)) {
    let directory = tempfile::tempdir().unwrap();
    let root = |name: &str| {
        let root = directory.path().join(name);
        OsDisk::new(root.clone()).create_dir(path("")).unwrap();
        root
    };
    property(&OsDisk::with_backend(root("threads"), IoBackend::Threads));
    match onefold_sys::Ring::new() {
        Ok(_) => property(&OsDisk::with_backend(root("uring"), IoBackend::Uring)),
        Err(error) => println!("no io_uring here: {error}"),
    }
    property(&SimDisk::new());
    property(&SimDisk::new().subdir("repo"));
}

/// A byte that tells a number from its neighbors.
fn filling(number: usize) -> u8 {
    u8::try_from(number % 251).unwrap()
}

fn path(path: &str) -> &Path {
    Path::new(path)
}

#[track_caller]
fn kind_of<T>(result: Result<T>) -> ErrorKind {
    result.map(|_| ()).unwrap_err().io_kind().expect("an error of the disk")
}

fn write(disk: &dyn Disk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.create(path(name)).unwrap();
    file.write_at(0, bytes).unwrap();
    file
}

#[track_caller]
fn read(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(path(name), Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn names(disk: &dyn Disk, directory: &str) -> Vec<String> {
    disk.list(path(directory)).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn create_is_exclusive_and_leaves_what_stands() {
    on_every_disk(|disk| {
        write(disk, "a", b"first");
        disk.create_dir(path("d")).unwrap();
        assert_eq!(kind_of(disk.create(path("a"))), ErrorKind::AlreadyExists);
        assert_eq!(kind_of(disk.create(path("d"))), ErrorKind::AlreadyExists);
        assert_eq!(kind_of(disk.create(path("none/a"))), ErrorKind::NotFound);
        assert_eq!(kind_of(disk.create(path("a/b"))), ErrorKind::NotADirectory);
        assert_eq!(read(disk, "a"), b"first");
    });
}

#[test]
fn open_finds_only_what_exists_and_read_access_cannot_write() {
    on_every_disk(|disk| {
        assert_eq!(kind_of(disk.open(path("a"), Access::Read)), ErrorKind::NotFound);
        assert_eq!(kind_of(disk.open(path("a"), Access::ReadWrite)), ErrorKind::NotFound);
        write(disk, "a", b"bytes");
        let reader = disk.open(path("a"), Access::Read).unwrap();
        assert!(reader.write_at(0, b"x").is_err());
        assert!(reader.set_len(0).is_err());
        reader.sync().unwrap();
        let writer = disk.open(path("a"), Access::ReadWrite).unwrap();
        writer.write_at(1, b"Y").unwrap();
        let mut bytes = [0; 5];
        reader.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bYtes");
    });
}

#[test]
fn create_dir_accepts_a_directory_and_refuses_a_file() {
    on_every_disk(|disk| {
        disk.create_dir(path("")).unwrap();
        disk.create_dir(path("d")).unwrap();
        write(disk, "d/a", b"kept");
        disk.create_dir(path("d")).unwrap();
        assert_eq!(read(disk, "d/a"), b"kept");
        assert_eq!(kind_of(disk.create_dir(path("d/a"))), ErrorKind::AlreadyExists);
        assert_eq!(kind_of(disk.create_dir(path("none/d"))), ErrorKind::NotFound);
    });
}

#[test]
fn link_adds_a_name_and_never_replaces() {
    on_every_disk(|disk| {
        write(disk, "temporary", b"new");
        write(disk, "taken", b"old");
        assert_eq!(disk.link(path("temporary"), path("taken")).unwrap(), Linked::Existed);
        assert_eq!(read(disk, "taken"), b"old");
        assert_eq!(disk.link(path("temporary"), path("free")).unwrap(), Linked::Created);
        assert_eq!(disk.link(path("temporary"), path("free")).unwrap(), Linked::Existed);
        disk.remove(path("temporary")).unwrap();
        assert_eq!(read(disk, "free"), b"new");
        assert_eq!(kind_of(disk.link(path("temporary"), path("other"))), ErrorKind::NotFound);
        assert_eq!(kind_of(disk.link(path("temporary"), path("free"))), ErrorKind::NotFound);
        assert_eq!(kind_of(disk.link(path("free"), path("none/other"))), ErrorKind::NotFound);
    });
}

#[test]
fn rename_moves_and_replaces_and_open_handles_follow_the_file() {
    on_every_disk(|disk| {
        let replaced = write(disk, "target", b"old");
        let moved = write(disk, "source", b"new");
        disk.rename(path("source"), path("target")).unwrap();
        assert_eq!((names(disk, ""), read(disk, "target")), (vec!["target".to_owned()], b"new".to_vec()));
        moved.write_at(0, b"N").unwrap();
        assert_eq!(read(disk, "target"), b"New");
        let mut bytes = [0; 3];
        replaced.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"old");

        disk.create_dir(path("d")).unwrap();
        disk.rename(path("target"), path("d/target")).unwrap();
        assert_eq!((names(disk, ""), names(disk, "d")), (vec!["d".to_owned()], vec!["target".to_owned()]));
        assert_eq!(kind_of(disk.rename(path("target"), path("x"))), ErrorKind::NotFound);
        write(disk, "file", b"");
        assert_eq!(kind_of(disk.rename(path("file"), path("d"))), ErrorKind::IsADirectory);
        assert_eq!(kind_of(disk.rename(path("d"), path("file"))), ErrorKind::NotADirectory);
        disk.create_dir(path("e")).unwrap();
        assert_eq!(kind_of(disk.rename(path("e"), path("d"))), ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind_of(disk.rename(path("d"), path("d/below"))), ErrorKind::InvalidInput);
        disk.rename(path("d"), path("e")).unwrap();
        assert_eq!(names(disk, "e"), ["target"]);
    });
}

#[test]
fn rename_between_two_names_of_one_file_leaves_both() {
    on_every_disk(|disk| {
        write(disk, "a", b"bytes");
        assert_eq!(disk.link(path("a"), path("b")).unwrap(), Linked::Created);
        disk.rename(path("a"), path("b")).unwrap();
        assert_eq!(names(disk, ""), ["a", "b"]);
    });
}

#[test]
fn remove_takes_one_name_of_a_file_and_nothing_else() {
    on_every_disk(|disk| {
        let open = write(disk, "a", b"bytes");
        disk.create_dir(path("d")).unwrap();
        disk.remove(path("a")).unwrap();
        assert_eq!(kind_of(disk.remove(path("a"))), ErrorKind::NotFound);
        assert!(disk.remove(path("d")).is_err());
        assert_eq!(names(disk, ""), ["d"]);
        let mut bytes = [0; 5];
        open.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
    });
}

#[test]
fn remove_dir_takes_an_empty_directory_and_nothing_else() {
    on_every_disk(|disk| {
        disk.create_dir(path("d")).unwrap();
        disk.create_dir(path("d/below")).unwrap();
        write(disk, "a", b"bytes");
        assert!(!disk.remove_dir(path("d")).unwrap());
        assert_eq!(names(disk, "d"), ["below"]);
        assert!(disk.remove_dir(path("d/below")).unwrap());
        write(disk, "d/file", b"bytes");
        assert!(!disk.remove_dir(path("d")).unwrap());
        disk.remove(path("d/file")).unwrap();
        assert!(disk.remove_dir(path("d")).unwrap());
        assert!(disk.remove_dir(path("d")).unwrap());
        assert!(disk.remove_dir(path("none/d")).unwrap());
        assert_eq!(kind_of(disk.remove_dir(path("a"))), ErrorKind::NotADirectory);
        assert_eq!(kind_of(disk.create(path("d/file"))), ErrorKind::NotFound);
        assert_eq!(kind_of(disk.sync_dir(path("d"))), ErrorKind::NotFound);
        disk.create_dir(path("d")).unwrap();
        assert_eq!((names(disk, ""), names(disk, "d")), (vec!["a".to_owned(), "d".to_owned()], vec![]));
    });
}

#[test]
fn list_is_sorted_by_bytes_and_reports_directories() {
    on_every_disk(|disk| {
        for name in ["b", "a-", "a", "B", "a0"] {
            write(disk, name, b"");
        }
        disk.create_dir(path("aa")).unwrap();
        let entry = |(name, is_dir): (&str, bool)| DiskEntry { name: name.to_owned(), is_dir };
        let wanted = [("B", false), ("a", false), ("a-", false), ("a0", false), ("aa", true), ("b", false)];
        assert_eq!(disk.list(path("")).unwrap(), wanted.map(entry));
        assert_eq!(disk.list(path("aa")).unwrap(), []);
        assert_eq!(kind_of(disk.list(path("none"))), ErrorKind::NotFound);
        assert_eq!(kind_of(disk.list(path("a"))), ErrorKind::NotADirectory);
    });
}

#[test]
fn exists_is_true_for_names_only() {
    on_every_disk(|disk| {
        write(disk, "a", b"");
        disk.create_dir(path("d")).unwrap();
        let exists = ["", "a", "d", "b", "d/a", "none/a"].map(|name| disk.exists(path(name)).unwrap());
        assert_eq!(exists, [true, true, true, false, false, false]);
    });
}

#[test]
fn reads_are_whole_or_an_unexpected_end() {
    on_every_disk(|disk| {
        let file = write(disk, "a", b"0123456789");
        let mut bytes = [0; 4];
        file.read_at(6, &mut bytes).unwrap();
        assert_eq!(&bytes, b"6789");
        assert_eq!(kind_of(file.read_at(7, &mut bytes)), ErrorKind::UnexpectedEof);
        assert_eq!(kind_of(file.read_at(1000, &mut bytes)), ErrorKind::UnexpectedEof);
        file.read_at(1000, &mut []).unwrap();
    });
}

#[test]
fn holes_and_growth_read_as_zeros_also_after_a_cut() {
    on_every_disk(|disk| {
        let file = write(disk, "a", &[7; 10_000]);
        file.set_len(5000).unwrap();
        file.set_len(9000).unwrap();
        file.write_at(20_000, b"end").unwrap();
        file.write_at(90_000, b"").unwrap();
        let mut wanted = vec![0; 20_003];
        wanted[..5000].fill(7);
        wanted[20_000..].copy_from_slice(b"end");
        assert!(read(disk, "a") == wanted);
    });
}

#[test]
fn batches_fill_each_buffer_and_fail_each_on_its_own() {
    on_every_disk(|disk| {
        let files = [write(disk, "a", b"0123456789"), write(disk, "b", b"abcdefghij")];
        let read = |n: usize| BatchRead {
            file: Arc::clone(&files[n % 2]),
            offset: n as u64,
            buffer: AlignedBuffer::new_zeroed(3),
            outcome: Ok(()),
        };
        for count in [0, 1, 30] {
            let mut reads: Vec<BatchRead> = (0..count).map(read).collect();
            disk.read_batch(&mut reads);
            for (n, read) in reads.into_iter().enumerate() {
                match [b"0123456789", b"abcdefghij"][n % 2].get(n..n + 3) {
                    Some(wanted) => assert_eq!((read.outcome.unwrap(), &read.buffer[..]), ((), wanted)),
                    None => assert_eq!(kind_of(read.outcome), ErrorKind::UnexpectedEof),
                }
            }
        }
    });
}

#[test]
fn write_batches_write_each_buffer_and_fail_each_on_its_own() {
    on_every_disk(|disk| {
        write(disk, "a", b"");
        let writer = disk.open(path("a"), Access::ReadWrite).unwrap();
        let reader = disk.open(path("a"), Access::Read).unwrap();
        for count in [0, 1, 300] {
            let mut writes: Vec<BatchWrite> = (0..count)
                .map(|n: usize| BatchWrite {
                    file: Arc::clone(if n % 7 == 3 { &reader } else { &writer }),
                    offset: n as u64 * 3,
                    buffer: AlignedBuffer::from(&[filling(n); 3][..]),
                    outcome: Ok(()),
                })
                .collect();
            disk.write_batch(&mut writes);
            let mut wanted = Vec::new();
            for (n, write) in writes.into_iter().enumerate() {
                assert_eq!(write.outcome.is_err(), n % 7 == 3, "write {n}");
                assert_eq!(&write.buffer[..], [filling(n); 3]);
                wanted.extend(if n % 7 == 3 { [0; 3] } else { [filling(n); 3] });
            }
            assert!(read(disk, "a") == wanted);
        }
    });
}

/// A page of its own for each number.
fn page(number: usize) -> AlignedBuffer {
    let bytes: Vec<u8> = (0..DIRECT_ALIGN).map(|at| filling(at * 31 + number * 7)).collect();
    AlignedBuffer::from(&bytes[..])
}

#[test]
fn direct_files_hold_what_was_written_and_share_it_with_other_handles() {
    on_every_disk(|disk| {
        drop(disk.create(path("a")).unwrap());
        let file = disk.open(path("a"), Access::Direct).unwrap();
        let mut writes: Vec<BatchWrite> = (0..300)
            .map(|n| {
                let offset = (n * DIRECT_ALIGN) as u64;
                BatchWrite { file: Arc::clone(&file), offset, buffer: page(n), outcome: Ok(()) }
            })
            .collect();
        disk.write_batch(&mut writes);
        writes.into_iter().try_for_each(|write| write.outcome).unwrap();
        file.sync().unwrap();
        let whole = read(disk, "a");
        let mut reads: Vec<BatchRead> = (0..300)
            .rev()
            .map(|n| {
                let (offset, buffer) = ((n * DIRECT_ALIGN) as u64, AlignedBuffer::new_zeroed(DIRECT_ALIGN));
                BatchRead { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
            })
            .collect();
        disk.read_batch(&mut reads);
        for (n, read) in (0..300).rev().zip(reads) {
            read.outcome.unwrap();
            assert!(*read.buffer == *page(n) && *page(n) == whole[n * DIRECT_ALIGN..][..DIRECT_ALIGN], "page {n}");
        }
        let mut one = page(0);
        file.read_at(2 * DIRECT_ALIGN as u64, &mut one).unwrap();
        assert!(*one == *page(2));
        file.write_at(0, &one).unwrap();
        assert!(read(disk, "a")[..DIRECT_ALIGN] == *page(2));
    });
}

#[test]
fn direct_transfers_that_are_not_aligned_are_refused_and_change_nothing() {
    on_every_disk(|disk| {
        write(disk, "a", &[7; 2 * DIRECT_ALIGN]);
        let file = disk.open(path("a"), Access::Direct).unwrap();
        let mut buffer = AlignedBuffer::new_zeroed(2 * DIRECT_ALIGN);
        let is_refused = |outcome: Result<()>| matches!(outcome, Err(Error::Invalid { .. }));
        for (offset, start, len) in [(512, 0, 4096), (0, 0, 512), (0, 512, 4096), (1, 0, 4096), (0, 0, 4095)] {
            assert!(is_refused(file.write_at(offset, &buffer[start..start + len])), "write {offset} {start} {len}");
            assert!(is_refused(file.read_at(offset, &mut buffer[start..start + len])), "read {offset} {start} {len}");
        }
        let read_of = |offset, len| {
            let buffer = AlignedBuffer::new_zeroed(len);
            BatchRead { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
        };
        let mut reads = [read_of(0, 4096), read_of(512, 4096), read_of(0, 512), read_of(4096, 4096)];
        disk.read_batch(&mut reads);
        assert_eq!(reads.map(|read| is_refused(read.outcome)), [false, true, true, false]);
        let write_of = |offset, len| {
            let buffer = AlignedBuffer::new_zeroed(len);
            BatchWrite { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
        };
        let mut writes = [write_of(512, 4096), write_of(0, 512)];
        disk.write_batch(&mut writes);
        assert_eq!(writes.map(|write| is_refused(write.outcome)), [true, true]);
        assert!(read(disk, "a") == [7; 2 * DIRECT_ALIGN]);
    });
}

#[test]
fn direct_reads_end_where_the_file_ends_in_the_middle_of_a_page() {
    on_every_disk(|disk| {
        write(disk, "a", &[7; 10_000]);
        let file = disk.open(path("a"), Access::Direct).unwrap();
        let read_of = |offset, len| {
            let buffer = AlignedBuffer::new_zeroed(len);
            BatchRead { file: Arc::clone(&file), offset, buffer, outcome: Ok(()) }
        };
        let mut reads =
            [read_of(0, 8192), read_of(8192, 4096), read_of(4096, 8192), read_of(40_960, 4096), read_of(0, 0)];
        for read in &mut reads {
            read.outcome = file.read_at(read.offset, &mut read.buffer);
        }
        for _ in 0..2 {
            let ends = reads.each_ref().map(|read| read.outcome.as_ref().err().and_then(Error::io_kind));
            let end = Some(ErrorKind::UnexpectedEof);
            assert_eq!(ends, [None, end, end, end, None]);
            assert!(reads[0].buffer[..] == [7; 8192]);
            disk.read_batch(&mut reads);
        }
        file.set_len(3 * DIRECT_ALIGN as u64).unwrap();
        let mut last = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
        file.read_at(2 * DIRECT_ALIGN as u64, &mut last).unwrap();
        assert!(
            last[..10_000 - 8192].iter().all(|byte| *byte == 7) && last[10_000 - 8192..].iter().all(|byte| *byte == 0)
        );
    });
}

#[test]
fn locks_exclude_other_handles_until_the_holder_is_dropped() {
    on_every_disk(|disk| {
        let holder = write(disk, "a", b"");
        let other = disk.open(path("a"), Access::ReadWrite).unwrap();
        assert!(holder.try_lock().unwrap());
        assert!(holder.try_lock().unwrap(), "a handle that holds the lock has it");
        assert!(!other.try_lock().unwrap());
        assert!(write(disk, "b", b"").try_lock().unwrap(), "another file's lock is free");
        let clone = Arc::clone(&holder);
        drop(holder);
        assert!(!other.try_lock().unwrap(), "a clone keeps the lock");
        drop(clone);
        assert!(other.try_lock().unwrap());
    });
}

#[test]
fn syncing_finds_files_and_directories() {
    on_every_disk(|disk| {
        write(disk, "a", b"bytes").sync().unwrap();
        disk.create_dir(path("d")).unwrap();
        disk.sync_dir(path("")).unwrap();
        disk.sync_dir(path("d")).unwrap();
        assert_eq!(kind_of(disk.sync_dir(path("none"))), ErrorKind::NotFound);
        assert_eq!(read(disk, "a"), b"bytes");
    });
}

#[test]
fn a_small_or_missing_file_is_not_measured() {
    on_every_disk(|disk| {
        write(disk, "a", &[7; DIRECT_ALIGN]);
        assert_eq!(disk.measure(path("a")).unwrap(), None);
        assert_eq!(kind_of(disk.measure(path("none"))), ErrorKind::NotFound);
    });
}

#[test]
fn errors_show_the_path_as_display_does() {
    on_every_disk(|disk| {
        let error = disk.open(path("d/none"), Access::Read).unwrap_err().to_string();
        assert!(error.contains(&disk.display(path("d/none"))), "{error}");
        assert!(!disk.display(path("")).ends_with('/'));
    });
}
