//! `forget`.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use onefold_engine::forget::{
    self, Basis, Candidate, Caution, Fate, ForgetPlan, Forgetting, Forgotten, GroupPlan, Policy, Trust, candidates,
};
use onefold_engine::io::os_identity::{host_name, user_name};
use onefold_engine::snapshot::{ForgetBody, Snapshot};
use onefold_engine::store::Store;
use onefold_engine::store::commits::Commits;
use onefold_engine::types::SessionId;

use crate::args::forget::ForgetArgs;
use crate::args::prune::PruneArgs;
use crate::commands::snapshots::{Table, heading};
use crate::commands::{prune, what_if};
use crate::compat::Dialect;
use crate::interrupt::Interrupt;
use crate::json::list::forget_group;
use crate::json::{GroupKey, short_id};
use crate::open::{self, open};
use crate::output::Output;
use crate::settings::{Settings, Verbosity};
use crate::text;
use crate::trust;

/// Forgets the snapshots that were named, or those that no rule keeps.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &ForgetArgs) -> Result<()> {
    let rules = args.keep.rules();
    ensure!(
        rules.is_empty() || args.snapshots.is_empty(),
        "name snapshots or give rules, not both: a named snapshot is forgotten whatever a rule would keep"
    );
    let is_filtered = !(args.host.is_empty() && args.tag.is_empty() && args.path.is_empty());
    ensure!(
        !args.unsafe_allow_remove_all || !rules.is_empty() || !args.snapshots.is_empty() || is_filtered,
        "--unsafe-allow-remove-all is not allowed unless a snapshot filter option is specified: give --host, --tag or --path"
    );
    ensure!(
        !rules.is_empty() || !args.snapshots.is_empty() || args.unsafe_allow_remove_all,
        "no policy was specified, no snapshots will be removed: name snapshots, or give a rule such as --keep-daily 7"
    );
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let commits = trust::read_commits(settings, output, &opened.store)?;
    let (dialect, verbosity) = (settings.dialect, settings.verbosity);
    let run = Run { store: &opened.store, output, args, interrupt, dialect, verbosity };
    let chosen = if args.snapshots.is_empty() { run.by_policy(&rules, &commits)? } else { run.by_name(&commits)? };
    output.flush()?;
    let unread = commits.findings.iter().map(|(_, error)| error).chain(&commits.not_forgotten);
    output.fail_on(unread, "not all commits can be read")?;
    if args.prune && args.dry_run {
        output
            .note("--prune: nothing is pruned in a dry run; `onefold prune --dry-run` plans it without these forgets");
    }
    let prune_args = PruneArgs { limits: args.limits.clone(), ..PruneArgs::default() };
    if args.what_if {
        return what_if::run(settings, output, &opened.store, &prune_args, &chosen);
    }
    if args.prune && !args.dry_run { prune::run(settings, output, &prune_args) } else { Ok(()) }
}

/// One run of the command.
struct Run<'a> {
    store: &'a Store,
    output: &'a Output,
    args: &'a ForgetArgs,
    interrupt: Interrupt,
    dialect: Dialect,
    verbosity: Verbosity,
}

