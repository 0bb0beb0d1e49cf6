//! Hash files of the File systems and Storage Lab (fs-hasher), versions 1 to 7: the sets of home directories and Macs.
//!
//! One file is one snapshot. Integers are little-endian and packed. Versions differ in the length of the header, the
//! record of a file, and the encoding of a chunk's length; `Layout` has all differences.

use std::io::BufRead;
use std::ops::Range;

use anyhow::Result;

use crate::trace::block::NAME_LEN_MAX;
use crate::trace::foreign::{FOREIGN_HASH_LEN_MAX, chunk_of};
use crate::trace::input::Input;
use crate::trace::{Event, Events};

const MAGIC: u32 = 0xdead_dead;
/// Bytes of a path where it has a fixed length.
const PATH_LEN: usize = 4096;

/// Layout of a version of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    header_len: usize,
    /// Length of a file's record, without a path that follows.
    file_len: usize,
    /// Offsets in the record: length of the file, number of its chunks, lengths of the fields that follow.
    size: usize,
    chunks: usize,
    path: Path,
    chunk_len: ChunkLen,
    /// Whether a byte for compression follows each hash.
    has_ratio: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    /// At the beginning, filled up with zeros.
    Within,
    /// After the record; its length is at this offset.
    Behind(usize),
    /// After the record, followed by the target of a symbolic link; their lengths are at these offsets.
    BehindWithTarget(usize, usize),
}

/// Encoding of the length of a chunk of variable size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkLen {
    Absent,
    U64,
    U32,
}

impl Layout {
    fn of(version: u32) -> Option<Self> {
        let (within, behind) = (Path::Within, Path::BehindWithTarget);
        let layout = |header_len, file_len, [size, chunks]: [usize; 2], path, chunk_len, has_ratio| {
            Some(Self { header_len, file_len, size, chunks, path, chunk_len, has_ratio })
        };
        match version {
            1 => layout(4176, 4112, [4096, 4104], within, ChunkLen::Absent, false),
            2 => layout(4176, 20, [0, 8], Path::Behind(16), ChunkLen::Absent, false),
            3 => layout(8288, 20, [0, 8], Path::Behind(16), ChunkLen::U64, false),
            4 => layout(8288, 88, [0, 72], behind(80, 84), ChunkLen::U64, false),
            5 => layout(8296, 96, [0, 80], behind(88, 92), ChunkLen::U64, false),
            6 => layout(8296, 96, [0, 80], behind(88, 92), ChunkLen::U64, true),
            7 => layout(8296, 96, [0, 80], behind(88, 92), ChunkLen::U32, true),
            _ => None,
        }
    }
}

/// Offset of the number of chunks in the header.
const CHUNKS_AT: usize = 4112;
/// Offset of the bytes of all chunks, from version 5 on.
const BYTES_AT: usize = 8288;

/// Contents of the header.
#[derive(Clone, Copy, Debug)]
struct Header {
    layout: Layout,
    files: u64,
    chunks: u64,
    /// Bytes of all chunks; `None` in versions that do not count them.
    bytes: Option<u64>,
    /// Length of all chunks but the last of a file, where that is fixed.
    fixed_len: Option<u32>,
    hash_len: usize,
}

/// A file whose chunks are being read.
#[derive(Clone, Copy, Debug)]
struct File {
    start: u64,
    size: u64,
    chunks: u64,
    /// Chunks read so far, and their bytes.
    read: u64,
    read_bytes: u64,
}

/// Reads such a file: each of its files is a stream. Where chunks vary and their lengths are not said (versions 1 and 2), each
/// gets the mean of its file.
#[derive(Debug)]
pub struct FslTrace<R> {
    input: Input<R>,
    version: u32,
    header: Header,
    files_left: u64,
    file: Option<File>,
    /// Chunks read so far, and their bytes.
    chunks: u64,
    bytes: u64,
    has_ended: bool,
}

impl<R: BufRead> FslTrace<R> {
    /// Reads the header. `version`: of all streams.
    pub fn new(input: R, version: u32) -> Result<Self> {
        let mut input = Input::new(input);
        let header = read_header(&mut input)?;
        Ok(Self { input, version, header, files_left: header.files, file: None, chunks: 0, bytes: 0, has_ended: false })
    }

    fn begin_file(&mut self) -> Result<Event> {
        let start = self.input.offset();
        let damaged = |reason: &str| Input::<R>::damaged(start, reason);
        let Layout { file_len, size, chunks, path, .. } = self.header.layout;
        let fields = self.input.bytes(file_len)?;
        let len_at = |at: usize| {
            let len = u32_at(&fields, at) as usize;
            if len <= NAME_LEN_MAX { Ok(len) } else { Err(damaged("a path longer than any")) }
        };
        let name = match path {
            Path::Within => fields.iter().take(PATH_LEN).copied().take_while(|byte| *byte != 0).collect(),
            Path::Behind(at) => {
                let len = len_at(at)?;
                self.input.bytes(len)?
            }
            Path::BehindWithTarget(at, target) => {
                let (len, target_len) = (len_at(at)?, len_at(target)?);
                let name = self.input.bytes(len)?;
                self.input.bytes(target_len)?;
                name
            }
        };
        let (size, chunks) = (u64_at(&fields, size), u64_at(&fields, chunks));
        // A hasher may leave the rest behind the last whole chunk out.
        if let Some(fixed) = self.header.fixed_len.map(u64::from)
            && ![size.div_ceil(fixed), size / fixed].contains(&chunks)
        {
            return Err(damaged("a file whose length and number of chunks do not fit each other"));
        }
        self.file = Some(File { start, size, chunks, read: 0, read_bytes: 0 });
        Ok(Event::Begin { name, version: self.version })
    }

