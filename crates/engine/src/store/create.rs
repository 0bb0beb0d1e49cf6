//! Creating and opening repositories.

use std::path::Path;
use std::sync::Arc;

use crate::chunk::{CHUNK_BYTES_AVERAGE, ChunkSizes, Chunking};
use crate::crypto::slot::{PasswordCost, SlotLabel};
use crate::crypto::{Keys, MasterKey};
use crate::error::{Error, Result};
use crate::io::{Disk, Host};
use crate::object::config::{CHUNK_BYTES, CONFIG_LEN, CONTAINER_BYTES, CutRule, REGION_BYTES};
use crate::object::names::{CONFIG, CONFIG_COPY, ObjectCopy, ObjectName, Prefix};
use crate::object::store::{Created, Detail, Handshake, ObjectStore};
use crate::object::{Config, FormatVersion};
use crate::store::slots::{NewSlot, SlotPolicy, add_slot, unlock};
use crate::store::{Store, list_names, read_whole};
use crate::types::{RepositoryId, SessionId, Timestamp};

/// A later version's config may be longer; its version is what must be told then.
pub(super) const CONFIG_LEN_READ_MAX: usize = 64 * CONFIG_LEN;

/// Parameters of a new repository.
#[derive(Clone, Debug)]
pub struct CreateOptions<'a> {
    /// Password; `None` leaves it unencrypted.
    pub password: Option<&'a [u8]>,
    /// Cost of trying a password.
    pub cost: PasswordCost,
    /// Label of the first key slot.
    pub label: SlotLabel,
    /// Parameters that differ from the defaults.
    pub adjustments: Adjustments,
}

/// Contents for which the defaults of a new repository are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Purpose {
    /// Files: chunks that their content cuts.
    #[default]
    Files,
    /// Volumes that are protected continuously: blocks of one length, of which some change from snapshot to snapshot.
    Volumes,
}

/// Chunk of a repository for volumes in bytes: the block of most file systems.
const VOLUME_CHUNK_BYTES: u32 = 4 << 10;
/// Region of a repository for volumes in bytes of plaintext: one is read for each block.
const VOLUME_REGION_BYTES: u32 = 128 << 10;
/// How recipes of volumes are cut: a changed block stores about 10 KB of new segments, a tenth of what the rule for files
/// stores.
const VOLUME_RECIPE_CUT: CutRule = CutRule { min: 16, target: 48, max: 256 };

/// Parameters of a new repository that differ from the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adjustments {
    /// Contents that decide the defaults.
    pub purpose: Purpose,
    /// Average content-defined chunk in bytes.
    pub chunk_bytes: Option<u32>,
    /// Fixed chunk in bytes, instead of content-defined ones.
    pub fixed_bytes: Option<u32>,
    /// Plaintext bytes of a region.
    pub region_bytes: Option<u32>,
    /// Bytes of a container.
    pub container_bytes: Option<u32>,
    /// Version of the format.
    pub format: FormatVersion,
    /// Whether regions are never compressed against similar ones; needs format 2.
    pub no_similarity: bool,
}

impl Adjustments {
    /// Fails if no repository can be made with these, naming what is out of which range. Needs no disk.
    pub fn validate(&self) -> Result<()> {
        if self.no_similarity && self.format == FormatVersion::V1 {
            return Err(Error::invalid("a repository of format 1 has no similar regions that could be left out"));
        }
        let ranges = [
            ("chunks on average", self.chunk_bytes, &CHUNK_BYTES_AVERAGE),
            ("chunks of one length", self.fixed_bytes, &CHUNK_BYTES),
            ("regions", self.region_bytes, &REGION_BYTES),
            ("containers", self.container_bytes, &CONTAINER_BYTES),
        ];
        for (what, bytes, range) in ranges {
            if let Some(bytes) = bytes.filter(|bytes| !range.contains(bytes)) {
                let (least, most) = (range.start(), range.end());
                return Err(Error::invalid(format!("{what} of {bytes} bytes: possible are {least} to {most}")));
            }
        }
        let mut config = Config::with_defaults(RepositoryId([0; 16]), Timestamp::default(), None);
        self.apply(&mut config);
        let (chunk, region, container) =
            (config.chunking.chunk_bytes_max(), config.region_bytes, config.container_bytes);
        if container / 2 < chunk.max(region) {
            return Err(Error::invalid(format!(
                "chunks of up to {chunk} bytes and regions of {region} do not fit containers of {container}: both may \
                 be half as long at most"
            )));
        }
        config.validate().map_err(|reason| Error::invalid(format!("these sizes make no repository: {reason}")))
    }

