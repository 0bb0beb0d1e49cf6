//! Backups with the entries of the index on a real server.

use std::fs;

use crate::fixture::{Fixture, contents, noise};
use crate::similar::text;

#[path = "../../backends/tests/servers/mariadb.rs"]
mod mariadb;
#[path = "../../backends/tests/servers/redis_cluster.rs"]
mod redis_cluster;

use mariadb::MariaDb;
use redis_cluster::RedisCluster;

/// Backs up. Returns the bytes that were added, the exit code and the messages.
fn back_up(fixture: &Fixture, server: &str, cache: &str) -> (u64, i32, String) {
    let mut command = fixture.command(["backup", "--json", "--force", "source"]);
    command.env("ONEFOLD_INDEX_SERVER", server).env("ONEFOLD_CACHE_DIR", fixture.path(cache));
    // Enough to look for similar regions.
    command.env("ONEFOLD_MEMORY", "256M");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let added = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let added = added.filter_map(|message| message["data_added"].as_u64()).next_back().unwrap_or(0);
    (added, output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn entries_on_a_server_find_duplicates_and_a_server_that_is_away_loses_nothing() {
    let mut server = MariaDb::start();
    let url = server.url();
    let fixture = Fixture::new();
    for number in 0..8 {
        fixture.write(&format!("file{number}"), &noise(number, 300_000));
    }
    let (first, code, _) = back_up(&fixture, &url, "cache");
    assert!(code == 0 && 2_400_000 < first, "{first}");
    // Copies under other names are read, and nothing of them is stored.
    for number in 0..8 {
        fixture.write(&format!("copy{number}"), &noise(number, 300_000));
    }
    let (second, code, _) = back_up(&fixture, &url, "cache");
    assert!(code == 0 && second < 100_000, "{second}");
    server.kill();
    fixture.write("again0", &noise(0, 300_000));
    let (_, code, message) = back_up(&fixture, &url, "cache");
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("database fingerprints") && message.contains("without --index-server"), "{message}");
    server.restart();
    let (third, code, _) = back_up(&fixture, &url, "cache");
    assert!(code == 0 && third < 100_000, "{third}");
    // Without the server the index is made again, with a sentence, and knows as much.
    fixture.write("again1", &noise(1, 300_000));
    let ran = fixture.run(["backup", "source"]).code(0).says("another kind");
    assert!(ran.stdout().contains("snapshot"), "{}", ran.stdout());
    fixture.run(["check", "--read-data"]).code(0);
    let source = fixture.path("source");
    fixture.run(["restore", "latest:/source", "--target", "restored"]).code(0);
    assert_eq!(contents(&fixture.path("restored")), contents(&source));
}

#[test]
fn hosts_that_share_a_cluster_store_each_chunk_once_also_without_a_node() {
    let mut cluster = RedisCluster::start();
    let url = cluster.url();
    let fixture = Fixture::new();
    for number in 0..8 {
        fixture.write(&format!("file{number}"), &noise(number, 300_000));
    }
    let (first, code, _) = back_up(&fixture, &url, "one");
    assert!(code == 0 && 2_400_000 < first, "{first}");
    // Another host has neither index nor log, and knows all chunks.
    let (second, code, _) = back_up(&fixture, &url, "two");
    assert!(code == 0 && second < 100_000, "{second}");
    cluster.kill(2);
    let (third, code, message) = back_up(&fixture, &url, "one");
    assert_eq!(code, 0, "{message}");
    assert!(100_000 < third && third < 1_700_000, "{third}");
    cluster.restart(2);
    let (fourth, code, _) = back_up(&fixture, &url, "two");
    assert!(code == 0 && fourth < 100_000, "{fourth}");
    fixture.run(["check", "--read-data"]).code(0);
    fixture.run(["restore", "latest:/source", "--target", "restored"]).code(0);
    assert_eq!(contents(&fixture.path("restored")), contents(&fixture.path("source")));
}

/// The host that stored a container had its base; the host that takes it from the server cannot know that the base is lost.
#[test]
fn a_host_takes_no_container_of_another_one_whose_base_is_lost() {
    let cluster = RedisCluster::start();
    let url = cluster.url();
    let fixture = Fixture::new();
    fixture.write("dump", &text(0));
    assert_eq!(back_up(&fixture, &url, "one").1, 0);
    let containers = || contents(&fixture.path("repository/containers"));
    let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let (base, _) = containers().into_iter().max_by_key(|(_, bytes)| len(bytes)).unwrap();
    fixture.write("dump", &text(1));
    assert_eq!(back_up(&fixture, &url, "one").1, 0);
    fs::remove_file(fixture.path("repository/containers").join(base)).unwrap();
    for host in ["two", "one"] {
        let (_, code, message) = back_up(&fixture, &url, host);
        assert!(code == 3 && message.contains("lacks a base"), "{host}: code {code}, {message}");
        let target = format!("restored-by-{host}");
        fixture.run(["restore", "latest:/source", "--target", &target]).code(0);
        assert_eq!(contents(&fixture.path(&target)), contents(&fixture.path("source")), "{host}");
    }
}

#[test]
fn an_address_that_is_none_is_refused_without_its_password() {
    let fixture = Fixture::new();
    fixture.write("file", b"text");
    for (address, sentence) in [
        ("mysql://me:secret@host", "names no database"),
        ("postgres://me:secret@host/db", "address of a server"),
        ("redis://me:secret@", "HOST:PORT"),
    ] {
        let ran = fixture.run(["backup", "source", "--index-server", address]).code(1).says(sentence);
        assert!(!ran.stderr().contains("secret"));
    }
    fixture
        .run(["--no-cache", "backup", "source", "--index-server", "mysql://me@host/db"])
        .code(1)
        .says("needs a cache");
}
