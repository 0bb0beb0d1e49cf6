//! Names and numbers of the user, the host's name and processors, the cache directory, and absolute paths.
#![expect(clippy::disallowed_methods, reason = "the door")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The list of users of this host.
const USERS: &str = "/etc/passwd";

/// Returns this host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the name of the user who runs this process. It comes from the host's list of users, else from the
/// environment. If neither has a name, the user's number takes its place.
pub fn user_name() -> String {
    let (uid, _) = user_ids();
    let listed = std::fs::read_to_string(USERS).ok().and_then(|users| name_of(&users, uid));
    let variable = |name| variable(name)?.into_string().ok().filter(|value| !value.is_empty());
    listed.or_else(|| variable("USER")).or_else(|| variable("LOGNAME")).unwrap_or_else(|| uid.to_string())
}

/// Returns the numbers of the user and the group that run this process.
pub fn user_ids() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// Returns the directory that holds the caches of all repositories: `onefold` in `$XDG_CACHE_HOME`, else in `~/.cache`.
///
/// `environment` looks up a variable. Returns `None` if `HOME` is not set and `XDG_CACHE_HOME` is not an absolute path.
pub fn cache_directory(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || Some(variable("HOME")?.join(".cache"));
    // The XDG Base Directory Specification declares a relative path invalid, to be ignored.
    let base = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(home)?;
    Some(base.join("onefold"))
}

/// Returns an absolute path. Does not resolve symbolic links.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("find", path, error))
}

/// Returns an absolute path without symbolic links, or the path unchanged if it cannot be resolved.
pub fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Looks up an environment variable.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Returns how many threads this process can run at the same time, at least 1.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn name_of(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_number_and_short_lines_are_passed_over() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:1000::/home/me:/bin/sh\n";
        assert_eq!([name_of(users, 0), name_of(users, 1000)], [Some("root".to_owned()), Some("me".to_owned())]);
        assert_eq!(name_of(users, 7), None);
    }

    #[test]
    fn a_relative_cache_home_is_ignored() {
        let of = |set: &'static [(&str, &str)]| {
            cache_directory(&|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
        };
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some(PathBuf::from("/x/onefold")));
        assert_eq!(of(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]), Some(PathBuf::from("/h/.cache/onefold")));
        assert_eq!(of(&[("HOME", "")]), None);
    }
}
