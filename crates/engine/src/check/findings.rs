//! Findings of a check: the object, the problem, the files that it hits, and advice.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use crate::error::Error;
use crate::store::Store;
use crate::types::SessionId;

/// Files that a finding lists; the others are counted.
pub(crate) const AFFECTED_MAX: usize = 100;
/// Bytes of text about one object; what else is wrong with it is left out.
const PROBLEM_LEN_MAX: usize = 2000;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Something that does not belong here, is gone and not needed, or costs time only: it harms nothing.
    UnknownFile,
    /// Something is damaged or missing.
    Damage,
}

/// Extent of the damage at a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Extent {
    /// A file.
    File,
    /// A directory, with everything in it.
    Directory,
    /// A run of entries of one directory, the path that of the first; the names of the others are lost. With those that
    /// are directories goes everything in them.
    Run {
        /// Number of entries.
        entries: u64,
    },
}

/// A file of a snapshot that cannot be restored, or several.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AffectedFile {
    /// The snapshot.
    pub snapshot: SessionId,
    /// Its path in the snapshot.
    pub path: PathBuf,
    /// A file, or more.
    pub extent: Extent,
}

/// Something that is wrong with an object of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The object, as the user knows its path.
    pub object: String,
    /// The problem.
    pub problem: String,
    /// Advice.
    pub advice: String,
    /// Severity.
    pub severity: Severity,
    /// Files that are hit, the first hundred of them.
    pub affected: Vec<AffectedFile>,
    /// Number of files that are hit. A file counts once for each snapshot, a directory whose contents are lost as one.
    pub affected_count: u64,
}

/// Collects findings, one for each object.
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<Finding>,
    by_object: BTreeMap<String, usize>,
}

impl Findings {
    /// Adds a problem of an object and returns the number of the object's finding.
    pub(super) fn add(&mut self, object: String, problem: impl Display, advice: impl Display) -> usize {
        self.add_as(Severity::Damage, object, problem, advice)
    }

    /// Adds something that does not belong where it is.
    pub(super) fn unknown_file(&mut self, object: String, problem: impl Display) -> usize {
        self.add_as(Severity::UnknownFile, object, problem, "remove it if you know what it is; it is never read")
    }

    /// Adds damage of something that nobody needs any more.
    pub(super) fn add_needless(&mut self, object: String, error: &Error) -> usize {
        let problem = format!("{}; nobody needs it any more", problem_of(error));
        self.add_as(Severity::UnknownFile, object, problem, "nothing has to be done")
    }

    /// Adds a quarantined container.
    pub(super) fn add_quarantined(&mut self, object: String) -> usize {
        let advice = "it is never read; `onefold repair containers --remove-quarantined` removes it, and `--salvage` copies what is \
                      whole in it back";
        self.add_as(Severity::UnknownFile, object, "was set aside as damaged", advice)
    }

    /// Adds something that costs time and no data.
    pub(super) fn add_slow(&mut self, object: String, problem: impl Display) -> usize {
        self.add_as(Severity::UnknownFile, object, problem, "nothing has to be done: readers search for longer")
    }

    /// Adds something that harms nothing.
    pub(super) fn harmless(&mut self, object: String, problem: impl Display, advice: impl Display) -> usize {
        self.add_as(Severity::UnknownFile, object, problem, advice)
    }

    /// Lowers the severity of a finding about a missing object if it has hit no file.
    pub(super) fn relax(&mut self, number: usize) {
        if let Some(finding) = self.list.get_mut(number)
            && finding.affected_count == 0
        {
            finding.severity = Severity::UnknownFile;
            finding.problem.push_str("; no snapshot needs what it held");
            "nothing has to be done".clone_into(&mut finding.advice);
        }
    }

    /// Lowers the severity of a finding about a container whose bases nobody has kept, if it has hit no file. Returns true if so.
    pub(super) fn relax_late(&mut self, number: usize) -> bool {
        let Some(finding) = self.list.get_mut(number).filter(|finding| finding.affected_count == 0) else {
            return false;
        };
        finding.severity = Severity::UnknownFile;
        finding.problem.push_str("; its session was ended before it was stored, and nothing refers to it");
        "nothing has to be done: `onefold prune` removes it".clone_into(&mut finding.advice);
        true
    }

