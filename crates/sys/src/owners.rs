//! Names and numbers of users and groups, from the C library: it asks whatever the host's `nsswitch.conf` names.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Size of the first buffer for an entry of the lists of users and groups.
const BUFFER_FIRST: usize = 1 << 10;

/// Largest such buffer: a group may have many members.
const BUFFER_MAX: usize = 1 << 20;

/// `ERANGE`: the buffer is too small.
const TOO_SMALL: c_int = 34;

/// `struct passwd` of Linux, up to the last field that is read.
#[repr(C)]
struct User {
    name: *const c_char,
    password: *const c_char,
    uid: u32,
    gid: u32,
    rest: [*const c_char; 3],
}

/// `struct group` of Linux.
#[repr(C)]
struct Group {
    name: *const c_char,
    password: *const c_char,
    gid: u32,
    members: *const c_void,
}

unsafe extern "C" {
    fn getpwuid_r(uid: u32, user: *mut User, buffer: *mut c_char, len: usize, found: *mut *mut User) -> c_int;
    fn getpwnam_r(
        name: *const c_char,
        user: *mut User,
        buffer: *mut c_char,
        len: usize,
        found: *mut *mut User,
    ) -> c_int;
    fn getgrgid_r(gid: u32, group: *mut Group, buffer: *mut c_char, len: usize, found: *mut *mut Group) -> c_int;
    fn getgrnam_r(
        name: *const c_char,
        group: *mut Group,
        buffer: *mut c_char,
        len: usize,
        found: *mut *mut Group,
    ) -> c_int;
}

/// Calls with larger and larger buffers. Returns the entry that was found, read by `read` while its buffer lives.
fn look_up<T, R>(
    mut call: impl FnMut(*mut T, *mut c_char, usize, *mut *mut T) -> c_int,
    read: impl Fn(&T) -> R,
) -> Option<R> {
    let mut len = BUFFER_FIRST;
    while len <= BUFFER_MAX {
        let mut buffer: Vec<c_char> = vec![0; len];
        let mut entry = std::mem::MaybeUninit::<T>::zeroed();
        let mut found: *mut T = std::ptr::null_mut();
        match call(entry.as_mut_ptr(), buffer.as_mut_ptr(), len, &raw mut found) {
            // SAFETY: the call has set `found` to null, or to `entry`, which it has filled. Its texts are in the buffer, which
            // lives until `read` has ended.
            0 => return unsafe { found.as_ref() }.map(read),
            TOO_SMALL => len *= 4,
            _ => return None,
        }
    }
    None
}

fn text(name: *const c_char) -> Option<String> {
    // SAFETY: the caller read the pointer from an entry that the C library has filled: it is null or ends with a zero.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    name.to_str().ok().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Returns the name of a user, if the host knows one and it is UTF-8.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    look_up(
        // SAFETY: all pointers are valid for the call, and the length is that of the buffer.
        |user, buffer, len, found| unsafe { getpwuid_r(uid, user, buffer, len, found) },
        |user: &User| text(user.name),
    )?
}

/// Returns the name of a group, if the host knows one and it is UTF-8.
#[must_use]
pub fn group_name(gid: u32) -> Option<String> {
    look_up(
        // SAFETY: as for users.
        |group, buffer, len, found| unsafe { getgrgid_r(gid, group, buffer, len, found) },
        |group: &Group| text(group.name),
    )?
}

/// Returns the number of a user, if the host knows the name.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    look_up(
        // SAFETY: as above, and the name ends with a zero.
        |user, buffer, len, found| unsafe { getpwnam_r(name.as_ptr(), user, buffer, len, found) },
        |user: &User| user.uid,
    )
}

/// Returns the number of a group, if the host knows the name.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    look_up(
        // SAFETY: as above.
        |group, buffer, len, found| unsafe { getgrnam_r(name.as_ptr(), group, buffer, len, found) },
        |group: &Group| group.gid,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_numbers_and_back() {
        assert_eq!((user_name(0).as_deref(), user_id("root")), (Some("root"), Some(0)));
        assert_eq!((group_name(0).as_deref(), group_id("root")), (Some("root"), Some(0)));
        assert_eq!((user_name(4_000_000_000), user_id("no such user")), (None, None));
        assert_eq!((group_name(4_000_000_000), group_id("no\0group")), (None, None));
    }
}
