//! Estimates and their errors.

use crate::counts::float;

/// Something that was estimated.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Estimate.
    pub value: f64,
    /// Standard deviation of the estimate, as a share of it; 0 where it was counted.
    pub deviation: f64,
}

impl Estimate {
    /// Something that was counted.
    pub fn counted(value: f64) -> Self {
        Self { value, deviation: 0.0 }
    }

    /// Returns the share by which the truth differs at most, in 19 of 20 cases: two standard deviations.
    pub fn error(&self) -> f64 {
        2.0 * self.deviation
    }

    /// Returns the product of two estimates whose errors have nothing to do with each other.
    #[must_use]
    pub fn times(&self, other: &Self) -> Self {
        let deviation = self.deviation.hypot(other.deviation);
        Self { value: self.value * other.value, deviation }
    }
}

/// Returns the standard deviation of an estimate, from what it is without each group (jackknife).
pub fn deviation(without: &[f64]) -> f64 {
    let count = float(without.len() as u64).max(1.0);
    let mean = without.iter().sum::<f64>() / count;
    let squares: f64 = without.iter().map(|it| (it - mean).powi(2)).sum();
    ((count - 1.0) / count * squares).sqrt()
}

/// An estimate, and bounds that hold the truth in 19 of 20 cases.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// Estimate.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Interval {
    /// Returns true if nothing was estimated.
    pub fn is_counted(&self) -> bool {
        self.high <= self.low
    }

    /// Returns the interval of a quotient of something known and this.
    #[must_use]
    pub fn divide(&self, dividend: f64) -> Self {
        let quotient = |divisor: f64| dividend / divisor.max(f64::MIN_POSITIVE);
        Self { value: quotient(self.value), low: quotient(self.high), high: quotient(self.low) }
    }
}