    fn apply(&self, config: &mut Config) {
        config.format = self.format;
        config.similarity = !self.no_similarity;
        if self.purpose == Purpose::Volumes {
            config.chunking = Chunking::Fixed { bytes: VOLUME_CHUNK_BYTES };
            config.region_bytes = VOLUME_REGION_BYTES;
            config.recipe_cut = VOLUME_RECIPE_CUT;
        }
        if let Some(bytes) = self.chunk_bytes {
            config.chunking = Chunking::Gear(ChunkSizes::for_average(bytes));
        }
        if let Some(bytes) = self.fixed_bytes {
            config.chunking = Chunking::Fixed { bytes };
        }
        if let Some(bytes) = self.container_bytes {
            config.container_bytes = bytes;
            // Nodes keep their proportion to the container that must hold them.
            config.tree_node_bytes = config.tree_node_bytes.min(bytes / 32);
            let max = config.recipe_cut.max.min(bytes / 256);
            config.recipe_cut = CutRule { min: (max / 16).max(2), target: max * 3 / 16, max };
            config.region_bytes = config.region_bytes.min(bytes / 4);
        }
        if let Some(bytes) = self.region_bytes {
            config.region_bytes = bytes;
        }
    }
}

/// Means of opening a repository.
#[derive(Clone, Copy, Debug)]
pub enum Unlock<'a> {
    /// With a password. An unencrypted repository is refused: somebody may have put it in the place of the real one.
    Password(&'a [u8]),
    /// The same, with a choice of which key slots it is tried on.
    PasswordOn {
        /// The password.
        password: &'a [u8],
        /// Which slots.
        policy: &'a SlotPolicy,
    },
    /// Without, which only an unencrypted repository allows.
    Unencrypted,
}

/// Makes a directory and those that lead to it, all of them durable: each one that is made is synced, and the one in which the
/// first of them was made. One that exists is kept as it is; its name may be younger than the last sync of its parent.
pub fn create_directory(disk: &dyn Disk, path: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for directory in path.ancestors() {
        if disk.exists(directory)? {
            break;
        }
        missing.push(directory);
    }
    for directory in missing.iter().rev() {
        disk.create_dir(directory)?;
    }
    for directory in &missing {
        disk.sync_dir(directory)?;
    }
    let Some(parent) = missing.last().unwrap_or(&path).parent() else { return Ok(()) };
    match disk.sync_dir(parent) {
        // Others may have made the directory for this user in one that only they may read.
        Err(error) if missing.is_empty() && error.io_kind() == Some(std::io::ErrorKind::PermissionDenied) => Ok(()),
        synced => synced,
    }
}

/// Makes a repository in an existing directory. It exists once `config` does.
pub fn create(objects: &Arc<dyn ObjectStore>, host: &Arc<dyn Host>, options: &CreateOptions<'_>) -> Result<Store> {
    create_and_try(objects, host, options).map(|(store, _)| store)
}

