//! `lab image`.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::Error;
use onefold_engine::io::os::{OsDisk, OsHost, process_peak_rss_bytes};
use onefold_engine::io::{Disk, Host};
use onefold_lab::image::pack::{Around, Source, SourceFile, pack};
use onefold_lab::image::store::{Store, StoreOptions, StoreStats};

use crate::args::lab::image::{ImageCommand, PackArgs, ReadArgs, TrimArgs, WriteArgs};
use crate::files::{self, Target};
use crate::interrupt::Interrupt;
use crate::json::inspect::ratio;
use crate::json::lab::image::{ImageChecked, ImageCompacted, ImageStore};
use crate::json::object;
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::Settings;
use crate::text;

/// Bytes that are read or written at a time.
const STEP_BYTES: usize = 1 << 20;

/// Carries out a command of stores of images.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, command: &ImageCommand) -> Result<()> {
    match command {
        ImageCommand::Pack(args) => make(settings, output, args),
        ImageCommand::Read(args) => read(settings, output, args),
        ImageCommand::Write(args) => write(settings, output, args),
        ImageCommand::Trim(args) => trim(settings, output, args),
        ImageCommand::Compact(args) => compact(settings, output, &args.store),
        ImageCommand::Check(args) => check(settings, output, &args.store),
        ImageCommand::Stats(args) => show(output, &open(settings, &args.store)?.stats()),
    }
}

fn options(settings: &Settings, level_min: u8) -> StoreOptions {
    StoreOptions { level_min, memory: settings.memory_bytes as u64, threads: settings.threads }
}

fn open(settings: &Settings, path: &Path) -> Result<Store> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(path.to_path_buf()));
    Ok(Store::open(disk, options(settings, 0))?)
}

/// Makes a store of an image.
fn make(settings: &Settings, output: &Arc<Output>, args: &PackArgs) -> Result<()> {
    let source = SourceFile::open(args.image.clone())?;
    let context = || format!("create {}", args.store.display());
    files::create_new_directory(&args.store).with_context(context)?;
    let mut key = [0; 32];
    OsHost::new().random(&mut key)?;
    let interrupt = Interrupt::listen()?;
    let progress = Progress::new(output, &interrupt, Activity::Files);
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let disk = Arc::new(OsDisk::new(args.store.clone()));
    let packed = {
        let _shown = progress.show();
        let around = Around { scratch, monitor: &*progress };
        pack(&source, disk, key, options(settings, args.min_block), &around)
    };
    if packed.is_err() {
        // It is empty, unless something could not be removed.
        let parent = args.store.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _ignored =
            OsDisk::new(parent.to_path_buf()).remove_dir(Path::new(args.store.file_name().unwrap_or_default()));
    }
    show(output, &packed?)
}

/// Prints the sizes of a store.
fn show(output: &Output, stats: &StoreStats) -> Result<()> {
    if output.json {
        return Ok(output.message(&ImageStore { stats: *stats, peak_rss_bytes: process_peak_rss_bytes() })?);
    }
    let row = |title: &str, value: String| output.line(format!("{title:<22} {value:>12}"));
    row("image", text::bytes(stats.image_bytes))?;
    row("distinct blocks", text::bytes(stats.stored_bytes))?;
    row("image / distinct", format!("{:.2}x", ratio(stats.image_bytes, stats.stored_bytes)))?;
    row("index and descriptors", text::bytes(stats.metadata_bytes))?;
    row("free in the file", text::bytes(stats.free_bytes + stats.released_bytes))?;
    row("memory", text::bytes(stats.memory_bytes))?;
    row("entries", stats.entries.to_string())?;
    row("  of zeros", stats.zero_entries.to_string())?;
    for (level, entries) in (0_u32..).zip(stats.entries_by_level).filter(|(_, entries)| *entries != 0) {
        row(&format!("  of {} KiB", 1_u64 << level), entries.to_string())?;
    }
    row("descriptors", stats.descriptors.to_string())?;
    Ok(output.flush()?)
}

/// Returns the bytes of a range of an image.
fn length_of(store: &Store, offset: u64, length: Option<u64>) -> Result<u64> {
    let len = store.image_len();
    let rest = len.checked_sub(offset).filter(|rest| length.is_none_or(|length| length <= *rest));
    let rest =
        rest.ok_or_else(|| Error::invalid(format_args!("the image has {len} bytes, and the range goes beyond")))?;
    Ok(length.unwrap_or(rest))
}

