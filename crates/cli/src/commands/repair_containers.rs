//! `repair containers`.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use onefold_engine::check::{CheckReport, CheckRequest, CheckedSnapshots, ReadData, check_with};
use onefold_engine::collect::{PruneReport, PruneRequest, PruneState, Salvaged, quarantine, salvage};
use onefold_engine::io::os::process_peak_rss_bytes;
use onefold_engine::object::names::Prefix;
use onefold_engine::pipeline::Driver;
use onefold_engine::store::{QuarantinedContainer, Store};
use onefold_engine::types::{ContainerId, SessionId};

use crate::args::prune::PruneArgs;
use crate::args::repair::RepairContainersArgs;
use crate::commands::check::print_finding;
use crate::commands::prune::{bytes_of, collection_lines, request, waited_lines, waiting_line};
use crate::interrupt::Interrupt;
use crate::json::prune::waiting_for;
use crate::json::{self, Object, object};
use crate::open::{OpenedCache, open};
use crate::output::Output;
use crate::progress::{Activity, Progress};
use crate::settings::{Settings, Verbosity};
use crate::text;

/// Digits of the number of a container.
const ORDINAL_DIGITS: usize = 8;

/// Outcome of the command.
#[derive(Debug, Default)]
struct Outcome {
    /// Damaged containers, or those that were named to be set aside.
    damaged: BTreeSet<ContainerId>,
    /// Containers that cannot be read for another reason.
    unreadable: BTreeSet<ContainerId>,
    /// What collections did.
    report: PruneReport,
    salvaged: Salvaged,
    removed: Vec<QuarantinedContainer>,
}

/// Reports damaged containers, sets them aside, or deals with those that were.
pub(crate) fn run(settings: &Settings, output: &Arc<Output>, args: &RepairContainersArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let interrupt = Interrupt::listen()?;
    let cache = OpenedCache::open(settings, opened.store.config.repository, output)?;
    let collecting =
        PruneArgs { wait: args.wait.clone(), fence_after: args.fence_after.clone(), ..PruneArgs::default() };
    let request = request(settings, &opened.store, &cache, &collecting)?;
    let run = Run { settings, output, args, interrupt: &interrupt, store: &opened.store, request };
    let outcome = if args.remove_quarantined {
        run.remove()?
    } else if args.salvage {
        run.salvage()?
    } else {
        run.find_and_quarantine()?
    };
    let left = opened.store.list_quarantined()?;
    run.print(&outcome, &left)?;
    run.judge(&outcome)
}

struct Run<'a> {
    settings: &'a Settings,
    output: &'a Arc<Output>,
    args: &'a RepairContainersArgs,
    interrupt: &'a Interrupt,
    store: &'a Store,
    request: PruneRequest,
}

