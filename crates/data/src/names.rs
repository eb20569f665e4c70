//! What features are called, where a source says so: the header of a table.
//!
//! Numbers do not show which column they are from. Names do, so two tables of a run must have the
//! same names in the same order. Sources without names (LIBSVM, IDX, tables without a header)
//! cannot be compared, and are taken as they are.

use std::fmt;

use super::reader::quote;

/// The first feature that is called otherwise than agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherName {
    /// Which feature, from 1.
    pub number: usize,
    /// What it should be called; `None` if there should be none.
    pub expected: Option<String>,
    /// What it is called; `None` if there is none.
    pub found: Option<String>,
    /// Whether there are the same names, in another order.
    pub reordered: bool,
    /// Whether nobody said that the first line names the columns: it may be a record.
    pub guessed: bool,
}

impl OtherName {
    /// Compares names with those that are agreed; `None` if they are the same in the same order.
    pub fn first(expected: &[String], found: &[String]) -> Option<OtherName> {
        let longest = expected.len().max(found.len());
        let place = (0..longest).find(|&place| expected.get(place) != found.get(place))?;
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort_unstable();
            names
        };
        Some(OtherName {
            number: place + 1,
            expected: expected.get(place).cloned(),
            found: found.get(place).cloned(),
            reordered: sorted(expected) == sorted(found),
            guessed: false,
        })
    }

    /// The same as [`OtherName::beside`] without a word of the table's own, which may be a
    /// record's.
    pub fn expected_by(&self, whose: &str) -> String {
        let number = self.number;
        match &self.expected {
            Some(expected) if self.found.is_some() && !self.reordered => format!(
                "feature {number} is not called {}, as {whose} has it",
                text(expected)
            ),
            // Nothing was found, or what the others call a column, too.
            Some(_) => self.beside(whose),
            None => format!("feature {number} is one too many"),
        }
    }

    /// What is wrong with a table, beside what `whose` columns are called.
    pub fn beside(&self, whose: &str) -> String {
        let number = self.number;
        match (&self.expected, &self.found) {
            (Some(expected), None) => format!("feature {number}, {}, is missing", text(expected)),
            (None, Some(found)) => format!("feature {number}, {}, is one too many", text(found)),
            (expected, found) => format!(
                "feature {number} is called {}, where {whose} has {}",
                text(found.as_deref().unwrap_or_default()),
                text(expected.as_deref().unwrap_or_default())
            ),
        }
    }
}

/// What to know about names where nobody said that there are any.
pub const GUESSED: &str = "the first line was taken for a header, for it has no number in it";

impl fmt::Display for OtherName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &Option<String>| match name {
            Some(name) => text(name),
            None => "no more features".to_owned(),
        };
        write!(
            formatter,
            "expected the columns of training, next {}, found {}",
            name(&self.expected),
            name(&self.found)
        )?;
        match self.guessed {
            true => write!(formatter, "; {GUESSED}"),
            false => Ok(()),
        }
    }
}

fn text(name: &str) -> String {
    quote(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_terminator(',').map(str::to_owned).collect()
    }

    fn first(expected: &str, found: &str) -> Option<OtherName> {
        OtherName::first(&names(expected), &names(found))
    }

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(first("a,b,c", "a,b,c"), None);
        assert_eq!(first("", ""), None);
        for (expected, found, number, reordered, said) in [
            ("a,b,c", "c,b,a", 1, true, "next \"a\", found \"c\""),
            ("a,b,c", "a,c,b", 2, true, "next \"b\", found \"c\""),
            ("a,b", "a,B", 2, false, "next \"b\", found \"B\""),
            ("a,b", "a", 2, false, "next \"b\", found no more features"),
            ("a", "a,b", 2, false, "next no more features, found \"b\""),
            ("a,a,b", "a,b,b", 2, false, "next \"a\", found \"b\""),
            ("a,b", ",b", 1, false, "next \"a\", found nothing"),
        ] {
            let difference = first(expected, found).unwrap();
            assert_eq!(
                (difference.number, difference.reordered),
                (number, reordered)
            );
            assert!(difference.to_string().contains(said), "{difference}");
        }
        for (expected, found, said) in [
            (
                "a,b",
                "b,a",
                "feature 1 is called \"b\", where the run has \"a\"",
            ),
            ("a,b", "a", "feature 2, \"b\", is missing"),
            ("a", "a,b", "feature 2, \"b\", is one too many"),
            ("a", "", "feature 1, \"a\", is missing"),
        ] {
            assert_eq!(first(expected, found).unwrap().beside("the run"), said);
        }
        // Where the names may be a record, none is repeated.
        for (expected, found, said) in [
            (
                "a,b",
                "a,x",
                "feature 2 is not called \"b\", as the run has it",
            ),
            (
                "a,b",
                "b,a",
                "feature 1 is called \"b\", where the run has \"a\"",
            ),
            ("a,b", "a", "feature 2, \"b\", is missing"),
            ("a", "a,x", "feature 2 is one too many"),
        ] {
            let difference = first(expected, found).unwrap();
            assert_eq!(difference.expected_by("the run"), said);
        }
        let guessed = OtherName {
            guessed: true,
            ..first("a,b", "a,x").unwrap()
        };
        let said = guessed.to_string();
        assert!(
            said.contains("the first line was taken for a header"),
            "{said}"
        );
        let hostile = first("\u{1b}[2J", "b").unwrap().to_string();
        assert!(!hostile.contains('\u{1b}'), "{hostile}");
    }
}
