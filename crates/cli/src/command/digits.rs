//! Numbers in the messages of other crates, which write every digit: 1e300 has 301 of them.

use soteriafl::words::readable;

/// Longer rows of digits than any number has that a person would type.
const MOST: usize = 16;

/// A text with every number of more than [`MOST`] characters in its short form. For texts that hold
/// words and numbers alone: names that a user chose are left to those who quote them.
pub(super) fn shortened(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(1024));
    let mut rest = text;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let end = rest[start..]
            .find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))
            .map_or(rest.len(), |length| start + length);
        // A full stop at the end is the sentence's.
        let number = rest[start..end].trim_end_matches('.');
        let end = start + number.len();
        out.push_str(&rest[..start]);
        match number.parse::<f64>() {
            Ok(value) if number.len() > MOST => out.push_str(&readable(value)),
            _ => out.push_str(number),
        }
        rest = &rest[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_written_short_and_others_stay() {
        let long = format!("{} times, from {} to -{}.", 1e300, 1e-300, 2e30);
        assert_eq!(shortened(&long), "1e300 times, from 1e-300 to -2e30.");
        for text in [
            "",
            "delta must lie in [1e-30, 1), found 0.5",
            "at most 200 is accounted.",
            "version 1.2.3",
        ] {
            assert_eq!(shortened(text), text);
        }
    }
}
