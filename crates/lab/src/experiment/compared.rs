//! Findings of experiments that measure no points: their parts, and their claims.

use crate::experiment::verdict::{Bound, Samples, judge};
use crate::findings::{Axis, Claim, Plot, Table, Verdict};

/// Findings of an experiment.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) notes: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) plots: Vec<Plot>,
    pub(super) claims: Vec<Claim>,
}

/// A finding, and what it is compared with.
#[derive(Debug)]
pub(super) struct Compared<'a> {
    pub(super) what: String,
    pub(super) bound: Bound,
    /// Statement of a paper that prints no number.
    pub(super) unprinted: &'a str,
    pub(super) found: Samples,
    /// Why nothing can be shown here, if that is so.
    pub(super) missing: Option<String>,
    /// Why the number differs, if it does and that is known.
    pub(super) remark: &'a str,
}

impl Compared<'_> {
    /// Judges it.
    pub(super) fn claim(self) -> Claim {
        // Nothing was found, and so nothing is shown, whatever the reason.
        let missing = self.missing.or_else(|| self.found.is_empty().then(|| "Nothing was measured.".to_owned()));
        let judged = judge(&self.bound, &self.found, false, missing.is_none());
        let is_good = matches!(judged.verdict, Verdict::Reproduced | Verdict::Holds);
        let mut remarks: Vec<_> = missing.into_iter().collect();
        if remarks.is_empty() && !is_good && !self.remark.is_empty() {
            remarks.push(self.remark.to_owned());
        }
        remarks.extend(judged.noise.clone());
        Claim {
            what: self.what,
            published: self.bound.words(self.unprinted),
            found: self.found.words(),
            verdict: judged.verdict,
            can_flip: judged.noise.is_some(),
            remark: remarks.join(" "),
        }
    }
}

/// Makes an axis of numbers.
pub(super) fn axis(title: &str, is_logarithmic: bool) -> Axis {
    Axis { title: title.to_owned(), is_logarithmic, names: Vec::new() }
}
