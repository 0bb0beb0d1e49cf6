//! `--accelerator` and `onefold devices`, with the driver of NVIDIA and without. The driver is a library in place of `libcuda.so.1` whose device is the
//! processor; the program finds it as it finds the real one.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Fixture, Ran, contents, noise};

/// A repository, data, and a directory with the driver.
fn prepared() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("large", &noise(1, 1_300_000));
    for number in 0..20u8 {
        fixture.write(&format!("small/{number}"), &noise(2 + u64::from(number), 3000 * usize::from(number)));
    }
    std::fs::create_dir(fixture.path("driver")).unwrap();
    std::fs::copy(onefold_accel::device::cuda::STAND_IN, fixture.path("driver/libcuda.so.1")).unwrap();
    fixture
}

/// Runs a command with the driver, which has the faults.
fn with_driver(fixture: &Fixture, faults: &str, arguments: &[&str]) -> Ran {
    let mut command: Command = fixture.command(arguments);
    command.env("LD_LIBRARY_PATH", fixture.path("driver")).env("ONEFOLD_STANDIN_FAULTS", faults);
    Ran(command.output().unwrap())
}

fn backup(fixture: &Fixture, faults: &str, accelerator: &str) -> Ran {
    let arguments = ["backup", "source", "--force", "--json", "--memory", "1G", "--accelerator", accelerator];
    with_driver(fixture, faults, &[&arguments[..], &["--accelerator-check", "all"]].concat())
}

fn summary(ran: &Ran) -> Value {
    ran.messages().pop().unwrap()
}

/// Restores the newest snapshot and compares it with the source.
fn assert_restores(fixture: &Fixture, name: &str) {
    fixture.run(["restore", "latest:source", "--target", name, "-q"]).code(0);
    let mut expected: Vec<(PathBuf, _)> = contents(&fixture.path("source"));
    let mut restored = contents(&fixture.path(name));
    expected.sort();
    restored.sort();
    assert!(expected == restored, "{name}");
}

#[test]
fn without_a_driver_cuda_is_an_error_before_anything_is_done_and_auto_says_nothing() {
    let fixture = Fixture::new();
    fixture.write("file", b"data");
    let before = contents(&fixture.path("repository"));
    let refused = fixture.run(["backup", "source", "--memory", "1G", "--accelerator", "cuda"]);
    refused.code(1).says("cuda:0 cannot be used: there is no driver for NVIDIA GPUs");
    fixture.run(["backup", "source", "--accelerator", "cuda"]).code(1).says("needs a memory budget of 1024 MiB");
    fixture.run(["backup", "source", "--accelerator", "gpu"]).code(1).says("possible are auto, cpu, cuda and cuda:N");
    fixture.run(["check", "--memory", "1G", "--accelerator", "cuda:1"]).code(1).says("cuda:1 cannot be used");
    assert!(before == contents(&fixture.path("repository")), "nothing was written");
    let ran = fixture.run(["backup", "source", "--memory", "2G", "--accelerator", "auto", "--json"]).code(0);
    assert_eq!(ran.stderr(), "");
    assert_eq!(summary(&ran).get("accelerator"), None);
    let mut command = fixture.command(["backup", "source", "--memory", "1G"]);
    let refused = Ran(command.env("ONEFOLD_ACCELERATOR", "cuda").output().unwrap());
    refused.code(1).says("there is no driver for NVIDIA GPUs");
}

#[test]
fn devices_are_listed_with_what_is_missing_and_with_their_self_test() {
    let fixture = prepared();
    let listed = fixture.run(["devices"]).code(0).stdout();
    assert!(
        listed.contains("processor: boundaries by Serial") && listed.contains("no device: there is no driver"),
        "{listed}"
    );
    let listed = fixture.run(["devices", "--json"]).code(0).json();
    assert_eq!(listed["devices"], Value::Array(Vec::new()));
    assert!(listed["missing"].as_str().unwrap().contains("no driver"));
    let listed = with_driver(&fixture, "", &["devices"]).code(0).stdout();
    assert!(listed.contains("cuda:0: the processor, compute capability 9.0, 1.000 GiB, CUDA 12.9: passed"), "{listed}");
    // The third launch lies.
    let listed = with_driver(&fixture, "0 0 3", &["devices", "--json"]).code(1).json();
    let device = &listed["devices"][0];
    assert_eq!((device["is_usable"].as_bool(), device["accelerator"].as_str()), (Some(false), Some("cuda:0")));
    assert!(device["fault"].as_str().unwrap().contains("the device's kernel"), "{device}");
}

