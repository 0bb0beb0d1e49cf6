//! Hours, days, weeks, months and years of local time.

use crate::types::Timestamp;

/// Returns the offset of local time from UTC in seconds, at a time in seconds since 1970.
pub type Zone<'a> = dyn Fn(i64) -> i32 + 'a;

const HOUR: i64 = 3600;
/// Seconds of a day.
pub(super) const DAY: i64 = 24 * HOUR;
/// Seconds since 1970 of the first and the last day of years 1 to 9999. Times outside count as the nearest of them.
const FIRST: i64 = -719_162 * DAY;
const LAST: i64 = 2_932_897 * DAY - 1;
/// Days of 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

/// A division of time that has one snapshot kept, its newest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Period {
    /// Each snapshot by itself.
    Last,
    /// Hours of local time.
    Hourly,
    /// Days of local time.
    Daily,
    /// Weeks, which begin on Monday (ISO 8601).
    Weekly,
    /// Months.
    Monthly,
    /// Years.
    Yearly,
}

impl Period {
    /// Returns restic's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
        }
    }

    /// Returns the number of the period that a time lies in. `Last` has the number of the snapshot.
    pub(super) fn number(self, time: Timestamp, snapshot: usize, zone: &Zone<'_>) -> i64 {
        let seconds = within_years(time.seconds);
        let local = seconds + i64::from(zone(seconds));
        let days = local.div_euclid(DAY);
        match self {
            Self::Last => i64::try_from(snapshot).unwrap_or(i64::MAX),
            Self::Hourly => local.div_euclid(HOUR),
            Self::Daily => days,
            // 1970 began on a Thursday.
            Self::Weekly => (days + 3).div_euclid(7),
            Self::Monthly => {
                let date = Date::of(days);
                date.year * 12 + date.month
            }
            Self::Yearly => Date::of(days).year,
        }
    }
}

/// A time span of calendar units: `1y5m7d2h`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    /// Years.
    pub years: u32,
    /// Months.
    pub months: u32,
    /// Days.
    pub days: u32,
    /// Hours.
    pub hours: u32,
}

impl Span {
    /// Reads numbers with a unit each: `y`, `m`, `d` or `h`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: not a duration; write it as 1y5m7d2h, in years, months, days and hours");
        let mut span = Self::default();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let unit_at = rest.find(|character: char| !character.is_ascii_digit()).ok_or_else(wrong)?;
            let (number, tail) = rest.split_at(unit_at);
            let number = number.parse().map_err(|_| wrong())?;
            let mut characters = tail.chars();
            *match characters.next() {
                Some('y') => &mut span.years,
                Some('m') => &mut span.months,
                Some('d') => &mut span.days,
                Some('h') => &mut span.hours,
                _ => return Err(wrong()),
            } = number;
            rest = characters.as_str();
        }
        Ok(span)
    }

    /// Returns true if it spans no time.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the time that lies this far before another one. Years, months and days keep the time of day; a day that a month
    /// lacks is one of the next month, as in restic.
    pub(super) fn before(self, time: Timestamp, zone: &Zone<'_>) -> Timestamp {
        let seconds = within_years(time.seconds);
        let local = seconds + i64::from(zone(seconds));
        let date = Date::of(local.div_euclid(DAY));
        let months = (date.year - i64::from(self.years)) * 12 + date.month - i64::from(self.months);
        let first_of_month = Date { year: months.div_euclid(12), month: months.rem_euclid(12), day: 0 };
        let days = first_of_month.days() + date.day - i64::from(self.days);
        let local = days * DAY + local.rem_euclid(DAY);
        // The offset before a change of the clock, or the one after it if the time lies behind the change.
        let guess = local - i64::from(zone(local));
        let seconds = local - i64::from(zone(guess)) - i64::from(self.hours) * HOUR;
        Timestamp { seconds, ..time }
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [(self.years, 'y'), (self.months, 'm'), (self.days, 'd'), (self.hours, 'h')];
        parts.into_iter().filter(|(number, _)| *number != 0).try_for_each(|(number, unit)| write!(f, "{number}{unit}"))
    }
}

fn within_years(seconds: i64) -> i64 {
    seconds.clamp(FIRST, LAST)
}

/// A day of the calendar; month and day count from 0.
struct Date {
    year: i64,
    month: i64,
    day: i64,
}