impl Run<'_> {
    /// Removes what was set aside, after what is whole in it and nowhere else has been copied back.
    fn remove(&self) -> Result<Outcome> {
        let quarantined = self.store.list_quarantined()?;
        if self.args.dry_run {
            return Ok(Outcome { removed: quarantined, ..Outcome::default() });
        }
        let mut salvaged = self.bring_back(&quarantined)?;
        let (kept, removed): (Vec<_>, Vec<_>) =
            quarantined.into_iter().partition(|container| salvaged.unreadable.contains(&container.name.id));
        if kept.is_empty() {
            // The user removes only chunks of which every copy is damaged.
            salvaged.findings.clear();
        }
        self.store.remove_quarantined(&removed)?;
        Ok(Outcome { salvaged, removed, ..Outcome::default() })
    }

    fn salvage(&self) -> Result<Outcome> {
        ensure!(!self.args.dry_run, "--salvage cannot be tried out: it only adds what is missing");
        let salvaged = self.bring_back(&self.store.list_quarantined()?)?;
        Ok(Outcome { salvaged, ..Outcome::default() })
    }

    fn bring_back(&self, quarantined: &[QuarantinedContainer]) -> Result<Salvaged> {
        let progress = Progress::new(self.output, self.interrupt, Activity::Prune);
        let _shown = progress.show();
        Ok(salvage(self.store, &self.request, quarantined, &*progress)?)
    }

    fn find_and_quarantine(&self) -> Result<Outcome> {
        let named = self.named()?;
        let is_quarantining = self.args.quarantine && !self.args.dry_run;
        let (damaged, unreadable) =
            if is_quarantining && !named.is_empty() { (named, BTreeSet::new()) } else { self.find(&named)? };
        if !is_quarantining || damaged.is_empty() {
            return Ok(Outcome { damaged, unreadable, ..Outcome::default() });
        }
        let progress = Progress::new(self.output, self.interrupt, Activity::Prune);
        let report = {
            let _shown = progress.show();
            quarantine(self.store, &self.request, &damaged, &*progress)?
        };
        Ok(Outcome { damaged, unreadable, report, ..Outcome::default() })
    }

    /// Returns the containers that were named.
    fn named(&self) -> Result<BTreeSet<ContainerId>> {
        if self.args.containers.is_empty() {
            return Ok(BTreeSet::new());
        }
        let listed = self.store.list_containers(&self.request.scratch)?;
        let find = |text: &String| {
            let id = parse_container(text)
                .with_context(|| format!("{text}: not a container; write it as `check` or `list packs` prints it"))?;
            ensure!(listed.contains(id), "there is no container {id}");
            Ok(id)
        };
        self.args.containers.iter().map(find).collect()
    }

    /// Reads containers, all of them if none is named, and reports what is damaged and what that affects. Returns those that
    /// are damaged, and those that cannot be read for another reason.
    fn find(&self, named: &BTreeSet<ContainerId>) -> Result<(BTreeSet<ContainerId>, BTreeSet<ContainerId>)> {
        let progress = Progress::new(self.output, self.interrupt, Activity::Check);
        let request = CheckRequest {
            read: if named.is_empty() { ReadData::All } else { ReadData::None },
            snapshots: CheckedSnapshots::All,
            scratch: self.request.scratch.clone(),
            memory_bytes: self.settings.memory_bytes,
            driver: Driver::threads(self.settings.threads),
            seed: None,
            heads: None,
            accelerator: None,
        };
        let report = {
            let _shown = progress.show();
            check_with(self.store, &request, named, &*progress)?
        };
        self.print_findings(&report);
        let is_asked_for = |id: &ContainerId| named.is_empty() || named.contains(id);
        let [damaged, unreadable] =
            [report.damaged, report.unreadable].map(|found| found.into_iter().filter(is_asked_for).collect());
        Ok((damaged, unreadable))
    }

    fn print_findings(&self, report: &CheckReport) {
        let containers = self.store.display(Prefix::Containers);
        for finding in report.findings.iter().filter(|finding| finding.object.starts_with(&containers)) {
            if self.output.json {
                self.output.warn_message(&json::finding(finding));
            } else {
                print_finding(self.output, finding);
            }
        }
    }

    fn print(&self, outcome: &Outcome, left: &[QuarantinedContainer]) -> Result<()> {
        let output = self.output;
        for finding in outcome.report.findings.iter().chain(&outcome.salvaged.findings) {
            output.warn(finding);
        }
        if output.json {
            output.message(&self.summary(outcome, left))?;
        } else if Verbosity::Normal <= output.verbosity {
            for line in self.lines(outcome) {
                output.line(line)?;
            }
        }
        Ok(output.flush()?)
    }

    fn lines(&self, outcome: &Outcome) -> Vec<String> {
        let containers = |count: usize| text::count(count as u64, "container");
        let Salvaged { containers: quarantined, chunks, plain_bytes, .. } = outcome.salvaged;
        let (quarantined, brought) = (text::count(quarantined, "container"), text::count(chunks, "chunk"));
        let salvaged =
            format!("brought {brought} ({}) back from {quarantined} set aside as damaged", text::bytes(plain_bytes));
        if self.args.remove_quarantined {
            let would = if self.args.dry_run { "would remove" } else { "removed" };
            let removed = &outcome.removed;
            let removed = format!("{would} {} ({})", containers(removed.len()), text::bytes(bytes_of(removed)));
            return (0 < chunks).then_some(salvaged).into_iter().chain([removed]).collect();
        }
        if self.args.salvage {
            return vec![salvaged];
        }
        if outcome.damaged.is_empty() {
            let none = if outcome.unreadable.is_empty() { "no container" } else { "no container that can be read" };
            return vec![format!("{none} is damaged")];
        }
        if !self.args.quarantine || self.args.dry_run {
            let damaged = text::count(outcome.damaged.len() as u64, "damaged container");
            return vec![format!("found {damaged}; `onefold repair containers --quarantine` sets them aside")];
        }
        let mut lines = collection_lines(&outcome.report);
        if matches!(outcome.report.state, PruneState::Waiting(_)) {
            lines.push(waiting_line(&outcome.report.state));
            lines.extend(waited_lines(&outcome.report.state));
        } else if 0 < outcome.report.quarantined_containers {
            lines.push("back up again, then see what is lost with `onefold repair snapshots --dry-run`".to_owned());
        }
        lines
    }

    fn summary(&self, outcome: &Outcome, left: &[QuarantinedContainer]) -> Object {
        let Outcome { damaged, unreadable, report, salvaged, removed } = outcome;
        let removed = if self.args.dry_run { &[] } else { &removed[..] };
        object! {
            message_type: "summary",
            dry_run: self.args.dry_run,
            damaged: damaged.iter().copied().collect::<Vec<_>>(),
            // Containers that cannot be read for another reason.
            unreadable: unreadable.iter().copied().collect::<Vec<_>>(),
            quarantined_now_containers: report.quarantined_containers,
            quarantined_now_bytes: report.quarantined_bytes,
            quarantined_containers: left.len(),
            quarantined_bytes: bytes_of(left),
            removed_containers: removed.len(),
            removed_bytes: bytes_of(removed),
            salvaged_chunks: salvaged.chunks,
            salvaged_bytes: salvaged.plain_bytes,
            report { rescued_containers, rescued_chunks },
            written_containers: report.written_containers + salvaged.written_containers,
            written_bytes: report.written_bytes + salvaged.written_bytes,
            waiting_for: waiting_for(&report.state),
            peak_rss_bytes?: process_peak_rss_bytes(),
        }
    }

    /// Fails if something damaged is left where it was.
    fn judge(&self, outcome: &Outcome) -> Result<()> {
        let Outcome { damaged, unreadable, report, salvaged, .. } = outcome;
        ensure!(
            unreadable.is_empty() && report.findings.is_empty() && salvaged.findings.is_empty(),
            "some containers cannot be read for another reason than damage, and stay as they are"
        );
        ensure!(
            self.args.quarantine && !self.args.dry_run || damaged.is_empty(),
            "the repository has {}",
            text::count(damaged.len() as u64, "damaged container")
        );
        ensure!(
            !matches!(report.state, PruneState::Waiting(_)),
            "damaged containers stay until the backups have ended that may rely on them"
        );
        ensure!(
            report.rescued_containers == 0,
            "{} could not be set aside, since chunks of them are in no other container; try again",
            text::count(report.rescued_containers, "container")
        );
        Ok(())
    }
}

