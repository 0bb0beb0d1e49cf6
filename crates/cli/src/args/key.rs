//! Options of `key`, and the option that sets the cost of guessing a password.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Commands that manage passwords.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// List the key slots
    #[command(after_help = examples! { "List the key slots; the one in use is marked": "onefold key list" })]
    List,
    /// Add a password
    #[command(after_help = examples! {
        "Add a password from a file": "onefold key add --new-password-file second-password";
    })]
    Add(NewKeyArgs),
    /// Remove a password
    #[command(after_help = examples! { "Remove the password of a key slot": "onefold key remove 1a2b3c4d" })]
    Remove {
        /// Id of the key slot, or its beginning
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Replace the password in use
    #[command(after_help = examples! { "Replace the password in use; Onefold asks for the new one": "onefold key passwd" })]
    Passwd(NewKeyArgs),
}

/// A new password.
#[derive(Args, Debug)]
pub(crate) struct NewKeyArgs {
    /// File whose first line is the new password
    #[arg(long, value_name = "FILE")]
    pub(crate) new_password_file: Option<PathBuf>,
    /// Take an empty password, which --insecure-no-password gives; anyone who has the repository can then read it
    #[arg(long, conflicts_with = "new_password_file")]
    pub(crate) new_insecure_no_password: bool,
    /// User to write into the slot
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Host to write into the slot
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) cost: KeyCostArgs,
}

/// Cost of guessing a password.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyCostArgs {
    /// Memory that each guess at the password takes, at least 64M
    #[arg(long, value_name = "SIZE")]
    pub(crate) key_memory: Option<String>,
}
