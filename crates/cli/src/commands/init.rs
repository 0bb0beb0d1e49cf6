//! `init`.

use anyhow::{Context, Result, ensure};
use onefold_engine::crypto::slot::{PasswordCost, SLOT_MEMORY_KIB_MAX, SlotLabel};
use onefold_engine::io::os::OsDisk;
use onefold_engine::io::os_identity::{self, host_name, user_name};
use onefold_engine::object::FormatVersion;
use onefold_engine::repo::LongRepositoryId;
use onefold_engine::source::exclude::parse_size;
use onefold_engine::store::create::{Adjustments, Purpose, create_directory};
use onefold_engine::store::{self, CreateOptions};

use crate::args::create::{InitArgs, PurposeArg};
use crate::args::key::KeyCostArgs;
use crate::json::object;
use crate::open::objects_and_host;
use crate::output::Output;
use crate::settings::Settings;
use crate::trust::Pinned;

/// Whether the repository is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encryption {
    /// With a password.
    Password,
    /// Not at all.
    None,
}

/// Creates a repository.
pub(crate) fn run(settings: &Settings, output: &Output, args: &InitArgs, encryption: Encryption) -> Result<()> {
    let directory = &settings.repository()?;
    let adjustments = adjustments(args)?;
    adjustments.validate()?;
    let cost = cost(&args.cost)?;
    ensure!(
        encryption == Encryption::Password || !settings.password.is_given(),
        "--no-encryption and a password exclude each other"
    );
    let password = match encryption {
        Encryption::None => None,
        Encryption::Password => Some(settings.password.read_new("password of the new repository: ")?),
    };
    let absolute = os_identity::absolute(directory)?;
    create_directory(&OsDisk::new("/".into()), absolute.strip_prefix("/").unwrap_or(&absolute))?;
    let (objects, host) = objects_and_host(directory, settings);
    let label = SlotLabel { user: user_name(), host: host_name() };
    let options = CreateOptions { password: password.as_ref().map(|password| &password[..]), cost, label, adjustments };
    let (store, handshake) = store::create_and_try(&objects, &host, &options)?;
    // An earlier repository was deleted by a user with the right to do so: `create` refuses a directory with one.
    Pinned::read(settings, output, directory).remember(output, &store);
    let id = LongRepositoryId(store.config.repository).to_string();
    if output.json {
        output.message(&object! { message_type: "initialized", id, repository: directory.as_path(), })?;
    } else {
        output.line(format!("created repository {id} at {}", directory.display()))?;
    }
    if let Err(error) = handshake.require(&*store.objects) {
        output.note(&format!("In this repository {error}."));
    }
    if !OsDisk::new(absolute).syncs_directories()? {
        output.note("The file system cannot sync directories: after a power cut, the newest snapshots may be missing.");
    }
    if encryption == Encryption::Password && !settings.slots.allows(cost) {
        output.note(&too_costly(cost));
    }
    if encryption == Encryption::None {
        output.note(
            "The repository is not encrypted: anyone who can read it can read every file in it, and anyone who can write \
             to it can change what is restored without being noticed.",
        );
    } else {
        output.note("If you lose the password, you lose the data: there is no other way in. `onefold key add` adds a second one.");
    }
    Ok(())
}

/// Returns the cost of trying a password: never less than the default.
pub(super) fn cost(args: &KeyCostArgs) -> Result<PasswordCost> {
    let floor = PasswordCost::default();
    let Some(text) = &args.key_memory else { return Ok(floor) };
    let memory_kib = parse_size(text).context("--key-memory")? >> 10;
    let memory_kib = u32::try_from(memory_kib).ok().filter(|kib| *kib <= SLOT_MEMORY_KIB_MAX);
    let memory_kib =
        memory_kib.with_context(|| format!("--key-memory {text}: the most are {}M", SLOT_MEMORY_KIB_MAX >> 10))?;
    ensure!(
        floor.memory_kib <= memory_kib,
        "--key-memory {text}: less than {}M would make passwords too easy to try",
        floor.memory_kib >> 10
    );
    Ok(PasswordCost { memory_kib, ..floor })
}

/// Returns the warning about a password that commands do not try without --key-memory-max.
pub(super) fn too_costly(cost: PasswordCost) -> String {
    let memory = cost.memory_kib.div_ceil(1024);
    format!("This password needs more memory than commands allow: give --key-memory-max {memory}M with each of them.")
}

fn adjustments(args: &InitArgs) -> Result<Adjustments> {
    let size = |name: &'static str, text: &Option<String>| -> Result<Option<u32>> {
        let Some(text) = text else { return Ok(None) };
        let bytes = parse_size(text).context(name)?;
        u32::try_from(bytes).map(Some).with_context(|| format!("{name} {text}: too large"))
    };
    let purpose = match args.purpose {
        PurposeArg::Files => Purpose::Files,
        PurposeArg::Volumes => Purpose::Volumes,
    };
    Ok(Adjustments {
        purpose,
        chunk_bytes: size("--chunk-size", &args.chunk_size)?,
        fixed_bytes: size("--fixed-chunk-size", &args.fixed_chunk_size)?,
        region_bytes: size("--region-size", &args.region_size)?,
        container_bytes: size("--container-size", &args.container_size)?,
        format: FormatVersion::from_number(args.format).context("--format: no such version")?,
        no_similarity: args.no_similarity,
    })
}
