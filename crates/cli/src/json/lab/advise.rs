//! Message of `lab advise`.

use onefold_lab::advise::Scanned;
use onefold_lab::advise::predict::{Prediction, Seconds, Whole};
use onefold_lab::advise::recommend::Recommendation;
use serde::Serialize;

/// `lab advise`.
#[derive(Serialize)]
#[serde(tag = "message_type", rename = "advice")]
pub(crate) struct Advice {
    /// The data that would be backed up.
    files: u64,
    entries: u64,
    total_bytes: u64,
    /// The sample that was read.
    sample_files: u64,
    sample_bytes: u64,
    sample_hole_bytes: u64,
    is_everything: bool,
    is_cut_short: bool,
    unreadable: u64,
    seconds: f64,
    peak_rss_bytes: u64,
    memory_bytes: usize,
    threads: usize,
    rules: Vec<RuleAdvice>,
    /// Regions that were compressed against similar ones, and those that got bases.
    #[serde(skip_serializing_if = "Option::is_none")]
    similar_regions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar_regions_with_bases: Option<u64>,
    recommended: Option<Recommended>,
}

#[derive(Serialize)]
struct Recommended {
    rule: String,
    options: String,
    reason: String,
    otherwise: Vec<String>,
}

#[derive(Serialize)]
struct RuleAdvice {
    #[serde(rename = "rule")]
    name: String,
    chunk_bytes: u32,
    is_fixed: bool,
    sample_chunks: u64,
    sample_unique_chunks: u64,
    sample_unique_bytes: u64,
    /// Two standard deviations, as a share; 0 where it was counted.
    sample_unique_error: f64,
    dedup_ratio: f64,
    dedup_ratio_low: f64,
    dedup_ratio_high: f64,
    compressed_share: f64,
    compressed_share_error: f64,
    unique_chunks: u64,
    stored_bytes: u64,
    stored_bytes_low: u64,
    stored_bytes_high: u64,
    /// The same with similar data compressed against each other: of one rule, with `--similarity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    similar_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar_bytes_low: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar_bytes_high: Option<u64>,
    overhead_bytes: u64,
    index_bytes: u64,
    filter_bits_per_chunk: f64,
    filter_false_positives: f64,
    memory_wanted_bytes: u64,
    first_backup_seconds: f64,
    first_backup_processor_seconds: f64,
    first_backup_bytes_per_second: f64,
    read_again_seconds: f64,
    unchanged_seconds: f64,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "estimates of counts, which saturate")]
fn count(estimate: f64) -> u64 {
    estimate.round() as u64
}

impl RuleAdvice {
    fn of(prediction: &Prediction, whole: &Whole) -> Self {
        let Seconds { time: first_backup_seconds, processor: first_backup_processor_seconds } = prediction.first;
        Self {
            name: prediction.rule.to_string(),
            chunk_bytes: prediction.rule.bytes(),
            is_fixed: prediction.rule.is_fixed(),
            sample_chunks: prediction.sample_chunks,
            sample_unique_chunks: count(prediction.sample_unique_chunks.value),
            sample_unique_bytes: count(prediction.sample_unique_bytes.value),
            sample_unique_error: prediction.sample_unique_bytes.error(),
            dedup_ratio: prediction.dedup_ratio.value,
            dedup_ratio_low: prediction.dedup_ratio.low,
            dedup_ratio_high: prediction.dedup_ratio.high,
            compressed_share: prediction.compressed_share.value,
            compressed_share_error: prediction.compressed_share.error(),
            unique_chunks: count(prediction.unique_chunks),
            stored_bytes: count(prediction.stored_bytes.value),
            stored_bytes_low: count(prediction.stored_bytes.low),
            stored_bytes_high: count(prediction.stored_bytes.high),
            similar_bytes: prediction.similar_bytes.map(|it| count(it.value)),
            similar_bytes_low: prediction.similar_bytes.map(|it| count(it.low)),
            similar_bytes_high: prediction.similar_bytes.map(|it| count(it.high)),
            overhead_bytes: count(prediction.overhead_bytes),
            index_bytes: count(prediction.index_bytes),
            filter_bits_per_chunk: prediction.filter_bits,
            filter_false_positives: prediction.false_positives,
            memory_wanted_bytes: prediction.memory_bytes,
            first_backup_seconds,
            first_backup_processor_seconds,
            first_backup_bytes_per_second: prediction.bytes_per_second(whole),
            read_again_seconds: prediction.read_again.time,
            unchanged_seconds: prediction.unchanged.time,
        }
    }
}

impl Advice {
    /// Takes all fields of the advice.
    pub(crate) fn of(
        scanned: &Scanned,
        whole: &Whole,
        predictions: &[Prediction],
        recommendation: Option<&Recommendation>,
        (memory_bytes, threads, peak_rss_bytes): (usize, usize, u64),
    ) -> Self {
        let recommended = recommendation.map(|it| Recommended {
            rule: it.rule.to_string(),
            options: it.rule.options(),
            reason: it.reason.clone(),
            otherwise: it.otherwise.clone(),
        });
        Self {
            files: whole.files,
            entries: whole.entries,
            total_bytes: scanned.survey.totals.bytes,
            sample_files: scanned.reading.files,
            sample_bytes: scanned.reading.bytes,
            sample_hole_bytes: scanned.reading.hole_bytes,
            is_everything: scanned.survey.is_everything(),
            is_cut_short: scanned.reading.is_cut_short,
            unreadable: scanned.reading.failures,
            seconds: scanned.time.as_secs_f64(),
            peak_rss_bytes,
            memory_bytes,
            threads,
            rules: predictions.iter().map(|prediction| RuleAdvice::of(prediction, whole)).collect(),
            similar_regions: scanned.similar.as_ref().map(|it| it.regions),
            similar_regions_with_bases: scanned.similar.as_ref().map(|it| it.with_bases),
            recommended,
        }
    }
}
