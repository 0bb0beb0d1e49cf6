//! `lab run`, `lab presets`, `lab paper`, `lab scaling`: ways of finding duplicates, on traces and in experiments.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use onefold_engine::inspect::read_chunk;
use onefold_engine::io::Host;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::monitor::Silent;
use onefold_engine::object::ObjectStore;
use onefold_engine::object::directory::DirectoryStore;
use onefold_engine::store::metadata::Scratch;
use onefold_engine::store::{self, Unlock};
use onefold_engine::types::ChunkKind;
use onefold_lab::trace::{Event, Events, file};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Returns what a table of findings has in the row of a title.
fn row<'a>(findings: &'a Value, title: &str) -> &'a [Value] {
    let rows = findings["tables"][0]["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row[0] == title).unwrap_or_else(|| panic!("no {title:?} in {rows:?}"));
    &row.as_array().unwrap()[1..]
}

#[test]
fn every_preset_finds_the_same_chunks_of_a_trace() {
    let fixture = Fixture::without_repository(None);
    let synth = ["lab", "synth", "trace", "--objects", "300", "--versions", "3", "--modified", "0.3", "--json"];
    let made = fixture.run(synth).code(0).json();
    let described = fixture.run(["lab", "describe", "trace", "--json"]).code(0).json();
    let presets = [
        "adaptive",
        "lazy",
        "eager",
        "exhaustive",
        "ddfs",
        "edpl",
        "chunkstash",
        "blc",
        "edll",
        "dedupcdp",
        "pm-oblivious",
        "pm-buffer-f",
        "pm-buffer-l",
    ];
    let mut run = vec!["lab", "run", "trace", "--device", "nvme", "--json", "--scratch", ".", "--one-session"];
    for preset in presets {
        run.extend(["--preset", preset]);
    }
    let found = fixture.run(&run).code(0).json();
    assert_eq!(found["message_type"], "findings");
    let unique = described["chunks"].as_u64().unwrap() - described["duplicate_chunks"].as_u64().unwrap();
    assert_eq!(row(&found, "unique chunks"), vec![json!(unique); presets.len()]);
    assert!(unique < made["chunks"].as_u64().unwrap());
    // Nothing is left of the runs.
    let left: Vec<_> = fs::read_dir(fixture.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("onefold-lab-")), "{left:?}");
    let text = fixture.run(["lab", "run", "trace", "--device", "hdd"]).code(0);
    assert!(text.stdout().contains("unique chunks") && text.stdout().contains("adaptive, hdd"), "{}", text.stdout());
    let csv = fixture.run(["lab", "run", "trace", "--device", "hdd", "--csv"]).code(0);
    assert!(csv.stdout().lines().count() > 10, "{}", csv.stdout());
}

