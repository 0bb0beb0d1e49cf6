//! Keys and sealing.
//!
//! One construction for every object: a key of its own derived from a salt, a key commitment that is checked before
//! anything is decrypted, and AES-256-GCM messages whose nonces count up under that key. No random nonce is ever used
//! under a key that lives longer than one object.

pub mod keys;
pub mod seal;
pub mod slot;

pub use keys::{Keys, MasterKey, Purpose};
pub use seal::{Domain, ObjectKey, TAG_LEN};