    /// Returns the number of findings, which is that of the next one.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds what an error says of an object.
    pub(super) fn add_error(&mut self, object: String, error: &Error, advice: impl Display) -> usize {
        self.add(object, problem_of(error), advice)
    }

    fn add_as(&mut self, severity: Severity, object: String, problem: impl Display, advice: impl Display) -> usize {
        let problem = problem.to_string();
        if let Some(&at) = self.by_object.get(&object) {
            if let Some(finding) = self.list.get_mut(at) {
                finding.severity = finding.severity.max(severity);
                let is_said = finding.problem.split("; ").any(|said| said == problem);
                if !is_said && finding.problem.len() < PROBLEM_LEN_MAX {
                    finding.problem.push_str("; ");
                    finding.problem.push_str(&problem);
                }
            }
            return at;
        }
        let at = self.list.len();
        self.by_object.insert(object.clone(), at);
        let advice = advice.to_string();
        self.list.push(Finding { object, problem, advice, severity, affected: Vec::new(), affected_count: 0 });
        at
    }

    /// Notes that a finding hits a file, or several.
    pub(super) fn affect(&mut self, number: usize, file: AffectedFile) {
        let Some(finding) = self.list.get_mut(number) else { return };
        let count = match file.extent {
            Extent::File | Extent::Directory => 1,
            Extent::Run { entries } => entries,
        };
        finding.severity = Severity::Damage;
        finding.affected_count = finding.affected_count.saturating_add(count);
        if finding.affected.len() < AFFECTED_MAX {
            finding.affected.push(file);
        }
    }

    /// Returns all findings, the worst first.
    pub(crate) fn finish(mut self) -> Vec<Finding> {
        self.list.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.object.cmp(&b.object)));
        self.list
    }
}

/// Returns what an error says, without the object.
pub(super) fn problem_of(error: &Error) -> String {
    match error {
        Error::Damaged { reason, .. } => format!("damaged: {reason}"),
        Error::Missing { .. } => "missing".to_owned(),
        Error::NewerFormat { found, supported, .. } => {
            format!("damaged, or of a later program: format version {found}, the newest known is {supported}")
        }
        Error::Io { operation, source, .. } => format!("cannot be read: {operation}: {source}"),
        other => other.to_string(),
    }
}

/// Returns the object that an error is about, as the user knows it.
pub(super) fn object_of(store: &Store, error: &Error) -> Option<String> {
    match error {
        Error::Damaged { object, .. } | Error::Missing { object } | Error::NewerFormat { object, .. } => {
            // The lower layers know a container by its path within the repository.
            let is_relative = object.starts_with(crate::object::names::Prefix::Containers.directory());
            Some(if is_relative { store.display(object) } else { object.clone() })
        }
        Error::Io { path, .. } => Some(path.display().to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_damage_only_if_a_file_needs_it() {
        let mut findings = Findings::default();
        let (needed, idle) = (findings.add("a".into(), "gone", ""), findings.add("b".into(), "gone", ""));
        let file = AffectedFile { snapshot: SessionId([1; 16]), path: "/f".into(), extent: Extent::File };
        findings.affect(needed, file);
        findings.relax(needed);
        findings.relax(idle);
        let severities: Vec<Severity> = findings.finish().iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Damage, Severity::UnknownFile]);
    }

    #[test]
    fn an_object_has_one_finding_and_lists_no_more_files_than_it_may() {
        let mut findings = Findings::default();
        let first = findings.add("a".into(), "x", "do");
        findings.unknown_file("b".into(), "y");
        assert_eq!(findings.add("a".into(), "z", "do"), first);
        assert_eq!(findings.add("a".into(), "x", "do"), first);
        let file = AffectedFile { snapshot: SessionId([1; 16]), path: "/f".into(), extent: Extent::Run { entries: 2 } };
        for _ in 0..=AFFECTED_MAX {
            findings.affect(first, file.clone());
        }
        let list = findings.finish();
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].problem.as_str(), list[0].severity), ("x; z", Severity::Damage));
        assert_eq!((list[0].affected.len(), list[0].affected_count), (AFFECTED_MAX, 2 * (AFFECTED_MAX as u64 + 1)));
    }
}