#[test]
fn each_version_is_a_session_with_figures_of_its_own() {
    let fixture = Fixture::without_repository(None);
    let synth = ["lab", "synth", "trace", "--objects", "100", "--versions", "3", "--modified", "0.3", "--json"];
    fixture.run(synth).code(0);
    let described = fixture.run(["lab", "describe", "trace", "--json"]).code(0).json();
    // A smaller filter than that of the presets: it is written after each session.
    let sizes = ["--set", "memory=256M", "--set", "filter-size=8M"];
    let run = ["lab", "run", "trace", "--device", "ssd", "--preset", "eager", "--preset", "lazy", "--json"];
    let run: Vec<_> = run.into_iter().chain(sizes).collect();
    let found = fixture.run(&run).code(0).json();
    let tables = found["tables"].as_array().unwrap();
    let titles: Vec<_> = tables.iter().map(|table| table["title"].as_str().unwrap()).collect();
    assert_eq!(titles[1..], ["Versions, eager, ssd", "Versions, lazy, ssd"]);
    for (table, run) in tables[1..].iter().zip(0..) {
        let columns: Vec<_> = table["columns"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        let column = |title: &str| -> Vec<f64> {
            let at =
                columns.iter().position(|column| *column == title).unwrap_or_else(|| panic!("{title}: {columns:?}"));
            table["rows"].as_array().unwrap().iter().map(|row| row[at].as_f64().unwrap()).collect()
        };
        assert_eq!(column("version"), [0.0, 1.0, 2.0]);
        let chunks: Vec<_> = (0..3).map(|version| described["versions"][version]["chunks"].as_f64().unwrap()).collect();
        assert_eq!(column("chunks"), chunks);
        for title in ["lookups", "windows", "unique chunks", "unique GB", "MiB read", "seconds", "of which device, s"] {
            let (sum, all) = (column(title).iter().sum::<f64>(), row(&found, title)[run].as_f64().unwrap());
            assert!((sum - all).abs() < 1e-6, "{title}: {sum}, not {all}");
        }
        // Nothing of the first version is known, and most of the others.
        let ratios = column("ratio");
        assert!(ratios[0] < 1.5 && ratios[1..].iter().all(|ratio| 2.0 < *ratio), "{ratios:?}");
        let per_gb: Vec<_> = column("lookups").iter().zip(column("GB")).map(|(lookups, gb)| lookups / gb).collect();
        assert!(
            column("lookups per GB").iter().zip(per_gb).all(|(one, other)| (one - other).abs() < 1e-6 * other.max(1.0))
        );
        // The cache is cold.
        assert!(column("windows")[1..].iter().all(|windows| 0.0 < *windows), "{table}");
    }
    // Text and CSV have the same rows.
    let other = |format: &'static str| {
        let run = run.iter().map(|word| if *word == "--json" { format } else { word });
        fixture.run(run.filter(|word| !word.is_empty())).code(0).stdout()
    };
    let (text, csv) = (other(""), other("--csv"));
    for title in &titles[1..] {
        let after = text.split(title).nth(1).unwrap_or_else(|| panic!("no {title} in {text}"));
        let versions = after.lines().filter(|line| line.trim_start().starts_with(['0', '1', '2'])).take(3);
        assert_eq!(versions.count(), 3, "{text}");
        assert_eq!(csv.lines().filter(|line| line.starts_with(&format!("\"{title}\","))).count(), 3, "{csv}");
    }
    // A smaller cache and filter answer less, and the same chunks are unique.
    let scaled = fixture.run(run.iter().copied().chain(["--scale", "512"])).code(0).json();
    assert_eq!(row(&scaled, "unique chunks"), row(&found, "unique chunks"));
    let memory = |findings: &Value| row(findings, "memory, MiB")[0].as_f64().unwrap();
    assert!(memory(&scaled) < memory(&found) / 2.0, "{} and {}", memory(&scaled), memory(&found));
    assert!(scaled["notes"].to_string().contains("divided by 512"), "{}", scaled["notes"]);
    fixture.run(run.iter().copied().chain(["--scale", "513"])).code(1).says("1..=512");
    let one = fixture.run(run.into_iter().chain(["--one-session"])).code(0).json();
    assert_eq!(one["tables"].as_array().unwrap().len(), 1);
    assert_eq!(row(&one, "unique chunks"), row(&found, "unique chunks"));
}

