//! Explores the protocol at full size, and shows traces.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::process::ExitCode;
use std::time::Instant;

use onefold_model::configurations::{Configuration, full, not_needed, small, variants};
use onefold_model::explore::{Explored, Limits, explore};
use onefold_model::world::World;

const USAGE: &str = "usage: onefold-model small | not-needed | full [NAME...] [--memory MIB] | variants | trace VARIANT

small        explores the configurations that every test run explores
not-needed   explores steps that may be left out
full         explores the configurations of the full size, or those that are named
variants     explores every variant and prints how many steps its fault takes
trace        prints the steps to the fault of a variant";

/// Memory for a configuration of the full size.
const MEMORY_MIB: usize = 6 * 1024;
/// Memory for each state: a fingerprint in a table that is 7/8 full, and an eighth of a state in each of two frontiers.
const BYTES_PER_STATE: usize = 38;
/// States up to which traces are remembered.
const TRACED_STATES: usize = 8_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_right = match words.as_slice() {
        ["small"] => explore_all(&small(), TRACED_STATES),
        ["not-needed"] => explore_all(&not_needed(), TRACED_STATES),
        ["full", names @ .., "--memory", mib] => mib.parse().is_ok_and(|mib| explore_full(names, mib)),
        ["full", names @ ..] => explore_full(names, MEMORY_MIB),
        ["variants"] => explore_variants(),
        ["trace", name] => print_trace(name),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn explore_full(names: &[&str], memory_mib: usize) -> bool {
    let mut configurations = full();
    configurations.retain(|one| names.is_empty() || names.contains(&one.name));
    explore_all(&configurations, memory_mib * 1024 * 1024 / BYTES_PER_STATE)
}

/// Explores all and returns true if no invariant is broken.
fn explore_all(configurations: &[Configuration], states: usize) -> bool {
    println!("| Configuration | States | Depth | Seconds | Result |\n|---|---|---|---|---|");
    let mut is_right = true;
    for one in configurations {
        let (explored, seconds) = timed(&one.world, Limits { states, traces: states <= TRACED_STATES });
        let result = match (&explored.counterexample, explored.is_complete) {
            (Some(found), _) => found.to_string(),
            (None, true) => "all states, nothing lost".to_owned(),
            (None, false) => "stopped by the limit, nothing lost so far".to_owned(),
        };
        println!("| `{}` | {} | {} | {seconds:.0} | {result} |", one.name, explored.states, explored.depth);
        is_right &= explored.counterexample.is_none();
    }
    is_right
}

/// Explores every variant and returns true if each breaks its invariant.
fn explore_variants() -> bool {
    println!("| Variant | Breaks | States | Steps |\n|---|---|---|---|");
    let mut is_right = true;
    for variant in variants() {
        let (explored, _) = timed(&variant.world, Limits { states: TRACED_STATES, traces: true });
        let found = explored.counterexample.as_ref().map(|found| found.violation);
        let steps = variant.world.prologue.len() + explored.depth;
        println!("| `{:?}` | {found:?} | {} | {steps} |", variant.world.omission, explored.states);
        is_right &= found == Some(variant.breaks);
    }
    is_right
}

fn print_trace(name: &str) -> bool {
    let Some(variant) = variants().into_iter().find(|one| format!("{:?}", one.world.omission) == name) else {
        eprintln!("no variant has the name {name}");
        return false;
    };
    variant.world.prologue.iter().for_each(|step| println!("   - {step}"));
    let (explored, _) = timed(&variant.world, Limits { states: TRACED_STATES, traces: true });
    let Some(found) = explored.counterexample else { return false };
    println!("{found}");
    true
}

#[expect(clippy::disallowed_methods, reason = "times are for people; no engine here")]
fn timed(world: &World, limits: Limits) -> (Explored, f64) {
    let start = Instant::now();
    let explored = explore(world, limits);
    (explored, start.elapsed().as_secs_f64())
}
