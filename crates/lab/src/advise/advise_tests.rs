use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use onefold_engine::backup::Budget;
use onefold_engine::monitor::Silent;
use onefold_engine::pipeline::Driver;

use super::estimate::Estimate;
use super::predict::{Prediction, Whole};
use super::*;
use crate::chunkers::{Algorithm, Chunker};
use crate::counts::float;
use crate::record::{self, Hash, record_paths};
use crate::trace::describe::describe;
use crate::trace::file;

const MEMORY_BYTES: usize = 64 << 20;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn scanned(roots: &[&Path], sample: Sample) -> Scanned {
    scanned_at(1, roots, sample)
}

fn scanned_at(level: i32, roots: &[&Path], sample: Sample) -> Scanned {
    let options = AdviseOptions {
        roots: roots.iter().map(|root| root.to_path_buf()).collect(),
        excludes: Arc::new(Excludes::default()),
        sample,
        seed: 0,
        compression: Compression::Zstd(level),
        memory_bytes: MEMORY_BYTES,
        threads: 2,
        similar: None,
    };
    scan(&options, &Silent).unwrap()
}

/// Different chunks, their bytes, all chunks, all bytes, by a recording that is described.
fn recorded(directory: &Path, root: &Path, rule: Rule) -> (u64, u64, u64, u64) {
    let trace = directory.join(format!("{rule}.trace"));
    let (algorithm, bytes) = match rule {
        Rule::Content(bytes) => (Algorithm::Gear, bytes),
        Rule::Fixed(bytes) => (Algorithm::Fixed, bytes),
    };
    let how = record::Rule::Open(Chunker::new(algorithm, algorithm.sizes(bytes)).unwrap(), Hash::Blake3);
    let work = (&Driver::inline(1), Budget::of(MEMORY_BYTES, 1), None);
    record_paths(&trace, "", &[root.to_path_buf()], &Arc::new(Excludes::default()), &how, work, &Silent).unwrap();
    let (_, mut events) = file::open(&trace).unwrap();
    let sum = describe(&mut events, directory).unwrap().sum();
    let unique = (sum.totals.chunks - sum.duplicate_chunks, sum.totals.bytes - sum.duplicate_bytes);
    (unique.0, unique.1, sum.totals.chunks, sum.totals.bytes)
}

/// Files of all kinds: small and large, with a copy, with insertions, with holes, of zeros, of nothing.
fn write_source(root: &Path) {
    fs::create_dir_all(root.join("b")).unwrap();
    let large = noise(1, 9 << 20);
    fs::write(root.join("large"), &large).unwrap();
    fs::write(root.join("b/large"), &large).unwrap();
    fs::write(root.join("b/shifted"), [&large[..100_000], b"inserted", &large[100_000..5 << 20]].concat()).unwrap();
    fs::write(root.join("zeros"), vec![0; 6 << 20]).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("b/{number}")), noise(number / 2, 10 + 97 * usize::try_from(number).unwrap()))
            .unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&large[..200_000], 1 << 20).unwrap();
    sparse.write_all_at(&large[..20_000], 40 << 20).unwrap();
    sparse.set_len(50 << 20).unwrap();
}

