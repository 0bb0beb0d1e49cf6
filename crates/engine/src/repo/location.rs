//! Location of a repository, as a user names it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::error::{Error, Result};

/// Location of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// A directory of this host.
    Directory(PathBuf),
}

/// Optional prefix of the path of a local directory.
const LOCAL: &[u8] = b"local:";

impl Location {
    /// Understands `PATH` and `local:PATH`. Other schemes, as `sftp:` or `s3:`, are refused: a directory of that name is not
    /// what anybody means by them. A path whose first part has a colon is written `./a:b`.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        let path = bytes.strip_prefix(LOCAL).unwrap_or(bytes);
        if path.is_empty() {
            return Err(Error::invalid("the repository's location is empty: write PATH or local:PATH"));
        }
        if path.len() == bytes.len()
            && let Some(scheme) = scheme(bytes)
        {
            let (text, scheme) = (text.to_string_lossy(), String::from_utf8_lossy(scheme));
            return Err(Error::invalid(format!(
                "{text}: there are no repositories under `{scheme}:`; this version stores repositories in local directories: \
                 PATH or local:PATH (for a path that contains a colon, ./{text})"
            )));
        }
        Ok(Self::Directory(PathBuf::from(OsString::from_vec(path.to_vec()))))
    }
}

/// Returns what looks like a scheme, or like a user and a host, before the first colon.
fn scheme(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| matches!(byte, b':' | b'/'))?;
    let (scheme, rest) = bytes.split_at(end);
    let is_word = scheme.first().is_some_and(u8::is_ascii_lowercase)
        && scheme.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'.' | b'-'));
    (rest.first() == Some(&b':') && (is_word || scheme.contains(&b'@'))).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_named_by_paths_with_or_without_local() {
        let cases = [
            ("/srv/repo", "/srv/repo"),
            ("repo", "repo"),
            ("local:repo", "repo"),
            ("local:/srv/a:b", "/srv/a:b"),
            ("local:sftp:x", "sftp:x"),
            ("./a:b", "./a:b"),
            ("/a:b", "/a:b"),
            ("dir/s3:x", "dir/s3:x"),
            ("Backups:2026", "Backups:2026"),
            ("3:4", "3:4"),
            (":x", ":x"),
        ];
        for (text, path) in cases {
            assert_eq!(Location::parse(OsStr::new(text)).unwrap(), Location::Directory(path.into()), "{text}");
        }
        let odd = OsStr::from_bytes(b"local:\xff\xfe");
        assert_eq!(Location::parse(odd).unwrap(), Location::Directory(OsStr::from_bytes(b"\xff\xfe").into()));
    }

    #[test]
    fn other_schemes_are_refused_by_a_sentence_that_names_what_exists() {
        let schemes = "sftp:user@host:/srv rest:https://host/ s3:s3.amazonaws.com/b b2:bucket azure:c:/ gs:b:/ swift:c:/ \
                       rclone:r:p opendal:s3 ssh://host/repo user@host:/srv/repo svn+ssh:x";
        for text in schemes.split_whitespace() {
            let refused = Location::parse(OsStr::new(text)).unwrap_err().to_string();
            assert!(refused.contains("local directories: PATH or local:PATH"), "{refused}");
            assert!(refused.starts_with(text) && refused.contains(&format!("./{text}")), "{refused}");
        }
        for empty in ["", "local:"] {
            assert!(Location::parse(OsStr::new(empty)).is_err(), "{empty}");
        }
    }
}