    fn next_chunk(&mut self, mut file: File) -> Result<Event> {
        let start = self.input.offset();
        let Header { layout, fixed_len, hash_len, .. } = self.header;
        let left = file.size.saturating_sub(file.read_bytes);
        let len = match (fixed_len, layout.chunk_len) {
            (Some(fixed), _) => left.min(fixed.into()),
            (None, ChunkLen::U64) => u64::from_le_bytes(self.input.array()?),
            (None, ChunkLen::U32) => u32::from_le_bytes(self.input.array()?).into(),
            (None, ChunkLen::Absent) => left / (file.chunks - file.read),
        };
        let hash = self.input.bytes(hash_len)?;
        if layout.has_ratio {
            self.input.array::<1>()?;
        }
        let len = u32::try_from(len).map_err(|_| Input::<R>::damaged(start, "a chunk longer than any"))?;
        file.read += 1;
        file.read_bytes = file.read_bytes.saturating_add(len.into());
        self.file = Some(file);
        Ok(Event::Chunk(chunk_of(&hash, len)))
    }

    fn end_file(&mut self, file: File) -> Result<Event> {
        // A file may differ in length from its record. If it is half as long again, it did not merely grow.
        if file.size.saturating_add(file.size / 2).saturating_add(1 << 30) < file.read_bytes {
            return Err(Input::<R>::damaged(file.start, "a file whose chunks are longer than itself"));
        }
        self.file = None;
        self.chunks = self.chunks.saturating_add(file.read);
        self.bytes = self.bytes.saturating_add(file.read_bytes);
        Ok(Event::End)
    }

    /// Compares the totals of the header with what was read: the format has no checksums, so nothing else shows that a count of a
    /// file, or a length, has changed.
    fn check_totals(&self) -> Result<()> {
        let Header { files, chunks, bytes, .. } = self.header;
        let mut totals = vec![("chunks", CHUNKS_AT, chunks, self.chunks)];
        totals.extend(bytes.map(|bytes| ("bytes", BYTES_AT, bytes, self.bytes)));
        for (what, at, stated, read) in totals {
            if stated != read {
                let reason = format!("the header counts {stated} {what}, but the {files} files have {read}");
                return Err(Input::<R>::damaged(at as u64, reason));
            }
        }
        Ok(())
    }
}

impl<R: BufRead> Events for FslTrace<R> {
    fn next_event(&mut self) -> Result<Option<Event>> {
        match self.file {
            Some(file) if file.read < file.chunks => self.next_chunk(file).map(Some),
            Some(file) => self.end_file(file).map(Some),
            None if self.has_ended => Ok(None),
            None if self.files_left == 0 => {
                if !self.input.is_at_end()? {
                    let reason = format!("bytes after the last of {} files that the header counts", self.header.files);
                    return Err(Input::<R>::damaged(self.input.offset(), reason));
                }
                self.check_totals()?;
                self.has_ended = true;
                Ok(None)
            }
            None => {
                self.files_left -= 1;
                self.begin_file().map(Some)
            }
        }
    }
}

fn read_header<R: BufRead>(input: &mut Input<R>) -> Result<Header> {
    let start = input.bytes(8)?;
    if u32_at(&start, 0) != MAGIC {
        return Err(Input::<R>::damaged(0, "not a hash file of the File systems and Storage Lab"));
    }
    let version = u32_at(&start, 4);
    let layout = Layout::of(version);
    let layout = layout.ok_or_else(|| Input::<R>::damaged(4, format!("version {version}; those known are 1 to 7")))?;
    let mut header = start;
    header.append(&mut input.bytes(layout.header_len - 8)?);
    let fixed_len = match u32_at(&header, 4120) {
        1 => Some(u32_at(&header, 4124)).filter(|len| *len != 0),
        2 => None,
        method => return Err(Input::<R>::damaged(4120, format!("chunking method {method}"))),
    };
    if u32_at(&header, 4120) == 1 && fixed_len.is_none() {
        return Err(Input::<R>::damaged(4124, "fixed chunks of no bytes"));
    }
    let bits = u32_at(&header, 4172) as usize;
    if bits == 0 || !bits.is_multiple_of(8) || FOREIGN_HASH_LEN_MAX < bits / 8 {
        return Err(Input::<R>::damaged(4172, format!("hashes of {bits} bits")));
    }
    let bytes = (BYTES_AT + 8 <= header.len()).then(|| u64_at(&header, BYTES_AT));
    let (files, chunks) = (u64_at(&header, 8), u64_at(&header, CHUNKS_AT));
    Ok(Header { layout, files, chunks, bytes, fixed_len, hash_len: bits / 8 })
}

fn field<const N: usize>(bytes: &[u8], range: Range<usize>) -> [u8; N] {
    bytes.get(range).and_then(|bytes| bytes.try_into().ok()).expect("the layout lies within what was read")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at..at + 4))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at..at + 8))
}