/// Does what [`create`] does. Also returns whether collections can run in the repository: backups and restores can in any case.
pub fn create_and_try(
    objects: &Arc<dyn ObjectStore>,
    host: &Arc<dyn Host>,
    options: &CreateOptions<'_>,
) -> Result<(Store, Handshake)> {
    options.adjustments.validate()?;
    let mut id = [0; 16];
    host.random(&mut id)?;
    let repository = RepositoryId(id);
    let master = MasterKey::random(&**host)?;
    let clear_key = if options.password.is_none() { Some(master.clone()) } else { None };
    let mut config = Config::with_defaults(repository, host.now(), clear_key);
    options.adjustments.apply(&mut config);

    refuse_existing(&**objects)?;
    host.random(&mut id)?;
    let session = SessionId(id);
    let lock = objects.begin_creation(session)?;
    refuse_existing(&**objects)?;
    remove_unfinished(&**objects)?;
    let handshake = objects.try_handshake(session)?;
    if let Some(password) = options.password {
        let new = NewSlot { password, cost: options.cost, label: &options.label };
        add_slot(&**objects, &**host, repository, &master, new)?;
    }
    let keys = Keys::derive(&master, repository);
    let bytes = config.encode(&keys);
    // Key slots before the config: without one of these a config is of no use. The copy before the config itself, whose
    // name is what makes the store a repository.
    for copy in [ObjectCopy::Second, ObjectCopy::First] {
        if objects.create(session, ObjectName::Config(copy), &bytes)? == Created::Existed {
            return Err(Error::RepositoryExists { path: objects.display("").into() });
        }
    }
    objects.end_creation(lock);
    let (objects, host) = (Arc::clone(objects), Arc::clone(host));
    Ok((Store { objects, host, config: Arc::new(config), keys: Arc::new(keys), quarantined: None }, handshake))
}

/// Refuses a store that holds a repository, or has held one: nothing of it may be lost to a new one.
fn refuse_existing(objects: &dyn ObjectStore) -> Result<()> {
    let root = objects.display("");
    if objects.len(ObjectName::Config(ObjectCopy::First))?.is_some() {
        return Err(Error::RepositoryExists { path: root.into() });
    }
    for prefix in [Prefix::Sessions, Prefix::Commits, Prefix::Containers] {
        if !is_empty(objects, prefix)? {
            return Err(Error::ConfigMissing { root, config: CONFIG, copy: CONFIG_COPY });
        }
    }
    Ok(())
}

/// Returns true if nothing has a name under a prefix.
fn is_empty(objects: &dyn ObjectStore, prefix: Prefix) -> Result<bool> {
    let mut is_empty = true;
    let listed = objects.list(prefix, Detail::Names, &mut |page| {
        is_empty &= page.is_empty();
        Ok(())
    });
    match listed {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => Ok(true),
        listed => listed.map(|()| is_empty),
    }
}

/// Removes the objects of an interrupted run, which nothing was ever sealed with: no session has begun.
fn remove_unfinished(objects: &dyn ObjectStore) -> Result<()> {
    let mut unfinished = vec![ObjectName::Config(ObjectCopy::Second)];
    unfinished.extend(list_names(objects, Prefix::Keys)?);
    objects.delete(&unfinished)?;
    objects.leftovers(&|_| true).map(drop)
}

/// Opens a repository. Needs no writing and repairs nothing: one sound copy of the config and of a key slot is enough.
pub fn open(objects: &Arc<dyn ObjectStore>, host: &Arc<dyn Host>, unlocking: Unlock<'_>) -> Result<Store> {
    open_copies(objects, host, unlocking, &read_configs(&**objects)?)
}

