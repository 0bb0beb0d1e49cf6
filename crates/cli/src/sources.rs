//! Sources and exclusions of a backup, from options and the files that they name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::backup::Monitor;
use onefold_engine::io::Host;
use onefold_engine::io::os::OsHost;
use onefold_engine::io::os_source::OsSource;
use onefold_engine::io::tree::{EntryKind, SourceTree};
use onefold_engine::source;
use onefold_engine::source::exclude::{Case, Excludes, Patterns, Tag, parse_size, read_patterns};
use onefold_engine::source::files_from::{self, Expanded};
use onefold_engine::source::stream::StreamTree;

use crate::args::{BackupArgs, ExcludeArgs, ExcludePatterns, IncludePatterns};
use crate::compat::Dialect;
use crate::files;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::stream::{Checked, CommandOutput, Emptiness, StandardInput};

/// Returns the bytes of a path.
pub(crate) fn bytes_of(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// Returns the absolute form of a path, without resolving links.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    let working_directory = std::env::current_dir().context("find the working directory")?;
    Ok(source::absolute(&working_directory, path))
}

/// Patterns and marks that exclude files.
#[derive(Debug)]
pub(crate) struct Left {
    /// For the walk.
    pub(crate) excludes: Excludes,
    /// The patterns, as they are written into the snapshot.
    pub(crate) texts: Vec<String>,
}

/// Compiles patterns that were typed and those in files; also returns their texts. The first pair of groups respects case,
/// the second ignores it.
fn compile(dialect: Dialect, groups: [(&[OsString], &[PathBuf]); 2]) -> Result<(Vec<Patterns>, Vec<String>)> {
    let (mut compiled, mut texts) = (Vec::new(), Vec::new());
    for ((args, lists), case) in groups.into_iter().zip([Case::Sensitive, Case::Insensitive]) {
        let mut patterns: Vec<Vec<u8>> = args.iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
        for list in lists {
            patterns.extend(read_patterns(&files::read_lines(list)?, &|name| std::env::var_os(name)));
        }
        texts.extend(patterns.iter().map(|pattern| String::from_utf8_lossy(pattern).into_owned()));
        if dialect == Dialect::Restic {
            // To restic, a slash at the end says nothing about what the name is of.
            for pattern in &mut patterns {
                let len = pattern.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
                pattern.truncate(len);
            }
        }
        if !patterns.is_empty() {
            compiled.push(Patterns::parse(patterns.iter().map(Vec::as_slice), case)?);
        }
    }
    Ok((compiled, texts))
}

/// Compiles the patterns to exclude; also returns their texts.
pub(crate) fn exclude_patterns(dialect: Dialect, args: &ExcludePatterns) -> Result<(Vec<Patterns>, Vec<String>)> {
    compile(dialect, [(&args.exclude, &args.exclude_file), (&args.iexclude, &args.iexclude_file)])
}

/// Compiles the patterns to include. Files that hold none are refused: nothing would be left.
pub(crate) fn include_patterns(dialect: Dialect, args: &IncludePatterns) -> Result<Vec<Patterns>> {
    let groups = [(&*args.include, &*args.include_file), (&*args.iinclude, &*args.iinclude_file)];
    let (include, _) = compile(dialect, groups)?;
    ensure!(
        !include.is_empty() || (args.include_file.is_empty() && args.iinclude_file.is_empty()),
        "the files with patterns to include hold none, so that nothing would be left"
    );
    Ok(include)
}

/// Collects the exclusions. `own` are directories of this program that must not be backed up.
pub(crate) fn excludes(dialect: Dialect, args: &ExcludeArgs, own: &[&Path]) -> Result<Left> {
    let mut excludes = Excludes { one_file_system: args.one_file_system, ..Excludes::default() };
    let (patterns, texts) = exclude_patterns(dialect, &args.patterns)?;
    excludes.patterns = patterns;
    if args.exclude_caches {
        excludes.tags.push(Tag::cache_directory());
    }
    for mark in &args.exclude_if_present {
        excludes.tags.push(Tag::parse(mark)?);
    }
    excludes.file_bytes_max =
        args.exclude_larger_than.as_deref().map(parse_size).transpose().context("--exclude-larger-than")?;
    excludes.skip.extend(identities(own));
    Ok(Left { excludes, texts })
}

/// Returns device and inode of directories. One that cannot be found is skipped: a walk cannot meet it either.
pub(crate) fn identities(own: &[&Path]) -> BTreeSet<(u64, u64)> {
    own.iter().filter_map(|directory| source::identity(&OsSource::new(), directory).ok()).collect()
}

