//! Names and numbers of the user, the host's name and processors, the cache directory, and absolute paths.
#![expect(clippy::disallowed_methods, reason = "the door")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User};

use crate::error::{Error, Result};

/// Returns this host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the name of the user who runs this process. It comes from the host's list of users, else from the
/// environment. If neither has a name, the user's number takes its place.
pub fn user_name() -> String {
    let (uid, _) = user_ids();
    let variable = |name| variable(name)?.into_string().ok().filter(|value| !value.is_empty());
    name_of_user(uid).or_else(|| variable("USER")).or_else(|| variable("LOGNAME")).unwrap_or_else(|| uid.to_string())
}

/// Returns the name of a user, if the host knows one and it is UTF-8.
pub(crate) fn name_of_user(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid)).ok()?.map(|user| user.name).filter(|name| is_whole(name))
}

/// Returns the name of a group, if the host knows one and it is UTF-8.
pub(crate) fn name_of_group(gid: u32) -> Option<String> {
    Group::from_gid(Gid::from_raw(gid)).ok()?.map(|group| group.name).filter(|name| is_whole(name))
}

/// Returns false if a name is empty, or something took the place of bytes that are not UTF-8.
fn is_whole(name: &str) -> bool {
    !name.is_empty() && !name.contains(char::REPLACEMENT_CHARACTER)
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
    let user_id = |name: &str| User::from_name(name).ok()?.map(|user| user.uid.as_raw());
    let group_id = |name: &str| Group::from_name(name).ok()?.map(|group| group.gid.as_raw());
    (local(users, user_id), local(groups, group_id))
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
            let home = User::from_uid(Uid::from_raw(uid)).ok()??.dir;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_numbers_and_back() {
        let (root, unknown) =
            ((name_of_user(0), name_of_group(0)), (name_of_user(u32::MAX - 7), name_of_group(u32::MAX - 7)));
        assert_eq!((root, unknown), ((Some("root".to_owned()), Some("root".to_owned())), (None, None)));
        let names = |root: u32| {
            BTreeMap::from([(root, "root".to_owned()), (8, "no such name".to_owned()), (9, "no\0name".to_owned())])
        };
        assert_eq!(local_ids(&names(7), &names(0)), (BTreeMap::from([(7, 0)]), BTreeMap::new()));
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
