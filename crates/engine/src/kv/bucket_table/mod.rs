//! The bucket table: entries on disk, sorted by key in the runs of buckets, below a memtable.

pub(in crate::kv) mod bucket;
pub(in crate::kv) mod bucket_name;
pub(in crate::kv) mod change;
pub(in crate::kv) mod counters;
pub(in crate::kv) mod damage;
pub(in crate::kv) mod disk_runs;
pub(in crate::kv) mod extent;
pub(in crate::kv) mod file;
pub(in crate::kv) mod flush;
pub(in crate::kv) mod flush_state;
mod lines;
pub(in crate::kv) mod lookup;
pub(in crate::kv) mod manifest;
pub(crate) mod memtable;
pub(in crate::kv) mod merge;
pub(in crate::kv) mod page;
pub(in crate::kv) mod pool;
pub(in crate::kv) mod recent;
pub(in crate::kv) mod run;
pub(in crate::kv) mod run_source;
pub(in crate::kv) mod run_writer;
pub(in crate::kv) mod search;
pub(in crate::kv) mod spans;
pub(in crate::kv) mod spec;
pub(in crate::kv) mod store;
pub(in crate::kv) mod table;