/// Reads the path of a container, or its id.
pub(super) fn parse_container(text: &str) -> Option<ContainerId> {
    let mut parts = text.rsplit('/');
    let (name, session) = (parts.next()?, SessionId::parse(parts.next()?)?);
    let number = name.split('-').next()?;
    let digits = number.get(number.len().checked_sub(ORDINAL_DIGITS)?..)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let ordinal = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    let is_id = number.len() == ORDINAL_DIGITS && !name.contains('-');
    let is_path = matches!(number.strip_suffix(digits), Some("d" | "m")) && name.contains('-');
    (is_id || is_path).then_some(ContainerId { session, ordinal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_read_as_other_commands_print_them() {
        let session = "000102030405060708090a0b0c0d0e0f";
        let id = ContainerId { session: SessionId::parse(session).unwrap(), ordinal: 0xd2 };
        let texts = [
            id.to_string(),
            format!("/mnt/x/containers/{session}/d000000d2-ab12"),
            format!("{session}/m000000d2-ab12"),
        ];
        for text in texts {
            assert_eq!(parse_container(&text), Some(id), "{text}");
        }
        let wrong = ["", "000000d2", session, &format!("{session}/"), &format!("{session}/x000000d2-ab")];
        for text in wrong.into_iter().chain([&*format!("{session}/+00000d2"), &*format!("{session}/d000000d2")]) {
            assert_eq!(parse_container(text), None, "{text}");
        }
    }
}
