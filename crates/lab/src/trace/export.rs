//! Writing traces in the formats of others. Each version becomes a file, as each file becomes a version when traces of others are
//! read.
//!
//! - `destor`: destor's text, see [`crate::trace::foreign::destor`]. It ends without a line feed, because destor compares its last
//!   line as a whole. destor reads a name as one line and as a string of C, so line feeds and zero bytes of names become `?`.
//! - `raw`: names of chunks, 20 bytes each, without their lengths.
//! - `records`: 24 bytes for each chunk: its name, and its length as a 32-bit little-endian integer.
//! - `csv`: lines of the name in hexadecimal digits, a comma and the length.
//!
//! The last three have no streams.

use std::fs::{File, OpenOptions, create_dir, remove_dir, remove_file};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::trace::block::Totals;
use crate::trace::{Event, Events, TraceChunk};

/// Bytes that are written together.
const BUFFER_BYTES: usize = 256 << 10;
/// destor keeps lengths in an `int`.
const DESTOR_LEN_MAX: u32 = i32::MAX as u32;

/// A format of others that traces are written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text of destor.
    Destor,
    /// Names of chunks.
    Raw,
    /// Names and lengths of chunks.
    Records,
    /// Lines of `hash,size`.
    Csv,
}

impl Format {
    /// Returns its name, which its files have for an extension.
    pub fn name(self) -> &'static str {
        match self {
            Self::Destor => "destor",
            Self::Raw => "raw",
            Self::Records => "records",
            Self::Csv => "csv",
        }
    }

    /// Writes an event.
    fn write(self, out: &mut dyn Write, event: &Event) -> Result<()> {
        match (self, event) {
            (Self::Destor, Event::Begin { name, .. }) => {
                let name: Vec<u8> =
                    name.iter().map(|byte| if matches!(byte, 0 | b'\n') { b'?' } else { *byte }).collect();
                writeln!(out, "file start {}", name.len())?;
                out.write_all(&name)?;
                out.write_all(b"\n")?;
            }
            (Self::Destor, Event::End) => out.write_all(b"file end\n")?,
            (_, Event::Begin { .. } | Event::End) => {}
            (_, Event::Chunk(chunk)) => self.write_chunk(out, chunk)?,
        }
        Ok(())
    }

    fn write_chunk(self, out: &mut dyn Write, TraceChunk { hash, len }: &TraceChunk) -> Result<()> {
        match self {
            Self::Destor => {
                ensure!(
                    *len <= DESTOR_LEN_MAX,
                    "a chunk of {len} bytes: destor's are at most {DESTOR_LEN_MAX} bytes long"
                );
                hash.iter().try_for_each(|byte| write!(out, "{byte:02X}"))?;
                writeln!(out, " {len}")?;
            }
            Self::Raw => out.write_all(hash)?,
            Self::Records => {
                out.write_all(hash)?;
                out.write_all(&len.to_le_bytes())?;
            }
            Self::Csv => {
                hash.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
                writeln!(out, ",{len}")?;
            }
        }
        Ok(())
    }

    /// Ends a file.
    fn finish(self, mut out: BufWriter<File>) -> Result<()> {
        if self == Self::Destor {
            out.write_all(b"stream end")?;
        }
        out.flush()?;
        Ok(())
    }
}

/// A directory of exported versions.
#[derive(Debug)]
struct Export<'a> {
    dir: &'a Path,
    format: Format,
    files: Vec<PathBuf>,
    /// Version of the open file, and the file.
    open: Option<(u32, BufWriter<File>)>,
    totals: Totals,
}

impl Export<'_> {
    fn run(&mut self, events: &mut dyn Events) -> Result<()> {
        while let Some(event) = events.next_event()? {
            if let Event::Begin { version, .. } = &event
                && self.open.as_ref().is_none_or(|(open, _)| open != version)
            {
                self.finish()?;
                self.begin(*version)?;
            }
            let (_, out) = self.open.as_mut().context("a trace begins with a stream")?;
            self.format.write(out, &event).with_context(|| format!("write to {}", self.dir.display()))?;
            self.totals.count(&event);
        }
        self.finish()
    }

    fn begin(&mut self, version: u32) -> Result<()> {
        let path = self.dir.join(format!("{version:010}.{}", self.format.name()));
        let context = || format!("write {}", path.display());
        let file = OpenOptions::new().write(true).create_new(true).open(&path).with_context(context)?;
        self.files.push(path);
        self.open = Some((version, BufWriter::with_capacity(BUFFER_BYTES, file)));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some((_, out)) = self.open.take() else { return Ok(()) };
        self.format.finish(out).with_context(|| format!("write to {}", self.dir.display()))
    }
}