#[test]
fn what_is_read_in_full_is_counted_as_a_recording_counts_it() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("source");
    write_source(&root);
    let scanned = scanned(&[&root], Sample::Bytes(1 << 40));
    assert!(scanned.survey.is_everything() && !scanned.reading.is_cut_short);
    assert_eq!((scanned.survey.totals.files, scanned.reading.files, scanned.reading.failures), (306, 306, 0));
    assert_eq!(scanned.reading.bytes + scanned.reading.hole_bytes, scanned.survey.totals.bytes);
    for scan in &scanned.rules {
        let (unique_chunks, unique_bytes, chunks, bytes) = recorded(directory.path(), &root, scan.rule);
        assert!(scan.distinct.is_exact(), "{}", scan.rule);
        let counted = [scan.distinct.chunks(), scan.distinct.bytes()];
        assert_eq!(counted, [unique_chunks, unique_bytes].map(float).map(Estimate::counted), "{}", scan.rule);
        assert_eq!((scan.chunks, scanned.reading.bytes), (chunks, bytes), "{}", scan.rule);
        // All of it was compressed, so that nothing is estimated.
        let compressed = scan.some.sum();
        assert_eq!(compressed.plain, unique_bytes, "{}", scan.rule);
        assert!(compressed.stored <= unique_bytes && 0 < scan.refs && scan.refs <= scan.chunks);
    }
    assert!(0 < scanned.sealed.0 && scanned.sealed.1 > Duration::ZERO);
    let whole = Whole::of(&scanned);
    let predictions: Vec<_> =
        scanned.rules.iter().map(|scan| Prediction::of(&scanned, &whole, scan, MEMORY_BYTES, 2)).collect();
    for prediction in &predictions {
        let ratio = prediction.dedup_ratio;
        assert!(ratio.is_counted(), "{ratio:?}");
        let stored = prediction.stored_bytes;
        assert!(
            stored.low < stored.value && stored.value < stored.high && stored.high < 1.05 * stored.low,
            "{stored:?}"
        );
        assert!(prediction.overhead_bytes < prediction.stored_bytes.value);
        assert!(prediction.read_again.processor < prediction.first.processor);
    }
    // The insertion costs blocks of a fixed length all that follows.
    let share = |rule| 1.0 / predictions.iter().find(|it| it.rule == rule).unwrap().dedup_ratio.value;
    assert!(share(Rule::Content(8 << 10)) < 0.5 && share(Rule::Content(8 << 10)) < 0.8 * share(Rule::Fixed(4 << 10)));
}

#[test]
fn regions_are_compressed_as_those_of_new_repositories() {
    let directory = tempfile::tempdir().unwrap();
    let pages = ["CHANGELOG.md", "docs/format.md", "docs/lab.md", "docs/performance.md"];
    let page = |page: &&str| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    // One region.
    let mut text: Vec<u8> = pages.iter().flat_map(page).collect();
    text.truncate(400_000);
    fs::write(directory.path().join("text"), &text).unwrap();
    let scanned = scanned_at(3, &[directory.path()], Sample::Bytes(1 << 40));
    let found = scanned.rules.iter().find(|scan| scan.rule == Rule::Content(8 << 10)).unwrap().some.sum();
    let stored = |format| {
        let mut stored = Vec::new();
        compressor_of(format).compress(Compression::Zstd(3), &text, &mut stored);
        stored.len() as u64
    };
    assert_eq!((found.plain, found.stored), (text.len() as u64, stored(FormatVersion::default())));
    assert!(stored(FormatVersion::V2) < stored(FormatVersion::V1));
}

#[test]
fn a_sample_is_as_large_as_wanted_and_finds_the_duplicates_of_versions() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for number in 0_u64..2000 {
        let word: String = format!("{number:04}").bytes().map(|digit| char::from(digit + 49)).collect();
        let bytes = noise(number, 10_000);
        for version in ["2026-01-01", "2026-01-02"] {
            fs::create_dir_all(root.join(version)).unwrap();
            fs::write(root.join(version).join(format!("{word}-{version}")), &bytes).unwrap();
        }
    }
    let scanned = scanned(&[root], Sample::Bytes(10 << 20));
    assert!(!scanned.survey.is_everything() && !scanned.reading.is_cut_short);
    assert!((9 << 20..=11 << 20).contains(&scanned.reading.bytes), "{:?}", scanned.reading);
    let whole = Whole::of(&scanned);
    assert!((whole.data_bytes - 40e6).abs() < 1.0, "{whole:?}");
    for scan in &scanned.rules {
        let prediction = Prediction::of(&scanned, &whole, scan, MEMORY_BYTES, 2);
        let ratio = prediction.dedup_ratio;
        assert!((1.95..=2.05).contains(&ratio.value) && ratio.low <= 2.0 && 2.0 <= ratio.high, "{prediction:?}");
        let stored = prediction.stored_bytes.value;
        assert!((20e6..22e6).contains(&stored), "{}: {stored}", prediction.rule);
    }
}

