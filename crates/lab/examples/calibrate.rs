//! Compares the clock and the injected latency of `mapped` with the clock of this machine:
//! `cargo run --release -p onefold-lab --example calibrate`.
//!
//! It fails if a span differs by more than a twentieth, or an injected latency by more than a fifth. Both need a processor
//! that does little else.
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures, and prints what it measured")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use onefold_engine::random::mix64;
use onefold_lab::mapped::meter::Metered;
use onefold_lab::mapped::{MappedMemory, Medium, TickClock, base_latency};
use onefold_sys::ticks_in_order;

/// Rounds of which the quickest counts: everything else that the machine does only adds to a time.
const ROUNDS: u32 = 100;

fn main() -> Result<()> {
    let clock = TickClock::calibrate();
    println!("a reading of the clock takes {:.1} ns", clock.reading_nanos());
    compare_clocks(&clock)?;
    let mut medium = MappedMemory::anonymous(1 << 26)?;
    (0..1 << 26_u64).step_by(64).for_each(|offset| medium.store(offset, mix64(offset)));
    println!("an access to memory takes {:.1} ns", base_latency(&medium, 20_000, &clock));
    for nanos in [100, 300, 1_000, 10_000, 100_000] {
        let added = round(&clock, nanos)? - round(&clock, 0)?;
        println!("{nanos} ns injected: {added:.1} ns");
        ensure!((0.8..1.2).contains(&(added / f64::from(nanos))), "the latency is not what was asked for");
    }
    Ok(())
}

/// Compares a span of 5 ms on both clocks.
fn compare_clocks(clock: &TickClock) -> Result<()> {
    let (start, from) = (Instant::now(), ticks_in_order());
    while start.elapsed() < Duration::from_millis(5) {}
    let nanos = clock.nanos_between(from, ticks_in_order());
    let truth = start.elapsed().as_secs_f64() * 1e9;
    println!("{truth:.0} ns by the system's clock: {nanos:.0} ns");
    ensure!((nanos / truth - 1.0).abs() < 0.05, "the clock is wrong");
    Ok(())
}

/// Returns the nanoseconds of an access that waits for an injected latency: those of the quickest round.
fn round(clock: &TickClock, injected: u32) -> Result<f64> {
    let mut medium = MappedMemory::anonymous(4096)?;
    medium.store(8, 1);
    let mut metered = Metered::new(medium, Duration::from_nanos(injected.into()), clock);
    let count = (2_000_000 / injected.max(500)).clamp(20, 4_000);
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let from = ticks_in_order();
        let mut sum = 0;
        for _ in 0..count {
            let [word] = metered.miss(8 * (sum & 1));
            sum += std::hint::black_box(word);
        }
        least = least.min(clock.nanos_between(from, ticks_in_order()) / f64::from(count));
    }
    Ok(least)
}
