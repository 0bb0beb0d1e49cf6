//! Stores for entries of the index that live in other processes: servers of databases.
//!
//! [`redis`] keeps entries in a cluster that several hosts share, [`sql`] keeps entries in a table of MariaDB or MySQL.

mod buffer;
pub mod redis;
pub mod sql;

use std::path::Path;

use onefold_engine::types::RepositoryId;

/// Names the store of an index by its repository, and by the host and the cache directory that it belongs to.
pub fn store_name(repository: RepositoryId, host: &str, directory: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&repository.0);
    for part in [host.as_bytes(), directory.as_os_str().as_encoded_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
