//! `prune`: what it gives back, what it waits for, and what bad input gets.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, Ran, contents, noise};
use crate::signals::wait_until;

/// Returns the bytes of all files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| match entry.metadata().unwrap() {
        metadata if metadata.is_dir() => bytes_below(&entry.path()),
        metadata => metadata.len(),
    });
    sizes.sum()
}

/// Returns the bytes of all containers.
fn container_bytes(fixture: &Fixture) -> u64 {
    bytes_below(&fixture.path("repository").join("containers"))
}

/// Makes three snapshots: half of the second version is new, and the third is the second once more with a small file.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    for number in 0..20 {
        fixture.write(&format!("file-{number}"), &noise(number, 400_000));
    }
    fixture.run(["backup", "source", "--quiet"]).code(0);
    for number in 0..10 {
        fixture.write(&format!("file-{number}"), &noise(100 + number, 400_000));
    }
    fixture.run(["backup", "source", "--quiet"]).code(0);
    fixture.write("small", b"small");
    fixture.run(["backup", "source", "--quiet"]).code(0);
    fixture
}

#[test]
fn half_of_a_snapshot_that_is_forgotten_comes_back_and_the_rest_restores() {
    let fixture = fixture();
    let containers = || container_bytes(&fixture);
    assert!(fixture.run(["prune"]).code(0).stdout().contains("nothing was removed"));
    fixture.run(["forget", "latest~2", "--quiet"]).code(0);
    let before = containers();
    let planned = fixture.run(["prune", "--dry-run", "--json"]).code(0).messages().pop().unwrap();
    assert!(3_900_000 < planned["planned_freed_bytes"].as_u64().unwrap(), "{planned}");
    assert_eq!(containers(), before);
    let report = fixture.run(["prune", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!(report["planned_freed_bytes"], planned["planned_freed_bytes"], "{report}");
    let freed = before - containers();
    assert_eq!(
        report["deleted_bytes"].as_u64().unwrap() - report["written_bytes"].as_u64().unwrap(),
        freed,
        "{report}"
    );
    assert!((3_900_000..4_200_000).contains(&freed), "{freed} bytes came back: {report}");
    assert!(fixture.run(["check", "--read-data"]).code(0).stdout().contains("no errors"));
    let target = fixture.path("restored");
    fixture.run(["restore", "latest:/source", "--target", target.to_str().unwrap()]).code(0);
    assert_eq!(std::fs::read(target.join("file-3")).unwrap(), noise(103, 400_000));
    assert_eq!(std::fs::read(target.join("file-13")).unwrap(), noise(13, 400_000));
    assert!(fixture.run(["prune"]).code(0).stdout().contains("nothing was removed"));
    fixture.run(["backup", "source", "--quiet"]).code(0);
    fixture.run(["check"]).code(0);
}

#[test]
fn a_quick_prune_removes_what_no_snapshot_lists_and_falls_back_to_a_full_one() {
    let fixture = fixture();
    fixture.write("discarded", &noise(500, 9_000_000));
    fixture.run(["backup", "source", "--quiet"]).code(0);
    fixture.run(["forget", "latest", "--quiet"]).code(0);
    let before = container_bytes(&fixture);
    let planned = fixture.run(["prune", "--quick", "--dry-run", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&planned["quick"], container_bytes(&fixture)), (&true.into(), before), "{planned}");
    let report = fixture.run(["prune", "--quick", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&report["quick"], &report["written_bytes"]), (&true.into(), &0.into()), "{report}");
    assert_eq!(report["deleted_bytes"], planned["planned_removed_bytes"]);
    let freed = before - container_bytes(&fixture);
    assert_eq!(report["deleted_bytes"], freed);
    assert!(8_900_000 < freed, "{report}");
    fixture.run(["check", "--read-data"]).code(0);
    fixture.run(["prune", "--quick", "--repack-small"]).code(1);
    // Without manifests.
    std::fs::remove_dir_all(fixture.path("repository").join("manifests")).unwrap();
    fixture.run(["forget", "latest~1", "--quiet"]).code(0);
    fixture.run(["prune", "--quick", "--dry-run"]).code(0).says("this prune is a full one");
    let full = fixture.run(["prune", "--quick", "--json"]).code(0);
    assert_eq!(full.messages().pop().unwrap()["quick"], false);
    let target = fixture.path("restored");
    fixture.run(["restore", "latest:/source", "--target", target.to_str().unwrap()]).code(0);
    assert_eq!(std::fs::read(target.join("file-3")).unwrap(), noise(103, 400_000));
    assert_eq!(std::fs::read(target.join("file-13")).unwrap(), noise(13, 400_000));
}

#[test]
fn forget_prunes_on_request() {
    let fixture = fixture();
    let containers = || container_bytes(&fixture);
    let before = containers();
    fixture.run(["forget", "--keep-last", "1", "--prune", "--dry-run"]).code(0);
    assert_eq!(containers(), before);
    assert!(fixture.run(["forget", "--keep-last", "1", "--prune"]).code(0).stdout().contains("removed"));
    assert!(containers() < before - 3_900_000);
    fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn wrong_options_change_nothing_and_say_what_is_right() {
    let fixture = fixture();
    fixture.run(["prune", "--max-unused", "many"]).code(1).says("unlimited");
    fixture.run(["prune", "--max-unused", "-1%"]).code(1);
    fixture.run(["prune", "--max-repack-size", "x"]).code(1).says("50G");
    fixture.run(["prune", "--keep-deleted", "soon"]).code(1).says("not a duration");
    fixture.run(["prune", "--give-up", "--dry-run"]).code(1);
    fixture.run(["prune", "--give-up"]).code(0).says("no prune waits");
}

#[test]
fn deleted_containers_are_kept_on_request() {
    let fixture = fixture();
    fixture.run(["forget", "latest~2", "--quiet"]).code(0);
    let before = container_bytes(&fixture);
    assert!(fixture.run(["prune", "--keep-deleted", "14d"]).code(0).stdout().contains("deleted by the next prune"));
    assert!(before <= container_bytes(&fixture));
    fixture.run(["check"]).code(0);
    assert!(fixture.run(["prune"]).code(0).stdout().contains("removed"));
    assert!(container_bytes(&fixture) < before - 3_900_000);
    fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn what_if_counts_to_the_byte_what_forgetting_and_pruning_then_free() {
    for limit in ["0", "5%", "unlimited"] {
        let fixture = fixture();
        let before = container_bytes(&fixture);
        let limits = ["--max-unused", limit, "--json"];
        let asked = fixture.run(["forget", "latest~2", "--what-if"].into_iter().chain(limits)).code(0);
        let asked = asked.messages().pop().unwrap();
        assert_eq!((&asked["message_type"], container_bytes(&fixture)), (&"what_if".into(), before));
        assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), 3);
        let only = fixture.run(["stats", "--mode", "exclusive", "latest~2", "--json"]).code(0).json();
        assert_eq!(only["only"], asked["only"]);
        assert!((4_000_000..4_100_000).contains(&only["only"]["uncompressed_size"].as_u64().unwrap()), "{only}");
        let each = fixture.run(["stats", "--mode", "exclusive", "--json"]).code(0).json();
        assert_eq!(each["snapshots"][0]["uncompressed_size"], only["only"]["uncompressed_size"]);
        fixture.run(["forget", "latest~2", "--prune"].into_iter().chain(limits)).code(0);
        let freed = before - container_bytes(&fixture);
        assert_eq!(asked["freed_bytes"].as_u64().unwrap(), freed, "--max-unused {limit}");
        // Without copying, containers that are partly needed stay.
        assert!(limit == "unlimited" || 3_000_000 < freed, "--max-unused {limit}: {freed}");
    }
    let fixture = fixture();
    let said = fixture.run(["forget", "--keep-last", "1", "--what-if"]).code(0).stdout();
    assert!(said.contains("would forget 2 snapshots") && said.contains("forgetting and pruning would free"), "{said}");
    assert!(fixture.run(["stats", "--mode", "exclusive"]).code(0).stdout().contains("several snapshots"));
    fixture.run(["forget", "latest", "--what-if", "--prune"]).code(1);
}

#[test]
fn what_is_lost_makes_what_if_a_sentence_and_no_number() {
    let fixture = fixture();
    let containers = fixture.path("repository").join("containers");
    let mut left = vec![containers];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.metadata().unwrap().is_dir() {
                left.push(entry.path());
            } else if entry.file_name().to_string_lossy().contains('m') {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    let lost = fixture.run(["forget", "latest~2", "--what-if"]).code(1).stdout();
    assert!(!lost.contains("would free"), "{lost}");
    fixture.run(["stats", "--mode", "exclusive"]).code(1);
}

/// Lines that a higher level makes shorter; another text for each seed.
fn lines(seed: u64, count: u64) -> Vec<u8> {
    let mut state = seed;
    let line = |number: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{} took {} ms, status {}\n", number / 7, state >> 53, (state >> 40) % 5)
    };
    (0..count).map(line).collect::<String>().into_bytes()
}

/// Makes three snapshots of text, of which the first two are forgotten.
fn forgotten_text() -> Fixture {
    let fixture = Fixture::new();
    for version in 0..3 {
        for number in 0..8 {
            let seed = if number % 2 == 0 { number } else { 10 * (version + 1) + number };
            fixture.write(&format!("file-{number}"), &lines(seed, 12_000 + 100 * version));
        }
        fixture.run(["backup", "source", "--quiet"]).code(0);
    }
    fixture.run(["forget", "--keep-last", "1", "--force", "--quiet"]).code(0);
    fixture
}

#[test]
fn copies_are_compressed_again_on_request_and_the_report_says_what_they_took() {
    let prune = |options: &[&str]| {
        let fixture = forgotten_text();
        let counted = ["forget", "--keep-last", "1", "--what-if", "--json"].iter().chain(options);
        let counted = fixture.run(counted).code(0).messages().pop().unwrap();
        let report = fixture.run(["prune", "--json"].iter().chain(options)).code(0).messages().pop().unwrap();
        // The metadata names new containers, whose ids are drawn: one step of the rounding of a container that small.
        let written = |message: &serde_json::Value| message["written_bytes"].as_u64().unwrap();
        assert!(written(&counted).abs_diff(written(&report)) <= 512, "{counted}, {report}");
        fixture.run(["check", "--read-data"]).code(0);
        let target = fixture.path("restored");
        fixture.run(["restore", "latest:/source", "--target", target.to_str().unwrap()]).code(0);
        assert_eq!(std::fs::read(target.join("file-2")).unwrap(), lines(2, 12_200));
        assert_eq!(std::fs::read(target.join("file-3")).unwrap(), lines(33, 12_200));
        let of = |field: &str| report[field].as_u64().unwrap();
        (container_bytes(&fixture), of("written_regions_bytes"), of("copied_regions_bytes"))
    };
    let plain = prune(&[]);
    let again = prune(&["--recompress"]);
    let auto = prune(&["--recompress", "--compression", "auto"]);
    let fast = prune(&["--recompress", "--compression", "zstd:1"]);
    // Keys are drawn, and with them where chunks end.
    assert!(again.1 * 100 < plain.1 * 95 && again.0 < plain.0, "{again:?}, {plain:?} as stored");
    assert!(again.1 < again.2, "{again:?}");
    assert!(auto.1 * 100 < plain.1 * 95, "{auto:?}: no level was chosen");
    assert!(again.1 * 100 < fast.1 * 95, "{fast:?}: the chosen level holds");
    let fixture = forgotten_text();
    assert!(fixture.run(["prune", "--recompress", "--dry-run"]).code(0).stdout().contains("is not known before"));
    fixture.run(["prune", "--recompress", "--quick"]).code(1);
    fixture.run(["prune", "--recompress", "--compression", "off"]).code(1).says("nothing gets shorter with `off`");
    assert!(
        fixture.run(["prune", "--recompress"]).code(0).stdout().contains("before, with what is not needed in them")
    );
}

#[test]
fn prune_says_what_an_interrupted_backup_still_holds() {
    let fixture = Fixture::new();
    let mut child = fixture.command(["backup", "--stdin", "-q"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&noise(4, 64 << 20)).unwrap();
    let containers = fixture.path("repository/containers");
    wait_until(|| contents(&containers).iter().any(|(_, bytes)| bytes.is_some()));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    Ran(child.wait_with_output().unwrap()).code(130).says("interrupted; no snapshot was made");
    drop(stdin);
    let said = fixture.run(["prune"]).code(0).stdout();
    assert!(said.contains("stay stored by 1 interrupted backup without a snapshot"), "{said}");
    assert!(said.contains("`onefold prune --keep-unfinished 0s`") && said.contains("MiB\n"), "{said}");
    let held = fixture.run(["prune", "--dry-run", "--json"]).code(0).json();
    assert_eq!(held["unfinished_backups"], 1);
    assert!(3_000_000 < held["unfinished_bytes"].as_u64().unwrap(), "{held}");
    let freed = fixture.run(["prune", "--keep-unfinished", "0s", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!(freed["unfinished_backups"], 0, "{freed}");
}