/// Opens a repository by one of these copies of its config, the first that works.
pub fn open_copies(
    objects: &Arc<dyn ObjectStore>,
    host: &Arc<dyn Host>,
    unlocking: Unlock<'_>,
    copies: &[ConfigCopy],
) -> Result<Store> {
    let mut first_error = None;
    // Without `config` and without any session, an init was interrupted: it is to be run again.
    if matches!(objects.len(ObjectName::Config(ObjectCopy::First)), Ok(None)) && is_empty(&**objects, Prefix::Sessions)?
    {
        let reason = "an init did not come to its end; run it again".to_owned();
        return Err(Error::NoRepository { path: objects.display("").into(), reason });
    }
    for (name, bytes, config) in copies {
        match open_config(&**objects, (name, bytes, config), unlocking) {
            Ok(keys) => {
                let (config, keys) = (Arc::new(newest_of(config, copies, &keys).clone()), Arc::new(keys));
                return Ok(Store {
                    objects: Arc::clone(objects),
                    host: Arc::clone(host),
                    config,
                    keys,
                    quarantined: None,
                });
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or(Error::WrongPassword))
}

/// Returns the copy with the newest version of the format, of those that belong to the repository: an upgrade replaces one
/// copy after the other, and from the first one on there may be objects of the new version.
fn newest_of<'a>(opened: &'a Config, copies: &'a [ConfigCopy], keys: &Keys) -> &'a Config {
    let is_ours = |(name, bytes, other): &&(&str, Vec<u8>, Config)| {
        opened.format < other.format
            && opened.repository == other.repository
            && Config::authenticate(name, bytes, keys).is_ok()
    };
    copies.iter().filter(is_ours).map(|(_, _, other)| other).max_by_key(|other| other.format).unwrap_or(opened)
}

fn open_config(
    objects: &dyn ObjectStore,
    (name, bytes, config): (&str, &[u8], &Config),
    unlocking: Unlock<'_>,
) -> Result<Keys> {
    let master = match (&config.clear_key, unlocking) {
        (Some(key), Unlock::Unencrypted) => key.clone(),
        (None, Unlock::Password(password)) => unlock(objects, config.repository, password, &SlotPolicy::default())?.0,
        (None, Unlock::PasswordOn { password, policy }) => unlock(objects, config.repository, password, policy)?.0,
        (None, Unlock::Unencrypted) => return Err(Error::WrongPassword),
        (Some(_), Unlock::Password(_) | Unlock::PasswordOn { .. }) => {
            return Err(Error::invalid(format!(
                "the repository at {} is not encrypted although a password was given; if that is right, open it without",
                objects.display("")
            )));
        }
    };
    let keys = Keys::derive(&master, config.repository);
    Config::authenticate(&objects.display(name), bytes, &keys)?;
    Ok(keys)
}

/// A copy of the config: its name, its bytes and what they mean.
pub type ConfigCopy = (&'static str, Vec<u8>, Config);

/// Reads the copies of the config that are whole: both only if they differ, at least one. A copy that claims to be of a
/// later version does not hide the other: a flipped bit can make that claim.
pub fn read_configs(objects: &dyn ObjectStore) -> Result<Vec<ConfigCopy>> {
    let mut copies: Vec<ConfigCopy> = Vec::new();
    let mut first_error = None;
    for (name, copy) in [CONFIG, CONFIG_COPY].into_iter().zip(ObjectCopy::BOTH) {
        let read = read_whole(objects, ObjectName::Config(copy), CONFIG_LEN_READ_MAX);
        match read.and_then(|bytes| Ok((Config::decode(&objects.display(name), &bytes)?, bytes))) {
            Ok((config, bytes)) if copies.iter().all(|(_, held, _)| *held != bytes) => {
                copies.push((name, bytes, config));
            }
            Ok(_) => {}
            Err(error) => first_error = Some(worse(first_error, error)),
        }
    }
    match first_error {
        _ if !copies.is_empty() => Ok(copies),
        Some(Error::Missing { .. }) | None => {
            let path = objects.display("").into();
            Err(Error::NoRepository { path, reason: format!("there is no `{CONFIG}` in it") })
        }
        Some(error) => Err(error),
    }
}

/// Keeps the more specific of two errors of reading a config.
fn worse(first: Option<Error>, second: Error) -> Error {
    match first {
        Some(first @ Error::NewerFormat { .. }) => first,
        Some(first @ Error::Damaged { .. }) if !matches!(second, Error::NewerFormat { .. }) => first,
        Some(first) if matches!(second, Error::Missing { .. }) => first,
        _ => second,
    }
}