/// Source of a backup.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The tree.
    pub(crate) tree: Arc<dyn SourceTree>,
    /// Paths as the user named them.
    pub(crate) roots: Vec<PathBuf>,
    /// The same, absolute, as they are written into the snapshot.
    pub(crate) paths: Vec<Vec<u8>>,
    /// Whether it was a stream and refused for being empty.
    pub(crate) found_empty: Arc<AtomicBool>,
}

/// Finds the paths that were named, on the command line and in lists. Paths that do not exist are reported and skipped.
pub(crate) fn files(dialect: Dialect, args: &BackupArgs, progress: &Progress) -> Result<Sources> {
    let tree = OsSource::new();
    let mut named = args.paths.clone();
    for list in &args.files_from {
        for pattern in files_from::parse_patterns(&files::read_lines(list)?) {
            let Expanded { found, unknown } = files_from::expand(&tree, &pattern)?;
            if found.is_empty() && unknown.is_empty() {
                let (list, pattern) = (list.display(), OsStr::from_bytes(&pattern).display());
                ensure!(dialect == Dialect::Restic, "{list}: {pattern} matches nothing");
                progress.note(&format!("{list}: pattern {pattern} does not match any files, skipping"));
            }
            for (path, error) in &unknown {
                progress.fail("scan", path, &error.to_string());
            }
            named.extend(found);
        }
    }
    for list in &args.files_from_verbatim {
        named.extend(files_from::parse_verbatim(&files::read_lines(list)?));
    }
    for list in &args.files_from_raw {
        let paths = files_from::parse_raw(&files::read_list(list)?);
        named.extend(paths.with_context(|| list.display().to_string())?);
    }
    ensure!(!named.is_empty() || progress.failures() != 0, "nothing to back up: name at least one path, or --stdin");
    let mut roots = Vec::with_capacity(named.len());
    let mut are_missing = !named.is_empty();
    for path in named {
        match tree.metadata(&path) {
            Ok(metadata) => {
                if metadata.kind == EntryKind::Symlink {
                    note_link(tree, &path, progress);
                }
                roots.push(path);
            }
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => {
                progress.fail("scan", &path, &format!("{}: does not exist", path.display()));
            }
            Err(error) => {
                are_missing = false;
                progress.fail("scan", &path, &error.to_string());
            }
        }
    }
    match roots.len() {
        // Programs look for these words of restic.
        0 if are_missing => bail!("all source directories/files do not exist"),
        0 => bail!("nothing to back up: no path can be read"),
        _ => {}
    }
    let mut paths = roots.iter().map(|path| absolute(path).map(bytes_of)).collect::<Result<Vec<_>>>()?;
    paths.sort_unstable();
    paths.dedup();
    Ok(Sources { tree: Arc::new(tree), roots, paths, found_empty: Arc::default() })
}

/// Tells the user that a link is backed up as such.
fn note_link(tree: OsSource, path: &Path, progress: &Progress) {
    let Ok(behind) = tree.canonical(path) else { return };
    if matches!(tree.metadata(&behind).map(|metadata| metadata.kind), Ok(EntryKind::Directory | EntryKind::File)) {
        let (path, behind) = (path.display(), behind.display());
        progress.note(&format!(
            "{path} is a symbolic link, and only the link is backed up: name {behind} for what it leads to"
        ));
    }
}

/// Returns the path of the file in the snapshot of a stream.
pub(crate) fn stream_path(args: &BackupArgs) -> Result<PathBuf> {
    let name = &args.stdin_filename;
    let path = source::absolute(Path::new("/"), Path::new(name));
    ensure!(path != Path::new("/"), "--stdin-filename: {} is not the name of a file", name.display());
    Ok(path)
}

/// Makes a tree of one file from a stream: standard input, or the output of the command that was typed.
pub(crate) fn stream(args: &BackupArgs, interrupt: &Interrupt) -> Result<Sources> {
    let path = stream_path(args)?;
    let found_empty = Arc::default();
    let emptiness = if args.stream.allow_empty { Emptiness::Allowed } else { Emptiness::Refused };
    let reader: Box<dyn Read + Send> = if args.stdin {
        Box::new(Checked::new(StandardInput::new(interrupt), emptiness, &found_empty))
    } else if args.dry_run {
        // Nothing is read of it.
        Box::new(io::empty())
    } else {
        let mut words = args.paths.iter().map(|word| word.clone().into_os_string());
        let program = words.next().context("--stdin-from-command: a command follows --")?;
        let output = CommandOutput::start(&program, &words.collect::<Vec<_>>(), interrupt)?;
        Box::new(Checked::new(output, emptiness, &found_empty))
    };
    let tree = StreamTree::new(path.clone(), reader, OsHost::new().now());
    Ok(Sources { tree: Arc::new(tree), paths: vec![bytes_of(path.clone())], roots: vec![path], found_empty })
}
