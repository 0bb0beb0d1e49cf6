use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::io::tree::{AccessTime, EntryKind, Metadata, SourceTree};
use onefold_engine::source::walk::Location;
use onefold_engine::testing::mem_tree::MemTree;
use onefold_engine::types::Timestamp;

use super::*;

fn item(path: &str, size: u64) -> Item {
    let time = Timestamp { seconds: 0, nanoseconds: 0 };
    let metadata = Metadata {
        kind: EntryKind::File,
        mode: 0,
        uid: 0,
        gid: 0,
        mtime: time,
        atime: AccessTime::default(),
        ctime: time,
        size,
        device: 0,
        inode: 0,
        links: 1,
        rdev: 0,
    };
    let path = PathBuf::from(path);
    let name = path.file_name().unwrap().to_owned();
    let location = Location::new(MemTree::new().open_dir(Path::new("/")).unwrap(), name.as_ref());
    Item {
        path,
        name,
        location,
        metadata,
        contents: Contents::File,
        xattrs: Vec::new(),
        file_xattrs: None,
        link_target: None,
    }
}

/// Chooses from files of these paths and lengths.
fn survey(files: &[(String, u64)], wanted: u64) -> Survey {
    let mut clusters = Clusters::new(wanted);
    let mut totals = Totals::default();
    for (path, size) in files {
        clusters.add(&item(path, *size));
        totals.bytes += size;
    }
    let mut histogram = Histogram::default();
    for (path, size) in files {
        units(clusters.of(&item(path, *size)), *size, 1).for_each(|unit| histogram.add(&unit));
    }
    let (thresholds, class_bytes, chosen) = histogram.choose(wanted);
    let choice = Choice { clusters, seed: 1, thresholds, divided_bytes: [0; EXTENT_POWERS] };
    Survey { totals, class_bytes, hole_bytes: 0, choice: Some(choice), bytes_max: chosen }
}

fn chosen(survey: &Survey, path: &str, size: u64) -> Vec<Extent> {
    survey.extents(&item(path, size)).collect()
}

fn word(number: usize) -> String {
    let letters = [number, number / 26, number / 676].map(|digit| char::from(b'a' + u8::try_from(digit % 26).unwrap()));
    letters.iter().collect()
}

#[test]
fn parts_ascend_with_hashes() {
    let mut last = 0;
    for hash in (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + (1 << bit) / 3, (1_u64 << bit) + ((1 << bit) - 1)]) {
        let part = part(hash);
        assert!(last <= part && part < PARTS, "{hash}");
        assert!(first_of_part(part) <= hash && hash <= first_of_part(part + 1), "{hash}");
        last = part;
    }
}

#[test]
fn versions_of_a_file_are_chosen_together_and_the_sample_is_as_large_as_wanted() {
    let size = 1000;
    let files: Vec<_> = (0..8000).map(|number| (format!("/{}-{}.sql", word(number / 2), number % 2), size)).collect();
    let survey = survey(&files, 8000 * size / 4);
    let is_chosen = |(path, size): &(String, u64)| !chosen(&survey, path, *size).is_empty();
    assert!(files.chunks(2).all(|pair| is_chosen(&pair[0]) == is_chosen(&pair[1])));
    let count = files.iter().filter(|file| is_chosen(file)).count();
    assert!((1900..=2100).contains(&count), "{count} of 8000");
}

/// Photos of a camera differ in their numbers only: read together, it would be all of them or none.
#[test]
fn files_of_one_name_form_clusters_by_more_of_their_path() {
    let photos: Vec<_> = (0..8000).map(|number| (format!("/photos/IMG_{number}.JPG"), 1000)).collect();
    let modules: Vec<_> = (0..4000)
        .flat_map(|number| ["v1", "v2"].map(|version| (format!("/{version}/{}/__init__.py", word(number)), 1000)))
        .collect();
    for (files, versions) in [(photos, 1), (modules, 2)] {
        let survey = survey(&files, 2_000_000);
        let is_chosen: Vec<bool> = files.iter().map(|(path, size)| !chosen(&survey, path, *size).is_empty()).collect();
        let count = is_chosen.iter().filter(|is_chosen| **is_chosen).count();
        assert!((1900..=2100).contains(&count), "{count} of 8000");
        assert!(is_chosen.chunks(versions).all(|them| them.iter().all(|it| *it == them[0])));
    }
}

#[test]
fn parts_of_large_versions_are_chosen_at_the_same_offset_or_after_the_same_share() {
    let sizes = [4000 * EXTENT_BYTES_MIN + 5, 3600 * EXTENT_BYTES_MIN + 7];
    let paths = ["/dump-1.sql", "/dump-2.sql"];
    let files: Vec<_> = paths.iter().zip(sizes).map(|(path, size)| ((*path).to_owned(), size)).collect();
    let all: u64 = sizes.iter().sum();
    let survey = survey(&files, all / 5);
    let [first, second] = [0, 1].map(|number| chosen(&survey, paths[number], sizes[number]));
    let bytes: u64 = first.iter().chain(&second).map(|it| it.end.unwrap_or(sizes[0]) - it.offset).sum();
    assert!(all / 6 < bytes && bytes < all / 4, "{bytes} of {all}");
    let of = |extents: &[Extent], class: usize| -> Vec<u64> {
        extents.iter().filter(|it| usize::from(it.unit.class) == class).map(|it| it.offset).collect()
    };
    let absolute = [&first, &second].map(|extents| of(extents, CLASSES_ALIGNED[0]));
    assert!(10 < absolute[1].len() && absolute[0].starts_with(&absolute[1]));
    let relative = [&first, &second].map(|extents| of(extents, CLASSES_ALIGNED[1]));
    assert!(10 < relative[0].len() && relative[0].len() == relative[1].len());
    for (first, second) in relative[0].iter().zip(&relative[1]) {
        assert!((first * sizes[1] / sizes[0]).abs_diff(*second) <= PAGE_BYTES, "{first} and {second}");
    }
}

#[test]
fn extents_cover_a_file_of_any_length_and_are_few() {
    for size in [0, 1, EXTENT_BYTES_MIN, EXTENT_BYTES_MIN + 1, 1 << 40, u64::MAX / 2] {
        let mut clusters = Clusters::new(1);
        clusters.add(&item("/file", size));
        let (mut end, mut count) = (0, 0);
        for unit in units(clusters.of(&item("/file", size)), size, 0) {
            assert_eq!(unit.offset, end);
            end += unit.len;
            count += 1;
        }
        assert_eq!(end, size);
        assert!((1..=2 * super::super::clusters::EXTENTS_MAX).contains(&count), "{count} for {size}");
    }
}

#[test]
fn everything_is_read_if_the_sample_is_as_large() {
    let tree = MemTree::new();
    tree.put_file(Path::new("/file"), b"contents");
    let tree: Arc<dyn SourceTree> = Arc::new(tree);
    let roots = [PathBuf::from("/file")];
    let walk = || Ok(Walk::new(Arc::clone(&tree), &roots, Arc::default())?);
    let of = |sample| Survey::of(&walk, sample, 0, &onefold_engine::monitor::Silent).unwrap();
    assert!(of(Sample::Everything).is_everything() && of(Sample::Bytes(8)).is_everything());
    let survey = of(Sample::Bytes(7));
    assert!(!survey.is_everything() && survey.totals.bytes == 8);
}
