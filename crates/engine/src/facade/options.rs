//! Options of creating and opening a repository.

use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::backup::Budget;
use crate::compress::Compression;
use crate::crypto::slot::{PasswordCost, SlotLabel};
use crate::error::{Error, Result};
use crate::facade::Repository;
use crate::facade::bytes_of;
use crate::facade::cache::CacheDirectory;
use crate::identify::{IndexOptions, IndexPreset};
use crate::io::os::{OsDisk, OsHost};
use crate::io::{Host, os_identity};
use crate::object::ObjectStore;
use crate::object::directory::DirectoryStore;
use crate::store::create::{Adjustments, Purpose, create_directory, open_copies, read_configs};
use crate::store::pin::{Pin, admit, read_pins, write_pin};
use crate::store::slots::SlotPolicy;
use crate::store::{self, CreateOptions, Unlock};

/// Location of a repository, its password, and the resources of its operations.
#[derive(Clone, Debug)]
pub struct RepositoryOptions {
    directory: PathBuf,
    unlocking: Unlocking,
    cache: Option<PathBuf>,
    resources: Resources,
    adjustments: Adjustments,
    replaced: Replaced,
}

/// Treatment of another repository than this host has seen at the path.
#[derive(Clone, Copy, Debug)]
enum Replaced {
    Refuse,
    Accept,
}

/// The key that a caller has.
#[derive(Clone)]
enum Unlocking {
    NotGiven,
    Password(Zeroizing<Vec<u8>>),
    Unencrypted,
}

impl std::fmt::Debug for Unlocking {
    /// Does not show the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotGiven => "NotGiven",
            Self::Password(_) => "Password",
            Self::Unencrypted => "Unencrypted",
        })
    }
}

/// Resources of operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resources {
    pub(super) memory_bytes: usize,
    threads: Option<usize>,
    pub(super) compression: Compression,
}

impl Resources {
    /// Returns how many threads compute.
    pub(crate) fn threads(&self) -> usize {
        Budget::threads(self.memory_bytes, self.threads.unwrap_or_else(os_identity::processors))
    }

    /// Divides the memory of a backup.
    pub(super) fn budget(&self) -> Budget {
        Budget::of(self.memory_bytes, self.threads())
    }

    /// Divides the index's share of it for a preset.
    pub(crate) fn index(&self, preset: IndexPreset) -> IndexOptions {
        preset.options(self.budget().index_bytes)
    }
}

