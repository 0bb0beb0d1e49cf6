//! What is left out of a backup: patterns, marked directories, other file systems, large files; as in restic.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::tree::{EntryKind, SourceDirectory};
use crate::source::clean::clean;
use crate::source::glob::{NamePattern, refuse};

/// First bytes of a `CACHEDIR.TAG` file, by the Cache Directory Tagging Specification.
pub const CACHE_SIGNATURE: &[u8; 43] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// Whether patterns distinguish upper from lower case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// `--exclude`.
    Sensitive,
    /// `--iexclude`.
    Insensitive,
}

/// Patterns in the order in which they were given.
///
/// A path is excluded if a pattern matches it or a directory above it. Patterns are joined names, each with the
/// wildcards of `NamePattern`; `**` stands for any number of names, also none. A pattern that starts with `/` is
/// anchored at the root of the file system, others match at any depth. A pattern after `!` takes back what the ones
/// before it excluded; it cannot reach into a directory that is left out as a whole, which is never looked into.
/// A pattern that ends with `/` matches directories only.
#[derive(Clone, Debug)]
pub struct Patterns {
    case: Case,
    patterns: Vec<PathPattern>,
}

impl Patterns {
    /// Compiles patterns. Empty ones are left out.
    pub fn parse<'a>(patterns: impl IntoIterator<Item = &'a [u8]>, case: Case) -> Result<Self> {
        let patterns = patterns.into_iter().filter(|pattern| !pattern.is_empty());
        let parse = |pattern| PathPattern::parse(&fold(pattern, case)).map_err(|reason| refuse(pattern, reason));
        let patterns = patterns.map(parse).collect::<Result<_>>()?;
        Ok(Self { case, patterns })
    }

    /// Says whether something below a directory may match, so that it is worth looking into. The path is absolute and
    /// clean.
    pub(crate) fn reaches(&self, directory: &Path) -> bool {
        let path = fold(directory.as_os_str().as_bytes(), self.case);
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        self.patterns.iter().any(|pattern| !pattern.negated && pattern.reaches(&names))
    }

    /// Returns true if the answer for a path may depend on whether it is of a directory.
    pub(crate) fn depends_on_kind(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern.is_for_directories)
    }

    /// Says whether an absolute, clean path, of a directory or not, is excluded.
    pub(crate) fn matches(&self, path: &Path, is_directory: bool) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let path = fold(path.as_os_str().as_bytes(), self.case);
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        // All names but the last are of directories.
        let directories =
            if is_directory { &names[..] } else { names.split_last().map_or(&[][..], |(_, above)| above) };
        self.patterns.iter().fold(false, |excluded, pattern| {
            let names = if pattern.is_for_directories { directories } else { &names };
            // Only a pattern that would change the answer is tried.
            if excluded == pattern.negated { excluded != pattern.matches(names) } else { excluded }
        })
    }
}

fn fold(text: &[u8], case: Case) -> Cow<'_, [u8]> {
    match case {
        Case::Sensitive => Cow::Borrowed(text),
        Case::Insensitive => {
            let mut folded = Vec::with_capacity(text.len());
            for chunk in text.utf8_chunks() {
                folded.extend_from_slice(chunk.valid().to_lowercase().as_bytes());
                folded.extend_from_slice(chunk.invalid());
            }
            Cow::Owned(folded)
        }
    }
}

/// A pattern for paths: runs of names that follow each other, with any number of names between runs.
#[derive(Clone, Debug)]
struct PathPattern {
    negated: bool,
    /// Whether it matches directories only.
    is_for_directories: bool,
    /// Whether the first run starts at the root.
    anchored: bool,
    runs: Vec<Vec<NamePattern>>,
}

