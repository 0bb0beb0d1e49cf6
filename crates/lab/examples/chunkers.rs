//! Prints how fast each chunker of the laboratory cuts noise, and how long its chunks are:
//! `cargo run --release -p onefold-lab --example chunkers`.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "an example measures by a real clock and prints")]

use std::time::Instant;

use clap::ValueEnum;
use onefold_lab::chunkers::Algorithm;

/// Algorithms that the engine carries out in another way.
const ENGINES: [Algorithm; 2] = [Algorithm::Gear, Algorithm::Fixed];
/// Bytes that are cut.
const LEN: u64 = 1 << 30;
/// Bytes that are at hand at a time, as in a recording.
const BLOCK_LEN: usize = 1 << 20;

#[expect(clippy::cast_precision_loss, reason = "figures of four digits")]
fn main() {
    println!("{:>12} {:>8} {:>8} {:>10} {:>8}", "", "asked", "mean", "of asked", "MB/s");
    for algorithm in Algorithm::value_variants().iter().filter(|algorithm| !ENGINES.contains(algorithm)) {
        for average in [512, 2048, 4096, 8192, 16_384, 65_536] {
            let mut cutter = algorithm.cutter(algorithm.sizes(average)).expect("content says where these cut");
            let mut source = blake3::Hasher::new().finalize_xof();
            let (mut block, mut cuts) = (vec![0; BLOCK_LEN], Vec::new());
            let (mut chunks, mut seconds) = (0, 0.0);
            for _ in 0..LEN / BLOCK_LEN as u64 {
                source.fill(&mut block);
                cuts.clear();
                let start = Instant::now();
                cutter.advance(&block, &mut cuts);
                seconds += start.elapsed().as_secs_f64();
                chunks += cuts.len();
            }
            let mean = LEN as f64 / chunks as f64;
            let (of_asked, speed) = (mean / f64::from(average), LEN as f64 / 1e6 / seconds);
            println!("{:>12} {average:>8} {mean:>8.0} {of_asked:>10.3} {speed:>8.0}", algorithm.name());
        }
    }
}
