//! Messages of `lab image`.

use onefold_lab::image::store::{Checked, StoreStats};
use serde::Serialize;

/// `lab image pack`, `lab image stats`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "image_store")]
pub(crate) struct ImageStore {
    #[serde(flatten)]
    pub(crate) stats: StoreStats,
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// `lab image compact`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "image_compacted")]
pub(crate) struct ImageCompacted {
    /// Entries of the index that are gone.
    pub(crate) entries_joined: u64,
    #[serde(flatten)]
    pub(crate) stats: StoreStats,
}

/// `lab image check`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "image_checked")]
pub(crate) struct ImageChecked<'a> {
    #[serde(flatten)]
    pub(crate) checked: &'a Checked,
}
