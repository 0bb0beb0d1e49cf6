//! `why`, and contents that are to be removed for good.

use std::fs;

use serde_json::Value;

use crate::fixture::{Fixture, noise};

/// Makes three snapshots of two hosts: a directory that stays, one that changes, and a file of the first one only.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("stays/file", &noise(1, 200_000));
    fixture.write("changes/file", &noise(2, 100_000));
    fixture.write("copy", &noise(2, 100_000));
    fixture.write("first", &noise(3, 50_000));
    fixture.run(["backup", "source", "-q", "--host", "a"]).code(0);
    fixture.write("changes/file", &noise(4, 120_000));
    fs::remove_file(fixture.path("source/first")).unwrap();
    fixture.run(["backup", "source", "-q", "--host", "a"]).code(0);
    fixture.run(["backup", "source", "-q", "--host", "b"]).code(0);
    fixture
}

fn why(fixture: &Fixture, arguments: &[&str]) -> Value {
    fixture.run(["why", "--json"].iter().chain(arguments)).code(0).json()
}

fn containers(fixture: &Fixture) -> Vec<String> {
    fixture.run(["list", "packs"]).code(0).stdout().lines().map(str::to_owned).collect()
}

/// Returns the fingerprint of the first chunk of a file.
fn chunk_of(fixture: &Fixture, directory: &str, name: &str) -> String {
    let tree = fixture.run(["cat", "tree", directory]).code(0).json();
    let node = tree["nodes"].as_array().unwrap().iter().find(|node| node["name"] == name).unwrap().clone();
    node["content"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_path_is_shown_with_its_snapshots_and_what_only_they_hold() {
    let fixture = fixture();
    let changes = why(&fixture, &["/source/changes"]);
    let rows = changes["snapshots"].as_array().unwrap();
    let shown: Vec<_> = rows.iter().map(|row| (&row["hostname"], &row["contents"], row.get("unchanged"))).collect();
    let (a, b, no) = (Value::from("a"), Value::from("b"), Value::from(false));
    assert_eq!(shown, [(&a, &1.into(), None), (&a, &2.into(), Some(&no)), (&b, &2.into(), None)]);
    assert!(rows.iter().all(|row| row["type"] == "dir" && 100_000 < row["uncompressed_size"].as_u64().unwrap()));
    // The first version is also in another file.
    let bytes = |held: &Value| held["uncompressed_size"].as_u64().unwrap();
    assert!((220_000..222_000).contains(&bytes(&changes["all"])), "{changes}");
    assert_eq!((&changes["only"], bytes(&changes["shared"])), (&changes["all"], 0));
    assert!((120_000..122_000).contains(&bytes(&changes["only_path"])), "{changes}");
    // Seen from one snapshot, others hold the rest.
    let of_b = why(&fixture, &["/source/changes/file", "--host", "b"]);
    assert_eq!((of_b["snapshots"].as_array().unwrap().len(), bytes(&of_b["only"])), (1, 0));
    assert_eq!(bytes(&of_b["shared"]), 120_000);
    let first = why(&fixture, &["/source/first", "--if-forgotten", "latest~1,latest~2"]);
    assert_eq!(
        (bytes(&first["if_forgotten"]["freed"]), first["if_forgotten"]["left"]["chunks"].as_u64()),
        (50_000, Some(0))
    );
    assert_eq!(first["if_forgotten"]["snapshots"].as_array().unwrap().len(), 2);
    // What is counted of everything is what the ledger counts.
    let only = fixture.run(["stats", "--mode", "exclusive", "latest~2", "--json"]).code(0).json();
    let all = why(&fixture, &["/", "--if-forgotten", "latest~2"]);
    assert_eq!(all["if_forgotten"]["freed"], only["only"]);
    let text = fixture.run(["why", "/source/changes"]).code(0).stdout();
    for part in [
        "first",
        "changed",
        "this path alone",
        "also other paths of these",
        "forgetting 3 snapshots with it would free",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().any(|line| line.ends_with("  b")), "the host is shown: {text}");
}

#[test]
fn the_numbers_of_all_containers_add_up_to_those_of_the_repository() {
    let fixture = fixture();
    let (mut freed, mut only, mut rows) = (0, 0, 0);
    for container in containers(&fixture) {
        let answer = why(&fixture, &[&container, "--if-forgotten", "latest~2"]);
        assert_eq!((&answer["id"], &answer["state"]), (&Value::from(container.clone()), &"live".into()));
        let sum = |field: &str| answer[field]["chunks"].as_u64().unwrap();
        assert_eq!(sum("held") + sum("unneeded"), sum("all"));
        let held = &answer["if_forgotten"];
        assert_eq!(held["freed"]["chunks"].as_u64().unwrap() + held["left"]["chunks"].as_u64().unwrap(), sum("held"));
        freed += held["freed"]["chunks"].as_u64().unwrap();
        let first = fixture.run(["snapshots", "--json"]).code(0).json()[0]["id"].clone();
        for row in answer["snapshots"].as_array().unwrap().iter().filter(|row| row["id"] == first) {
            only += row["only"]["chunks"].as_u64().unwrap();
        }
        rows += answer["snapshots"].as_array().unwrap().len();
        let short = fixture.run(["why", &container]).code(0).stdout();
        assert!(short.starts_with(&format!("container {container}: ")) && short.contains("no snapshot"), "{short}");
    }
    let exclusive = fixture.run(["stats", "--mode", "exclusive", "latest~2", "--json"]).code(0).json();
    assert_eq!((freed, only), (exclusive["only"]["chunks"].as_u64().unwrap(), freed));
    assert!(3 < rows);
    // A container of a snapshot that is forgotten is unused.
    fixture.run(["forget", "latest", "latest~1", "latest~2", "-q"]).code(0);
    let container = &containers(&fixture)[0];
    assert_eq!(why(&fixture, &[container])["unused"], true);
    assert!(fixture.run(["why", container]).code(0).stdout().contains("a prune would remove it"));
}

#[test]
fn a_chunk_is_shown_with_its_containers_snapshots_and_paths() {
    let fixture = fixture();
    let chunk = chunk_of(&fixture, "latest:/source", "copy");
    let answer = why(&fixture, &[&chunk]);
    assert_eq!(
        (&answer["id"], &answer["kind"], &answer["holders"]),
        (&chunk.clone().into(), &"data".into(), &3.into())
    );
    assert_eq!(answer["copies"].as_array().unwrap().len(), 1);
    let container = answer["copies"][0]["container"].as_str().unwrap();
    assert!(containers(&fixture).iter().any(|listed| listed == container));
    let paths: Vec<&Value> = answer["snapshots"].as_array().unwrap().iter().map(|row| &row["paths"]).collect();
    let both = serde_json::json!(["/source/changes/file", "/source/copy"]);
    let one = serde_json::json!(["/source/copy"]);
    assert_eq!(paths, [&both, &one, &one]);
    let forgotten = why(&fixture, &[&chunk[..20], "--if-forgotten", "latest,latest~1"]);
    assert_eq!(
        (&forgotten["if_forgotten"]["freed"], &forgotten["if_forgotten"]["holders"]),
        (&false.into(), &1.into())
    );
    let listed = why(&fixture, &[&chunk, "--snapshot", "latest"]);
    assert_eq!((listed["snapshots"].as_array().unwrap().len(), &listed["holders"]), (1, &3.into()));
    let text = fixture.run(["why", &chunk, "--if-forgotten", "latest~2"]).code(0).stdout();
    for part in ["data, ", "/source/copy\n", "would not free it: 2 of 3 snapshots would hold it still"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // The list of a directory is a chunk, too.
    let node = fixture.run(["cat", "tree", "latest:/source/stays"]).code(0).json()["id"].as_str().unwrap().to_owned();
    let answer = why(&fixture, &[&node]);
    assert_eq!(
        (&answer["kind"], &answer["snapshots"][0]["paths"]),
        (&"tree".into(), &serde_json::json!(["/source/stays"]))
    );
}

#[test]
fn what_is_not_there_or_cannot_be_read_is_a_sentence_and_no_number() {
    let fixture = fixture();
    fixture.run(["why"]).code(1).says("PATH|CONTAINER|CHUNK");
    fixture.run(["why", "/source/none"]).code(1).says("/source/none: in none of the snapshots");
    fixture.run(["why", "/source/first", "--host", "b"]).code(1).says("in none of the snapshots");
    fixture.run(["why", "source/first"]).code(1).says("neither a path");
    fixture.run(["why", ""]).code(1).says("neither a path");
    fixture.run(["why", &"0".repeat(64)]).code(1).says("no chunk of a readable container");
    fixture.run(["why", &format!("{}/00000001", "0".repeat(32))]).code(1).says("not found");
    fixture.run(["why", "/source", "--snapshot", "nope"]).code(1).says("`nope` not found");
    fixture.run(["why", "/source", "--if-forgotten", "latest,nope"]).code(1).says("`nope` not found");
    let session = containers(&fixture)[0].split('/').next().unwrap().to_owned();
    let several = containers(&fixture).iter().filter(|id| id.starts_with(&session)).count();
    let ran = fixture.run(["why", &session[..20]]);
    if 1 < several {
        ran.code(1).says("several ids begin like that");
    }
    // A container that was set aside.
    let data = containers(&fixture)[0].clone();
    fixture.run(["repair", "containers", "--quarantine", &data]).code(0);
    assert_eq!(why(&fixture, &[&data])["state"], "quarantined");
    assert!(fixture.run(["why", &data]).code(0).stdout().contains("set aside as damaged"));
    // Lost metadata.
    let directory = fixture.path("repository").join("containers");
    for session in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        for file in fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path()) {
            if file.file_name().unwrap().to_string_lossy().starts_with('m') {
                fs::remove_file(file).unwrap();
            }
        }
    }
    let lost = fixture.run(["why", "/source/changes"]).code(1).says("cannot be read");
    assert_eq!(lost.stdout(), "");
    fixture.run(["why", "/source", "--json"]).code(1);
}

#[test]
fn a_file_that_was_left_out_is_gone_after_a_prune_that_lets_nothing_unused_stay() {
    let fixture = Fixture::new();
    for number in 0..20 {
        fixture.write(&format!("file-{number:02}"), &noise(number, 20_000));
    }
    fixture.write("file-07-secret", &noise(100, 2000));
    fixture.run(["backup", "source", "-q"]).code(0);
    let chunk = chunk_of(&fixture, "latest:/source", "file-07-secret");
    let is_stored = || fixture.run(["list", "blobs"]).code(0).stdout().contains(&chunk);
    fixture.run(["rewrite", "--exclude", "/source/file-07-secret", "--forget", "-q"]).code(0);
    assert_eq!(why(&fixture, &[&chunk])["holders"], 0);
    assert!(fixture.run(["why", &chunk]).code(0).stdout().contains("no snapshot holds it"));
    // It stands in a region of which almost everything is needed, and that a prune usually stores again as it is.
    fixture.run(["prune", "--max-unused", "1", "-q"]).code(0);
    assert!(is_stored());
    fixture.run(["prune", "--max-unused", "0", "-q"]).code(0);
    assert!(!is_stored());
    fixture.run(["why", &chunk]).code(1).says("no chunk");
    let exclusive = fixture.run(["stats", "--mode", "exclusive", "--json"]).code(0).json();
    assert_eq!(exclusive["unneeded"]["chunks"], 0);
    assert!(fixture.run(["prune", "--max-unused", "0"]).code(0).stdout().contains("nothing was removed"));
    fixture.run(["check", "--read-data"]).code(0);
    let target = fixture.path("restored");
    fixture.run(["restore", "latest:/source", "--target", target.to_str().unwrap()]).code(0);
    assert_eq!(fs::read(target.join("file-13")).unwrap(), noise(13, 20_000));
    assert!(!target.join("file-07-secret").exists());
}
