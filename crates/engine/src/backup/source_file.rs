//! Reading one file: its bytes and holes as events, and whether it changed meanwhile.

use std::ops::Range;

use crate::backup::block::{Block, ByteRange, Event, Step};
use crate::backup::part::HEAD_BYTES;
use crate::chunk::WINDOW;
use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, Metadata, SourceFile};

/// Most bytes read of a file that reports a size of 0, as files of /proc and /sys do.
const UNSIZED_BYTES_MAX: u64 = 64 << 20;

/// Result of reading a part.
pub(super) enum Advance {
    /// There is more to read.
    More,
    /// The file has ended.
    End,
}

/// How a file compares, after it was read, with itself before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stability {
    /// Its contents are those at the time of opening.
    Same,
    /// Something was appended since; what was read is still what it held.
    Appended,
    /// Neither its length nor its modification time shows a change, but its change time does: it was renamed, say, or its
    /// modification time was set back.
    Touched,
    /// The bytes that were read may mix old contents and new ones.
    Changed(&'static str),
}

/// A file that is open.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: Box<dyn SourceFile>,
    /// Where the next byte is read.
    offset: u64,
    /// Where the data ends that is known to follow.
    data_end: u64,
    /// Where the file ended when it was opened.
    end: u64,
    /// The last bytes read, to warm up the hash in the next block.
    halo: Vec<u8>,
    /// The first data, and where it was read.
    head: Option<(u64, Vec<u8>)>,
}

impl OpenFile {
    pub(crate) fn new(file: Box<dyn SourceFile>) -> Self {
        let end = file.opened().size;
        Self { file, offset: 0, data_end: 0, end, halo: Vec::new(), head: None }
    }

    /// Returns how far it has been read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads into the rest of the block.
    pub(crate) fn advance<B: From<ByteRange>>(&mut self, block: &mut Block<B>) -> Result<Advance> {
        if self.offset == self.data_end
            && let Advance::End = self.find_data(block)?
        {
            return Ok(Advance::End);
        }
        let left = usize::try_from(self.data_end - self.offset).unwrap_or(usize::MAX);
        // A block that is filled by large files ends before it is full. For a small file there is as much free as it is
        // long; one whose hole is filled while it is read takes a little more.
        if block.bytes.free() <= self.halo.len() {
            block.bytes.make_free(self.halo.len() + left.min(HEAD_BYTES));
        }
        let wanted = left.min(block.bytes.free() - self.halo.len());
        let halo = u32::try_from(self.halo.len()).expect("a halo is shorter than a window");
        block.bytes.extend_from_slice(&self.halo);
        let start = block.bytes.len();
        let read = block.bytes.fill(wanted, |next| self.file.read_at(self.offset, next))?;
        if read > 0 {
            let len = u32::try_from(read).expect("a block is far below 4 GiB");
            block.events.push(Event::Bytes(ByteRange { start, len, halo }.into()));
            if self.head.is_none() {
                let head = block.bytes.get(start..start + read.min(HEAD_BYTES)).unwrap_or_default();
                self.head = Some((self.offset, head.to_vec()));
            }
            let tail = block.bytes.len() - (read + self.halo.len()).min(WINDOW - 1);
            self.halo.clear();
            self.halo.extend_from_slice(block.bytes.get(tail..).unwrap_or_default());
        }
        self.offset += read as u64;
        // The file has become shorter since it was opened: there is no more of it.
        if read < wanted { Ok(Advance::End) } else { Ok(Advance::More) }
    }

    /// Finds the next data and reports the hole before it.
    fn find_data<B>(&mut self, block: &mut Block<B>) -> Result<Advance> {
        if self.end == 0 {
            if self.offset == 0 {
                self.data_end = self.file.next_data(0)?.map_or(UNSIZED_BYTES_MAX, |range| range.end);
                return Ok(Advance::More);
            }
            if self.offset == UNSIZED_BYTES_MAX && 0 < self.file.read_at(self.offset, &mut [0])? {
                return Err(Error::UnsizedTooLong { bytes_max: UNSIZED_BYTES_MAX });
            }
            return Ok(Advance::End);
        }
        let data = next_data(&*self.file, self.offset, self.end)?;
        if self.offset < data.start {
            block.push(Step::Hole(data.start - self.offset));
            self.halo.clear();
            self.offset = data.start;
        }
        self.data_end = data.end;
        if self.offset == self.end { Ok(Advance::End) } else { Ok(Advance::More) }
    }

    /// Compares the file, read to its end, with itself before it was read.
    pub(super) fn stability(&self) -> Result<Stability> {
        let head = self.head.as_ref().map(|(offset, bytes)| (*offset, bytes.as_slice()));
        let tail = (self.offset - self.halo.len() as u64, self.halo.as_slice());
        stability(&*self.file, head.into_iter().chain([tail]))
    }
}

