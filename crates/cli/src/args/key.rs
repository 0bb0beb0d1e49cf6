//! Options of `key`, and those that choose the cost of a password.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with passwords.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// List the passwords' key slots
    List,
    /// Add a password
    Add(NewKeyArgs),
    /// Remove a password
    Remove {
        /// Key slot, by the beginning of its id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Replace the password in use by another one
    Passwd(NewKeyArgs),
}

/// A new password.
#[derive(Args, Debug)]
pub(crate) struct NewKeyArgs {
    /// File whose first line is the new password
    #[arg(long, value_name = "FILE")]
    pub(crate) new_password_file: Option<PathBuf>,
    /// User to write into the slot
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Host to write into the slot
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) cost: KeyCostArgs,
}

/// How much it costs to try a password.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyCostArgs {
    /// Memory that trying the password takes, at least 64M
    #[arg(long, value_name = "SIZE")]
    pub(crate) key_memory: Option<String>,
}
