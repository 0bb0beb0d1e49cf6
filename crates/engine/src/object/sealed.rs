//! Small sealed objects: sessions, commits, and the steps of forgetting and collecting.
//!
//! Header, one sealed body, and a MAC over both.

use crate::codec::len_u32;
use crate::crypto::{Domain, Keys, ObjectKey, TAG_LEN};
use crate::error::{Error, Result};
use crate::io::Host;
use crate::object::header::{FormatVersion, HEADER_LEN, Header, ObjectType};
use crate::types::{RepositoryId, SessionId};

/// Bytes of the MAC at the end.
pub(crate) const MAC_LEN: usize = 32;
/// The longest small object in bytes. A collection that condemns more containers takes several steps.
pub(crate) const SMALL_LEN_MAX: usize = 64 << 20;

/// The longest body of a small object in bytes.
pub(crate) const BODY_LEN_MAX: usize = SMALL_LEN_MAX - HEADER_LEN - TAG_LEN - MAC_LEN;

/// Type of a small object, with the version of its format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SmallType {
    /// Version of the format.
    pub(crate) format: FormatVersion,
    /// Type.
    pub(crate) object_type: ObjectType,
}

impl From<ObjectType> for SmallType {
    /// The first version, which every reader knows.
    fn from(object_type: ObjectType) -> Self {
        Self { format: FormatVersion::V1, object_type }
    }
}

impl ObjectType {
    /// Returns the type in a version of the format.
    pub(crate) fn of(self, format: FormatVersion) -> SmallType {
        SmallType { format, object_type: self }
    }
}

/// Seals a body into a small object.
pub(crate) fn seal_small(
    keys: &Keys,
    host: &dyn Host,
    small_type: impl Into<SmallType>,
    identity: (RepositoryId, SessionId, u32),
    body: &[u8],
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(HEADER_LEN + body.len() + TAG_LEN + MAC_LEN);
    out.resize(HEADER_LEN, 0);
    out.extend_from_slice(body);
    seal_buffer(keys, host, small_type, identity, out)
}

/// Seals a body into a small object where it stands, after [`HEADER_LEN`] bytes that the header replaces.
pub(crate) fn seal_buffer(
    keys: &Keys,
    host: &dyn Host,
    small_type: impl Into<SmallType>,
    identity: (RepositoryId, SessionId, u32),
    mut out: Vec<u8>,
) -> Result<Vec<u8>> {
    let SmallType { format, object_type } = small_type.into();
    let (repository, session, ordinal) = identity;
    let body = out.get(HEADER_LEN..).expect("the caller has left bytes for the header");
    let body_len = body.len();
    if BODY_LEN_MAX < body_len {
        return Err(Error::invalid(format!("a {object_type:?} of {body_len} bytes is longer than one can be")));
    }
    let mut random = [0; 32];
    host.random(&mut random)?;
    let mut name = session.0.to_vec();
    name.extend_from_slice(&ordinal.to_le_bytes());
    let salt = keys.salt(&random, &name, blake3::hash(body).as_bytes());
    let key = ObjectKey::derive(keys, object_type.purpose(), &salt, repository, object_type.code());
    let header = Header {
        format,
        object_type,
        repository,
        session,
        ordinal,
        key_epoch: 0,
        salt,
        commitment: *key.commitment(),
        sealed_len: len_u32(body_len + TAG_LEN),
    };
    let header = header.encode();
    out.splice(..HEADER_LEN, header);
    key.seal(Domain::Body, 0, &header, &mut out, HEADER_LEN);
    let mac = keys.mac(&out);
    out.extend_from_slice(mac.as_bytes());
    Ok(out)
}

/// Opens a small object that must be of this type, repository and session. `object` is its name for messages.
pub fn open_small(
    keys: &Keys,
    object: &str,
    object_type: ObjectType,
    identity: (RepositoryId, Option<SessionId>),
    mut bytes: Vec<u8>,
) -> Result<(Header, Vec<u8>)> {
    let header = Header::decode(object, &bytes)?;
    let Some(mac_start) = bytes.len().checked_sub(MAC_LEN) else {
        return Err(Error::damaged(object, "ends too early"));
    };
    let (signed, mac) = bytes.split_at_mut(mac_start);
    let mac: [u8; MAC_LEN] = mac.try_into().map_err(|_| Error::damaged(object, "ends too early"))?;
    if keys.mac(signed) != mac {
        return Err(Error::damaged(object, "its authentication code is wrong"));
    }
    let (repository, session) = identity;
    if header.object_type != object_type {
        return Err(Error::damaged(object, format!("is a {:?}, not a {object_type:?}", header.object_type)));
    }
    if header.repository != repository {
        return Err(Error::damaged(object, "belongs to another repository"));
    }
    if session.is_some_and(|session| session != header.session) {
        return Err(Error::damaged(object, format!("stands under a wrong name; it is of session {}", header.session)));
    }
    let key = header.key(object, keys)?;
    let Some((head, sealed)) = signed.split_at_mut_checked(HEADER_LEN) else {
        return Err(Error::damaged(object, "ends too early"));
    };
    if sealed.len() as u64 != u64::from(header.sealed_len) {
        return Err(Error::damaged(object, "its body is not as long as its header says"));
    }
    let Ok(body_len) = key.open(Domain::Body, 0, head, sealed).map(|body| body.len()) else {
        return Err(Error::damaged(object, "its body does not open"));
    };
    // The body may be as long as memory allows once.
    bytes.truncate(HEADER_LEN + body_len);
    bytes.drain(..HEADER_LEN);
    Ok((header, bytes))
}