impl PathPattern {
    fn parse(pattern: &[u8]) -> std::result::Result<Self, &'static str> {
        let (negated, pattern) = match pattern.strip_prefix(b"!") {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        let cleaned = clean(pattern);
        let mut runs = vec![Vec::new()];
        for name in cleaned.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if name == b"**" {
                runs.push(Vec::new());
            } else if let Some(run) = runs.last_mut() {
                run.push(NamePattern::compile(name)?);
            }
        }
        let is_for_directories = pattern.ends_with(b"/") && cleaned != *b"/";
        Ok(Self { negated, is_for_directories, anchored: cleaned.starts_with(b"/"), runs })
    }

    /// Returns true if names below these may match. Only the first run of an anchored pattern has a fixed position.
    fn reaches(&self, names: &[&[u8]]) -> bool {
        let first = self.runs.first().map_or(&[][..], Vec::as_slice);
        !self.anchored || first.iter().zip(names).all(|(pattern, name)| pattern.matches(name))
    }

    /// Returns true if the runs occur in order. The earliest match of each leaves the most to the next. Names after the last
    /// run do not matter, since a match of a directory covers its contents.
    fn matches(&self, names: &[&[u8]]) -> bool {
        let mut rest = names;
        for (number, run) in self.runs.iter().enumerate() {
            let movable = number != 0 || !self.anchored;
            let starts = if movable { rest.len().saturating_sub(run.len()) } else { 0 };
            let here = |start: &usize| {
                let names = rest.get(*start..).unwrap_or_default();
                run.len() <= names.len() && run.iter().zip(names).all(|(pattern, name)| pattern.matches(name))
            };
            let Some(start) = (0..=starts).find(here) else { return false };
            rest = rest.get(start + run.len()..).unwrap_or_default();
        }
        true
    }
}

/// Returns the patterns of an exclude file.
///
/// One a line, white space around it removed; empty lines and those that start with `#` are comments. `$NAME` and
/// `${NAME}` stand for what `lookup` says, nothing if it says `None`; `$$` is a dollar sign.
pub fn read_patterns(file: &[u8], lookup: &dyn Fn(&OsStr) -> Option<OsString>) -> Vec<Vec<u8>> {
    // Editors of other systems begin a file with a byte order mark.
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    file.split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .map(|line| expand(line, lookup))
        .collect()
}

fn expand(line: &[u8], lookup: &dyn Fn(&OsStr) -> Option<OsString>) -> Vec<u8> {
    let mut expanded = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        let (before, after) = rest.split_at(dollar);
        expanded.extend_from_slice(before);
        let after = after.get(1..).unwrap_or_default();
        let (name, after) = variable(after);
        rest = after;
        match name {
            Variable::None | Variable::Named(b"$") => expanded.push(b'$'),
            Variable::Malformed => {}
            Variable::Named(name) => {
                expanded.extend(lookup(OsStr::from_bytes(name)).map(OsString::into_vec).unwrap_or_default());
            }
        }
    }
    expanded.extend_from_slice(rest);
    expanded
}

/// What follows a dollar sign.
#[derive(Debug)]
enum Variable<'a> {
    /// No name: the dollar sign stands for itself.
    None,
    /// A brace without a name or without its end: dropped.
    Malformed,
    Named(&'a [u8]),
}

fn variable(text: &[u8]) -> (Variable<'_>, &[u8]) {
    let is_special = |byte: &u8| b"*#$@!?-".contains(byte) || byte.is_ascii_digit();
    if let Some(braced) = text.strip_prefix(b"{") {
        return match braced.iter().position(|byte| *byte == b'}') {
            None => (Variable::Malformed, braced),
            Some(end) => {
                let (name, after) = braced.split_at(end);
                let after = after.get(1..).unwrap_or_default();
                (if name.is_empty() { Variable::Malformed } else { Variable::Named(name) }, after)
            }
        };
    }
    let len = match text.first() {
        Some(byte) if is_special(byte) => 1,
        _ => text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count(),
    };
    let (name, after) = text.split_at_checked(len).unwrap_or((text, &[]));
    (if name.is_empty() { Variable::None } else { Variable::Named(name) }, after)
}

/// Returns the bytes that a size such as `100`, `5k` or `2G` stands for; powers of 1,024.
pub fn parse_size(text: &str) -> Result<u64> {
    let refuse =
        || Error::invalid(format!("{text:?}: not a size; write a number with b, k, M, G or T, or none, after it"));
    let (digits, shift) = match text.as_bytes().split_last() {
        Some((b'b' | b'B', digits)) => (digits, 0),
        Some((b'k' | b'K', digits)) => (digits, 10),
        Some((b'm' | b'M', digits)) => (digits, 20),
        Some((b'g' | b'G', digits)) => (digits, 30),
        Some((b't' | b'T', digits)) => (digits, 40),
        _ => (text.as_bytes(), 0),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refuse());
    }
    let number: Option<u64> = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| Error::invalid(format!("{text:?}: more than {} bytes, the largest size there is", u64::MAX)))
}

