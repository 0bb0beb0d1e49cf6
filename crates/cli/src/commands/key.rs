//! `key list`, `key add`, `key remove`, `key passwd`.

use anyhow::{Result, bail, ensure};
use onefold_engine::crypto::MasterKey;
use onefold_engine::crypto::slot::{Slot, SlotLabel, hex};
use onefold_engine::io::os_identity::{host_name, user_name};
use onefold_engine::store::slots::{NewSlot, SlotPolicy, add_slot, read_slots, remove_slot, replace_slot, unlock};

use crate::args::key::{KeyCommand, NewKeyArgs};
use crate::commands::init::{cost, too_costly};
use crate::json::{SHORT_ID_LEN, object};
use crate::open::{Opened, find_by_id, open};
use crate::output::Output;
use crate::password::PasswordSource;
use crate::settings::Settings;
use crate::text;

/// Warning about a password that is no longer accepted.
const REMOVED: &str = "The master key has not changed. Anyone who has read it, or who has the removed password and a copy of \
                       its key slot, can still read the repository.";

/// Error of a command that cannot read some of the key slots.
pub(super) const UNREAD_SLOTS: &str = "not all key slots can be read";

/// The open repository, its master key, and the key slot that the password has unlocked.
struct Unlocked<'a> {
    output: &'a Output,
    policy: &'a SlotPolicy,
    opened: Opened,
    key: MasterKey,
    slot: Slot,
}

/// Runs a `key` command.
pub(crate) fn run(settings: &Settings, output: &Output, command: &KeyCommand) -> Result<()> {
    let opened = open(settings, output)?;
    let Some(password) = &opened.password else {
        bail!("the repository is not encrypted: there are no passwords to manage");
    };
    let (key, slot) = unlock(&*opened.store.objects, opened.store.config.repository, password, &settings.slots)?;
    let unlocked = Unlocked { output, policy: &settings.slots, opened, key, slot };
    match command {
        KeyCommand::List => list(output, &unlocked),
        KeyCommand::Add(args) => {
            let slot = add(&unlocked, args, CurrentSlot::Keep)?;
            output.note(&format!("added key slot {}", hex(&slot.id)));
            Ok(())
        }
        KeyCommand::Remove { id } => remove(output, &unlocked, id),
        KeyCommand::Passwd(args) => {
            let slot = add(&unlocked, args, CurrentSlot::Remove)?;
            output.note(&format!("key slot {} replaces {}", hex(&slot.id), hex(&unlocked.slot.id)));
            output.note(REMOVED);
            Ok(())
        }
    }
}

fn list(output: &Output, unlocked: &Unlocked<'_>) -> Result<()> {
    let store = &unlocked.opened.store;
    let mut found = read_slots(&*store.objects, store.config.repository)?;
    found.slots.sort_by_key(|slot| (slot.created, slot.id));
    let keys = found.slots.iter().map(|slot| {
        let current = slot.id == unlocked.slot.id;
        let label = slot.label(&store.keys, store.config.repository).unwrap_or_else(|| {
            output.warn(&format!("key slot {}: unknown who made it: its label does not open", hex(&slot.id)));
            SlotLabel::default()
        });
        (current, hex(&slot.id), label, text::local_time(slot.created))
    });
    if output.json {
        let keys = keys.map(|(current, id, SlotLabel { user, host }, created)| {
            object! { current, id, userName: user, hostName: host, created, }
        });
        output.message(&keys.collect::<Vec<_>>())?;
    } else {
        output.line(format!(" {:SHORT_ID_LEN$}  {:19}  {:12}  Host", "ID", "Created", "User"))?;
        for (current, id, SlotLabel { user, host }, created) in keys {
            let mark = if current { '*' } else { ' ' };
            let id: String = id.chars().take(SHORT_ID_LEN).collect();
            let printable = |label: &str| String::from_utf8_lossy(&output.printable(label.as_bytes())).into_owned();
            let shown = |label: &str| if label.is_empty() { "unknown".to_owned() } else { printable(label) };
            output.line(format!("{mark}{id}  {created}  {:12}  {}", shown(&user), shown(&host)))?;
        }
    }
    output.flush()?;
    output.fail_on(found.findings, UNREAD_SLOTS)
}

/// What happens to the key slot in use.
#[derive(Clone, Copy)]
enum CurrentSlot {
    Keep,
    Remove,
}

fn add(unlocked: &Unlocked<'_>, args: &NewKeyArgs, current: CurrentSlot) -> Result<Slot> {
    let cost = cost(&args.cost)?;
    if !unlocked.policy.allows(cost) {
        unlocked.output.note(&too_costly(cost));
    }
    let source = match &args.new_password_file {
        Some(path) => PasswordSource::File(path.clone()),
        None if args.new_insecure_no_password => PasswordSource::Unneeded,
        None => PasswordSource::Ask,
    };
    let password = source.read_new("new password: ").map_err(|error| match &source {
        PasswordSource::Ask => error.context("give --new-password-file FILE to read the new password from a file"),
        PasswordSource::Command(_) | PasswordSource::File(_) | PasswordSource::Given(_) | PasswordSource::Unneeded => {
            error
        }
    })?;
    let store = &unlocked.opened.store;
    let label = SlotLabel {
        user: args.user.clone().unwrap_or_else(user_name),
        host: args.host.clone().unwrap_or_else(host_name),
    };
    let new = NewSlot { password: &password, cost, label: &label };
    let (objects, host, repository) = (&*store.objects, &*store.host, store.config.repository);
    Ok(match current {
        CurrentSlot::Keep => add_slot(objects, host, repository, &unlocked.key, new)?,
        CurrentSlot::Remove => replace_slot(objects, host, repository, (&unlocked.key, &unlocked.slot), new)?,
    })
}

fn remove(output: &Output, unlocked: &Unlocked<'_>, id: &str) -> Result<()> {
    let store = &unlocked.opened.store;
    let found = read_slots(&*store.objects, store.config.repository)?;
    let slot = find_by_id("key slot", id, &found.slots, |slot| hex(&slot.id))?;
    ensure!(
        slot.id != unlocked.slot.id,
        "key slot `{id}` is in use by this command: unlock the repository with another password to remove it, or replace it \
         with `onefold key passwd`"
    );
    remove_slot(&*store.objects, slot)?;
    output.note(&format!("removed key slot {}", hex(&slot.id)));
    output.note(REMOVED);
    Ok(())
}
