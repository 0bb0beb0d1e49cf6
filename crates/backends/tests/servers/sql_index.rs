//! An index whose entries are on a real server of MariaDB.

use std::collections::HashSet;

use onefold_backends::sql::SqlSpec;
use onefold_engine::identify::{IndexState, Schedule};

use crate::mariadb::MariaDb;
use crate::source::{BATCH_CHUNKS, Source, fingerprint, stream};

fn source(kind: SqlSpec, schedule: Schedule) -> Source {
    let memory_bytes = kind.memory_bytes();
    Source::new(kind, memory_bytes, schedule)
}

#[test]
fn every_schedule_stores_each_chunk_once_with_its_entries_on_a_server() {
    let server = MariaDb::start();
    let schedules = [
        ("eager", Schedule::Eager),
        ("lazy", Schedule::Lazy { threshold: 16 }),
        ("pool", Schedule::Pool { candidates: 256 }),
        ("exhaustive", Schedule::Exhaustive { threshold: 16 }),
        ("adaptive", Schedule::Adaptive),
    ];
    for (name, schedule) in schedules {
        let mut source = self::source(SqlSpec::new(&server.url(), name, 0).unwrap(), schedule);
        for session in 0..3 {
            let (mut index, state) = source.open().unwrap();
            assert_eq!(state, if session == 0 { IndexState::New } else { IndexState::Clean }, "{name}");
            assert_eq!(source.attach(&mut index), 0);
            source.back_up(&mut index, session, &stream(session.into()), |_| {});
            assert_eq!(index.degraded(), None);
            index.close().unwrap();
        }
        let expected: HashSet<_> = (0..3).flat_map(stream).map(fingerprint).collect();
        assert_eq!((source.stored, source.twice), (expected, 0), "{name}");
    }
}

#[test]
fn a_server_that_is_killed_costs_duplicates_and_a_sentence_and_comes_back_exact() {
    let mut server = MariaDb::start();
    let url = server.url();
    let mut source = self::source(SqlSpec::new(&url, "killed", 0).unwrap(), Schedule::Adaptive);
    let (mut index, _) = source.open().unwrap();
    source.attach(&mut index);
    source.back_up(&mut index, 0, &stream(0), |_| {});
    index.close().unwrap();
    let (mut index, _) = source.open().unwrap();
    assert_eq!(source.attach(&mut index), 0);
    source.back_up(&mut index, 1, &stream(1), |sequence| {
        if sequence == 20 * BATCH_CHUNKS {
            server.kill();
        }
    });
    let reason = index.degraded().unwrap();
    assert!(reason.contains("database fingerprints") && !reason.contains("root"), "{reason}");
    drop(index);
    // While it is away, nothing of the index is given up.
    let error = source.open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("database fingerprints"), "{error}");
    server.restart();
    let (mut index, state) = source.open().unwrap();
    assert_eq!(state, IndexState::Unclean);
    assert!(0 < source.attach(&mut index));
    let twice = source.twice;
    source.back_up(&mut index, 2, &[stream(0), stream(1)].concat(), |_| {});
    assert_eq!((source.twice, index.degraded()), (twice, None));
    index.close().unwrap();
    let expected: HashSet<_> = (0..2).flat_map(stream).map(fingerprint).collect();
    assert_eq!(source.stored, expected);
}

#[test]
fn a_store_that_another_index_holds_or_that_has_another_state_is_not_taken() {
    let server = MariaDb::start();
    let kind = SqlSpec::new(&server.url(), "shared", 0).unwrap();
    let (first, second) = (source(kind.clone(), Schedule::Eager), source(kind, Schedule::Eager));
    let (index, _) = first.open().unwrap();
    let error = second.open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("in use by another index"), "{error}");
    index.close().unwrap();
    let (index, _) = second.open().unwrap();
    index.close().unwrap();
    // The other one has taken its name.
    let (_index, state) = first.open().unwrap();
    assert!(matches!(&state, IndexState::Rebuilt(reason) if reason.contains("another state")), "{state:?}");
}

#[test]
fn addresses_and_names_that_cannot_be_are_refused_and_passwords_are_not_repeated() {
    for (url, name, sentence) in [
        ("mysql://root@localhost/db", "A", "letters a to z"),
        ("mysql://root@localhost/db", "", "1 to 40"),
        ("mysql://root:secret@localhost", "plain", "names no database"),
        ("redis://root:secret@localhost/db", "plain", "address of a server"),
    ] {
        let error = SqlSpec::new(url, name, 0).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(sentence) && !error.contains("secret"), "{url}: {error}");
    }
}
