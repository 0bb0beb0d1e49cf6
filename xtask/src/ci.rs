//! `cargo xtask ci`: the checks and tests that a change must pass.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::checkout::Checkout;
use crate::command::{cargo, run_cargo, succeed};
use crate::{dist, kernels, tidy};

/// Test of the independent restorer, which finds the program under test in the variable `ONEFOLD`.
const RESTORER_TEST: &str = "testdata/restorer/test.py";

/// The unit tests of the command in a build without the laboratory, as `./quickstart` builds it.
const WITHOUT_LAB: [&str; 7] =
    ["test", "--locked", "--package", "onefold-cli", "--no-default-features", "--bin", "onefold"];

/// The command as `./quickstart` builds it, without optimization: no laboratory, and no features that only tests enable.
const PLAIN_PROGRAM: [&str; 5] = ["build", "--locked", "--package", "onefold-cli", "--no-default-features"];

/// Threads of a test binary for each processor: tests of the command wait half of the time, for servers, signals and clocks.
const TEST_THREADS: usize = 2;

/// Number of slow tests to list.
const SLOWEST_TESTS: usize = 10;

/// Runs every step, also after a failure, so that one run shows all problems.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut report = Report::default();
    report.step("fmt", || run_cargo(root, &["fmt", "--all", "--check"]));
    report.step("tidy", || tidy::run(&Checkout::read(root)?));
    report.step("kernels", || kernels::run(root, kernels::Then::Check));
    let lints = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
    report.step("clippy", || run_cargo(root, &lints));
    report.step("library", || check_library(root));
    report.step("doc", || run_doc(root));
    let mut tests = TestCounts::default();
    report.step("test", || run_tests(root, &mut tests));
    report.step("without the laboratory", || run_cargo(root, &WITHOUT_LAB));
    report.step("restorer", || run_restorer(root));
    report.step("package", || check_package(root));
    report.finish(&tests)
}

/// Formats the sources.
pub(crate) fn format(root: &Path) -> Result<()> {
    run_cargo(root, &["fmt", "--all"])
}

#[derive(Default)]
struct Report {
    lines: Vec<String>,
    failed: Vec<&'static str>,
}

impl Report {
    #[expect(clippy::disallowed_methods, reason = "times are for people; no engine here")]
    fn step(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        println!("--- {name}");
        let start = Instant::now();
        let outcome = step();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => self.lines.push(format!("{name} {seconds:.1} s")),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                self.lines.push(format!("{name} FAILED {seconds:.1} s"));
                self.failed.push(name);
            }
        }
    }

    fn finish(self, tests: &TestCounts) -> Result<()> {
        println!("--- summary");
        println!("slowest tests:");
        tests.slowest.iter().for_each(|(seconds, name)| println!("  {seconds:6.1} s  {name}"));
        println!("{}", self.lines.join(", "));
        println!(
            "tests: {} passed, {} failed, {} ignored in {} runs of test binaries and doc tests",
            tests.passed, tests.failed, tests.ignored, tests.runs
        );
        if self.failed.is_empty() {
            println!("ci: ok");
            return Ok(());
        }
        bail!("ci: failed: {}", self.failed.join(", "))
    }
}

/// Test counts and times that the test binaries report.
#[derive(Default, PartialEq, Debug)]
struct TestCounts {
    runs: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
    /// The slowest tests, the slowest first: seconds and name.
    slowest: Vec<(f64, String)>,
}

