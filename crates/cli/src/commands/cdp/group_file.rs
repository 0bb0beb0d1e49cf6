//! The file `group.json` of a group: its identity, its volumes and its options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use onefold_cdp::journal::{GroupId, JournalIdentity, JournalSize};
use onefold_cdp::stored::{GroupSpec, VolumeSpec};
use onefold_cdp::volume::{Durability, GroupOptions, WhenBehind};
use onefold_engine::io::{Access, Disk, DiskFile};
use onefold_engine::store::Store;
use serde::{Deserialize, Serialize};

use crate::commands::cdp::keep::KeepFile;

/// Its name, and that of the file that is locked while the group is in use.
pub(super) const FILE: &str = "group.json";
const LOCK: &str = "lock";
/// Most bytes of the file.
const BYTES_MAX: u64 = 1 << 20;
const VERSION: u32 = 1;

/// Parts that a flush makes durable.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DurabilityName {
    Both,
    Journal,
}

/// Outcome of a write when the journal is full.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WhenBehindName {
    Block,
    Fail,
    Bitmap,
}

/// A volume.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeFile {
    pub(super) name: String,
    /// The file or device that holds its bytes.
    pub(super) origin: PathBuf,
    /// Its bytes.
    pub(super) size: u64,
}

/// The machine that deduplicates and stores the history of a group.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceiverFile {
    /// HOST:PORT.
    pub(super) address: String,
    /// Files in the format PEM.
    pub(super) authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// Name of the codec.
    pub(super) compression: String,
}

/// Contents of the file.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupFile {
    pub(super) version: u32,
    /// 32 hexadecimal digits.
    pub(super) id: String,
    pub(super) name: String,
    /// Id of the repository.
    pub(super) repository: String,
    pub(super) volumes: Vec<VolumeFile>,
    pub(super) segment_bytes: u64,
    pub(super) segments_max: u32,
    pub(super) durability: DurabilityName,
    pub(super) when_behind: WhenBehindName,
    /// Rules by which the history is thinned while the group is served; none: it is not thinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keep: Option<KeepFile>,
    /// The machine that the records are sent to, instead of a repository on this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) receiver: Option<ReceiverFile>,
    /// True if the volumes are on another machine, which sends its records.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) received: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl GroupFile {
    /// Writes the file of a new group; the last step of creating one.
    pub(super) fn create(&self, disk: &dyn Disk) -> Result<()> {
        let temporary = Path::new("group.json.new");
        let file = disk.create(temporary)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        file.write_at(0, &text)?;
        file.sync()?;
        disk.rename(temporary, Path::new(FILE))?;
        Ok(disk.sync_dir(Path::new(""))?)
    }

    /// Reads the file of a group.
    pub(super) fn read(disk: &dyn Disk, directory: &Path) -> Result<Self> {
        let file = disk
            .open(Path::new(FILE), Access::Read)
            .with_context(|| format!("{} is no group: `onefold cdp create` makes one", directory.display()))?;
        let path = directory.join(FILE);
        let len = file.len()?;
        ensure!(len <= BYTES_MAX, "{} is too long", path.display());
        let mut text = vec![0; usize::try_from(len)?];
        file.read_at(0, &mut text)?;
        let group: Self = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        ensure!(group.version == VERSION, "{}: version {} is not known", path.display(), group.version);
        ensure!(
            !group.volumes.is_empty() && group.volumes.len() <= 1024,
            "{}: no volumes, or too many",
            path.display()
        );
        let size = group.size();
        let is_sound = JournalSize::SEGMENT_BYTES_MIN <= size.segment_bytes
            && size.segment_bytes.is_multiple_of(4096)
            && JournalSize::SEGMENTS_MIN <= size.segments_max;
        ensure!(is_sound, "{}: the size of the journal is impossible", path.display());
        Ok(group)
    }

    /// Returns the bytes of the id.
    pub(super) fn id(&self) -> Result<[u8; 16]> {
        let value = u128::from_str_radix(&self.id, 16).ok().filter(|_| self.id.len() == 32);
        Ok(value.with_context(|| format!("{}: no id of a group", self.id))?.to_be_bytes())
    }

    /// Returns what checkpoints need to know.
    pub(super) fn spec(&self) -> Result<GroupSpec> {
        let volumes = self.volumes.iter().map(|volume| VolumeSpec { name: volume.name.clone(), size: volume.size });
        let spec = GroupSpec { name: self.name.clone(), id: GroupId(self.id()?), volumes: volumes.collect() };
        spec.validate()?;
        Ok(spec)
    }

    /// Returns the size of the journal.
    pub(super) fn size(&self) -> JournalSize {
        JournalSize { segment_bytes: self.segment_bytes, segments_max: self.segments_max }
    }

    /// Returns the identity of its journal. Fails if the group is not backed up to this repository
    /// by this machine.
    pub(super) fn journal_identity(&self, store: &Store) -> Result<JournalIdentity> {
        ensure!(
            !self.received,
            "{}: the volumes are on another machine; `onefold cdp receive` takes their records",
            self.name
        );
        if let Some(receiver) = &self.receiver {
            bail!("{}: the records go to {}, and `onefold cdp serve` sends them", self.name, receiver.address);
        }
        self.reading_identity(store)
    }

    /// Returns the identity of a journal that this repository's keys seal, to read it. Fails if it is another repository.
    pub(super) fn reading_identity(&self, store: &Store) -> Result<JournalIdentity> {
        let repository = store.config.repository;
        ensure!(
            self.repository == repository.to_string(),
            "the group {} is backed up to repository {}, not to this one",
            self.name,
            self.repository
        );
        Ok(JournalIdentity { keys: (*store.keys).clone(), repository, group: GroupId(self.id()?) })
    }

    /// Returns how the group works.
    pub(super) fn options(&self) -> GroupOptions {
        GroupOptions {
            size: self.size(),
            durability: match self.durability {
                DurabilityName::Both => Durability::Both,
                DurabilityName::Journal => Durability::Journal,
            },
            when_behind: match self.when_behind {
                WhenBehindName::Block => WhenBehind::Block,
                WhenBehindName::Fail => WhenBehind::Fail,
                WhenBehindName::Bitmap => WhenBehind::Bitmap,
            },
        }
    }

    /// Returns a new group's fields that do not depend on options.
    pub(super) fn new(
        id: [u8; 16],
        name: String,
        repository: String,
        volumes: Vec<VolumeFile>,
        size: JournalSize,
    ) -> Self {
        Self {
            version: VERSION,
            id: format!("{:032x}", u128::from_be_bytes(id)),
            name,
            repository,
            volumes,
            segment_bytes: size.segment_bytes,
            segments_max: size.segments_max,
            durability: DurabilityName::Both,
            when_behind: WhenBehindName::Block,
            keep: None,
            receiver: None,
            received: false,
        }
    }
}

/// Takes the lock of a group; it is held until the file is dropped.
pub(super) fn lock(disk: &dyn Disk, directory: &Path) -> Result<Arc<dyn DiskFile>> {
    match try_lock(disk)? {
        Some(file) => Ok(file),
        None => bail!("{}: another process serves this group", directory.display()),
    }
}

/// Takes the lock of a group; returns `None` if another process has it.
pub(super) fn try_lock(disk: &dyn Disk) -> Result<Option<Arc<dyn DiskFile>>> {
    let path = Path::new(LOCK);
    let file = match disk.open(path, Access::ReadWrite) {
        Ok(file) => file,
        Err(_) => disk.create(path).or_else(|_| disk.open(path, Access::ReadWrite))?,
    };
    Ok(if file.try_lock()? { Some(file) } else { None })
}
