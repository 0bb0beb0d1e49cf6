//! Options of `cdp`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Commands of continuous protection.
#[derive(Debug, Subcommand)]
pub(crate) enum CdpCommand {
    /// Create a consistency group of volumes, with a journal
    #[command(after_help = examples! {
        "Protect a disk image, with a journal of 16 GiB":
            "onefold cdp create /var/lib/onefold/web web=/srv/images/web.raw --journal-size 16G";
        "Let another machine deduplicate and store the history":
            "onefold cdp create /var/lib/onefold/web web=/srv/images/web.raw --receiver backup.example:10811 --tls-authority ca.pem --tls-certificate web.pem --tls-key web.key";
    })]
    Create(CreateArgs),
    /// Serve the volumes of a group to virtual machines and kernels, and protect every write
    #[command(after_help = examples! {
        "Serve a group on a socket in its directory": "onefold cdp serve /var/lib/onefold/web";
        "Serve it to other machines":
            "onefold cdp serve /var/lib/onefold/web --listen tcp:0.0.0.0:10809 --tls-certificate web.pem --tls-key web.key";
    })]
    Serve(ServeArgs),
    /// Receive the records of a group that another machine serves, and make checkpoints of them
    #[command(after_help = examples! {
        "Receive a group, and make a checkpoint every five minutes":
            "onefold cdp receive /var/lib/onefold/web --listen tcp:0.0.0.0:10811 --tls-certificate backup.pem --tls-key backup.key --tls-client-authority ca.pem --checkpoint 5m";
    })]
    Receive(ReceiveArgs),
    /// Show the state of a group that is served
    #[command(after_help = examples! {
        "Show the state of a group as JSON": "onefold cdp status /var/lib/onefold/web --json";
    })]
    Status(GroupArgs),
    /// Compare the volumes of a group with their history, while it is served or not
    #[command(after_help = examples! {
        "Look for bytes that somebody has changed behind the server": "onefold cdp scan /var/lib/onefold/web";
        "Record them, since the volume is right": "onefold cdp scan /var/lib/onefold/web --record";
    })]
    Scan(ScanArgs),
    /// Make a checkpoint now: a snapshot of the volumes with every write since the one before
    #[command(after_help = examples! {
        "Make a checkpoint of a group that is served": "onefold cdp checkpoint /var/lib/onefold/web";
    })]
    Checkpoint(GroupArgs),
    /// List checkpoints, marks, flushes and gaps of a group
    #[command(after_help = examples! {
        "List the moments of a group in the repository": "onefold cdp history web";
        "List its moments, also those that are only in its journal": "onefold cdp history /var/lib/onefold/web";
    })]
    History(HistoryArgs),
    /// Serve the volumes of a group as they were at a moment
    #[command(after_help = examples! {
        "Serve a group as it was, and keep what clients write in a file":
            "onefold cdp export web --at '2026-11-23 02:10:07' --overlay test --listen unix:old.sock";
    })]
    Export(ExportArgs),
    /// Write a volume as it was at a moment into a file or a block device
    #[command(after_help = examples! {
        "Bring a volume back to a mark": "onefold cdp restore web --at before-upgrade --target web.raw";
        "Restore the last write that was answered, also after the server was killed":
            "onefold cdp restore /var/lib/onefold/web --target web.raw";
        "Bring the volumes themselves back, after the server was stopped":
            "onefold cdp restore /var/lib/onefold/web --at before-upgrade --in-place";
    })]
    Restore(RestoreVolumeArgs),
    /// Keep less of the past: thin the history of a group to one moment of each minute, hour or day
    #[command(after_help = examples! {
        "Show what rules would keep": "onefold cdp thin web --keep-writes 1h --keep-hours 7d --keep-days 90d --dry-run";
        "Keep a mark at any age": "onefold cdp thin web --keep-writes 1d --keep-days 30d --pin before-upgrade";
        "Thin by the rules of the group": "onefold cdp thin /var/lib/onefold/web";
    })]
    Thin(ThinArgs),
    /// Give the present moment a name
    #[command(after_help = examples! {
        "Name the moment before an upgrade": "onefold cdp mark /var/lib/onefold/web before-upgrade";
    })]
    Mark(MarkArgs),
}

