//! Counters of a table.

/// Work that a table did since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableCounters {
    /// Pages read for lookups.
    pub lookup_pages: u64,
    /// Pages that searches needed; several may need one page.
    pub(crate) pages_needed: u64,
    /// Reads of single pages or a few neighbors, for lookups.
    pub page_reads: u64,
    /// Reads of all pages between the first and the last that lookups need of a run.
    pub(crate) whole_reads: u64,
    /// Runs that lookups skipped because of their recent filters.
    pub(crate) recent_skips: u64,
    /// Recent filters dropped to keep the memory limit.
    pub(crate) recent_filters_dropped: u64,
    /// Peak memory of recent filters, in bytes.
    pub recent_bytes_max: u64,
    /// Bytes read for lookups, merges and scans.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Pages that were bad or unreadable.
    pub(crate) damaged_pages: u64,
    /// Runs written.
    pub runs_written: u64,
    /// Runs that merges replaced.
    pub(crate) runs_merged: u64,
    /// Groups of several buckets that were merged in one batch.
    pub(crate) merges_grouped: u64,
    /// Buckets that were streamed, because they exceed the buffers.
    pub(crate) merges_streamed: u64,
    /// Buckets that were split.
    pub(crate) buckets_split: u64,
    /// Pairs of buckets that were joined.
    pub(crate) buckets_joined: u64,
}

impl TableCounters {
    /// Adds the work of a job, or of another table.
    pub(in crate::kv) fn add(&mut self, job: &Self) {
        self.lookup_pages += job.lookup_pages;
        self.pages_needed += job.pages_needed;
        self.page_reads += job.page_reads;
        self.whole_reads += job.whole_reads;
        self.recent_skips += job.recent_skips;
        self.recent_filters_dropped += job.recent_filters_dropped;
        self.recent_bytes_max = self.recent_bytes_max.max(job.recent_bytes_max);
        self.bytes_read += job.bytes_read;
        self.bytes_written += job.bytes_written;
        self.damaged_pages += job.damaged_pages;
        self.runs_written += job.runs_written;
        self.runs_merged += job.runs_merged;
        self.merges_grouped += job.merges_grouped;
        self.merges_streamed += job.merges_streamed;
        self.buckets_split += job.buckets_split;
        self.buckets_joined += job.buckets_joined;
    }
}
