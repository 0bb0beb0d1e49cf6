//! JSON messages on what snapshots hold.

use onefold_engine::collect::WhatIf;
use onefold_engine::collect::ledger::Held;

use crate::json::{Object, Value, object};

impl From<&Held> for Object {
    fn from(held: &Held) -> Self {
        object! { chunks: held.chunks, uncompressed_size: held.plain_bytes, size: held.stored_bytes, }
    }
}

impl From<&Held> for Value {
    fn from(held: &Held) -> Self {
        Self::Object(held.into())
    }
}

/// The end of `forget --what-if`.
pub(crate) fn what_if(found: &WhatIf) -> Object {
    let plan = &found.plan;
    object! {
        message_type: "what_if",
        found { forgotten, kept },
        only: &found.held.only,
        freed_bytes: found.freed_bytes(),
        found { deleted_containers, deleted_bytes, written_containers, written_bytes, decided_containers, decided_bytes },
        plan { left_unused_bytes, bases_containers, bases_bytes, is_cut },
    }
}