/// A group.
#[derive(Args, Debug)]
pub(crate) struct GroupArgs {
    /// Directory of the group
    #[arg(value_name = "GROUP")]
    pub(crate) group: PathBuf,
}

/// Options of `cdp scan`.
#[derive(Args, Debug)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Record the bytes that differ as they are in the volumes
    #[arg(long)]
    pub(crate) record: bool,
}

/// Options of `cdp create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Directory of the group; created if it does not exist. Its journal lies there
    #[arg(value_name = "GROUP")]
    pub(crate) group: PathBuf,
    /// Volumes: a name, and the file or block device that holds the bytes. All writes to the volumes of a group have one order
    #[arg(value_name = "NAME=FILE", required = true)]
    pub(crate) volumes: Vec<String>,
    /// Name of the group in snapshots [default: the name of its directory]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Most bytes of the journal
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub(crate) journal_size: String,
    /// Parts that a flush makes durable: the journal and the volume, or the journal alone, from which the volume is completed after a power
    /// cut
    #[arg(long, value_name = "WHAT", default_value = "both")]
    pub(crate) durability: DurabilityArg,
    /// Behavior of a write when the journal is full: wait for a checkpoint, fail, or go on without a record. The history then has a gap until
    /// what was written is recorded again
    #[arg(long, value_name = "WHAT", default_value = "block")]
    pub(crate) when_behind: WhenBehindArg,
    #[command(flatten)]
    pub(crate) keep: KeepMomentsArgs,
    #[command(flatten)]
    pub(crate) receiver: ReceiverArgs,
}

/// Rules that keep moments.
#[derive(Args, Debug)]
#[command(next_help_heading = "Rules; a moment is kept if any rule keeps it. Ages count from the newest checkpoint")]
pub(crate) struct KeepMomentsArgs {
    /// Keep every write up to this age, for example 1h
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_writes: Option<String>,
    /// Keep the last flush of each minute up to this age, for example 1d
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_minutes: Option<String>,
    /// Keep the last flush of each hour up to this age, for example 7d
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_hours: Option<String>,
    /// Keep the last flush of each day up to this age, for example 90d
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_days: Option<String>,
    /// Keep marks up to this age [default: the longest of the others]
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_marks: Option<String>,
    /// Keep marks with this name at any age
    #[arg(long, value_name = "MARK")]
    pub(crate) pin: Vec<String>,
    /// Keep checkpoints that have this tag as they are
    #[arg(long, value_name = "TAG")]
    pub(crate) keep_tag: Vec<String>,
}

/// Options of `cdp thin`.
#[derive(Args, Debug)]
pub(crate) struct ThinArgs {
    /// Name of the group, or its directory, whose rules hold unless others are given. A text with a slash, or a directory with a file
    /// group.json, is a directory
    #[arg(value_name = "NAME|GROUP")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) keep: KeepMomentsArgs,
    /// Show what would be kept, but change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Count all checkpoints by their own times, also those that the repository received at another time
    #[arg(long)]
    pub(crate) trust_times: bool,
}

/// The machine that deduplicates and stores the history of a group.
#[derive(Args, Debug)]
pub(crate) struct ReceiverArgs {
    /// Machine to send the records to, where `onefold cdp receive` runs. No repository is needed here
    #[arg(long, value_name = "HOST:PORT", requires_all = ["tls_authority", "tls_certificate", "tls_key"])]
    pub(crate) receiver: Option<String>,
    /// Authority that has signed the receiver's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "receiver")]
    pub(crate) tls_authority: Option<PathBuf>,
    /// Certificates for the receiver, in PEM
    #[arg(long, value_name = "FILE", requires = "receiver")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the first certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "receiver")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Compression of records on their way to the receiver
    #[arg(long, value_name = "CODEC", default_value = "zstd")]
    pub(crate) wire_compression: WireCompressionArg,
}

/// Compression of records on their way.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WireCompressionArg {
    /// None
    Off,
    /// LZ4
    Lz4,
    /// Zstandard, level 1
    Zstd,
    /// LZJB
    Lzjb,
}

/// Parts that a flush makes durable.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Journal and volume
    Both,
    /// The journal
    Journal,
}