#[test]
fn holes_of_large_files_are_known_without_being_sampled() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for version in 0..2 {
        let image = fs::File::create(root.join(format!("disk-{version}"))).unwrap();
        for part in 0_u64..16 {
            image.write_all_at(&noise(part, 1 << 20), part * (16 << 20)).unwrap();
        }
        image.set_len(256 << 20).unwrap();
    }
    let scanned = scanned(&[root], Sample::Bytes(4 << 20));
    assert_eq!(scanned.survey.hole_bytes, 480 << 20);
    assert!((3 << 20..=5 << 20).contains(&scanned.reading.bytes), "{:?}", scanned.reading);
    let whole = Whole::of(&scanned);
    assert!((whole.data_bytes - float(32 << 20)).abs() < 1.0, "{whole:?}");
    let scan = scanned.rules.iter().find(|scan| scan.rule == Rule::Content(8 << 10)).unwrap();
    let Prediction { dedup_ratio, stored_bytes, .. } = Prediction::of(&scanned, &whole, scan, MEMORY_BYTES, 2);
    assert!((1.8..=2.1).contains(&dedup_ratio.value), "{dedup_ratio:?}");
    assert!(stored_bytes.low <= float(16 << 20) && float(16 << 20) <= stored_bytes.high, "{stored_bytes:?}");
}

/// Tables that are too small for all chunks: chunks of 4 KiB from 40 MiB in 4,096 slots.
#[test]
fn a_table_that_is_full_estimates_within_its_error() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for number in 0..20 {
        fs::write(root.join(format!("{number}")), noise(number / 2, 4 << 20)).unwrap();
    }
    let options = AdviseOptions {
        roots: vec![root.to_path_buf()],
        excludes: Arc::new(Excludes::default()),
        sample: Sample::Everything,
        seed: 0,
        compression: Compression::Off,
        memory_bytes: MEMORY_BYTES,
        threads: 2,
        similar: None,
    };
    let source: Arc<dyn SourceTree> = Arc::new(OsSource::new());
    let walk = || Walk::new(Arc::clone(&source), &options.roots, Arc::clone(&options.excludes)).unwrap();
    let survey = Survey::of(&|| Ok(walk()), options.sample, 0, &Silent).unwrap();
    let mut scanner = Scanner::new(&options, &survey, Shares { batch_bytes: 1 << 20, slots: 4096 });
    let mut batches = Vec::new();
    let mut send = |batch| {
        batches.push(batch);
        true
    };
    Reader::new(&survey, 1 << 20, &Silent, &mut send).read(walk(), &options.roots);
    for batch in &batches {
        scanner.take(batch).unwrap();
    }
    let (rules, _) = scanner.finish();
    let rule = |wanted| rules.iter().find(|scan| scan.rule == wanted).unwrap();
    let estimated = rule(Rule::Content(4 << 10));
    assert!(!estimated.distinct.is_exact());
    let bytes = estimated.distinct.bytes();
    let error = bytes.value / float(40 << 20) - 1.0;
    assert!(error.abs() <= 1.5 * bytes.error() && bytes.error() < 0.06, "{error}, {bytes:?}");
    // The table of recent chunks distinguishes new chunks from known ones: half was compressed, not all.
    let plain = float(estimated.some.sum().plain);
    assert!((0.99..1.25).contains(&(plain / float(40 << 20))), "{plain}");
    assert!(rule(Rule::Content(1 << 20)).distinct.is_exact());
}

#[test]
fn shares_add_up_to_the_budget() {
    for mebibytes in [64, 96, 128, 512, 4096] {
        for threads in [1, 2, 16] {
            let bytes = mebibytes << 20;
            let threads = Budget::threads(bytes, threads);
            let shares = Shares::of(bytes, threads);
            assert!(1 << 14 <= shares.slots, "{mebibytes} MiB, {threads} threads: {shares:?}");
            // As docs/advise.md states.
            assert!((mebibytes, threads) != (64, 1) || shares.slots == 1 << 15, "{shares:?}");
            assert!(distinct::worst_deviation(shares.slots) < 0.025, "{shares:?}");
            assert!(shares.memory_bytes(threads) <= bytes, "{mebibytes} MiB, {threads} threads: {shares:?}");
        }
    }
}

#[test]
fn a_path_that_does_not_exist_is_named() {
    let options = AdviseOptions {
        roots: vec!["no/such/path".into()],
        excludes: Arc::new(Excludes::default()),
        sample: Sample::Everything,
        seed: 0,
        compression: Compression::Off,
        memory_bytes: MEMORY_BYTES,
        threads: 1,
        similar: None,
    };
    let error = scan(&options, &Silent).unwrap_err().to_string();
    assert!(error.contains("no/such/path"), "{error}");
}
