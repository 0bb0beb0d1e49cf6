//! Options of the index: its share of the memory budget, and where its entries are.

use std::path::Path;

use anyhow::{Result, ensure};
use onefold_engine::identify::{IndexOptions, IndexPreset, StoreKind};
use onefold_engine::types::RepositoryId;

use crate::args::backup::IndexServerArgs;
use crate::open::OpenedCache;
use crate::settings::Settings;

/// Divides memory of the index for a preset. Its entries are in files of the cache, or on the server that an option or the
/// environment names.
pub(crate) fn index_options(
    settings: &Settings,
    (preset, index_bytes): (IndexPreset, usize),
    typed: &IndexServerArgs,
    repository: RepositoryId,
    cache: &OpenedCache,
) -> Result<IndexOptions> {
    let options = preset.options(index_bytes);
    let Some(address) = typed.index_server.as_ref().or(settings.index_server.as_ref()) else { return Ok(options) };
    ensure!(
        !cache.is_temporary(),
        "--index-server needs a cache directory: the filter and the log of the index stay on this host"
    );
    ensure!(
        options.store == StoreKind::Table,
        "--index-server: the preset {} keeps all entries in memory; choose another one with --index",
        preset.name()
    );
    on_server(&options, address, repository, &cache.directory)
}

/// Bytes of the filter of an index that looks up every chunk.
#[cfg(feature = "servers")]
const UNUSED_FILTER_BYTES: usize = 64 << 10;

/// Puts the entries on a server. Lookups wait until a batch is worth a request.
#[cfg(feature = "servers")]
fn on_server(
    options: &IndexOptions,
    address: &str,
    repository: RepositoryId,
    directory: &Path,
) -> Result<IndexOptions> {
    use std::sync::Arc;

    use anyhow::Context as _;
    use onefold_backends::redis::RedisSpec;
    use onefold_backends::sql::SqlSpec;
    use onefold_backends::store_name;
    use onefold_engine::identify::{GivenStore, Order, Schedule};
    use onefold_engine::io::os_identity::host_name;

    // The plans of the adaptive schedule are made for a disk of this host.
    let plans = options.schedule == Schedule::Adaptive;
    let batch = u32::try_from(options.pending_max / 3)?;
    if address.starts_with("redis:") {
        let spec = RedisSpec::new(address, repository, options.memtable_bytes).context("--index-server")?;
        let memory_bytes = spec.memory_bytes();
        return Ok(IndexOptions {
            store: StoreKind::Given(GivenStore { kind: Arc::new(spec), memory_bytes }),
            // No filter of this host knows the chunks of others: each chunk is looked up, a batch at a time.
            order: Order::Unfiltered,
            filter_bytes_max: UNUSED_FILTER_BYTES,
            schedule: if plans { Schedule::Lazy { threshold: batch } } else { options.schedule },
            pending_buckets: 1,
            ..options.clone()
        });
    }
    // Each cache directory of each host has an index of its own.
    let name = store_name(repository, &host_name(), directory);
    let spec = SqlSpec::new(address, &name, options.memtable_bytes).context("--index-server")?;
    let memory_bytes = spec.memory_bytes();
    Ok(IndexOptions {
        store: StoreKind::Given(GivenStore { kind: Arc::new(spec), memory_bytes }),
        schedule: if plans { Schedule::Pool { candidates: batch } } else { options.schedule },
        ..options.clone()
    })
}

#[cfg(not(feature = "servers"))]
fn on_server(
    _options: &IndexOptions,
    _address: &str,
    _repository: RepositoryId,
    _directory: &Path,
) -> Result<IndexOptions> {
    anyhow::bail!("--index-server: this program was built without servers")
}