#[test]
fn a_backup_with_the_driver_makes_the_same_snapshot_and_its_faults_cost_one_line() {
    let fixture = prepared();
    let first = summary(&backup(&fixture, "", "cuda").code(0));
    let accelerator = &first["accelerator"];
    assert_eq!((accelerator["name"].as_str(), accelerator["faults"].as_u64()), (Some("the processor"), Some(0)));
    assert!(1_300_000 < accelerator["bytes"].as_u64().unwrap() && 0 < accelerator["batches"].as_u64().unwrap());
    assert_restores(&fixture, "restored");
    let new_chunks = |ran: &Ran| summary(ran)["chunks_unique"].as_u64().unwrap();
    let ran = backup(&fixture, "", "cpu").code(0);
    assert_eq!((new_chunks(&ran), ran.stderr().as_str()), (0, ""), "names and cuts are those of the processor");
    // The self-test has 71 launches, and copies no results on streams: a launch, a copy, a wrong byte, and calls of the backup itself.
    for faults in
        ["0 0 72", "0 0 0 74", "0 0 0 0 1", "0 0 0 0 2", "0 0 0 0 0 1 8", "0 0 0 0 0 2 100", "1850 719", "2000 2"]
    {
        let ran = with_driver(
            &fixture,
            faults,
            &[
                "backup",
                "source",
                "--force",
                "--memory",
                "1G",
                "--accelerator",
                "cuda",
                "--accelerator-check",
                "all",
                "-v",
            ],
        );
        let ran = ran.code(0);
        let lines = ran.stderr().lines().filter(|line| line.contains("is not used any more")).count();
        assert!(lines <= 1, "{faults}: {}", ran.stderr());
        assert!(ran.stdout().contains("Data chunks:      0 new"), "{faults}: {}", ran.stdout());
    }
    let ran = backup(&fixture, "0 0 0 0 1", "cuda").code(0);
    assert_eq!((summary(&ran)["accelerator"]["faults"].as_u64(), new_chunks(&ran)), (Some(1), 0));
    assert_restores(&fixture, "again");
}

#[test]
fn a_device_that_hangs_in_a_backup_costs_one_line() {
    let fixture = prepared();
    // The self-test and opening a queue ask about 320 times whether work is done.
    let arguments = ["backup", "source", "--memory", "1G", "--accelerator", "cuda"];
    let ran = with_driver(&fixture, "0 0 0 0 0 0 0 340", &arguments).code(0);
    let lines: Vec<String> = ran.stderr().lines().filter(|line| line.contains("device")).map(str::to_owned).collect();
    let expected = "is not used any more: the device has not answered for 30 s; the processor does all of its work";
    assert!(lines.len() == 1 && lines[0].ends_with(expected), "{}", ran.stderr());
    assert_restores(&fixture, "restored");
}

#[test]
fn a_check_with_the_driver_finds_what_one_without_finds() {
    let fixture = prepared();
    fixture.run(["backup", "source", "-q"]).code(0);
    let check = |faults: &str| {
        let arguments = ["check", "--read-data", "--json", "--memory", "1G", "--accelerator", "cuda"];
        with_driver(&fixture, faults, &arguments)
    };
    let sound = summary(&check("").code(0));
    assert!(1_300_000 <= sound["accelerator"]["bytes"].as_u64().unwrap(), "{sound}");
    let without = summary(&fixture.run(["check", "--read-data", "--json"]).code(0));
    assert_eq!(sound["chunks_read"], without["chunks_read"]);
    let failed = summary(&check("0 0 0 0 1").code(0));
    assert_eq!(failed["accelerator"]["faults"].as_u64(), Some(1), "{failed}");
    // A byte of the largest container.
    let mut files = contents(&fixture.path("repository/containers"));
    files.sort_by_key(|(_, bytes)| bytes.as_ref().map_or(0, Vec::len));
    let (path, bytes) = files.pop().unwrap();
    let mut bytes = bytes.unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let path = fixture.path("repository/containers").join(path);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let findings = |ran: Ran| ran.code(1).stderr();
    assert_eq!(findings(check("")), findings(fixture.run(["check", "--read-data", "--json"])));
}

#[cfg(feature = "lab")]
#[test]
fn a_trace_recorded_with_the_driver_equals_one_without() {
    let fixture = prepared();
    for (number, options) in
        [&["--hash", "sha1"][..], &["--hash", "sha256"], &["--hash", "blake3"], &["--repo", "repository"]]
            .into_iter()
            .enumerate()
    {
        let record = |name: &str, accelerator: &str| {
            let trace = format!("{name}-{number}");
            let base = ["lab", "record", &trace, "source", "--memory", "1G", "--json", "--accelerator", accelerator];
            let ran = with_driver(&fixture, "", &[&base[..], options].concat()).code(0);
            (std::fs::read(fixture.path(&trace)).unwrap(), summary(&ran))
        };
        let (without, _) = record("cpu", "cpu");
        let (with, summary) = record("cuda", "cuda");
        assert!(without == with, "{options:?}");
        assert!(1_300_000 < summary["accelerator"]["bytes"].as_u64().unwrap(), "{options:?}: {summary}");
    }
}