/// Returns the next data of a file that ended at `end` when it was opened: a range at or after `offset`, empty at `end` if there is no more.
/// A file that grows while it is read is kept as long as it was.
pub(super) fn next_data(file: &dyn SourceFile, offset: u64, end: u64) -> Result<Range<u64>> {
    if end <= offset {
        return Ok(offset..offset);
    }
    let range = file.next_data(offset)?;
    let start = range.as_ref().map_or(end, |range| range.start.clamp(offset, end));
    Ok(start..range.map_or(start, |range| range.end.clamp(start, end)))
}

/// Compares a file with itself before it was read. `ends` are bytes that were read, with their offsets: the first and the last ones. Whoever
/// rewrites a file begins with the first, mostly.
pub(super) fn stability<'a>(
    file: &dyn SourceFile,
    ends: impl IntoIterator<Item = (u64, &'a [u8])>,
) -> Result<Stability> {
    let before = file.opened();
    // A device has no time of its contents.
    if before.kind != EntryKind::File {
        return Ok(Stability::Same);
    }
    let stability = compare(before, &file.metadata()?);
    if stability == Stability::Appended {
        for (offset, bytes) in ends {
            let mut again = vec![0; bytes.len()];
            if file.read_at(offset, &mut again)? < bytes.len() || again != bytes {
                return Ok(Stability::Changed("it was rewritten"));
            }
        }
    }
    Ok(stability)
}

/// Tells from the metadata of a file before and after it was read whether its contents changed.
fn compare(before: &Metadata, now: &Metadata) -> Stability {
    // Files of /proc and /sys are made while they are read, and their size and times mean nothing.
    if before.size == 0 && now.size == 0 {
        return Stability::Same;
    }
    // Emptied, to be written again.
    if before.size == 0 {
        return Stability::Changed("it was rewritten");
    }
    if now.size < before.size {
        return Stability::Changed("it became shorter");
    }
    if before.size < now.size {
        return Stability::Appended;
    }
    if before.mtime != now.mtime {
        return Stability::Changed("it was rewritten");
    }
    // Of the same bytes: other names, another owner, another mode.
    let about = |metadata: &Metadata| (metadata.links, metadata.mode, metadata.uid, metadata.gid);
    if before.ctime == now.ctime || about(before) != about(now) { Stability::Same } else { Stability::Touched }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::block::Buffers;
    use crate::io::tree::{AccessTime, Xattr};
    use crate::types::Timestamp;

    /// A file that reports a size of 0 and has bytes all the same.
    #[derive(Debug)]
    struct Unsized {
        len: u64,
        metadata: Metadata,
    }

    impl SourceFile for Unsized {
        fn opened(&self) -> &Metadata {
            &self.metadata
        }

        fn metadata(&self) -> Result<Metadata> {
            Ok(self.metadata.clone())
        }

        fn xattrs(&self) -> Result<Vec<Xattr>> {
            Ok(Vec::new())
        }

        fn next_data(&self, _: u64) -> Result<Option<Range<u64>>> {
            Ok(None)
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
            Ok(usize::try_from(self.len.saturating_sub(offset)).unwrap().min(buffer.len()))
        }
    }

    fn read(len: u64) -> Result<u64> {
        let (kind, time) = (EntryKind::File, Timestamp::default());
        let metadata = Metadata {
            kind,
            mode: 0o400,
            uid: 0,
            gid: 0,
            mtime: time,
            atime: AccessTime::default(),
            ctime: time,
            size: 0,
            device: 1,
            inode: 1,
            links: 1,
            rdev: 0,
        };
        let mut open = OpenFile::new(Box::new(Unsized { len, metadata }));
        let buffers = Buffers::default();
        loop {
            let mut block = Block::<ByteRange> { bytes: buffers.take(), events: Vec::new() };
            if let Advance::End = open.advance(&mut block)? {
                assert_eq!(open.stability()?, Stability::Same);
                return Ok(open.offset());
            }
        }
    }

    #[test]
    fn a_file_without_a_size_is_read_to_its_end_or_refused() {
        for len in [0, 1, 5_000_000, UNSIZED_BYTES_MAX - 1, UNSIZED_BYTES_MAX] {
            assert_eq!(read(len).unwrap(), len);
        }
        for len in [UNSIZED_BYTES_MAX + 1, u64::from(u32::MAX)] {
            let refused = read(len).unwrap_err().to_string();
            assert!(refused.contains("longer than 64 MiB"), "{refused}");
        }
    }
}
