//! The preset of the index that this host has chosen for a repository.
//!
//! The file `index-preset` in the directory of the cache has its name. If it is missing, damaged or of a later version, backups
//! take the default.

use std::path::Path;

use crate::error::Result;
use crate::identify::IndexPreset;
use crate::io::{Access, Disk, Host};
use crate::store::host_file::replace_file;

const FILE: &str = "index-preset";
/// Longest name of a preset.
const NAME_LEN_MAX: u64 = 64;

/// Returns the preset that this host has chosen last, according to the cache in a directory of a disk.
pub(super) fn remembered_preset(disk: &dyn Disk, dir: &Path) -> IndexPreset {
    let read = || -> Result<Option<IndexPreset>> {
        let file = disk.open(&dir.join(FILE), Access::Read)?;
        let len = file.len()?;
        if NAME_LEN_MAX < len {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(len).expect("at most NAME_LEN_MAX")];
        file.read_at(0, &mut bytes)?;
        Ok(std::str::from_utf8(&bytes).ok().and_then(|name| IndexPreset::named(name.trim_end())))
    };
    read().ok().flatten().unwrap_or_default()
}

/// Remembers a preset for later backups.
pub(super) fn remember_preset(disk: &dyn Disk, host: &dyn Host, dir: &Path, preset: IndexPreset) -> Result<()> {
    if preset == remembered_preset(disk, dir) {
        return Ok(());
    }
    replace_file(disk, host, &dir.join(FILE), format!("{}\n", preset.name()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim::{SimDisk, SimHost};

    #[test]
    fn the_last_choice_is_remembered_and_what_is_not_understood_is_the_default() {
        let disk = SimDisk::default();
        let remembered = || remembered_preset(&disk, Path::new(""));
        assert_eq!(remembered(), IndexPreset::default());
        let host = SimHost::new(1);
        for preset in IndexPreset::all().chain([IndexPreset::ChunkStash, IndexPreset::Ddfs]) {
            remember_preset(&disk, &host, Path::new(""), preset).unwrap();
            assert_eq!(remembered(), preset);
        }
        assert_eq!(disk.power_cut(1).bytes(FILE), b"ddfs\n");
        let unknown = [&b"sampled\n"[..], &[0xff; 10], &[b'x'; 4_000], b""];
        for bytes in unknown {
            let file = disk.open(Path::new(FILE), Access::ReadWrite).unwrap();
            file.set_len(0).unwrap();
            file.write_at(0, bytes).unwrap();
            assert_eq!(remembered(), IndexPreset::default());
        }
    }
}
