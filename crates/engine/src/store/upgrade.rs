//! Raising the version of a repository's format.

use std::io::ErrorKind;

use crate::error::{Error, Result};
use crate::object::bytes::ObjectBytes;
use crate::object::names::{CONFIG, CONFIG_COPY, ObjectCopy, ObjectName};
use crate::object::{Config, FormatVersion};
use crate::snapshot::SessionKind;
use crate::store::create::CONFIG_LEN_READ_MAX;
use crate::store::scratch::Scratch;
use crate::store::{Session, Store};

/// Sets the version of both copies of the config. Returns false if both have it already. New sessions write in this version
/// then; programs that know none but older versions refuse the repository.
///
/// Each copy is exchanged for its successor at one moment, the second copy first, and is durable before the other follows. While they
/// differ, the newer one holds: see [`open_copies`](crate::store::create::open_copies). An interrupted upgrade is run again.
pub fn upgrade(store: &Store, version: FormatVersion, scratch: &Scratch, hostname: &str) -> Result<bool> {
    let mut outdated = Vec::new();
    for (name, copy) in [(CONFIG_COPY, ObjectCopy::Second), (CONFIG, ObjectCopy::First)] {
        let object = store.display(name);
        let bytes = store.read(ObjectName::Config(copy), CONFIG_LEN_READ_MAX)?;
        let config = Config::decode(&object, &bytes)?;
        Config::authenticate(&object, &bytes, &store.keys)?;
        if config.format < version {
            outdated.push((copy, Config { format: version, ..config }.encode(&store.keys)));
        }
    }
    if outdated.is_empty() {
        return Ok(false);
    }
    // As long as the session has not ended, nobody removes its temporary files.
    let mut session = Session::create(store, scratch, SessionKind::Backup, hostname)?;
    for (copy, bytes) in outdated {
        if let Err(error) = replace(store, &session, copy, &bytes) {
            return Err(session.abandon(error));
        }
    }
    // Its end is the first commit of the new version: whoever has read the old config learns of it there. A session that cannot be ended
    // is fenced by a collection later.
    session.seal_as(version);
    let _ended = session.end();
    Ok(true)
}

fn replace(store: &Store, session: &Session, copy: ObjectCopy, bytes: &[u8]) -> Result<()> {
    let name = ObjectName::Config(copy);
    let put = store.objects.put_again(session.id, name, &ObjectBytes::copy_of(bytes))?;
    store.objects.barrier(vec![put]).map_err(|error| match error.io_kind() {
        Some(ErrorKind::Unsupported) => Error::invalid(format!(
            "{} cannot be replaced: the file system cannot exchange two names. Copy the repository to one that can, and upgrade \
             the copy",
            store.display(name)
        )),
        _ => error,
    })
}
