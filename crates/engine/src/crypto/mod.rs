//! Keys and sealing.
//!
//! One construction for every object: a key of its own derived from a salt, a key commitment that is checked before
//! anything is decrypted, and AES-256-GCM messages whose nonces count up under that key. No random nonce is ever used
//! under a key that lives longer than one object.

pub mod journal;
pub(crate) mod keys;
pub(crate) mod seal;
pub mod slot;

pub(crate) use keys::Purpose;
pub use keys::{Keys, MasterKey};
pub(crate) use seal::{Domain, ObjectKey, TAG_LEN};
