//! `forget`: by name, by policy, and what it asks about.

use serde_json::Value;

use crate::fixture::{Fixture, Ran};

/// Makes a snapshot of each time, oldest first. Returns their ids.
fn snapshots(fixture: &Fixture, times: &[&str]) -> Vec<String> {
    let backed_up = times.iter().map(|time| {
        let arguments = ["backup", "source", "--host", "h", "--json", "--time", time];
        fixture.run(arguments).code(0).messages().pop().unwrap()["snapshot_id"].as_str().unwrap().to_owned()
    });
    backed_up.collect()
}

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    fixture
}

/// Returns the short ids of the listed snapshots.
fn listed(fixture: &Fixture) -> Vec<String> {
    ids(&fixture.run(["snapshots", "--json"]).code(0).json())
}

fn ids(snapshots: &Value) -> Vec<String> {
    let snapshots = snapshots.as_array().map(Vec::as_slice).unwrap_or_default();
    snapshots.iter().map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
}

/// Days of November 2024, several with two snapshots.
const DAYS: [&str; 6] = [
    "2024-11-01 10:00:00",
    "2024-11-01 12:00:00",
    "2024-11-02 10:00:00",
    "2024-11-02 12:00:00",
    "2024-11-03 10:00:00",
    "2024-11-04 10:00:00",
];

#[test]
fn a_policy_is_tried_out_and_carried_out() {
    let fixture = fixture();
    let ids_of = snapshots(&fixture, &DAYS);
    let policy = ["forget", "--keep-daily", "2", "--keep-last", "1"];
    let dry = fixture.run(policy.iter().chain(&["--dry-run"])).code(0);
    let text = dry.stdout();
    for line in
        ["keep 2 snapshots:", "remove 4 snapshots:", "would forget 4 snapshots", "daily snapshot", "last snapshot"]
    {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    dry.says("Applying Policy: keep 1 latest, 2 daily snapshots");
    assert_eq!(listed(&fixture), ids_of);
    let groups = fixture.run(policy.iter().chain(&["--json"])).code(0).json();
    let [group] = groups.as_array().unwrap().as_slice() else { panic!("{groups}") };
    assert_eq!((&group["tags"], &group["host"]), (&Value::Null, &Value::from("h")));
    assert_eq!(group["paths"], serde_json::json!([fixture.path("source")]));
    let newest_first = |range: std::ops::Range<usize>| ids_of[range].iter().rev().cloned().collect::<Vec<_>>();
    assert_eq!((ids(&group["keep"]), ids(&group["remove"])), (newest_first(4..6), newest_first(0..4)));
    assert_eq!(group["reasons"][0]["matches"], serde_json::json!(["last snapshot", "daily snapshot"]));
    assert_eq!(group["reasons"][1]["matches"], serde_json::json!(["daily snapshot"]));
    assert_eq!(group["reasons"][1]["snapshot"]["id"], Value::from(ids_of[4].clone()));
    assert_eq!(listed(&fixture), ids_of[4..]);
    let again = fixture.run(policy.iter().chain(&["--json"])).code(0).json();
    assert_eq!(again[0]["remove"], Value::Null);
    fixture.run(["check", "--read-data"]).code(0);
    fixture.run(["backup", "source", "--host", "h", "-q"]).code(0);
    assert_eq!(listed(&fixture).len(), 3);
}

#[test]
fn snapshots_are_forgotten_by_name_and_twice() {
    let fixture = fixture();
    let ids = snapshots(&fixture, &DAYS);
    fixture.run(["forget", &ids[0][..12], &ids[1], "--dry-run"]).code(0);
    assert_eq!(listed(&fixture), ids);
    fixture.run(["forget", &ids[0][..12], &ids[1], &ids[0]]).code(0).says("forgot 2 snapshots");
    assert_eq!(listed(&fixture), ids[2..]);
    fixture.run(["forget", &ids[0]]).code(0).says("was forgotten before");
    fixture.run(["forget", "latest", "--host", "h"]).code(0);
    assert_eq!(listed(&fixture), ids[2..5]);
    fixture.run(["forget", "nonsense"]).code(1).says("not found");
    fixture.run(["forget", &ids[2], "nonsense"]).code(1).says("not found");
    fixture.run(["forget", &format!("{}:/etc", ids[2])]).code(1).says("not found");
    assert_eq!(listed(&fixture), ids[2..5], "nothing is forgotten unless all names mean something");
    fixture.run(["restore", &ids[0], "--target", "target"]).code(1).says("not found");
}

#[test]
fn wrong_uses_are_refused_before_anything_is_forgotten() {
    let fixture = fixture();
    let ids = snapshots(&fixture, &DAYS[..2]);
    fixture.run(["forget"]).code(1).says("no policy was specified");
    fixture.run(["forget", "--keep-last", "0"]).code(1).says("no policy was specified");
    fixture.run(["forget", &ids[0], "--keep-last", "1"]).code(1).says("not both");
    fixture.run(["forget", "--keep-last", "-1"]).code(1);
    fixture.run(["forget", "--keep-last", "many"]).code(1).says("unlimited");
    fixture.run(["forget", "--keep-within", "1w"]).code(1).says("1y5m7d2h");
    fixture.run(["forget", "--keep-tag", "x"]).code(1).says("no rule keeps any snapshot of (host [h]");
    fixture.run(["forget", "--keep-tag", "x", "--dry-run", "--force"]).code(1).says("no rule keeps any");
    assert_eq!(listed(&fixture), ids);
    fixture.run(["forget", "--keep-last", "unlimited"]).code(0).says("no snapshots were forgotten");
    fixture.run(["forget", "--keep-last", "1", "--host", "other"]).code(0).says("no snapshots were forgotten");
}

#[test]
fn a_large_part_of_a_group_needs_force() {
    let fixture = fixture();
    let times: Vec<String> = (1..=10).map(|day| format!("2024-11-{day:02} 10:00:00")).collect();
    let ids = snapshots(&fixture, &times.iter().map(String::as_str).collect::<Vec<_>>());
    let policy = ["forget", "--keep-last", "2"];
    fixture.run(policy.iter().chain(&["--dry-run"])).code(0).says("8 of 10 snapshots would be forgotten; without");
    fixture.run(policy).code(1).says("nothing was forgotten; --force does it");
    assert_eq!(listed(&fixture), ids);
    fixture.run(policy.iter().chain(&["--force"])).code(0).says("forgot 8 snapshots");
    assert_eq!(listed(&fixture), ids[8..]);
}

#[test]
fn a_snapshot_with_a_doubtful_time_is_kept_and_counts_for_nothing() {
    let fixture = fixture();
    fixture.run(["backup", "source", "--host", "h", "-q"]).code(0);
    let ids = listed(&fixture);
    let strange = snapshots(&fixture, &["2099-01-01 00:00:00", "1970-01-02 00:00:00"]);
    let policy = ["forget", "--keep-last", "1"];
    let run: Ran = fixture.run(policy).code(0).says("2 snapshots with a doubtful time");
    let text = run.stdout();
    assert!(text.contains("doubtful time: in the future") && text.contains("doubtful time: before 2020"), "{text}");
    let all = [strange[1].clone(), ids[0].clone(), strange[0].clone()];
    assert_eq!(listed(&fixture), all);
    // Trusted, the future comes first.
    fixture.run(policy.iter().chain(&["--trust-times", "--force"])).code(0);
    assert_eq!(listed(&fixture), all[2..]);
}

#[test]
fn groups_are_chosen_and_snapshots_selected() {
    let fixture = fixture();
    for (host, tag) in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] {
        fixture.run(["backup", "source", "--host", host, "--tag", tag, "-q"]).code(0);
    }
    let groups = |options: &[&str]| {
        let arguments = ["forget", "--keep-last", "1", "--dry-run", "--json"].iter().chain(options);
        let groups = fixture.run(arguments).code(0).json();
        groups.as_array().unwrap().iter().map(|group| ids(&group["keep"]).len() + ids(&group["remove"]).len()).collect()
    };
    let groups = |options: &[&str]| -> Vec<usize> { groups(options) };
    assert_eq!(groups(&[]), [2, 2]);
    assert_eq!(groups(&["--group-by", "tags"]), [2, 2]);
    assert_eq!(groups(&["--group-by", "host,tags"]), [1, 1, 1, 1]);
    assert_eq!(groups(&["--group-by", ""]), [4]);
    assert_eq!(groups(&["--host", "a"]), [2]);
    assert_eq!(groups(&["--tag", "x"]), [1, 1]);
    assert_eq!(groups(&["--path", "source/nothing"]), [0; 0]);
}