impl Date {
    /// Converts days since 1970. Years begin in March, so that the leap day is the last of a year (Hinnant, "chrono-Compatible
    /// Low-Level Date Algorithms").
    fn of(days: i64) -> Self {
        let days = days + 719_468;
        let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5;
        let month = (month_from_march + 2) % 12;
        let year = era * 400 + year_of_era + i64::from(month < 2);
        Self { year, month, day }
    }

    /// Returns the days since 1970.
    fn days(&self) -> i64 {
        let year = self.year - i64::from(self.month < 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let month_from_march = (self.month + 10) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        era * ERA_DAYS + day_of_era - 719_468
    }
}

/// Returns the seconds since 1970 of a day of the calendar; month and day count from 1.
#[cfg(test)]
pub(super) fn seconds_of(year: i64, month: i64, day: i64) -> i64 {
    Date { year, month: month - 1, day: day - 1 }.days() * DAY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 7 }
    }

    #[test]
    fn dates_of_eight_centuries_come_back_and_follow_each_other() {
        let mut previous = Date::of(-ERA_DAYS - 1);
        for days in -ERA_DAYS..=ERA_DAYS {
            let date = Date::of(days);
            assert_eq!(date.days(), days);
            let is_next_day = date.day == previous.day + 1 && date.month == previous.month;
            let is_next_month = date.day == 0 && previous.day >= 27 && date.month == (previous.month + 1) % 12;
            assert!(is_next_day || is_next_month, "{days}");
            assert_eq!(date.year, previous.year + i64::from(is_next_month && date.month == 0), "{days}");
            previous = date;
        }
        let leap_day = Date::of(19_782);
        assert_eq!((leap_day.year, leap_day.month, leap_day.day), (2024, 1, 28));
    }

    #[test]
    fn periods_begin_at_local_midnight_and_weeks_on_monday() {
        // 2026-11-22 is a Sunday. Its last second is 22:59:59 UTC at an offset of one hour.
        let sunday = 20_779 * DAY + 23 * HOUR - 1;
        let zone = |_| 3600;
        for period in [Period::Hourly, Period::Daily, Period::Weekly] {
            let number = |seconds| period.number(at(seconds), 0, &zone);
            assert_eq!(number(sunday) + 1, number(sunday + 1), "{period:?}");
        }
        let number = |period: Period, seconds| period.number(at(seconds), 0, &zone);
        assert_eq!(number(Period::Monthly, sunday), number(Period::Monthly, sunday + 1));
        assert_eq!(number(Period::Yearly, sunday), 2026);
        assert_eq!(Period::Last.number(at(0), 5, &zone), 5);
    }

    #[test]
    fn no_time_of_a_damaged_clock_overflows() {
        for seconds in [i64::MIN, i64::MAX, -1, 0] {
            for period in [Period::Hourly, Period::Weekly, Period::Monthly, Period::Yearly] {
                period.number(at(seconds), 0, &|_| 14 * 3600);
            }
            let span = Span { years: u32::MAX, months: u32::MAX, days: u32::MAX, hours: u32::MAX };
            assert!(span.before(at(seconds), &|_| -3600).seconds < 0);
        }
    }

    #[test]
    fn spans_are_read_and_written_as_restic_has_them() {
        for text in ["1y5m7d2h", "7d", "2h"] {
            assert_eq!(Span::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Span::parse("2h1d").unwrap(), Span { days: 1, hours: 2, ..Span::default() });
        assert!(Span::parse("0d").unwrap().is_empty() && Span::parse("").unwrap().is_empty());
        for wrong in ["7", "d", "1w", "-1d", "1d2", "1.5d", "99999999999d", "1\u{fc}"] {
            assert!(Span::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_span_keeps_the_time_of_day_over_a_change_of_the_clock() {
        // Central Europe: the clock goes back at 2026-10-25 01:00 UTC.
        let change = 20_751 * DAY + HOUR;
        let zone = move |seconds| if seconds < change { 7200 } else { 3600 };
        let noon = change + 10 * HOUR;
        let day = Span { days: 1, ..Span::default() };
        assert_eq!(day.before(at(noon), &zone), at(noon - 25 * HOUR));
        let hours = Span { hours: 24, ..Span::default() };
        assert_eq!(hours.before(at(noon), &zone), at(noon - 24 * HOUR));
    }

    #[test]
    fn a_month_without_the_day_reaches_into_the_next_one() {
        // One month before 2026-03-31 would be 2026-02-31, which is 2026-03-03.
        let month = Span { months: 1, ..Span::default() };
        assert_eq!(month.before(at(20_543 * DAY), &|_| 0), at(20_515 * DAY));
    }
}