#[test]
fn regret_is_measured_on_traces_and_adversarial_streams() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["lab", "synth", "trace", "--objects", "50", "--versions", "2", "--modified", "0.3"]).code(0);
    let regret = ["lab", "regret", "trace", "--adversarial", "3,5-6", "--chunks", "3000", "--device", "hdd"];
    let options = ["--device", "ssd", "--scale", "64", "--windows", "64,2048"];
    let run = || regret.into_iter().chain(options);
    let found = fixture.run(run().chain(["--output", "results", "--json"])).code(0).json();
    assert_eq!((&found["message_type"], &found["experiment"]), (&json!("findings"), &json!("regret")));
    let rows = found["tables"][0]["rows"].as_array().unwrap();
    let cells: Vec<_> = rows.iter().map(|row| [row[0].as_str().unwrap(), row[1].as_str().unwrap()]).collect();
    let sources = ["trace", "adversarial 3", "adversarial 5", "adversarial 6"];
    assert_eq!(cells, sources.into_iter().flat_map(|source| [[source, "hdd"], [source, "ssd"]]).collect::<Vec<_>>());
    // Adaptive, and four schedules with three rules for windows, in each cell.
    assert_eq!(found["tables"][1]["rows"].as_array().unwrap().len(), 8 * (1 + 4 * 3));
    for name in ["regret.json", "regret.csv", "report.html"] {
        assert!(fixture.path("results").join(name).exists(), "{name}");
    }
    let text = fixture.run(run()).code(0);
    assert!(text.stdout().contains("adversarial 5") && text.stdout().contains("Regret: at worst"), "{}", text.stdout());
    assert!(!text.stdout().contains("All runs"), "{}", text.stdout());
    assert!(text.stderr().contains("trace on hdd: regret "), "{}", text.stderr());
    for (arguments, sentence) in [
        (vec!["regret"], "TRACE"),
        (vec!["regret", "--adversarial", "3-1"], "a range of 1 to 10000 seeds"),
        (vec!["regret", "--adversarial", "1", "--chunks", "0"], "--chunks"),
        (vec!["regret", "trace", "--set", "schedule=pool"], "schedule: contenders differ in it"),
        (vec!["regret", "trace", "--windows", "none"], "--windows"),
        (vec!["regret", "nothing", "--device", "ssd"], "nothing: No such file"),
        (vec!["regret", "trace", "--output", "results"], "regret.json: File exists"),
    ] {
        let refused = fixture.run([vec!["lab"], arguments.clone()].concat()).code(1);
        assert!(refused.stderr().contains(sentence), "{arguments:?}: {}", refused.stderr());
    }
}

