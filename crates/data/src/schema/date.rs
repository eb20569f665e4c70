//! Days of the calendar, as whole numbers: those since the first of January 1970.

use std::fmt;
use std::str::FromStr;

/// A day, by its distance from 1970-01-01 in the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(i32);

impl Date {
    /// Days since 1970-01-01.
    pub fn days(self) -> i32 {
        self.0
    }

    /// The day that many days after 1970-01-01, if its year has four digits.
    pub fn from_days(days: i32) -> Option<Date> {
        let (first, last) = (Date::from_parts(0, 1, 1)?, Date::from_parts(9999, 12, 31)?);
        (first.0..=last.0).contains(&days).then_some(Date(days))
    }

    /// A day of a month that has it.
    fn from_parts(year: i32, month: i32, day: i32) -> Option<Date> {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + i32::from(leap),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=length).contains(&day) || !(0..=9999).contains(&year) {
            return None;
        }
        // Years begin in March here, so that the day that may be missing is the last one.
        let shifted = if month <= 2 { year - 1 } else { year };
        let era = shifted.div_euclid(400);
        let of_era = shifted.rem_euclid(400);
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        Some(Date(days - 719_468))
    }

    fn parts(self) -> (i32, i32, i32) {
        let days = self.0 + 719_468;
        let era = days.div_euclid(146_097);
        let of_era = days.rem_euclid(146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = (month + 2) % 12 + 1;
        (year + era * 400 + i32::from(month <= 2), month, day)
    }

    /// `2024-02-29`, `2024/02/29` or `29.02.2024`; a time of day behind it is left out.
    pub(super) fn parse(text: &[u8]) -> Option<Date> {
        let text = std::str::from_utf8(text).ok()?;
        let text = text.split(['T', ' ']).next()?;
        let separator = ['-', '/', '.'].into_iter().find(|&c| text.contains(c))?;
        let parts: Vec<_> = text.split(separator).map(number).collect();
        match (&parts[..], separator) {
            (&[Some((day, 1..=2)), Some((month, 1..=2)), Some((year, 4))], '.') => {
                Date::from_parts(year, month, day)
            }
            (&[Some((year, 4)), Some((month, 1..=2)), Some((day, 1..=2))], '-' | '/') => {
                Date::from_parts(year, month, day)
            }
            _ => None,
        }
    }
}

/// A number of up to four digits, and how many they are.
fn number(text: &str) -> Option<(i32, usize)> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok().map(|value| (value, text.len())))?
}

impl fmt::Display for Date {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.parts();
        write!(formatter, "{year:04}-{month:02}-{day:02}")
    }
}

impl FromStr for Date {
    type Err = ();

    fn from_str(text: &str) -> Result<Date, ()> {
        Date::parse(text.as_bytes()).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_as_by_walking_through_the_calendar() {
        let mut days = Date::from_parts(1899, 12, 31).unwrap().0;
        for year in 1900..2101 {
            for month in 1..=12 {
                for day in 1..=31 {
                    if let Some(date) = Date::from_parts(year, month, day) {
                        days += 1;
                        assert_eq!(date.0, days);
                        assert_eq!(date.parts(), (year, month, day));
                        assert_eq!(date.to_string().parse(), Ok(date));
                    }
                }
            }
        }
        assert_eq!(Date::parse(b"1970-01-01"), Some(Date(0)));
        assert_eq!(Date::parse(b"2000-03-01"), Some(Date(11_017)));
        // 201 years, 49 of them leap years (1900 and 2100 are none).
        assert_eq!(days - Date::parse(b"1899-12-31").unwrap().0, 201 * 365 + 49);
    }

    #[test]
    fn spellings_of_a_day_and_what_is_none() {
        let day = Date::parse(b"2024-02-29");
        assert!(day.is_some());
        for text in [
            "2024/2/29",
            "29.02.2024",
            "2024-02-29T10:00:00",
            "2024-02-29 10:00",
        ] {
            assert_eq!(Date::parse(text.as_bytes()), day, "{text}");
        }
        for text in [
            "",
            "2023-02-29",
            "2024-13-01",
            "24-02-29",
            "29-02-2024",
            "2024",
            "2024-02",
            "a-b-c",
            "2024-02-29-01",
            "2024-00-10",
            "2024-01-32",
            "+024-01-01",
        ] {
            assert_eq!(Date::parse(text.as_bytes()), None, "{text}");
        }
    }
}
