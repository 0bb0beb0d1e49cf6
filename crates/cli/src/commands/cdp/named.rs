//! Groups as command lines name them: by the name that checkpoints have, or by the directory with the journal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use onefold_cdp::journal::{GroupId, Journal};
use onefold_cdp::volume::open_journal;
use onefold_engine::Error;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, DiskFile, Host};
use onefold_engine::store::Store;

use crate::commands::cdp::control::{Request, ask};
use crate::commands::cdp::group_file::{self, GroupFile};
use crate::commands::cdp::opening::way_on;
use crate::settings::Settings;
use crate::sources::absolute;

/// How often a group is asked for that is locked and not served: another command reads its journal, or it is being opened.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A group whose moments are read.
pub(super) struct NamedGroup {
    /// Its name.
    pub(super) name: String,
    /// Its identity, if that is known.
    pub(super) id: Option<GroupId>,
    journal: Option<Journal>,
    /// Held while the journal is open.
    _lock: Option<Arc<dyn DiskFile>>,
}

impl NamedGroup {
    /// Finds a group. One that is named by its directory has all of its moments afterwards: its server makes a checkpoint, or its
    /// journal is open, and locked until this is dropped.
    pub(super) fn find(settings: &Settings, store: &Store, text: &str) -> Result<Self> {
        if !is_directory(text) {
            return Ok(Self { name: text.to_owned(), id: None, journal: None, _lock: None });
        }
        let directory = absolute(Path::new(text))?;
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::with_backend(directory.clone(), settings.io));
        let file = GroupFile::read(&*disk, &directory)?;
        let name = file.name.clone();
        if file.receiver.is_some() {
            // Its journal is sealed for no repository: the one here has what the receiver has stored.
            return Ok(Self { name, id: Some(GroupId(file.id()?)), journal: None, _lock: None });
        }
        let identity = file.reading_identity(store)?;
        let id = Some(identity.group);
        let host = Arc::new(OsHost::new());
        for left in (0..TRIES).rev() {
            if let Some(lock) = group_file::try_lock(&*disk)? {
                let size = file.options().size;
                let opened = open_journal(&disk, host, Path::new(""), identity, size);
                let (journal, _) = opened.with_context(|| way_on(&name))?;
                return Ok(Self { name, id, journal: Some(journal), _lock: Some(lock) });
            }
            match ask(&directory, &Request::Checkpoint) {
                Ok(_) => break,
                Err(_) if left != 0 => host.sleep(PAUSE),
                Err(error) => return Err(error).with_context(|| {
                    format!("the group is in use, and makes no checkpoint; `{name}`, its name, stands for what the repository has")
                }),
            }
        }
        Ok(Self { name, id, journal: None, _lock: None })
    }

    /// Returns the name and the identity.
    pub(super) fn key(&self) -> (&str, Option<GroupId>) {
        (&self.name, self.id)
    }

    /// Says how the group goes on if what was read lacks records of its journal.
    pub(super) fn say_loss<T>(&self, outcome: onefold_engine::Result<T>) -> Result<T> {
        match outcome {
            Err(error @ Error::Damaged { .. }) if self.journal.is_some() => {
                Err(error).with_context(|| way_on(&self.name))
            }
            outcome => Ok(outcome?),
        }
    }

    /// Returns the journal, if it holds moments that the repository may not have.
    pub(super) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }
}

/// Refuses a file that is a volume of a group, if the group was named by its directory: its journal would not know of what is written.
pub(super) fn refuse_volume(settings: &Settings, text: &str, target: &Path) -> Result<()> {
    if !is_directory(text) {
        return Ok(());
    }
    let directory = absolute(Path::new(text))?;
    let disk = OsDisk::with_backend(directory.clone(), settings.io);
    let target = absolute(target)?;
    let is_volume = GroupFile::read(&disk, &directory)?.volumes.iter().any(|volume| volume.origin == target);
    ensure!(!is_volume, "{} is a volume of the group: --in-place brings it back, and records that", target.display());
    Ok(())
}

/// Returns true if a text is the directory of a group rather than a name.
pub(super) fn is_directory(text: &str) -> bool {
    text.contains('/') || Path::new(text).join(group_file::FILE).exists()
}
