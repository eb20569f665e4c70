//! The rows of a table of text, one at a time, split into fields that are copied only where quotes
//! were doubled inside of quotes.
//!
//! Costs: one pass over the bytes of a line to find its end, and one to find its fields.

use super::super::DataError;
use super::super::faults::Faults;
use super::super::faults::Kind;
use super::super::reader::{Input, quote};

/// What may stand between fields, where nobody says what does; the first of equally good ones wins.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// The rows of a table, one at a time.
pub(in super::super) struct Lines<'a> {
    pub(in super::super) input: Input<'a>,
    pub(in super::super) separator: u8,
    line: Vec<u8>,
    pub(in super::super) number: u64,
    /// The fields of the line, without quotes and the blanks around them.
    fields: Fields,
    /// Where the line cannot be split into fields, and what was expected there.
    pub(in super::super) broken: Option<(usize, &'static str)>,
}

impl<'a> Lines<'a> {
    /// Rows with this separator, or with the one that the first lines have.
    pub(in super::super) fn new(input: Input<'a>, separator: Option<u8>) -> Self {
        let separator = separator.unwrap_or_else(|| found_separator(input.head()));
        Lines {
            input,
            separator,
            line: Vec::new(),
            number: 0,
            fields: Fields::default(),
            broken: None,
        }
    }

    /// Goes on to the next line with anything on it; false at the end.
    pub(in super::super) fn advance(&mut self) -> Result<bool, DataError> {
        loop {
            if !self.input.next_line(self.number + 1, &mut self.line)? {
                return Ok(false);
            }
            self.number += 1;
            if self.text().is_empty() {
                continue;
            }
            let mut fields = std::mem::take(&mut self.fields);
            self.broken = fields.split(self.text(), self.separator).err();
            self.fields = fields;
            return Ok(true);
        }
    }

    /// The line without what is not part of a row.
    pub(in super::super) fn text(&self) -> &[u8] {
        let mut line = &self.line[..];
        if self.number == 1 {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// How many fields it has.
    pub(in super::super) fn len(&self) -> usize {
        self.fields.spans.len()
    }

    /// Its fields, in their order.
    pub(in super::super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let line = self.text();
        let spans = self.fields.spans.iter();
        spans.map(move |span| {
            let bytes = if span.unquoted {
                &self.fields.bytes
            } else {
                line
            };
            &bytes[span.start..span.end]
        })
    }

    /// Adds what keeps the line from being fields, if anything does.
    pub(in super::super) fn add_broken(&self, faults: &mut Faults) -> bool {
        let Some((field, expected)) = self.broken else {
            return false;
        };
        let found = || quote(self.fields.last(self.text(), self.separator));
        faults.add(self.number, Some(field), Kind::Quote, expected, found);
        true
    }
}

/// Where a field stands: in the line, or, with doubled quotes taken out, in a copy.
struct Span {
    start: usize,
    end: usize,
    unquoted: bool,
}

/// The fields of a line, one after the other.
#[derive(Default)]
struct Fields {
    spans: Vec<Span>,
    bytes: Vec<u8>,
    /// Where in the line the last field begins.
    last: usize,
}

impl Fields {
    /// The last field as it stands in the line, up to the next separator.
    fn last<'a>(&self, line: &'a [u8], separator: u8) -> &'a [u8] {
        let rest = &line[self.last..];
        let end = rest.iter().position(|&byte| byte == separator);
        &rest[..end.unwrap_or(rest.len())]
    }

    /// Splits a line; on error, the number of the field, from 0, and what was expected in it.
    fn split(&mut self, line: &[u8], separator: u8) -> Result<(), (usize, &'static str)> {
        self.spans.clear();
        self.bytes.clear();
        self.last = 0;
        if !line.contains(&b'"') {
            self.split_plain(line, separator);
            return Ok(());
        }
        let is_blank = |byte: &&u8| blank(**byte, separator);
        loop {
            let rest = &line[self.last..];
            let blanks = rest.iter().take_while(is_blank).count();
            let length = if rest.get(blanks) == Some(&b'"') {
                let end = blanks + self.quoted(line, self.last + blanks)?;
                end + rest[end..].iter().take_while(is_blank).count()
            } else {
                let end = rest.iter().position(|&byte| byte == separator);
                let end = end.unwrap_or(rest.len());
                self.push(line, self.last, self.last + end, separator);
                end
            };
            match rest.get(length) {
                Some(&byte) if byte != separator => {
                    self.spans.pop();
                    return Err((self.spans.len(), "a separator after a closing quote"));
                }
                None => return Ok(()),
                Some(_) => self.last += length + 1,
            }
        }
    }