#[test]
fn threads_and_the_sequencer_are_measured_and_wrong_sizes_are_refused() {
    let fixture = Fixture::without_repository(None);
    let scaling = [
        "lab",
        "scaling",
        "--threads",
        "1,256",
        "--bytes",
        "4M",
        "--chunks",
        "3000",
        "--rounds",
        "1",
        "--scratch",
        ".",
    ];
    let found = fixture.run(scaling.into_iter().chain(["--output", "results", "--json"])).code(0).json();
    assert_eq!((&found["message_type"], &found["experiment"]), (&json!("findings"), &json!("scaling")));
    let rows = found["tables"][0]["rows"].as_array().unwrap();
    assert!(rows.len() == 1 && rows[0].as_array().unwrap().iter().all(|cell| 0.0 < cell.as_f64().unwrap()), "{rows:?}");
    assert!(found["notes"].to_string().contains("larger numbers were left out"), "{}", found["notes"]);
    for name in ["scaling.json", "scaling.csv", "report.html"] {
        assert!(fixture.path("results").join(name).exists(), "{name}");
    }
    let text = fixture.run(scaling).code(0);
    assert!(text.stdout().contains("submit, known chunks"), "{}", text.stdout());
    let csv = fixture.run(scaling.into_iter().chain(["--csv"])).code(0);
    assert!(csv.stdout().contains("\"Sequencer alone, chunks of 8192 bytes\","), "{}", csv.stdout());
    // Nothing is left of the runs.
    let entries = fs::read_dir(fixture.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = entries.filter(|name| name.to_string_lossy().starts_with("onefold-lab-")).collect();
    assert!(left.is_empty(), "{left:?}");
    for (arguments, sentence) in [
        (["--threads", "0"], "--threads: 1 to 256, not 0"),
        (["--average", "5000"], "--average: 512 to 65536 bytes, a power of two"),
        (["--bytes", "1K"], "--bytes: at least"),
        (["--bytes", "x"], "--bytes"),
        (["--output", "results"], "scaling.json: File exists"),
        (["--scratch", "nothing"], "nothing"),
    ] {
        let refused = fixture.run(["lab", "scaling"].into_iter().chain(arguments)).code(1);
        assert!(refused.stderr().contains(sentence), "{arguments:?}: {}", refused.stderr());
    }
}

#[test]
fn a_directory_that_is_recorded_and_replayed_has_exactly_the_unique_chunks_that_its_backup_stores() {
    let fixture = Fixture::new();
    let large: Vec<u8> = (0..250_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fixture.write("large", &large);
    fixture.write("copy", &[&large[..400_000], b"something else", &large[400_000..]].concat());
    (0..100).for_each(|number| fixture.write(&format!("small/{number}"), &large[number * 100..number * 150]));
    let repository = fixture.path("repository");
    fixture.run(["lab", "record", "trace", "source", "--repo", repository.to_str().unwrap()]).code(0);
    let names = names_in_trace(&fixture.path("trace"));
    let run = ["lab", "run", "trace", "--device", "ssd", "--preset", "lazy", "--preset", "adaptive", "--json"];
    let found = fixture.run(run).code(0).json();
    // The same set of names, unless sums of random numbers of 128 bits agree by accident.
    let sum =
        names.iter().fold(0_u128, |sum, name| sum.wrapping_add(u128::from_le_bytes(*name.first_chunk().unwrap())));
    assert_eq!(row(&found, "unique chunks"), [json!(names.len()), json!(names.len())]);
    assert!(found["notes"][1].as_str().unwrap().contains(&format!(" {sum:032x} ")), "{sum:032x}: {found}");
    fixture.run(["backup", "source"]).code(0);
    assert_eq!(names_in_repository(&repository), names);
    assert!(150 < names.len(), "{}", names.len());
}

/// Returns the names of the chunks that a trace has, each once: 20 bytes of each.
fn names_in_trace(trace: &Path) -> BTreeSet<[u8; 20]> {
    let (_, mut events) = file::open(trace).unwrap();
    let mut names = BTreeSet::new();
    while let Some(event) = events.next_event().unwrap() {
        if let Event::Chunk(chunk) = event {
            names.insert(chunk.hash);
        }
    }
    names
}

/// Returns the names of the chunks of files that the containers of an unencrypted repository hold, cut to 20 bytes.
fn names_in_repository(directory: &Path) -> BTreeSet<[u8; 20]> {
    let objects: Arc<dyn ObjectStore> = Arc::new(DirectoryStore::new(Arc::new(OsDisk::new(directory.to_path_buf()))));
    let host: Arc<dyn Host> = Arc::new(OsHost::new());
    let store = store::open(&objects, &host, Unlock::Unencrypted).unwrap();
    let mut names = BTreeSet::new();
    let scratch = Scratch::default();
    for container in store.list_containers(&scratch).unwrap().names() {
        for chunk in store.open_container(&container.unwrap()).unwrap().directory.chunks {
            let fingerprint = chunk.fingerprint.unwrap();
            if read_chunk(&store, &scratch, fingerprint, &Silent).unwrap().kind == ChunkKind::Data {
                assert!(names.insert(*fingerprint.0.first_chunk().unwrap()), "{fingerprint} is stored twice");
            }
        }
    }
    names
}

#[test]
fn what_does_not_exist_is_refused_with_the_nearest_name() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["lab", "synth", "trace", "--objects", "3"]).code(0);
    for (arguments, sentence) in [
        (vec!["run", "trace", "--preset", "lasy"], "there is no preset \"lasy\"; did you mean \"lazy\"?"),
        (
            vec!["run", "trace", "--set", "treshold=3"],
            "there is no dimension \"treshold\"; did you mean \"threshold\"?",
        ),
        (vec!["run", "trace", "--set", "schedule=never"], "it takes eager, lazy, pool, exhaustive, adaptive"),
        (vec!["run", "trace", "--set", "store=cuckoo"], "take schedule=eager"),
        (vec!["run", "trace", "--set", "memory=2M"], "more than 2 MiB"),
        (vec!["run", "trace", "--device", "nmve"], "there is no device \"nmve\"; did you mean \"nvme\"?"),
        (vec!["run", "nothing"], "nothing: No such file"),
        (vec!["run", "trace", "--scratch", "nowhere"], "nowhere"),
        (vec!["run", "trace", "--preset", "/dev/zero"], "/dev/zero: not a regular file"),
        (vec!["run", "/dev/zero"], "/dev/zero: not a regular file"),
        (vec!["paper", "--quick"], "name experiments, or all"),
        (vec!["paper", "lazy-table-33"], "there is no experiment \"lazy-table-33\"; did you mean \"lazy-table-3\"?"),
        (vec!["paper", "all", "crossover"], "name no other experiment with it"),
        (vec!["paper", "lazy-table-3", "--data-set", "vn"], "there is no data set \"vn\"; did you mean \"vm\"?"),
        (
            vec!["paper", "lazy-table-3", "--data-set", "pm-src"],
            "lazy-table-3 has none of those; it has vm, src, fslhomes",
        ),
        (vec!["paper", "lazy-figure-13", "--data-set", "vm"], "lazy-figure-13 has none of those; it has none"),
    ] {
        let refused = fixture.run([vec!["lab"], arguments.clone()].concat()).code(1);
        assert!(refused.stderr().contains(sentence), "{arguments:?}: {}", refused.stderr());
    }
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab.md")).unwrap();
    let preset = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    fs::write(fixture.path("documented.toml"), preset).unwrap();
    fixture.run(["lab", "run", "trace", "--preset", "documented.toml", "--device", "ssd"]).code(0);
    // A data set as documented, and one that cannot be, which is named with its field.
    let data_set = page.split("```toml\n").nth(3).and_then(|rest| rest.split("```").next()).unwrap();
    fs::write(fixture.path("mail.toml"), data_set).unwrap();
    let paper = ["lab", "paper", "lazy-table-6", "--fraction", "2000", "--data-set"];
    let found = fixture.run(paper.into_iter().chain(["mail.toml", "--device", "documented-device.toml"])).code(1);
    assert!(found.stderr().contains("documented-device.toml: No such file"), "{}", found.stderr());
    let model = page.split("```toml\n").nth(2).and_then(|rest| rest.split("```").next()).unwrap();
    fs::write(fixture.path("documented-device.toml"), model).unwrap();
    let options = ["mail.toml", "--device", "documented-device.toml", "--json"];
    let found = fixture.run(paper.into_iter().chain(options)).code(0).json();
    let sets: BTreeSet<_> =
        found["tables"][0]["rows"].as_array().unwrap().iter().map(|row| row[0].to_string()).collect();
    assert_eq!(sets.into_iter().collect::<Vec<_>>(), ["\"mail.toml\""]);
    assert!(found["notes"].to_string().contains("mail.toml: 20000 of 30000000 chunks"), "{}", found["notes"]);
    fs::write(fixture.path("mail.toml"), data_set.replace("0.85", "8.5")).unwrap();
    let refused = fixture.run(paper.into_iter().chain(["mail.toml"])).code(1);
    assert!(refused.stderr().contains("mail.toml: duplicates is a share, 0 to 1, not 8.5"), "{}", refused.stderr());
    let device = "about = \"x\"\nsource = \"x\"\nread-latency-us = -1.0\nwrite-latency-us = 1.0\nsync-latency-us = 1.0\n\
                  read-mb-per-s = 1.0\nwrite-mb-per-s = 1.0\nqueue-depth = 1\nsequential-discount = 0.0\n";
    fs::write(fixture.path("mine.toml"), device).unwrap();
    let refused = fixture.run(["lab", "run", "trace", "--device", "mine.toml"]).code(1);
    let expected = "mine.toml: read-latency-us: 0 to 10000000 us, not -1";
    assert!(refused.stderr().contains(expected), "{}", refused.stderr());
    // A trace that is cut short is reported with its position.
    let whole = fs::read(fixture.path("trace")).unwrap();
    fs::write(fixture.path("cut"), &whole[..whole.len() - 3]).unwrap();
    let refused = fixture.run(["lab", "run", "cut", "--device", "ssd"]).code(1);
    assert!(refused.stderr().contains("cut: byte "), "{}", refused.stderr());
}

