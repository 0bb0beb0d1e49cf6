//! Names and numbers of the user, the host's name and processors, the cache directory, and absolute paths.
#![expect(clippy::disallowed_methods, reason = "the door")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
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
    let listed = std::fs::read_to_string(USERS).ok().and_then(|users| field_of(&users, uid, NAME_FIELD));
    let variable = |name| variable(name)?.into_string().ok().filter(|value| !value.is_empty());
    listed.or_else(|| variable("USER")).or_else(|| variable("LOGNAME")).unwrap_or_else(|| uid.to_string())
}

/// Returns the numbers that names of users, and of groups, have here. Leaves out names that the host does not know, and
/// numbers that are the same.
pub fn local_ids(
    users: &BTreeMap<u32, String>,
    groups: &BTreeMap<u32, String>,
) -> (BTreeMap<u32, u32>, BTreeMap<u32, u32>) {
    let local = |names: &BTreeMap<u32, String>, find: fn(&str) -> Option<u32>| {
        let found = names.iter().filter_map(|(id, name)| Some((*id, find(name)?)));
        found.filter(|(id, here)| id != here).collect()
    };
    (local(users, onefold_sys::user_id), local(groups, onefold_sys::group_id))
}

/// Returns the numbers of the user and the group that run this process.
pub fn user_ids() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// The directory of the caches of root where no variable names one, as in a unit of systemd.
const SYSTEM_CACHE: &str = "/var/cache/onefold";

/// Returns the directory that holds the caches of all repositories: `$CACHE_DIRECTORY`, which systemd sets; else `onefold` in
/// `$XDG_CACHE_HOME`, else in `.cache` of `$HOME`. Without these, `/var/cache/onefold` for root, and for others the same as with the
/// home directory of the host's list of users.
///
/// `environment` looks up a variable. Returns `None` if the list has no absolute path.
pub fn cache_directory(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG Base Directory Specification declares a relative path invalid, to be ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    // Of several, the first.
    let given = variable("CACHE_DIRECTORY").and_then(|list| Some(PathBuf::from(list.to_str()?.split(':').next()?)));
    if let Some(given) = given.filter(absolute) {
        return Some(given);
    }
    let home = variable("XDG_CACHE_HOME").filter(absolute).or_else(|| Some(variable("HOME")?.join(".cache")));
    let (uid, _) = user_ids();
    match home {
        Some(base) => Some(base.join("onefold")),
        None if uid == 0 => Some(PathBuf::from(SYSTEM_CACHE)),
        None => {
            let home = field_of(&std::fs::read_to_string(USERS).ok()?, uid, HOME_FIELD).map(PathBuf::from)?;
            absolute(&home).then(|| home.join(".cache/onefold"))
        }
    }
}

/// Returns an absolute path. Does not resolve symbolic links.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("find", path, error))
}

/// Returns an absolute path without symbolic links, or the path unchanged if it cannot be resolved.
pub fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Returns the first of other paths by which the same directory is known, else the path itself: a directory may be mounted twice.
pub fn known_as(path: PathBuf, known: Vec<PathBuf>) -> PathBuf {
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let own = identity(&path);
    known.into_iter().find(|other| own.is_some() && identity(other) == own).unwrap_or(path)
}

/// Looks up an environment variable.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Returns how many threads this process can run at the same time, at least 1.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Positions in a line of the list of users.
const NAME_FIELD: usize = 0;
const UID_FIELD: usize = 2;
const HOME_FIELD: usize = 5;

fn field_of(users: &str, uid: u32, field: usize) -> Option<String> {
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(UID_FIELD)?.parse() == Ok(uid)).then(|| fields.get(field).copied().map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_number_and_short_lines_are_passed_over() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:1000::/home/me:/bin/sh\n";
        let of = |uid, field| field_of(users, uid, field);
        assert_eq!([of(0, NAME_FIELD), of(1000, NAME_FIELD)], [Some("root".to_owned()), Some("me".to_owned())]);
        assert_eq!([of(1000, HOME_FIELD), of(7, NAME_FIELD)], [Some("/home/me".to_owned()), None]);
    }

    #[test]
    fn a_relative_cache_home_is_ignored() {
        let of = |set: &'static [(&str, &str)]| {
            cache_directory(&|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
        };
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some(PathBuf::from("/x/onefold")));
        assert_eq!(of(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]), Some(PathBuf::from("/h/.cache/onefold")));
        assert_eq!(of(&[("CACHE_DIRECTORY", "/c:/d"), ("HOME", "/h")]), Some(PathBuf::from("/c")));
        // Not in the working directory, whoever asks.
        assert!(of(&[("HOME", "")]).is_none_or(|path| path.is_absolute()));
    }
}