/// Outcome of a write when the journal is full.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WhenBehindArg {
    /// It waits
    Block,
    /// It fails with ENOSPC
    Fail,
    /// It is made without a record, and marked in a bitmap
    Bitmap,
}

/// Options of `cdp serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Address, unix:PATH or tcp:HOST:PORT; several are possible [default: the socket nbd in the group's directory]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// Certificates of the server, in PEM. Clients must then use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the server, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities that may have signed the client's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_client_authority: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) checkpoints: CheckpointArgs,
    /// Go on if the journal has lost records: begin a new one with a gap, and compare the volumes with their history
    #[arg(long)]
    pub(crate) new_journal: bool,
}

/// Options of `cdp receive`.
#[derive(Args, Debug)]
pub(crate) struct ReceiveArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Address, tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub(crate) listen: String,
    /// Certificates of this machine, in PEM
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) tls_certificate: PathBuf,
    /// Private key of the first certificate, in PEM
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) tls_key: PathBuf,
    /// Authorities that may have signed the sender's certificate, in PEM
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) tls_client_authority: PathBuf,
    /// Most bytes of the journal, when the group is received for the first time
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub(crate) journal_size: String,
    #[command(flatten)]
    pub(crate) checkpoints: CheckpointArgs,
}

/// Options of checkpoints.
#[derive(Args, Debug)]
pub(crate) struct CheckpointArgs {
    /// Interval between checkpoints [default: 15m]
    #[arg(long, value_name = "DURATION")]
    pub(crate) checkpoint: Option<String>,
    /// Longest time without a checkpoint, if one would write more metadata than a quarter of the data [default: 1h]
    #[arg(long, value_name = "DURATION")]
    pub(crate) checkpoint_max: Option<String>,
}

/// Options of `cdp history`.
#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Name of the group, for the moments in the repository; or its directory, for those in its journal too. A text with a slash, or a
    /// directory with a file group.json, is a directory
    #[arg(value_name = "NAME|GROUP")]
    pub(crate) name: String,
    /// List every flush, instead of one a minute
    #[arg(long)]
    pub(crate) all_flushes: bool,
}

/// A moment.
#[derive(Args, Debug)]
pub(crate) struct MomentArgs {
    /// Name of the group, for the moments in the repository; or its directory, for those in its journal too. A text with a slash, or a
    /// directory with a file group.json, is a directory
    #[arg(value_name = "NAME|GROUP")]
    pub(crate) name: String,
    /// The moment: a time (the last flush before it), a mark, lsn:N, flush~N for the N-th flush before the last, or latest
    #[arg(long, value_name = "MOMENT", default_value = "latest")]
    pub(crate) at: String,
    /// Take a time exactly, even in the middle of what a client has not flushed
    #[arg(long)]
    pub(crate) exact: bool,
}

/// Options of `cdp export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) moment: MomentArgs,
    /// Address, unix:PATH or tcp:HOST:PORT; several are possible
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub(crate) listen: Vec<String>,
    /// Directory of files that keep what clients write; created if it does not exist. Without it, exports are read-only
    #[arg(long, value_name = "DIR")]
    pub(crate) overlay: Option<PathBuf>,
}

/// Options of `cdp restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreVolumeArgs {
    #[command(flatten)]
    pub(crate) moment: MomentArgs,
    /// Name of the volume, if the group has several
    #[arg(long, value_name = "NAME")]
    pub(crate) volume: Option<String>,
    /// File or block device to write to. Bytes that are equal are not written; a file that does not exist is created
    #[arg(long, value_name = "FILE", required_unless_present = "into_volumes")]
    pub(crate) target: Option<PathBuf>,
    /// Write to the volumes of the group themselves, all of them unless --volume names one. The group must not be served. The writes are
    /// recorded, so that the restore can be undone
    #[arg(long = "in-place", conflicts_with = "target")]
    pub(crate) into_volumes: bool,
    /// Name of the moment before a restore in place [default: before-restore- and the time]
    #[arg(long, value_name = "NAME", requires = "into_volumes")]
    pub(crate) mark: Option<String>,
}

/// Options of `cdp mark`.
#[derive(Args, Debug)]
pub(crate) struct MarkArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Name of the moment, at most 255 bytes
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}
