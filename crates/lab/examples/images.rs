//! Measures the steps of deduplicating an image in memory: naming, the map, and both together.
//!
//! `cargo run --release -p onefold-lab --example images -- [MIB [THREADS [ROUNDS]]]`
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures by a real clock, for people")]

use std::time::Instant;

use onefold_lab::image::block::{BlockHash, BlockKeys, UNIT_BYTES, names_of};
use onefold_lab::image::first::{FirstMap, first_of};
use onefold_lab::image::halving::{InMemory, halve, sums_of};
use onefold_lab::image::made::disk_image;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().unwrap_or(0));
    let mib = args.next().unwrap_or(256).max(1);
    let threads = args.next().unwrap_or(2).max(1);
    let rounds = args.next().unwrap_or(3);
    let image = disk_image(mib << 20, 1);
    let keys = BlockKeys::new(&[1; 32]);
    let gigabytes = f64::from(u32::try_from(image.len() >> 10).unwrap_or(u32::MAX)) * 1024.0 / 1e9;
    let units = u32::try_from(image.len() / UNIT_BYTES).unwrap_or(u32::MAX);
    println!("{mib} MiB, {threads} threads, down to 1 KiB");
    for _ in 0..rounds {
        let start = Instant::now();
        let names = names_of(&image, BlockHash::Tree, &keys, 0, threads);
        let named = start.elapsed().as_secs_f64();
        let positions: Vec<u32> = (0..units).collect();
        let begin = Instant::now();
        let found = first_of(FirstMap::Atomic, &names[0], &positions, threads);
        let mapped = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let mut source = InMemory { names: &names, map: FirstMap::Atomic, threads, zeros: None };
        let kept = halve(&mut source, units, 0).unwrap_or_default();
        let halved = begin.elapsed().as_secs_f64();
        println!(
            "naming {:.2} GB/s; map {:.1} million/s; halving {halved:.3} s; both {:.2} GB/s; {:?}, {}",
            gigabytes / named,
            f64::from(units) / 1e6 / mapped,
            gigabytes / (named + halved),
            sums_of(&kept),
            found.len()
        );
    }
}
