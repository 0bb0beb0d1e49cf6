//! Writing one file of a snapshot to a stream, and reading chunks of any part of it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::restore::fetch::Fetcher;
use crate::restore::sink::{Failures, Sink};
use crate::store::MetadataReader;
use crate::store::cursor::HintedEntry;
use crate::store::recipe_cursor::{FileExtent, HintedChunk, RecipeCursor};
use crate::tree::Content;

/// Chunks that are fetched together; together they are held in memory, 32 KiB each at most with default sizes.
const WINDOW_BYTES: u64 = 8 << 20;
/// Most chunks and holes of a window, however short they are. Each takes some 200 bytes until it is written.
const WINDOW_EXTENTS_MAX: usize = 64 << 10;
/// Zeros that are written at a time for a hole.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Collects the chunks of a window.
struct Collect(Mutex<Collected>);

#[derive(Default)]
struct Collected {
    chunks: Vec<Vec<u8>>,
    lost: Option<Error>,
}

impl Sink for Collect {
    fn take(&self, plain: &[u8], chunks: &[(usize, Range<usize>)]) -> Failures {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, range) in chunks {
            if let Some(slot) = collected.chunks.get_mut(*number) {
                *slot = plain.get(range.clone()).unwrap_or_default().to_vec();
            }
        }
        Vec::new()
    }

    fn lose(&self, _: usize, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lost.get_or_insert(error);
    }
}

/// Writes a file's bytes, in order.
pub fn dump(
    reader: &mut MetadataReader,
    fetcher: &mut Fetcher,
    file: &HintedEntry,
    out: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let Content::File { recipe, .. } = &file.entry.content else {
        return Err(Error::invalid("only a file can be dumped"));
    };
    let mut cursor = RecipeCursor::new(recipe, &file.hints);
    loop {
        let window = next_window(&mut || cursor.next(reader))?;
        if window.is_empty() {
            return Ok(());
        }
        write_window(fetcher, &window, out)?;
    }
}

/// Takes the extents of the next window; none at the end of the file.
fn next_window(next: &mut dyn FnMut() -> Result<Option<FileExtent>>) -> Result<Vec<FileExtent>> {
    let (mut window, mut bytes) = (Vec::new(), 0);
    while bytes < WINDOW_BYTES
        && window.len() < WINDOW_EXTENTS_MAX
        && let Some(extent) = next()?
    {
        bytes += match extent {
            FileExtent::Chunk(hinted) => u64::from(hinted.chunk.len),
            FileExtent::Hole { .. } => 0,
        };
        window.push(extent);
    }
    Ok(window)
}

/// Fetches chunks and returns their bytes, in order. Regions of which a part is wanted stay in the fetcher's cache, so that a
/// program may read small parts of a stream in any order.
pub fn fetch_chunks(fetcher: &mut Fetcher, wanted: Vec<HintedChunk>) -> Result<Vec<Vec<u8>>> {
    let collected = Collected { chunks: vec![Vec::new(); wanted.len()], lost: None };
    let collect = Arc::new(Collect(Mutex::new(collected)));
    fetcher.fetch(wanted, Arc::clone(&collect) as Arc<dyn Sink>)?;
    fetcher.finish();
    let Collected { chunks, lost } = std::mem::take(&mut *collect.0.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(error) = lost {
        return Err(error);
    }
    Ok(chunks)
}

fn write_window(fetcher: &mut Fetcher, window: &[FileExtent], out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let wanted: Vec<HintedChunk> = window
        .iter()
        .filter_map(|extent| match *extent {
            FileExtent::Chunk(chunk) => Some(chunk),
            FileExtent::Hole { .. } => None,
        })
        .collect();
    let chunks = fetch_chunks(fetcher, wanted)?;
    let mut chunks = chunks.into_iter();
    for extent in window {
        match extent {
            FileExtent::Chunk(_) => out(&chunks.next().unwrap_or_default())?,
            FileExtent::Hole { len } => {
                let mut left = *len;
                while left > 0 {
                    let step = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.len());
                    out(ZEROS.get(..step).unwrap_or_default())?;
                    left -= step as u64;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Chunk, Fingerprint};

    /// Returns how many extents each window of so many extents has.
    fn windows(extent: FileExtent, count: usize) -> Vec<usize> {
        let mut extents = std::iter::repeat_n(extent, count);
        let mut lengths = Vec::new();
        loop {
            match next_window(&mut || Ok(extents.next())).unwrap().len() {
                0 => return lengths,
                len => lengths.push(len),
            }
        }
    }

    #[test]
    fn a_window_is_limited_in_bytes_and_in_extents() {
        let chunk = |len| {
            let chunk = Chunk { fingerprint: Fingerprint([1; 32]), len };
            FileExtent::Chunk(HintedChunk { chunk, hint: None })
        };
        assert_eq!(windows(chunk(1 << 20), 20), [8, 8, 4]);
        for extent in [chunk(1), FileExtent::Hole { len: 1 }] {
            assert_eq!(windows(extent, 2 * WINDOW_EXTENTS_MAX + 5), [WINDOW_EXTENTS_MAX, WINDOW_EXTENTS_MAX, 5]);
        }
    }
}
