//! Measures random reads of 4 KiB from a file of 2 GiB without the page cache: through `io_uring` and on threads in
//! alternation, at several queue depths. `cargo run --release -p onefold-engine --example device DIR`
#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onefold_engine::Result;
use onefold_engine::io::os::{IoBackend, OsDisk, OsHost};
use onefold_engine::io::{Access, AlignedBuffer, BatchRead, DIRECT_ALIGN, Disk, DiskFile, Host};

const FILE_BYTES: u64 = 2 << 30;
const BUFFER_BYTES: usize = 8 << 20;
const DEPTHS: [usize; 5] = [1, 8, 32, 64, 128];
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let name = Path::new("onefold-device-test");
    let disks = [IoBackend::Uring, IoBackend::Threads].map(|backend| OsDisk::with_backend(directory.clone(), backend));
    let disk = &disks[0];
    let file = disk.create(name)?;
    let outcome = fill(&*file).and_then(|()| measure(disk, &disks, name));
    disk.remove(name)?;
    outcome
}

fn fill(file: &dyn DiskFile) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for offset in (0..FILE_BYTES).step_by(BUFFER_BYTES) {
        OsHost::new().random(&mut buffer)?;
        file.write_at(offset, &buffer)?;
    }
    file.sync()
}

fn measure(disk: &OsDisk, disks: &[OsDisk; 2], name: &Path) -> Result<()> {
    let file = disk.open(name, Access::Direct)?;
    println!("direct: {}, device profile: {:?}", file.is_direct(), disk.measure(name)?);
    println!("reads of 4 KiB per second, the best of {ROUNDS} rounds of one second");
    println!("| in flight | io_uring | threads |");
    println!("|---|---|---|");
    for depth in DEPTHS {
        let mut best = [0, 0];
        for _ in 0..ROUNDS {
            for (disk, best) in disks.iter().zip(&mut best) {
                *best = reads_per_second(disk, &file, depth)?.max(*best);
            }
        }
        println!("| {depth} | {} | {} |", best[0], best[1]);
    }
    Ok(())
}

fn reads_per_second(disk: &OsDisk, file: &Arc<dyn DiskFile>, depth: usize) -> Result<u64> {
    let host = OsHost::new();
    let mut reads: Vec<BatchRead> = (0..depth)
        .map(|_| {
            let buffer = AlignedBuffer::new_zeroed(DIRECT_ALIGN);
            BatchRead { file: Arc::clone(file), offset: 0, buffer, outcome: Ok(()) }
        })
        .collect();
    let mut random = vec![0; depth * 8];
    let start = host.monotonic();
    let mut count = 0;
    loop {
        host.random(&mut random)?;
        for (read, random) in reads.iter_mut().zip(random.as_chunks::<8>().0) {
            let page = u64::from_le_bytes(*random) % (FILE_BYTES / DIRECT_ALIGN as u64);
            read.offset = page * DIRECT_ALIGN as u64;
        }
        disk.read_batch(&mut reads);
        for read in &mut reads {
            std::mem::replace(&mut read.outcome, Ok(()))?;
        }
        count += depth as u64;
        let elapsed = host.monotonic().saturating_sub(start);
        if ROUND <= elapsed {
            let rate = u128::from(count) * 1_000_000_000 / elapsed.as_nanos();
            return Ok(u64::try_from(rate).unwrap_or(u64::MAX));
        }
    }
}