#[test]
fn an_experiment_says_what_the_paper_states_and_what_is_found() {
    let fixture = Fixture::without_repository(None);
    let listed = fixture.run(["lab", "paper"]).code(0);
    assert!(listed.stdout().contains("lazy-table-3") && listed.stdout().contains("crossover"), "{}", listed.stdout());
    // So small that it is done in seconds.
    let run = ["lab", "paper", "lazy-table-6", "--fraction", "2000", "--output", "results", "--json"];
    let found = fixture.run(run).code(0).json();
    assert_eq!(found["experiment"], "lazy-table-6");
    assert_eq!(found["command"], "onefold lab paper lazy-table-6 --fraction 2000 --json");
    let columns = found["tables"][0]["columns"].as_array().unwrap();
    assert!(columns.contains(&json!("paper")), "{columns:?}");
    let only = ["lab", "paper", "lazy-table-6", "--fraction", "2000", "--data-set", "src", "--json"];
    let only = fixture.run(only).code(0).json();
    let sets =
        |found: &Value| found["tables"][0]["rows"].as_array().unwrap().iter().map(|row| row[0].clone()).collect();
    let (all, one): (Vec<_>, Vec<_>) = (sets(&found), sets(&only));
    assert_eq!((all, one), (vec![json!("vm"), json!("src"), json!("fslhomes")], vec![json!("src")]));
    let written: Value = serde_json::from_slice(&fs::read(fixture.path("results/lazy-table-6.json")).unwrap()).unwrap();
    assert_eq!(written["tables"], found["tables"]);
    let page = fs::read_to_string(fixture.path("results/report.html")).unwrap();
    assert!(page.contains("Duplicates resolved by prelookup and by postlookup"));
    // What is there is not written over, and that shows before anything runs.
    let again = fixture.run(run).code(1);
    assert!(again.stderr().contains("lazy-table-6.json: File exists"), "{}", again.stderr());
    // And what was written is what a report can be made of.
    fixture.run(["lab", "report", "results/lazy-table-6.json", "--output", "page.html"]).code(0);
    let presets = fixture.run(["lab", "presets"]).code(0);
    assert!(presets.stdout().contains("pm-buffer-l"), "{}", presets.stdout());
    let dimensions = fixture.run(["lab", "presets", "--dimensions", "--json"]).code(0);
    assert!(dimensions.stdout().lines().count() > 20, "{}", dimensions.stdout());
}