impl Run<'_> {
    /// Returns the snapshots that were named, and forgets them.
    fn by_name(&self, commits: &Commits) -> Result<Vec<SessionId>> {
        let selection = open::selection(&self.args.selection())?;
        let mut named: Vec<SessionId> = Vec::new();
        for name in &self.args.snapshots {
            let now = self.store.host.now();
            let mut warn = |doubt| open::warn_of_doubt(self.output, &doubt, now);
            match (selection.find(commits, name, now, &mut warn), commits.find_forgotten(name)) {
                (Ok((session, _)), _) if named.contains(&session) => {}
                (Ok((session, _)), _) => named.push(session),
                (Err(_), Some(session)) => {
                    self.output.note(&format!("snapshot {} was forgotten before", short_id(session)));
                }
                (Err(error), None) => match commits.find_unreadable(name) {
                    Some(session) => {
                        let id = short_id(session);
                        self.output
                            .warn(&format!("warning: snapshot {id} cannot be read; what it contains is lost with it"));
                        named.push(session);
                    }
                    None => return Err(error.into()),
                },
            }
        }
        if self.changes_nothing() {
            self.would_forget(&named)?;
        } else {
            self.forget(&named, "named by its id")?;
        }
        Ok(named)
    }

    fn changes_nothing(&self) -> bool {
        self.args.dry_run || self.args.what_if
    }

    /// Returns the snapshots that no rule keeps, and forgets them.
    fn by_policy(&self, rules: &forget::KeepRules, commits: &Commits) -> Result<Vec<SessionId>> {
        let selection = open::selection(&self.args.selection())?;
        let all = candidates(self.store, commits)?;
        let policy = Policy {
            rules,
            group_by: self.args.grouping(),
            trust: self.trust(rules),
            now: self.store.host.now(),
            zone: &text::utc_offset,
        };
        let plan = policy.plan(&all, &|candidate| selection.admits(candidate.snapshot));
        if let Some(group) = plan.groups.iter().find(|group| group.is_emptied && !rules.is_empty()) {
            bail!(
                "no rule keeps any snapshot of {}: refused, nothing was forgotten; name the snapshots to forget them",
                self.name(group)
            );
        }
        if !self.output.json {
            self.output.note(&format!("Applying Policy: {rules}"));
        }
        self.report_doubts(&plan);
        let cautions: Vec<String> = plan
            .groups
            .iter()
            .flat_map(|group| group.cautions.iter().map(|caution| self.question(group, *caution)))
            .collect();
        // The tables come before the refusal, so that the user sees what it is about.
        self.print(&plan)?;
        self.output.flush()?;
        // The oldest first: an interrupted run leaves the newest.
        let mut forgotten: Vec<&Candidate<'_>> = plan.forgotten().collect();
        forgotten.sort_by_key(|candidate| (candidate.snapshot.time, candidate.id));
        let forgotten: Vec<SessionId> = forgotten.into_iter().map(|candidate| candidate.id).collect();
        if self.changes_nothing() {
            let option = if self.args.what_if { "--what-if" } else { "--dry-run" };
            let end = match self.dialect {
                Dialect::Onefold if !rules.is_empty() => format!("; without {option}, this needs --force"),
                Dialect::Onefold | Dialect::Restic => String::new(),
            };
            for caution in &cautions {
                self.output.warn(&format!("warning: {caution}{end}"));
            }
            self.would_forget(&forgotten)?;
            return Ok(forgotten);
        }
        if self.dialect == Dialect::Restic {
            for caution in &cautions {
                self.output.warn(&format!("warning: {caution}"));
            }
        } else {
            ensure!(
                cautions.is_empty() || self.args.force || rules.is_empty(),
                "{}; nothing was forgotten; --force does it",
                cautions.join("; ")
            );
        }
        self.forget(&forgotten, &rules.to_string())?;
        Ok(forgotten)
    }

    /// Returns whether times are doubted. Restic does not, and nothing depends on them without a rule.
    fn trust(&self, rules: &forget::KeepRules) -> Trust {
        let is_trusted = self.args.trust_times || self.dialect == Dialect::Restic || rules.is_empty();
        if is_trusted { Trust::Times } else { Trust::Compare }
    }

    /// Reports what the times of snapshots were compared with, and how many are doubtful.
    fn report_doubts(&self, plan: &ForgetPlan<'_>) {
        if plan.basis == Basis::LogOnly {
            self.output.note(
                "no snapshot was received at its own time, as in a copy of a repository: times are compared with the order \
                 of the log instead",
            );
        }
        let fates = plan.groups.iter().flat_map(|group| &group.snapshots);
        let doubtful = fates.filter_map(|(candidate, fate)| match fate {
            Fate::Doubtful(doubt) => Some((candidate, doubt)),
            Fate::Kept(_) | Fate::Forgotten => None,
        });
        let doubtful: Vec<_> = doubtful.collect();
        if let Some((candidate, doubt)) = doubtful.first() {
            let (id, time) = (short_id(candidate.id), text::local_time(candidate.snapshot.time));
            let doubtful = text::count(doubtful.len() as u64, "snapshot");
            self.output.warn(&format!(
                "warning: {doubtful} with a doubtful time, as {id} of {time} ({doubt}): kept, and not counted by any rule; forget \
                 those by their ids that have a wrong date; --trust-times counts by all times"
            ));
        }
    }

    /// Returns the name of a group in messages.
    fn name(&self, group: &GroupPlan<'_>) -> String {
        let heading = String::from_utf8_lossy(&heading(self.output, &key_of(group))).into_owned();
        heading.trim_start_matches("snapshots for ").trim_end_matches(':').to_owned()
    }

    /// Returns why a group is asked about.
    fn question(&self, group: &GroupPlan<'_>, caution: Caution) -> String {
        let name = self.name(group);
        match caution {
            Caution::LargeShare { forgotten, of } => {
                format!("{name}: {forgotten} of {of} snapshots would be forgotten")
            }
            Caution::AllRecent { forgotten } => {
                let all = text::count(forgotten as u64, "snapshot");
                format!("{name}: everything of the last seven days, {all}, would be forgotten")
            }
            Caution::Gap { forgotten } => {
                let some = text::count(forgotten as u64, "snapshot");
                format!("{name}: {some} would be forgotten because of others that are dated more than a year later")
            }
        }
    }

    fn print(&self, plan: &ForgetPlan<'_>) -> Result<()> {
        if self.output.json {
            let groups = plan.groups.iter().map(|group| forget_group(key_of(group), group, matches));
            let groups: Vec<_> = groups.collect();
            return Ok(self.output.message(&groups)?);
        }
        if self.verbosity < Verbosity::Normal {
            return Ok(());
        }
        for group in &plan.groups {
            self.output.line(heading(self.output, &key_of(group)))?;
            self.table("keep", group, |fate| *fate != Fate::Forgotten)?;
            self.table("remove", group, |fate| *fate == Fate::Forgotten)?;
        }
        Ok(())
    }

    /// Prints the snapshots of a fate, oldest first.
    fn table(&self, what: &str, group: &GroupPlan<'_>, has: impl Fn(&Fate) -> bool) -> Result<()> {
        let mut listed: Vec<(SessionId, &Snapshot)> = Vec::new();
        let mut reasons: Vec<Vec<String>> = Vec::new();
        for (candidate, fate) in group.snapshots.iter().rev().filter(|(_, fate)| has(fate)) {
            listed.push((candidate.id, candidate.snapshot));
            reasons.push(matches(fate));
        }
        if listed.is_empty() {
            return Ok(());
        }
        // Programs look for the plural of restic.
        let count = match self.dialect {
            Dialect::Onefold => text::count(listed.len() as u64, "snapshot"),
            Dialect::Restic => format!("{} snapshots", listed.len()),
        };
        self.output.line(format!("{what} {count}:"))?;
        let has_reasons = reasons.iter().any(|reasons| !reasons.is_empty());
        let reasons = (has_reasons && !self.args.compact).then_some(reasons.as_slice());
        let table = Table { output: self.output, compact: self.args.compact, long_ids: false, reasons };
        table.print(&listed)?;
        Ok(self.output.line("")?)
    }

    fn would_forget(&self, snapshots: &[SessionId]) -> Result<()> {
        if self.output.json {
            return Ok(());
        }
        self.output.line(format!("would forget {}", text::count(snapshots.len() as u64, "snapshot")))?;
        Ok(())
    }

    fn forget(&self, snapshots: &[SessionId], rules: &str) -> Result<()> {
        if snapshots.is_empty() {
            self.output.note("no snapshots were forgotten");
            return Ok(());
        }
        let note = ForgetBody {
            time: self.store.host.now(),
            hostname: host_name(),
            username: user_name(),
            rules: rules.to_owned(),
        };
        let forgetting = Forgetting::begin(self.store, &note)?;
        let all = text::count(snapshots.len() as u64, "snapshot");
        for (done, session) in snapshots.iter().enumerate() {
            let so_far = || format!("{done} of {all} were forgotten");
            if self.interrupt.is_raised() {
                return Err(onefold_engine::Error::Interrupted).with_context(so_far);
            }
            if forgetting.forget(*session).with_context(so_far)? == Forgotten::Before {
                self.output.note(&format!("snapshot {} was forgotten before", short_id(*session)));
            }
        }
        self.output.note(&format!("forgot {all}"));
        Ok(())
    }
}

/// Returns why a snapshot is kept.
fn matches(fate: &Fate) -> Vec<String> {
    match fate {
        Fate::Kept(reasons) => reasons.iter().map(ToString::to_string).collect(),
        Fate::Doubtful(doubt) => vec![doubt.to_string()],
        Fate::Forgotten => Vec::new(),
    }
}

fn key_of(group: &GroupPlan<'_>) -> GroupKey {
    let texts = |paths: &Vec<Vec<u8>>| paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    GroupKey {
        hostname: group.key.hostname.clone().unwrap_or_default(),
        paths: group.key.paths.as_ref().map(texts),
        tags: group.key.tags.clone(),
    }
}