impl RepositoryOptions {
    /// Names the directory of the repository.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            unlocking: Unlocking::NotGiven,
            cache: None,
            resources: Resources {
                memory_bytes: Budget::BYTES_DEFAULT,
                threads: None,
                compression: Compression::default(),
            },
            adjustments: Adjustments::default(),
            replaced: Replaced::Refuse,
        }
    }

    /// Opens another repository than this host has seen at the path, and remembers it instead.
    #[must_use]
    pub fn accept_new_repository(mut self) -> Self {
        self.replaced = Replaced::Accept;
        self
    }

    /// Gives the password. A repository that is not encrypted is refused then: somebody may have put it in the place of
    /// the real one.
    #[must_use]
    pub fn password(mut self, password: impl AsRef<[u8]>) -> Self {
        self.unlocking = Unlocking::Password(Zeroizing::new(password.as_ref().to_vec()));
        self
    }

    /// Creates or opens a repository whose key lies in the open: whoever can read it can read every file in it.
    #[must_use]
    pub fn unencrypted(mut self) -> Self {
        self.unlocking = Unlocking::Unencrypted;
        self
    }

    /// Names the directory of this host's caches, which hold the index and what spills from memory. The default is that
    /// of the command: `onefold` in `$XDG_CACHE_HOME`, else in `~/.cache`.
    #[must_use]
    pub fn cache_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Sets the memory budget of an operation in bytes: 512 MiB by default, at least 64 MiB.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.resources.memory_bytes = bytes;
        self
    }

    /// Sets how many threads compute: by default as many as there are processors. The budget may allow fewer.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.resources.threads = Some(threads);
        self
    }

    /// Sets how new data is compressed: zstd at level 3 by default.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.resources.compression = compression;
        self
    }

    /// Sets the average length of a chunk of a new repository in bytes: 8 KiB by default.
    #[must_use]
    pub fn chunk_bytes(mut self, bytes: u32) -> Self {
        self.adjustments = Adjustments { chunk_bytes: Some(bytes), fixed_bytes: None, ..self.adjustments };
        self
    }

    /// Sets the one length of all chunks of a new repository in bytes, instead of cutting where the content says so.
    #[must_use]
    pub fn fixed_chunk_bytes(mut self, bytes: u32) -> Self {
        self.adjustments = Adjustments { fixed_bytes: Some(bytes), chunk_bytes: None, ..self.adjustments };
        self
    }

    /// Chooses the defaults of a new repository for volumes that are protected continuously, instead of files: chunks of 4 KiB,
    /// regions of 128 KiB, and short recipe segments.
    #[must_use]
    pub fn for_volumes(mut self) -> Self {
        self.adjustments.purpose = Purpose::Volumes;
        self
    }

    /// Sets how many bytes of a new repository are compressed and sealed together: 512 KiB by default.
    #[must_use]
    pub fn region_bytes(mut self, bytes: u32) -> Self {
        self.adjustments.region_bytes = Some(bytes);
        self
    }

    /// Sets the length of a container of a new repository in bytes: 4 MiB by default.
    #[must_use]
    pub fn container_bytes(mut self, bytes: u32) -> Self {
        self.adjustments.container_bytes = Some(bytes);
        self
    }

    /// Creates the repository, and the directories that lead to it, and opens it.
    ///
    /// # Errors
    ///
    /// [`Error::RepositoryExists`] where there is one; [`Error::Invalid`] for sizes that make no repository, and if
    /// neither a password nor [`unencrypted`](Self::unencrypted) was given.
    pub fn create(&self) -> Result<Repository> {
        self.validate()?;
        let password = match &self.unlocking {
            Unlocking::NotGiven => {
                return Err(Error::invalid("a new repository needs a password or to be unencrypted"));
            }
            Unlocking::Password(password) => Some(password.as_slice()),
            Unlocking::Unencrypted => None,
        };
        self.adjustments.validate()?;
        let absolute = os_identity::absolute(&self.directory)?;
        create_directory(&OsDisk::new("/".into()), absolute.strip_prefix("/").unwrap_or(&absolute))?;
        let (objects, host) = self.objects_and_host();
        let label = SlotLabel { user: os_identity::user_name(), host: os_identity::host_name() };
        let options = CreateOptions { password, cost: PasswordCost::default(), label, adjustments: self.adjustments };
        self.finish(store::create(&objects, &host, &options)?)
    }

    /// Opens the repository. Nothing is written to it.
    ///
    /// # Errors
    ///
    /// [`Error::NoRepository`], [`Error::WrongPassword`], [`Error::SlotsNotTried`], [`Error::Replaced`] if this host has seen
    /// another repository at the path, and [`Error::Invalid`] if a password is given to a repository that is not encrypted.
    pub fn open(&self) -> Result<Repository> {
        self.validate()?;
        let (objects, host) = self.objects_and_host();
        let memory_kib_max = u32::try_from(self.resources.memory_bytes >> 10).unwrap_or(u32::MAX);
        let policy = SlotPolicy { memory_kib_max, hint: None };
        let unlock = match &self.unlocking {
            Unlocking::Password(password) => Unlock::PasswordOn { password, policy: &policy },
            Unlocking::NotGiven | Unlocking::Unencrypted => Unlock::Unencrypted,
        };
        let seen = match self.replaced {
            // A damaged pin counts as none.
            Replaced::Refuse => read_pins(&OsDisk::new(self.cache()?), &bytes_of(self.pinned())).unwrap_or_default(),
            Replaced::Accept => Vec::new(),
        };
        let copies = admit(&self.directory.display().to_string(), &seen, read_configs(&*objects)?)?;
        self.finish(open_copies(&objects, &host, unlock, &copies)?)
    }

    fn objects_and_host(&self) -> (Arc<dyn ObjectStore>, Arc<dyn Host>) {
        let disk = Arc::new(OsDisk::new(self.directory.clone()));
        (Arc::new(DirectoryStore::new(disk)), Arc::new(OsHost::new()))
    }

    fn validate(&self) -> Result<()> {
        let bytes = self.resources.memory_bytes;
        if bytes < Budget::BYTES_MIN {
            return Err(Error::invalid(format!(
                "a memory budget of {bytes} bytes is too small: the smallest that works is {} bytes",
                Budget::BYTES_MIN
            )));
        }
        Ok(())
    }

    /// Returns the path under which the repository is remembered.
    fn pinned(&self) -> PathBuf {
        os_identity::canonical(&self.directory)
    }

    fn cache(&self) -> Result<PathBuf> {
        let of_user = || os_identity::cache_directory(&|name| os_identity::variable(name));
        let directory = self.cache.clone().or_else(of_user);
        let unknown = "no place for caches is known: set HOME or XDG_CACHE_HOME, or give a cache directory";
        directory.ok_or_else(|| Error::invalid(unknown))
    }

    fn finish(&self, store: store::Store) -> Result<Repository> {
        let directory = self.cache()?;
        let cache = CacheDirectory::open(&directory, store.config.repository, self.pinned())?;
        let (disk, path, pin) = (&*cache.cache.disk, bytes_of(self.pinned()), Pin::of(&store.config));
        let seen = read_pins(disk, &path).unwrap_or_default();
        if seen.first() != Some(&pin) {
            write_pin(disk, &*store.host, &path, &seen, &pin)?;
        }
        Ok(Repository { store, directory: self.directory.clone(), cache, resources: self.resources })
    }
}
