//! Instants as text.

use ostraca_types::Timestamp;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// RFC 3339 in UTC, with milliseconds.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    const FORM: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    format(at, FORM)
}

/// For people, to the minute.
pub(crate) fn readable(at: Timestamp) -> String {
    const FORM: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    format(at, FORM)
}

/// An instant beyond the year 9999 is shown as the last one before.
fn format(at: Timestamp, form: &[BorrowedFormatItem<'_>]) -> String {
    const LAST: u64 = 253_402_300_799_999;
    let nanos = i128::from(at.0.min(LAST)) * 1_000_000;
    let time =
        OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(form).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_have_milliseconds_and_a_z() {
        assert_eq!(rfc3339(Timestamp(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            rfc3339(Timestamp(1_790_000_000_007)),
            "2026-09-21T14:13:20.007Z"
        );
        assert_eq!(rfc3339(Timestamp(u64::MAX)), "9999-12-31T23:59:59.999Z");
        assert_eq!(
            readable(Timestamp(1_790_000_000_007)),
            "2026-09-21 14:13 UTC"
        );
    }
}