/// Writes each version of a trace to a file of a new directory. Names of files are versions in decimal, so they are in the order of
/// versions. Returns the counts and the number of files. After an error there is no directory.
pub fn export(events: &mut dyn Events, format: Format, dir: &Path) -> Result<(Totals, u64)> {
    create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut export = Export { dir, format, files: Vec::new(), open: None, totals: Totals::default() };
    export.run(events).inspect_err(|_| {
        // Some versions are useless. That they cannot be removed is no second error.
        export.files.iter().for_each(|path| drop(remove_file(path)));
        drop(remove_dir(dir));
    })?;
    Ok((export.totals, export.files.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::file::{Foreign, open_foreign};
    use crate::trace::foreign::raw::Lengths;
    use crate::trace::synth::{Synth, SynthSpec};

    fn all(events: &mut dyn Events) -> Vec<Event> {
        std::iter::from_fn(|| events.next_event().unwrap()).collect()
    }

    fn synth() -> Synth {
        Synth::new(SynthSpec { versions: 3, objects: 20, object_chunks: 30.0, modified: 0.5, ..SynthSpec::default() })
            .unwrap()
    }

    /// Reads the files of a directory as versions in the order of their names.
    fn imported(dir: &Path, format: Foreign) -> Vec<Event> {
        let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let version = |(version, path): (u32, &PathBuf)| all(&mut open_foreign(path, format, version).unwrap());
        (0..).zip(&paths).flat_map(version).collect()
    }

    /// The events of each version as one stream.
    fn joined(events: &[Event]) -> Vec<Vec<Event>> {
        let mut versions: Vec<Vec<Event>> = Vec::new();
        for event in events {
            match event {
                Event::Begin { version, .. } => versions.resize(*version as usize + 1, Vec::new()),
                Event::Chunk(_) => versions.last_mut().unwrap().push(event.clone()),
                Event::End => {}
            }
        }
        versions
    }

    #[test]
    fn what_is_exported_is_the_same_when_it_is_imported() {
        let dir = tempfile::tempdir().unwrap();
        let expected = all(&mut synth());
        for (format, foreign) in [
            (Format::Destor, Foreign::Destor),
            (Format::Records, Foreign::Raw(Lengths::Recorded)),
            (Format::Csv, Foreign::Csv),
            (Format::Raw, Foreign::Raw(Lengths::Equal(7))),
        ] {
            let target = dir.path().join(format.name());
            let (totals, files) = export(&mut synth(), format, &target).unwrap();
            let mut counted = Totals::default();
            for event in &expected {
                counted.count(event);
            }
            assert_eq!((totals, files), (counted, 3), "{format:?}");
            let found = imported(&target, foreign);
            match format {
                Format::Destor => assert_eq!(found, expected),
                Format::Records | Format::Csv => assert_eq!(joined(&found), joined(&expected), "{format:?}"),
                Format::Raw => {
                    let without_len = |mut events: Vec<Event>| {
                        for event in &mut events {
                            if let Event::Chunk(chunk) = event {
                                chunk.len = 7;
                            }
                        }
                        joined(&events)
                    };
                    assert_eq!(without_len(found), without_len(expected.clone()));
                }
            }
        }
    }

    /// Events that end with an error, if there is one.
    struct Listed(Vec<Event>, Option<&'static str>);

    impl Events for Listed {
        fn next_event(&mut self) -> Result<Option<Event>> {
            match (self.0.is_empty(), self.1) {
                (true, Some(error)) => anyhow::bail!(error),
                (true, None) => Ok(None),
                (false, _) => Ok(Some(self.0.remove(0))),
            }
        }
    }

    #[test]
    fn text_of_destor_is_what_destor_reads() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |name: &[u8], version| Event::Begin { name: name.to_vec(), version };
        let chunk = |byte, len| Event::Chunk(TraceChunk { hash: [byte; 20], len });
        let first = [begin(b"a\nb\0c", 3), chunk(0xab, 4096), chunk(1, 2), Event::End, begin(b"", 3), Event::End];
        let events = [&first[..], &[begin(b"next", 7), Event::End]].concat();
        let target = dir.path().join("destor");
        let (_, files) = export(&mut Listed(events, None), Format::Destor, &target).unwrap();
        assert_eq!(files, 2);
        let text = |name: &str| std::fs::read_to_string(target.join(name)).unwrap();
        let (long, short) = ("AB".repeat(20), "01".repeat(20));
        let expected =
            format!("file start 5\na?b?c\n{long} 4096\n{short} 2\nfile end\nfile start 0\n\nfile end\nstream end");
        assert_eq!(text("0000000003.destor"), expected);
        assert_eq!(text("0000000007.destor"), "file start 4\nnext\nfile end\nstream end");
    }

    #[test]
    fn an_export_that_fails_leaves_nothing_and_writes_nothing_over() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let begin = |version| Event::Begin { name: b"a".to_vec(), version };
        let events = vec![begin(0), Event::End, begin(1)];
        let error = export(&mut Listed(events, Some("damaged")), Format::Csv, &target).unwrap_err();
        assert_eq!(error.to_string(), "damaged");
        assert!(!target.exists());
        let long = vec![begin(0), Event::Chunk(TraceChunk { hash: [0; 20], len: 1 << 31 })];
        let error = export(&mut Listed(long, None), Format::Destor, &target).unwrap_err();
        assert!(format!("{error:#}").contains("a chunk of 2147483648 bytes"), "{error:#}");
        assert!(!target.exists());
        std::fs::create_dir(&target).unwrap();
        let error = export(&mut Listed(Vec::new(), None), Format::Csv, &target).unwrap_err();
        assert!(format!("{error:#}").contains("target: File exists"), "{error:#}");
    }
}
