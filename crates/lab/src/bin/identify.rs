//! Measures the identifier; see docs/performance.md.
#![expect(clippy::disallowed_methods, reason = "it measures on a real disk")]

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use onefold_lab::schedules::Comparison;
use onefold_lab::{growth, schedules};

#[derive(Debug, Parser)]
#[command(about = "Measures the identifier on a real disk, every verdict checked")]
struct Arguments {
    /// Directory for the index under test; it needs up to 100 bytes for each chunk
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare schedules on the same index
    Schedules {
        /// Millions of chunks stored beforehand
        #[arg(long, default_value_t = 50)]
        stored: u64,
        /// Memory of the index in MiB
        #[arg(long, default_value_t = 128)]
        memory: usize,
        /// Thousands of chunks of a run
        #[arg(long, default_value_t = 2_000)]
        chunks: u64,
        /// Thousands of chunks of a run where duplicates come in short runs
        #[arg(long, default_value_t = 200)]
        slow_chunks: u64,
        /// Repetitions
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Only streams whose name holds this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Speed as the index grows
    Growth {
        /// Millions of different chunks at the end
        #[arg(long, default_value_t = 200)]
        stored: u64,
        /// Memory of the index in MiB
        #[arg(long, default_value_t = 256)]
        memory: usize,
        /// Percent of duplicates, in runs of 200 to 5,000
        #[arg(long, default_value_t = 0)]
        duplicates: u32,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.dir)?;
    let mut progress = |text: &str| {
        // A closed terminal is no reason to stop measuring.
        let _ = writeln!(std::io::stderr(), "{text}");
    };
    let text = match arguments.command {
        Command::Schedules { stored, memory, chunks, slow_chunks, rounds, only } => {
            let comparison = Comparison {
                stored: stored * 1_000_000,
                memory_bytes: memory << 20,
                chunks: chunks * 1_000,
                slow_chunks: slow_chunks * 1_000,
                rounds: rounds.max(1),
            };
            schedules::compare(&arguments.dir, &comparison, &only, &mut progress)?
        }
        Command::Growth { stored, memory, duplicates } => {
            let share = f64::from(duplicates.min(99)) / 100.0;
            growth::grow(&arguments.dir, memory << 20, stored * 1_000_000, share, &mut progress)?
        }
    };
    write!(std::io::stdout(), "{text}")?;
    Ok(())
}
