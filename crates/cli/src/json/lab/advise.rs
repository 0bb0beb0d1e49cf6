//! Message of `lab advise`.

use onefold_lab::advise::Scanned;
use onefold_lab::advise::predict::{Prediction, Seconds, Whole};
use onefold_lab::advise::recommend::Recommendation;

use crate::json::{Object, Value, object};

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "estimates of counts, which saturate")]
fn count(estimate: f64) -> u64 {
    estimate.round() as u64
}

fn rule(prediction: &Prediction, whole: &Whole) -> Object {
    let Seconds { time: first_backup_seconds, processor: first_backup_processor_seconds } = prediction.first;
    let (ratio, share) = (&prediction.dedup_ratio, &prediction.compressed_share);
    let (stored, similar) = (&prediction.stored_bytes, &prediction.similar_bytes);
    object! {
        rule: prediction.rule.to_string(),
        chunk_bytes: prediction.rule.bytes(),
        is_fixed: prediction.rule.is_fixed(),
        prediction { sample_chunks },
        sample_unique_chunks: count(prediction.sample_unique_chunks.value),
        sample_unique_bytes: count(prediction.sample_unique_bytes.value),
        // Two standard deviations, as a share; 0 where it was counted.
        sample_unique_error: prediction.sample_unique_bytes.error(),
        dedup_ratio: ratio.value,
        dedup_ratio_low: ratio.low,
        dedup_ratio_high: ratio.high,
        compressed_share: share.value,
        compressed_share_error: share.error(),
        unique_chunks: count(prediction.unique_chunks),
        stored_bytes: count(stored.value),
        stored_bytes_low: count(stored.low),
        stored_bytes_high: count(stored.high),
        // The same with similar data compressed against each other: of one rule, with `--similarity`.
        similar_bytes?: similar.map(|it| count(it.value)),
        similar_bytes_low?: similar.map(|it| count(it.low)),
        similar_bytes_high?: similar.map(|it| count(it.high)),
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

/// `lab advise`: the data that would be backed up, the sample that was read, and the prediction for each rule.
pub(crate) fn message(
    scanned: &Scanned,
    whole: &Whole,
    predictions: &[Prediction],
    recommendation: Option<&Recommendation>,
    (memory_bytes, threads, peak_rss_bytes): (usize, usize, u64),
) -> Object {
    let (reading, similar) = (&scanned.reading, scanned.similar.as_ref());
    let recommended = recommendation.map(|it| {
        object! {
            rule: it.rule.to_string(), options: it.rule.options(), reason: &*it.reason, otherwise: it.otherwise.clone(),
        }
    });
    object! {
        message_type: "advice",
        whole { files, entries },
        total_bytes: scanned.survey.totals.bytes,
        sample_files: reading.files,
        sample_bytes: reading.bytes,
        sample_hole_bytes: reading.hole_bytes,
        is_everything: scanned.survey.is_everything(),
        is_cut_short: reading.is_cut_short,
        unreadable: reading.failures,
        seconds: scanned.time.as_secs_f64(),
        peak_rss_bytes,
        memory_bytes,
        threads,
        rules: predictions.iter().map(|prediction| rule(prediction, whole)).collect::<Vec<_>>(),
        // Regions that were compressed against similar ones, and those that got bases.
        similar_regions?: similar.map(|it| it.regions),
        similar_regions_with_bases?: similar.map(|it| it.with_bases),
        recommended: Value::from(recommended),
    }
}
