//! Texts of numbers, times and modes, for people and for programs.

use jiff::Timestamp as Instant;
use jiff::tz::TimeZone;
use onefold_engine::io::tree::EntryKind;
use onefold_engine::types::Timestamp;

/// Returns the time as jiff has it; the nearest one that it has for times before year -9999 or after 9999.
fn instant(time: Timestamp) -> Instant {
    let nanoseconds = i32::try_from(time.nanoseconds).unwrap_or(0);
    let nearest = if time.seconds < 0 { Instant::MIN } else { Instant::MAX };
    Instant::new(time.seconds, nanoseconds).unwrap_or(nearest)
}

/// Writes a time with its zone and all its nanoseconds (RFC 3339).
pub(crate) fn rfc3339(time: Timestamp) -> String {
    instant(time).to_zoned(TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S%.f%:z").to_string()
}

/// Writes a time in local time to the second.
pub(crate) fn local_time(time: Timestamp) -> String {
    instant(time).to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns the offset of local time from UTC in seconds, at a time in seconds since 1970.
pub(crate) fn utc_offset(seconds: i64) -> i32 {
    TimeZone::system().to_offset(instant(Timestamp { seconds, nanoseconds: 0 })).seconds()
}

/// Reads a local time as `2012-11-01 22:08:41`, or one with its zone.
pub(crate) fn parse_time(text: &str) -> anyhow::Result<Timestamp> {
    let instant = match text.parse::<Instant>() {
        Ok(instant) => instant,
        Err(_) => text
            .parse::<jiff::civil::DateTime>()
            .and_then(|local| local.to_zoned(TimeZone::system()))
            .map_err(|_| anyhow::anyhow!("{text:?}: not a time; write it as 2012-11-01 22:08:41"))?
            .timestamp(),
    };
    let nanoseconds = instant.as_nanosecond();
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000))?;
    Ok(Timestamp { seconds, nanoseconds: u32::try_from(nanoseconds.rem_euclid(1_000_000_000))? })
}

/// Reads a duration as `30s`, `1h30m` or `14d`. A day has 24 hours.
pub(crate) fn parse_duration(text: &str) -> anyhow::Result<std::time::Duration> {
    let wrong = || anyhow::anyhow!("{text:?}: not a duration; write it as 30s or 1h30m");
    if text == "0" {
        return Ok(std::time::Duration::ZERO);
    }
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let duration = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    duration.try_into().map_err(|_| wrong())
}

/// Writes a number of bytes in units of 1,024.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.iter().find(|(shift, _)| 1 << shift <= count) {
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        Some((shift, unit)) => format!("{:.3} {unit}", count as f64 / (1_u64 << shift) as f64),
        None => format!("{count} B"),
    }
}

/// Writes a duration as options take it: `10m`, `1h 30m`.
pub(crate) fn short_duration(duration: std::time::Duration) -> String {
    jiff::SignedDuration::try_from(duration).map_or_else(|_| format!("{duration:?}"), |short| format!("{short:#}"))
}

/// Writes how many things there are: `1 file`, `2 files`.
pub(crate) fn count(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Writes a duration as minutes and seconds, with hours where there are any.
pub(crate) fn duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if 0 < hours { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// The kind of an entry, as restic calls it.
pub(crate) fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "dir",
        EntryKind::Symlink => "symlink",
        EntryKind::Fifo => "fifo",
        EntryKind::Socket => "socket",
        EntryKind::CharDevice => "chardev",
        EntryKind::BlockDevice => "dev",
    }
}

/// Kind and mode as Go's `os.FileMode` has them, which is what readers of restic's JSON expect.
pub(crate) fn go_mode(kind: EntryKind, mode: u32) -> u32 {
    let kind = match kind {
        EntryKind::File => 0,
        EntryKind::Directory => 1 << 31,
        EntryKind::Symlink => 1 << 27,
        EntryKind::BlockDevice => 1 << 26,
        EntryKind::Fifo => 1 << 25,
        EntryKind::Socket => 1 << 24,
        EntryKind::CharDevice => 1 << 26 | 1 << 21,
    };
    let special = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];
    let special = special.iter().filter(|(bit, _)| mode & bit != 0).fold(0, |sum, (_, flag)| sum | flag);
    kind | special | mode & 0o777
}

/// Kind and mode as Go writes them: `drwxr-xr-x`, `Lrwxrwxrwx`, `dtrwxrwxrwx`.
pub(crate) fn permissions(kind: EntryKind, mode: u32) -> String {
    let mut text = String::with_capacity(12);
    text.push_str(match kind {
        EntryKind::File => "",
        EntryKind::Directory => "d",
        EntryKind::Symlink => "L",
        EntryKind::BlockDevice => "D",
        EntryKind::Fifo => "p",
        EntryKind::Socket => "S",
        EntryKind::CharDevice => "Dc",
    });
    let special = [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')];
    text.extend(special.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, letter)| *letter));
    if text.is_empty() {
        text.push('-');
    }
    let letters = (0..9).zip("rwxrwxrwx".chars());
    text.extend(letters.map(|(place, letter)| if mode & (0o400 >> place) == 0 { '-' } else { letter }));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_restic_writes_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.500 KiB");
        assert_eq!(bytes(5 << 40), "5.000 TiB");
        assert_eq!(duration(std::time::Duration::from_secs(3_723)), "1:02:03");
        assert_eq!(duration(std::time::Duration::from_millis(61_900)), "1:01");
        assert_eq!(permissions(EntryKind::Directory, 0o1777), "dtrwxrwxrwx");
        assert_eq!(permissions(EntryKind::File, 0o640), "-rw-r-----");
        assert_eq!(permissions(EntryKind::Symlink, 0o777), "Lrwxrwxrwx");
        assert_eq!(go_mode(EntryKind::Directory, 0o755), 2_147_484_141);
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|files| count(files, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn times_before_1970_and_beyond_the_calendar_are_written() {
        let parsed = parse_time("1969-12-31T23:59:58.5Z").unwrap();
        assert_eq!(parsed, Timestamp { seconds: -2, nanoseconds: 500_000_000 });
        let written: Instant = rfc3339(parsed).parse().unwrap();
        assert_eq!(written.as_nanosecond(), -1_500_000_000);
        assert!(rfc3339(Timestamp { seconds: i64::MAX, nanoseconds: 999_999_999 }).starts_with("9999-"));
        assert_eq!(parse_duration("1h30m").unwrap().as_secs(), 5400);
        assert!(parse_duration("soon").is_err());
        assert!(parse_time("yesterday").is_err());
        assert_eq!(local_time(parse_time("2012-11-01 22:08:41").unwrap()), "2012-11-01 22:08:41");
    }
}