fn report(output: &Output, offset: u64, bytes: u64, done: &str) -> Result<()> {
    if output.json {
        return Ok(output.message(&object! { message_type: "image_range", offset, bytes, })?);
    }
    output.note(&format!("{done} {} at {offset}", text::count(bytes, "byte")));
    Ok(())
}

/// Reads a range of an image.
fn read(settings: &Settings, output: &Output, args: &ReadArgs) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let store = open(settings, &args.store)?;
    let offset = args.range.offset;
    let length = length_of(&store, offset, args.range.length)?;
    let mut target = match &args.output {
        None => None,
        Some(path) => Some(Target::create(path).with_context(|| format!("write {}", path.display()))?),
    };
    let mut buffer = vec![0; STEP_BYTES];
    let mut done = 0;
    while done < length {
        ensure!(!interrupt.is_raised(), Error::Interrupted);
        let len = usize::try_from(length - done).unwrap_or(usize::MAX).min(STEP_BYTES);
        let bytes = buffer.get_mut(..len).unwrap_or_default();
        store.read(offset + done, bytes)?;
        match &mut target {
            None => output.bytes(bytes)?,
            Some(target) => target.write_all(bytes).context("write the output")?,
        }
        done += len as u64;
    }
    let Some(target) = target else { return Ok(output.flush()?) };
    target.finish().context("write the output")?;
    report(output, offset, length, "read")
}

/// Bytes to write.
enum Input {
    File(SourceFile),
    Standard(io::Stdin),
}

impl Input {
    fn open(path: &PathBuf) -> Result<Self> {
        if path == Path::new("-") {
            Ok(Self::Standard(io::stdin()))
        } else {
            Ok(Self::File(SourceFile::open(path.clone())?))
        }
    }

    /// Fills a buffer from an offset on, as far as there are bytes. Returns how many.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Self::File(file) => {
                let rest = usize::try_from(file.bytes() - offset).unwrap_or(usize::MAX).min(buffer.len());
                file.read_at(offset, buffer.get_mut(..rest).unwrap_or_default())?;
                Ok(rest)
            }
            Self::Standard(stdin) => {
                let (mut stdin, mut filled) = (stdin.lock(), 0);
                while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                    match stdin.read(rest) {
                        Ok(0) => break,
                        Ok(len) => filled += len,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error).context("read standard input"),
                    }
                }
                Ok(filled)
            }
        }
    }
}

/// Writes bytes to an image.
fn write(settings: &Settings, output: &Output, args: &WriteArgs) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let input = Input::open(&args.input)?;
    let mut store = open(settings, &args.store)?;
    if let Input::File(file) = &input {
        // Before anything is written.
        length_of(&store, args.offset, Some(file.bytes()))?;
    }
    let mut buffer = vec![0; STEP_BYTES];
    let mut done = 0;
    loop {
        ensure!(!interrupt.is_raised(), Error::Interrupted);
        let len = input.fill(done, &mut buffer)?;
        if len == 0 {
            break;
        }
        store.write(args.offset.saturating_add(done), buffer.get(..len).unwrap_or_default())?;
        done += len as u64;
    }
    store.close()?;
    report(output, args.offset, done, "wrote")
}

/// Replaces a range by zeros.
fn trim(settings: &Settings, output: &Output, args: &TrimArgs) -> Result<()> {
    let mut store = open(settings, &args.store)?;
    let offset = args.range.offset;
    let length = length_of(&store, offset, args.range.length)?;
    store.trim(offset, length)?;
    store.close()?;
    report(output, offset, length, "trimmed")
}

/// Joins neighboring blocks.
fn compact(settings: &Settings, output: &Output, path: &Path) -> Result<()> {
    let mut store = open(settings, path)?;
    let entries_joined = store.compact()?;
    store.checkpoint()?;
    let stats = store.stats();
    store.close()?;
    if output.json {
        return Ok(output.message(&ImageCompacted { entries_joined, stats })?);
    }
    output.note(&format!("the index has {entries_joined} entries less"));
    show(output, &stats)
}

/// Verifies a store.
fn check(settings: &Settings, output: &Output, path: &Path) -> Result<()> {
    let checked = open(settings, path)?.check()?;
    if output.json {
        output.message(&ImageChecked { checked: &checked })?;
    } else {
        checked.messages.iter().for_each(|message| output.warn(&format!("error: {message}")));
        output.line(format!("verified {}, {}", text::count(checked.blocks, "block"), text::bytes(checked.bytes)))?;
        output.flush()?;
    }
    if checked.problems != 0 {
        bail!("the store is damaged: {}", text::count(checked.problems, "problem"));
    }
    Ok(())
}