#[test]
fn a_snapshot_from_the_future_is_not_taken_silently_by_any_command() {
    let fixture = fixture();
    let future = snapshots(&fixture, &["2099-01-01 00:00:00"]);
    let short = &future[0][..8];
    fixture.run(["backup", "source", "--host", "h", "-q"]).code(0).says("is behind all snapshots").says("2099-01-01");
    fixture.write("file", b"today");
    let says = |ran: Ran| ran.code(0).says(short).says("2099-01-01").says("later than the clock of this host");
    let backed_up = says(fixture.run(["backup", "source", "--host", "h"]));
    assert!(!backed_up.stderr().contains(&format!("using parent snapshot {short}")), "{}", backed_up.stderr());
    assert_eq!(says(fixture.run(["dump", "latest", "/source/file"])).stdout(), "today");
    says(fixture.run(["restore", "latest", "--target", "out", "-q"]));
    says(fixture.run(["ls", "latest", "-q"]));
    let latest = says(fixture.run(["snapshots", "--latest", "1", "--json", "--host", "h"])).json();
    assert_ne!(ids(&latest), future);
    fixture
        .run(["forget", "--keep-last", "1", "-q"])
        .code(0)
        .says(short)
        .says("2099-01-01")
        .says("kept, and not counted");
    assert_eq!(listed(&fixture).len(), 2);
}

#[test]
fn a_policy_counts_the_snapshots_from_before_a_copy_of_the_repository() {
    let fixture = fixture();
    // The repository is older than its snapshots, and was copied after them.
    snapshots(&fixture, &DAYS);
    fixture.run(["backup", "source", "--host", "h", "-q"]).code(0);
    let run = fixture.run(["forget", "--keep-last", "2", "-q", "--force"]).code(0);
    assert!(!run.stderr().contains("doubtful"), "{}", run.stderr());
    assert_eq!(listed(&fixture).len(), 2);
}