/// A file that marks the directory it is in: of that, nothing else is backed up. The directory itself and the file are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tag {
    name: OsString,
    header: Vec<u8>,
}

impl Tag {
    /// The mark of `--exclude-caches`.
    pub fn cache_directory() -> Self {
        Self { name: OsString::from("CACHEDIR.TAG"), header: CACHE_SIGNATURE.to_vec() }
    }

    /// Reads `NAME[:HEADER]`, the mark of `--exclude-if-present`.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let mut parts = text.as_bytes().splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
            return Err(Error::invalid(format!("{:?}: not the name of a file that marks directories", text.display())));
        }
        let header = parts.next().unwrap_or_default().to_vec();
        Ok(Self { name: OsStr::from_bytes(name).to_os_string(), header })
    }

    /// Returns true if the file in a directory makes this mark: it is there and starts with the header, if one is wanted.
    pub(crate) fn marks(&self, directory: &dyn SourceDirectory) -> Result<bool> {
        match directory.metadata_of(&self.name) {
            Ok(_) if self.header.is_empty() => Ok(true),
            Ok(metadata) if metadata.kind != EntryKind::File => Ok(false),
            Ok(_) => {
                let mut start = vec![0; self.header.len()];
                let count = directory.open(&self.name)?.read_at(0, &mut start)?;
                Ok(count == start.len() && start == self.header)
            }
            Err(error) if error.io_kind() == Some(io::ErrorKind::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Everything that decides what of the roots is left out. The roots themselves never are, except by `skip`.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    /// Lists of patterns; what one of them excludes is excluded.
    pub patterns: Vec<Patterns>,
    /// Marks of directories whose contents are left out.
    pub tags: Vec<Tag>,
    /// Regular files longer than this many bytes are left out.
    pub file_bytes_max: Option<u64>,
    /// Whether what lies on another file system than its root is left out. Mount points stay, as empty directories.
    pub one_file_system: bool,
    /// Directories left out wherever they turn up, by device and inode: the repository itself, caches.
    pub skip: BTreeSet<(u64, u64)>,
}

impl Excludes {
    /// Takes out of a directory's sorted names what its marks leave out; of several marks only a name that is each
    /// one's file would stay. A mark that cannot be read does not count and is returned with its path.
    pub(super) fn apply_tags(
        &self,
        directory: &dyn SourceDirectory,
        path: &Path,
        names: &mut Vec<OsString>,
    ) -> Vec<(PathBuf, Error)> {
        let mut errors = Vec::new();
        // Told from the listing, which spares most directories a call per mark.
        let tags: Vec<&Tag> = self.tags.iter().filter(|tag| names.binary_search(&tag.name).is_ok()).collect();
        for tag in tags {
            match tag.marks(directory) {
                Ok(true) => names.retain(|name| *name == tag.name),
                Ok(false) => {}
                Err(error) => errors.push((path.join(&tag.name), error)),
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::tree::SourceTree;
    use crate::testing::mem_tree::MemTree;

    fn excludes(patterns: &[&str], case: Case, path: &str) -> bool {
        let patterns = Patterns::parse(patterns.iter().map(|pattern| pattern.as_bytes()), case).unwrap();
        patterns.matches(Path::new(path), false)
    }

    #[test]
    fn a_directory_is_looked_into_only_if_something_below_it_may_match() {
        for (pattern, directory, expected) in [
            ("*.c", "/any", true),
            ("/a/b", "/a", true),
            ("/a/b", "/a/b/c", true),
            ("/a/b", "/b", false),
            ("/a/b", "/a/c", false),
            ("/a/**/z", "/a/x/y", true),
            ("/a/**/z", "/b", false),
            ("/**/z", "/b", true),
            ("!/a", "/a", false),
        ] {
            let patterns = Patterns::parse([pattern.as_bytes()], Case::Sensitive).unwrap();
            assert_eq!(patterns.reaches(Path::new(directory)), expected, "{pattern} below {directory}");
        }
    }

    #[test]
    fn a_pattern_with_a_slash_at_its_end_matches_directories_only() {
        for (pattern, path, is_directory, expected) in [
            ("cache/", "/a/cache", true, true),
            ("cache/", "/a/cache", false, false),
            ("cache/", "/a/cache/file", false, true),
            ("/a/*/", "/a/b", false, false),
            ("/a/*/", "/a/b", true, true),
            ("/a/**/z/", "/a/x/y/z", false, false),
            ("/a/**/z/", "/a/x/y/z/f", false, true),
            ("cache", "/a/cache", false, true),
            ("/", "/a", false, true),
        ] {
            let patterns = Patterns::parse([pattern.as_bytes()], Case::Sensitive).unwrap();
            assert_eq!(patterns.matches(Path::new(path), is_directory), expected, "{pattern} {path} {is_directory}");
        }
    }

    #[test]
    fn single_patterns_match_as_restic_documents() {
        for (pattern, path, expected) in [
            ("*.c", "/foo/bar/test.c", true),
            ("*.c", "/foo/bar/test.go", false),
            ("*.c", "/foo/dir.c/readme", true),
            ("*", "/x", true),
            ("test.*", "/foo/test.c", true),
            ("/home/user/foo", "/home/user/foo", true),
            ("/home/user/foo", "/home/user/foo/bar", true),
            ("/home/user/foo", "/home/user/foobar", false),
            ("/home/user/foo", "/mnt/home/user/foo", false),
            ("/foo/bar", "/foo", false),
            ("foo", "/a/foo/b", true),
            ("foo", "/a/foobar", false),
            ("foo/bar", "/x/foo/bar", true),
            ("foo/bar", "/x/foo/y/bar", false),
            ("foo/**/bar", "/foo/bar", true),
            ("foo/**/bar", "/x/foo/a/bar", true),
            ("foo/**/bar", "/x/foo/a/b/c/bar/file", true),
            ("foo/**/bar", "/x/foo/a/b/c/baz", false),
            ("/foo/**/bar", "/x/foo/a/bar", false),
            ("/home/**/*.c", "/home/user/src/test.c", true),
            ("**/foo", "/foo", true),
            ("/**/foo", "/a/b/foo", true),
            ("foo/**", "/foo", true),
            ("/foo/**/a/**/b", "/foo/1/b/a/2/c", false),
            ("/foo/**/a/**/b", "/foo/1/b/a/2/b/3", true),
            ("foo/*/x/**/y", "/foo/1/x/2/foo/3/x/y", true),
            ("user/*", "/home/user/foo", true),
            ("user/*", "/home/user", false),
            ("/", "/anything", true),
            ("foo/../bar/", "/a/bar/x", true),
            ("./foo//bar", "/foo/bar", true),
            ("foo**bar", "/a/fooxbar", true),
            ("foo**bar", "/foo/x/bar", false),
            ("FOO", "/foo", false),
            (".[^.]*", "/home/.profile", true),
            (".[^.]*", "/home/profile", false),
            ("\\*", "/a/*", true),
            ("\\*", "/a/b", false),
        ] {
            assert_eq!(excludes(&[pattern], Case::Sensitive, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_later_pattern_can_take_back_an_earlier_one() {
        let patterns = ["/home/user/*", "!/home/user/keep", "*.tmp"];
        for (path, expected) in [
            ("/home/user/other", true),
            ("/home/user/keep", false),
            ("/home/user/keep/file", false),
            ("/home/user/keep/file.tmp", true),
            ("/home/user", false),
        ] {
            assert_eq!(excludes(&patterns, Case::Sensitive, path), expected, "{path}");
        }
        assert!(excludes(&["!a", "a"], Case::Sensitive, "/a"));
        assert!(!excludes(&["!a"], Case::Sensitive, "/a"));
        assert!(!excludes(&["!a"], Case::Sensitive, "/b"));
        assert!(excludes(&["a", "!a", "a"], Case::Sensitive, "/a"));
    }

    #[test]
    fn case_is_ignored_on_request_also_beyond_ascii() {
        assert!(excludes(&["*.JPG"], Case::Insensitive, "/a/b.jpG"));
        assert!(!excludes(&["*.JPG"], Case::Sensitive, "/a/b.jpg"));
        assert!(excludes(&["\u{c4}RGER"], Case::Insensitive, "/\u{e4}rger/x"));
        assert!(excludes(&["[A-C]x"], Case::Insensitive, "/BX"));
    }

    #[test]
    fn names_need_not_be_text() {
        let patterns = Patterns::parse([b"\xff*".as_slice()], Case::Insensitive).unwrap();
        assert!(patterns.matches(Path::new(OsStr::from_bytes(b"/a/\xff\xfeB")), false));
        assert!(!patterns.matches(Path::new(OsStr::from_bytes(b"/a/\xfe")), false));
    }

    #[test]
    fn bad_patterns_are_refused_and_empty_ones_left_out() {
        for case in [Case::Sensitive, Case::Insensitive] {
            let error = Patterns::parse([b"A/[".as_slice()], case).unwrap_err();
            assert_eq!(error.to_string(), "pattern `A/[`: unclosed bracket");
        }
        assert!(!excludes(&["", "!"], Case::Sensitive, "/a"));
    }

    #[test]
    fn exclude_files_have_comments_and_variables() {
        let file = b"\xef\xbb\xbf# comment\n\n  *.o  \r\n$HOME/tmp\n${HOME}x\n$$HOME\n$UNSET/a\na$\n$/x\n${}b\n${open\n  #c\nlast";
        let lookup = |name: &OsStr| (name == "HOME").then(|| OsString::from("/home/u"));
        let lines = read_patterns(file, &lookup);
        let lines: Vec<_> = lines.iter().map(|line| std::str::from_utf8(line).unwrap()).collect();
        assert_eq!(lines, ["*.o", "/home/u/tmp", "/home/ux", "$HOME", "/a", "a$", "$/x", "b", "open", "last"]);
    }

    #[test]
    fn sizes_are_read() {
        for (text, expected) in [("0", 0), ("100", 100), ("7b", 7), ("5k", 5120), ("2M", 2 << 20), ("3G", 3 << 30)] {
            assert_eq!(parse_size(text).unwrap(), expected);
        }
        assert_eq!(parse_size("1T").unwrap(), 1 << 40);
        for text in ["", "k", "-1", "+1", "1.5M", "1 M", "99999999999999999999", "99999999999T", "1x"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_mark_needs_its_header() {
        assert_eq!(CACHE_SIGNATURE.len(), 43);
        let tree = MemTree::new();
        let mut tag = CACHE_SIGNATURE.to_vec();
        tag.extend_from_slice(b"\n# comment");
        tree.put_file(Path::new("/cache/CACHEDIR.TAG"), &tag);
        tree.put_file(Path::new("/short/CACHEDIR.TAG"), &CACHE_SIGNATURE[..42]);
        tree.put_symlink(Path::new("/link/CACHEDIR.TAG"), OsStr::new("/cache/CACHEDIR.TAG"));
        tree.put_dir(Path::new("/none"));
        let mark = Tag::cache_directory();
        let marks = |directory: &str| mark.marks(&*tree.open_dir(Path::new(directory)).unwrap()).unwrap();
        assert!(marks("/cache"));
        assert!(!marks("/short"));
        assert!(!marks("/link"));
        assert!(!marks("/none"));
        assert!(
            Tag::parse(OsStr::new("CACHEDIR.TAG"))
                .unwrap()
                .marks(&*tree.open_dir(Path::new("/link")).unwrap())
                .unwrap()
        );
        let with_header = Tag::parse(OsStr::new("CACHEDIR.TAG:Signature: 8")).unwrap();
        assert!(with_header.marks(&*tree.open_dir(Path::new("/short")).unwrap()).unwrap());
        tree.fail_open(Path::new("/short/CACHEDIR.TAG"), io::ErrorKind::PermissionDenied);
        assert!(with_header.marks(&*tree.open_dir(Path::new("/short")).unwrap()).is_err());
        for bad in ["", ":x", "a/b", ".."] {
            assert!(Tag::parse(OsStr::new(bad)).is_err());
        }
    }
}
