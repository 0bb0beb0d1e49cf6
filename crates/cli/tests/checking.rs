//! `check`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::fixture::{Fixture, contents};

#[test]
fn damage_is_named_with_the_files_it_hits() {
    let fixture = Fixture::encrypted();
    fixture.write("file", &vec![9; 50_000]);
    fixture.run(["backup", "source", "-q"]).code(0);
    let sound = fixture.run(["check", "--read-data", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&sound["message_type"], &sound["num_errors"]), (&"summary".into(), &0.into()));
    assert!(sound["bytes_read"].as_u64().unwrap() > 0);
    assert!(fixture.run(["check"]).code(0).stdout().contains("no errors were found"));
    fixture.run(["check", "--read-data-subset", "some"]).code(1).says("n/m");

    // Every container, in its middle.
    let root = fixture.path("repository/containers");
    for (path, bytes) in contents(&root).into_iter().filter_map(|(path, bytes)| Some((path, bytes?))) {
        let file = OpenOptions::new().write(true).open(root.join(&path)).unwrap();
        let middle = bytes.len() / 4;
        file.write_all_at(&[!bytes[middle]], middle as u64).unwrap();
    }
    assert!(fs::read_dir(&root).unwrap().count() > 0);
    let damaged = fixture.run(["check", "--read-data", "--json"]).code(1);
    assert!(damaged.messages().pop().unwrap()["num_errors"].as_u64().unwrap() > 0);
    let stderr = damaged.stderr();
    let first: serde_json::Value = serde_json::from_str(stderr.lines().next().unwrap()).unwrap();
    assert_eq!(first["message_type"], "error");
    assert!(first["message"].as_str().unwrap().contains("containers/"), "{first}");
    assert_eq!(damaged.last_error()["code"], 1);
}
