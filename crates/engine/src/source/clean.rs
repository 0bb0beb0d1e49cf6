//! Paths in their shortest form.

/// Cleans a path as Go's `filepath.Clean` does: no empty names, no `.`, no name before `..`; `.` if nothing is left.
pub(super) fn clean(path: &[u8]) -> Vec<u8> {
    let absolute = path.starts_with(b"/");
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if names.last().is_some_and(|last| *last != b"..") => {
                names.pop();
            }
            b".." if absolute => {}
            name => names.push(name),
        }
    }
    let mut cleaned = if absolute { b"/".to_vec() } else { Vec::new() };
    cleaned.extend(names.join(&b'/'));
    if cleaned.is_empty() { b".".to_vec() } else { cleaned }
}
