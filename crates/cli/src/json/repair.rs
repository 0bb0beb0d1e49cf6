//! JSON messages of `repair`.

use std::path::Path;

use onefold_engine::monitor::Loss;
use onefold_engine::repo::RebuiltIndex;

use crate::json::{Object, object};

/// The end of `repair index`.
pub(crate) fn rebuilt(rebuilt: &RebuiltIndex) -> Object {
    object! {
        message_type: "summary",
        rebuilt { containers, chunks },
        containers_unreadable: rebuilt.unreadable,
        containers_in_doubt: rebuilt.in_doubt,
    }
}

/// Losses of a snapshot at a path. The message of its snapshot follows.
pub(crate) fn lost(path: &Path, loss: Loss) -> Object {
    let (loss, lost_bytes, size) = match loss {
        Loss::Directory => ("directory", None, None),
        Loss::Entries => ("entries", None, None),
        Loss::Bytes { lost, len } => ("bytes", Some(lost), Some(len)),
    };
    object! { message_type: "lost", path, loss, lost_bytes?: lost_bytes, size?: size, }
}
