//! Numbers and counts in texts that people read. Files for machines hold numbers as they are.

use std::fmt::Display;

/// All digits, without rows of zeros: `1e-5`, `0.25`, `3.2e12`.
pub fn readable(value: f64) -> String {
    if value == 0.0 || (1e-2..1e7).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// A number of things: `1 run`, `2 runs`.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, thing: &str) -> String {
    let plural = if number == N::from(1) { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_numbers_have_no_rows_of_zeros() {
        for (value, text) in [
            (0.0, "0"),
            (1e-5, "1e-5"),
            (0.000_25, "2.5e-4"),
            (0.001, "1e-3"),
            (0.01, "0.01"),
            (1.0, "1"),
            (1234.5, "1234.5"),
            (1e7, "1e7"),
            (-1e-9, "-1e-9"),
            (1e300, "1e300"),
        ] {
            assert_eq!(readable(value), text);
            assert_eq!(text.parse::<f64>().unwrap(), value);
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(counted(0u32, "round"), "0 rounds");
        assert_eq!(counted(1usize, "run"), "1 run");
        assert_eq!(counted(2u64, "client"), "2 clients");
    }
}