    /// A line without quotes.
    fn split_plain(&mut self, line: &[u8], separator: u8) {
        let mut start = 0;
        for (place, &byte) in line.iter().enumerate() {
            if byte == separator {
                self.push(line, start, place, separator);
                start = place + 1;
            }
        }
        self.push(line, start, line.len(), separator);
    }

    /// Adds the field at `start..end` of the line, without the blanks around it.
    fn push(&mut self, line: &[u8], mut start: usize, mut end: usize, separator: u8) {
        while start < end && blank(line[start], separator) {
            start += 1;
        }
        while start < end && blank(line[end - 1], separator) {
            end -= 1;
        }
        self.spans.push(Span {
            start,
            end,
            unquoted: false,
        });
    }

    /// Adds the field that begins with a quote at `start`; how long it is, quotes included.
    fn quoted(&mut self, line: &[u8], start: usize) -> Result<usize, (usize, &'static str)> {
        let copied = self.bytes.len();
        let mut place = start + 1;
        let mut doubled = false;
        loop {
            match (line.get(place), line.get(place + 1)) {
                (Some(b'"'), Some(b'"')) => {
                    doubled = true;
                    self.bytes.push(b'"');
                    place += 2;
                }
                (Some(b'"'), _) => break,
                (Some(&byte), _) => {
                    self.bytes.push(byte);
                    place += 1;
                }
                (None, _) => return Err((self.spans.len(), "a closing quote in the same line")),
            }
        }
        let span = match doubled {
            true => Span {
                start: copied,
                end: self.bytes.len(),
                unquoted: true,
            },
            false => Span {
                start: start + 1,
                end: place,
                unquoted: false,
            },
        };
        self.spans.push(span);
        Ok(place + 1 - start)
    }
}

/// A separator is no blank, even if it is a tab.
fn blank(byte: u8, separator: u8) -> bool {
    byte != separator && byte.is_ascii_whitespace()
}

/// What stands between the fields of a table that begins so: of what occurs in every line equally
/// often, outside of quotes, that which occurs most; else that which occurs most in the first line.
///
/// A number of the other half of the world, `1,5;2,25`, has commas in it, but seldom the same
/// number in every line.
pub(in super::super) fn found_separator(head: &[u8]) -> u8 {
    // The last line is cut where the head ends, unless the file ends there, too.
    let whole = head.iter().rposition(|&byte| byte == b'\n');
    let lines = whole
        .map_or(head, |end| &head[..end])
        .split(|&byte| byte == b'\n');
    let lines: Vec<&[u8]> = lines.filter(|line| !line.trim_ascii().is_empty()).collect();
    let count = |line: &[u8], separator: u8| {
        let mut quoted = false;
        line.iter()
            .filter(|&&byte| {
                quoted ^= byte == b'"';
                byte == separator && !quoted
            })
            .count()
    };
    let best = |all_alike: bool| {
        let counted = SEPARATORS.iter().rev().map(|&separator| {
            let mut counts = lines.iter().map(|line| count(line, separator));
            let first = counts.next().unwrap_or(0);
            let alike = !all_alike || counts.all(|count| count == first);
            (if alike { first } else { 0 }, separator)
        });
        let best = counted.max_by_key(|&(count, _)| count);
        best.filter(|&(count, _)| count > 0)
            .map(|(_, separator)| separator)
    };
    best(true).or_else(|| best(false)).unwrap_or(b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_are_found() {
        for (text, separator) in [
            ("a,b,c\n1,2,3\n", b','),
            ("a;b;c\n1,5;2,25;3\n", b';'),
            ("1,5;2;x\n1;2,5;y\n", b';'),
            ("a\tb, c\td\n1\t2, 3, 4\t5\n", b'\t'),
            ("a|b\n1|2\n", b'|'),
            ("\"a;b\",\"c;d\"\n1,2\n", b','),
            ("a,b\n1;2\n", b','),
            ("word\n", b','),
            ("", b','),
            // A whole line is worth more than one that was cut.
            ("a;b;c\n1;2;3\n4;5,5,5,5", b';'),
            ("a;b", b';'),
        ] {
            assert_eq!(
                char::from(found_separator(text.as_bytes())),
                char::from(separator),
                "{text}"
            );
        }
    }
}