impl TestCounts {
    /// Adds `test result: ok. 12 passed; 0 failed; 0 ignored; ..` or `test NAME ... ok <1.234s>`; ignores other lines.
    fn add(&mut self, line: &str) {
        self.add_time(line);
        let Some(result) = line.strip_prefix("test result: ") else { return };
        self.runs += 1;
        for part in result.split([';', '.']) {
            let Some((count, what)) = part.trim().split_once(' ') else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

impl TestCounts {
    fn add_time(&mut self, line: &str) {
        let Some((name, outcome)) = line.strip_prefix("test ").and_then(|test| test.rsplit_once(" ... ")) else {
            return;
        };
        let seconds = outcome.split_once('<').and_then(|(_, time)| time.strip_suffix("s>")?.parse().ok());
        let Some(seconds) = seconds else { return };
        self.slowest.push((seconds, name.to_owned()));
        self.slowest.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        self.slowest.truncate(SLOWEST_TESTS);
    }
}

/// Checks the engine without its internals, as other programs compile it, and the command without the features that only tests enable. The
/// step `clippy` applied Clippy's own lints already; some of them judge private modules differently.
fn check_library(root: &Path) -> Result<()> {
    run_cargo(root, &["clippy", "--locked", "--package", "onefold-cli", "--bins", "--", "-D", "warnings"])?;
    let selection = ["clippy", "--locked", "--package", "onefold-engine", "--lib", "--"];
    let lints =
        ["-A", "clippy::all", "-A", "clippy::pedantic", "-A", "unfulfilled-lint-expectations", "-D", "warnings"];
    run_cargo(root, &[&selection[..], &lints[..]].concat())
}

/// Documents every crate, and the library as other programs see it. A broken link is an error.
fn run_doc(root: &Path) -> Result<()> {
    for selection in [["--workspace"].as_slice(), &["--package", "onefold-engine"]] {
        let arguments = [&["doc", "--locked", "--no-deps"][..], selection].concat();
        let mut command = cargo(root, &arguments);
        succeed(command.env("RUSTDOCFLAGS", "-D warnings"), &format!("cargo {}", arguments.join(" ")))?;
    }
    Ok(())
}

/// Module of the engine's unit tests that holds its integration tests.
const INTEGRATION: &str = "integration::";

/// Runs the unit tests of all crates, without the engine's integration tests among them.
pub(crate) fn run_unit_tests(root: &Path) -> Result<()> {
    let mut counts = TestCounts::default();
    run_timed_tests(root, &["--lib", "--bins"], &["--skip", INTEGRATION], &mut counts)?;
    println!("tests: {} passed in {} runs of test binaries", counts.passed, counts.runs);
    Ok(())
}

fn run_tests(root: &Path, counts: &mut TestCounts) -> Result<()> {
    let targets = run_timed_tests(root, &["--lib", "--bins", "--tests", "--examples"], &[], counts);
    let documents = run_cargo_test(root, &["--doc"], &[], counts);
    targets.and(documents)
}

/// Runs tests and measures each. The test harness does that only as an unstable feature; the variable enables it for the test
/// binaries and not for the compiler.
fn run_timed_tests(root: &Path, targets: &[&str], harness: &[&str], counts: &mut TestCounts) -> Result<()> {
    let runner = ["--config", "target.'cfg(all())'.runner = ['env', 'RUSTC_BOOTSTRAP=1']"];
    let harness = [harness, &["-Z", "unstable-options", "--report-time"]].concat();
    run_cargo_test(root, &[&runner, targets].concat(), &harness, counts)
}

fn run_cargo_test(root: &Path, options: &[&str], harness: &[&str], counts: &mut TestCounts) -> Result<()> {
    let arguments = ["test", "--locked", "--workspace", "--no-fail-fast"];
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut child = cargo(root, &[&arguments, options, &["--"], harness].concat())
        .env("RUST_TEST_THREADS", (TEST_THREADS * processors).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .context("run cargo test")?;
    let output = child.stdout.take().context("the pipe was requested")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read the output of cargo test")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        counts.add(&line);
    }
    ensure!(child.wait().context("wait for cargo test")?.success(), "cargo test failed");
    ensure!(0 < counts.passed, "no test ran");
    Ok(())
}

fn run_restorer(root: &Path) -> Result<()> {
    if !root.join(RESTORER_TEST).is_file() {
        println!("skipped: no {RESTORER_TEST}");
        return Ok(());
    }
    run_cargo(root, &PLAIN_PROGRAM)?;
    let onefold = debug_program()?;
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| OsString::from("python3"));
    let mut command = Command::new(python);
    command.arg(RESTORER_TEST).env("ONEFOLD", onefold).current_dir(root);
    succeed(&mut command, RESTORER_TEST)
}

/// Packs the plain program.
fn check_package(root: &Path) -> Result<()> {
    run_cargo(root, &PLAIN_PROGRAM)?;
    dist::check_layout(root, &debug_program()?)
}

/// Returns the path of the command, which cargo builds into the directory of this program.
fn debug_program() -> Result<PathBuf> {
    Ok(std::env::current_exe().context("find the build directory")?.with_file_name("onefold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_test_binaries_are_added_up() {
        let mut counts = TestCounts::default();
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s");
        counts.add("test a::b ... ok");
        counts.add("test a::c ... ok <0.250s>");
        counts.add("test a::d - should panic ... ok <1.500s>");
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        let slowest = vec![(1.5, "a::d - should panic".to_owned()), (0.25, "a::c".to_owned())];
        assert_eq!(counts, TestCounts { runs: 2, passed: 15, failed: 2, ignored: 1, slowest });
    }
}
