//! From what was typed to a chunker of the laboratory.

use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};
use onefold_engine::source::exclude::parse_size;
use onefold_lab::chunkers::{Algorithm, Chunker, Sizes};

use crate::args::lab::chunker::ChunkerArgs;

/// Returns the chunker that was asked for.
pub(crate) fn chunker_of(args: &ChunkerArgs) -> Result<Chunker> {
    let (algorithm, option, size) = match &args.fixed_chunk_size {
        Some(size) => (Algorithm::Fixed, "--fixed-chunk-size", size),
        None => (args.chunker, "--chunk-size", &args.chunk_size),
    };
    let average = within(option, size, &algorithm.averages())?;
    let name = algorithm.name();
    algorithm.check_average(average).with_context(|| option.to_owned())?;
    let own = algorithm.sizes(average);
    let sized = |option: &str, size: &Option<String>, own: u32, range: Option<RangeInclusive<u32>>| -> Result<u32> {
        let Some(size) = size else { return Ok(own) };
        let range = range.with_context(|| format!("{option}: with {name} it follows from the average"))?;
        let len = within(option, size, &range)?;
        algorithm.check_bound(len).with_context(|| option.to_owned())?;
        Ok(len)
    };
    let min = sized("--min-chunk-size", &args.min_chunk_size, own.min, algorithm.minima(average))?;
    let max = sized("--max-chunk-size", &args.max_chunk_size, own.max, algorithm.maxima(average))?;
    let mut chunker = Chunker::new(algorithm, Sizes { min, average, max })?;
    args.chunker_set.iter().try_for_each(|assignment| chunker.set(assignment)).context("--chunker-set")?;
    Ok(chunker)
}

fn within(option: &str, text: &str, range: &RangeInclusive<u32>) -> Result<u32> {
    let len = chunk_len(text)?;
    ensure!(range.contains(&len), "{option}: from {} to {} bytes, not {len}", range.start(), range.end());
    Ok(len)
}

/// Reads the length of a chunk.
pub(crate) fn chunk_len(text: &str) -> Result<u32> {
    let bytes = parse_size(text)?;
    u32::try_from(bytes).ok().filter(|len| *len != 0).with_context(|| format!("{text:?}: no length of a chunk"))
}
