//! Which fields say nothing.

use super::encode::{Cell, number};

/// The words that stand for a gap, made so that most fields are known by their first byte to be none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Missing {
    words: Vec<String>,
    /// Whether a word begins with this byte.
    begins: [bool; 256],
    /// Words that are numbers, such as 999: formats with numbers have no words.
    numbers: Vec<f64>,
}

impl Missing {
    pub(super) fn new(words: Vec<String>) -> Missing {
        let mut begins = [false; 256];
        for first in words.iter().filter_map(|word| word.bytes().next()) {
            begins[usize::from(first)] = true;
        }
        let numbers = words.iter().filter_map(|word| number(word.as_bytes()));
        Missing {
            begins,
            numbers: numbers.filter(|number| !number.is_nan()).collect(),
            words,
        }
    }

    pub(super) fn words(&self) -> &[String] {
        &self.words
    }

    /// Whether the field says nothing.
    pub(super) fn has(&self, cell: Cell<'_>) -> bool {
        match cell {
            Cell::Gap => true,
            Cell::Number(value) => value.is_nan() || self.numbers.contains(&value),
            Cell::Text(text) => match text.first() {
                Some(&first) if !self.begins[usize::from(first)] => false,
                _ => self.words.iter().any(|word| word.as_bytes() == text),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_are_gaps_in_text_and_in_numbers() {
        let words = ["", "NA", "999", "-1", "nan"];
        let missing = Missing::new(words.iter().map(|&word| word.to_owned()).collect());
        for word in words {
            assert!(missing.has(Cell::Text(word.as_bytes())), "{word}");
        }
        for text in ["N", "NAN", "99", "9990", "-", "0", "x"] {
            assert!(!missing.has(Cell::Text(text.as_bytes())), "{text}");
        }
        for (number, gap) in [(999.0, true), (-1.0, true), (1.0, false), (f64::NAN, true)] {
            assert_eq!(missing.has(Cell::Number(number)), gap, "{number}");
        }
        assert!(missing.has(Cell::Gap));
        let none = Missing::new(Vec::new());
        assert!(!none.has(Cell::Text(b"")) && !none.has(Cell::Number(0.0)));
    }
}