/// Returns the verdicts of the claims of findings, by what they are about.
fn verdicts(found: &Value) -> Vec<(&str, &str)> {
    let claims = found["claims"].as_array().unwrap().iter();
    claims.map(|claim| (claim["what"].as_str().unwrap(), claim["verdict"].as_str().unwrap())).collect()
}

#[test]
fn hashes_and_ciphers_run_with_and_without_instructions_in_processes_of_their_own() {
    let fixture = Fixture::without_repository(None);
    let found = fixture.run(["lab", "paper", "dedupcdp-figure-7", "--quick", "--json"]).code(0).json();
    let rows = found["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    // On other processors only one code can be measured, and nothing can be shown.
    let is_x86_64 = cfg!(target_arch = "x86_64");
    let columns = found["tables"][0]["columns"].as_array().unwrap();
    assert_eq!(columns.contains(&json!("baseline, MB/s")), is_x86_64, "{columns:?}");
    assert!(rows.iter().all(|row| row[2].as_f64().is_some_and(|rate| 1.0 < rate)), "{rows:?}");
    #[cfg(target_arch = "x86_64")]
    {
        assert!(found["notes"].to_string().contains("baseline has the mask ~0x1258120200000000:~0xffffffffffffffff"));
        let cannot = verdicts(&found).iter().filter(|(_, verdict)| *verdict == "cannot-be-shown").count();
        assert_eq!(cannot, if std::is_x86_feature_detected!("sha") { 0 } else { 3 });
        if std::is_x86_feature_detected!("aes") {
            let found = fixture.run(["lab", "paper", "dedupcdp-figure-8", "--quick", "--json"]).code(0).json();
            // Code without instructions takes several times as long, so that a mask without effect is noticed.
            let rows = found["tables"][0]["rows"].as_array().unwrap();
            assert!(rows.iter().all(|row| row[6].as_f64().is_some_and(|times| 1.5 < times)), "{rows:?}");
        }
    }
}

#[test]
fn kernels_and_fingerprints_are_measured_by_instructions_and_a_device_that_is_not_there_is_not_judged() {
    let fixture = Fixture::without_repository(None);
    let found = fixture.run(["lab", "paper", "instructions", "--quick", "--json"]).code(0).json();
    let rows = found["tables"][0]["rows"].as_array().unwrap();
    let rate = |of: &str, code: &str| {
        let row = rows.iter().find(|row| row[0] == of && row[1] == code);
        row.unwrap_or_else(|| panic!("no {of}, {code} in {rows:?}"))[2].as_f64()
    };
    for of in ["blake3", "gear"] {
        assert!(rate(of, "portable").is_some_and(|rate| 1.0 < rate));
    }
    #[cfg(target_arch = "x86_64")]
    {
        assert!(["sha-1", "sha-256", "aes-256-gcm"].iter().all(|of| rate(of, "baseline").is_some()));
        assert_eq!(rate("gear", "avx2").is_some(), std::is_x86_feature_detected!("avx2"));
        assert_eq!(rate("blake3", "avx-512, many chunks").is_some(), std::is_x86_feature_detected!("avx512f"));
        assert_eq!(rate("blake3", "neon"), None);
    }
    let found = fixture.run(["lab", "paper", "lazy-table-9", "--quick", "--json"]).code(0).json();
    let on_device = found["tables"][0]["rows"].as_array().unwrap().iter().filter(|row| row[1] == "device");
    let on_device: Vec<_> = on_device.collect();
    assert!(on_device.len() == 3 && on_device.iter().all(|row| row[3].is_string()), "{on_device:?}");
    let verdicts = verdicts(&found);
    assert_eq!(
        verdicts[0],
        ("SHA-1 on a device is so many times as fast as in one thread of the processor", "cannot-be-shown")
    );
    assert!(verdicts[2..].iter().any(|(_, verdict)| *verdict != "cannot-be-shown"), "{verdicts:?}");
}

#[test]
fn compressors_and_dumps_are_those_of_the_inputs() {
    let fixture = Fixture::without_repository(None);
    let run = ["lab", "paper", "dedupcdp-figure-9", "dedupcdp-figure-10", "dedupcdp-figure-11", "dedupcdp-figure-12"];
    let text = || run.into_iter().chain(["--quick"]);
    let run = || text().chain(["--json"]);
    let without = fixture.run(run()).code(0);
    for line in without.stdout().lines() {
        let found: Value = serde_json::from_str(line).unwrap();
        assert!(verdicts(&found).iter().all(|(_, verdict)| *verdict == "cannot-be-shown"), "{line}");
    }
    assert_eq!(without.stdout().lines().count(), 4);
    for (name, first) in [("1", 0_u32), ("2", 100_000), ("3", 0)] {
        fixture.write(
            &format!("dumps/{name}"),
            &(first..first + 300_000)
                .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
                .collect::<Vec<_>>(),
        );
    }
    fixture.write("log", b"a line of a log, and another one\n".repeat(1000).as_slice());
    let inputs = ["--input", "dumps=source/dumps", "--input", "common=source", "--input", "dup=source/log"];
    let found: Vec<Value> = fixture
        .run(run().chain(inputs))
        .code(0)
        .stdout()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // LZJB takes more for a log than for noise.
    assert!(found[0]["notes"].to_string().contains("dup: 1 files, 33000 bytes"), "{}", found[0]["notes"]);
    let words: BTreeSet<_> = found[..2].iter().flat_map(verdicts).map(|(_, verdict)| verdict.to_owned()).collect();
    assert!(words.iter().all(|verdict| ["holds", "does-not-hold"].contains(&&**verdict)), "{words:?}");
    let sizes = found[2]["tables"][0]["rows"].as_array().unwrap();
    // Numbers in a row: the second dump has two thirds of the first, at another offset, so its blocks are new; the third one is the first.
    let new: Vec<_> = sizes.iter().map(|row| row[3].as_f64().unwrap()).collect();
    assert!((new[0] - 100.0).abs() < 1e-9 && new[2] == 0.0, "{new:?}");
    let rates = found[3]["tables"][1]["rows"].as_array().unwrap();
    assert_eq!(rates.len(), if cfg!(target_arch = "x86_64") { 12 } else { 4 });
    assert!(found[3]["claims"].to_string().contains("at least 5 dumps"), "{}", found[3]["claims"]);
    assert_eq!(fs::read_dir(fixture.path("tmp")).unwrap().count(), 0, "nothing is left of the runs");
    for (input, sentence) in [
        ("dumbs=source", "there is no input \"dumbs\"; did you mean \"dumps\"?"),
        ("dumps", "--input dumps: NAME=PATH"),
        ("dumps=nothing", "--input dumps=nothing: No such file"),
    ] {
        let refused = fixture.run(text().chain(["--input", input])).code(1);
        assert!(refused.stderr().contains(sentence), "{input}: {}", refused.stderr());
    }
}

#[test]
fn the_energy_of_hashing_is_readable_or_said_not_to_be() {
    let fixture = Fixture::without_repository(None);
    let found = fixture.run(["lab", "paper", "dedupcdp-table-1", "--quick", "--json"]).code(0).json();
    let joules = &found["tables"][0]["rows"][0][3];
    assert!(joules.is_number() || *joules == json!("not readable"), "{joules}");
    assert_eq!(found["tables"][0]["rows"].as_array().unwrap().last().unwrap()[2], json!(26.547));
    let readable = verdicts(&found)
        .iter()
        .filter(|(what, verdict)| what.starts_with("power at rest") && *verdict != "cannot-be-shown")
        .count();
    assert_eq!(readable, usize::from(joules.is_number()));
}

#[test]
fn a_run_stays_within_the_memory_of_its_point() {
    let fixture = Fixture::without_repository(None);
    let synth =
        ["lab", "synth", "trace", "--objects", "10000", "--versions", "3", "--modified", "0.2", "--chunk-size", "4k"];
    let made = fixture.run(synth.into_iter().chain(["--json"])).code(0).json();
    assert!(2_500_000 < made["chunks"].as_u64().unwrap(), "{made}");
    let small = &["memory=64M", "filter-size=16M", "memtable-size=8M"][..];
    for (preset, device, sizes, megabytes) in [
        ("adaptive", "real", small, 64),
        ("adaptive", "nvme", small, 64),
        ("eager", "nvme", small, 64),
        // The cache has what the filter has not grown to; windows of one record need the most memory for each.
        ("adaptive", "nvme", &["memory=40M"], 40),
        ("adaptive", "nvme", &["memory=200M", "window=fixed", "window-records=1"], 200),
        ("lazy", "nvme", &["memory=180M", "filter-size=16M", "memtable-size=8M"], 180),
    ] {
        let run = ["lab", "run", "trace", "--preset", preset, "--device", device, "--json"];
        let found = fixture.run(run.into_iter().chain(sizes.iter().flat_map(|size| ["--set", size]))).code(0).json();
        let peak = found["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak < (megabytes + 64) << 20, "{preset}, {sizes:?}: {} MiB", peak >> 20);
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["lab", "synth", "trace", "--objects", "20000", "--versions", "2"]).code(0);
    let mut child = fixture.command(["lab", "run", "trace", "--device", "hdd"]).spawn().unwrap();
    let scratch = fixture.path("tmp");
    while fs::read_dir(&scratch).unwrap().count() == 0 {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it could be interrupted");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}
