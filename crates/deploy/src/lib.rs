//! Networked runs: everything between the pure protocol of `soteriafl-core` and the program.
//!
//! ```text
//!            server (`soteria serve`)                 client (`soteria join`)
//!
//!  dashboard    page, metrics, status
//!      ^
//!  net::grpc    calls of clients           <--TLS-->  net::client   follows a run
//!      |                                                   |
//!  net::actor   one thread, one queue                 budget        price, limits, consent
//!      |                                                   |
//!  coordinator  members, rounds, catch-up             participant   one message a round
//!      |                                                   |
//!  store        ServerStore                           store         ClientStore: the ledger
//!      |                                                   |
//!  sqlite       one transaction a round               sqlite        stored before it is sent
//! ```
//!
//! Both sides agree on a [`description`], whose hash is in every message.
//!
//! | Modules | Subject |
//! | --- | --- |
//! | [`description`], [`schema_pin`], [`holding`], [`records`] | what is agreed: the run, the records and their shape |
//! | [`run_plan`], [`coordinator`], [`averaging`], [`message_bounds`], [`calibration_cache`], [`ending`] | the server |
//! | [`agreement`], [`participant`], [`budget`], [`stopped`] | the client: whether it takes part, how, and its privacy ledger |
//! | [`books`] | whether a client's books agree with themselves, for its own eyes |
//! | [`store`], [`sqlite`] | what is durable, and how |
//! | [`net`], [`accept`] | TLS, connections, gRPC |
//! | [`exchange`], [`node`], [`served`] | the same as questions and answers, for other transports |
//! | [`dashboard`], [`log_quota`] | what people and machines see of a server |
//!
//! [`Coordinator`](coordinator::Coordinator) and [`Participant`](participant::Participant) wrap the
//! server and the client of `soteriafl_core::protocol`. Time, randomness and storage are arguments,
//! so that tests can play a crash at every storage step, and every fault of a network, in one
//! thread; the feature `test-util` adds stores in memory for that. `docs/protocol.md` says what is
//! durable when, and why nothing is lost.

pub mod accept;
pub mod agreement;
pub mod averaging;
pub mod books;
pub mod budget;
pub mod calibration_cache;
pub mod coordinator;
pub mod dashboard;
pub mod description;
pub mod ending;
pub mod exchange;
pub mod holding;
pub mod log_quota;
#[cfg(feature = "test-util")]
pub mod memory;
pub mod message_bounds;
pub mod net;
pub mod node;
pub mod participant;
pub mod records;
pub mod run_plan;
pub mod schema_pin;
pub mod served;
pub mod sqlite;
pub mod stopped;
pub mod store;

use sha2::{Digest, Sha256};

/// A digest: SHA-256 wherever another party sees it.
pub type Hash = [u8; 32];

/// The digest of a model: the bytes of its numbers.
pub fn digest(values: &[f32]) -> Hash {
    let mut hasher = Sha256::new();
    in_pieces(values, |bytes| hasher.update(bytes));
    hasher.finalize().into()
}

/// Gives the bytes of numbers to `take`, in pieces that fit the stack.
fn in_pieces(values: &[f32], mut take: impl FnMut(&[u8])) {
    let mut buffer = [0; 1 << 14];
    for chunk in values.chunks(buffer.len() / 4) {
        for (bytes, value) in buffer.as_chunks_mut::<4>().0.iter_mut().zip(chunk) {
            *bytes = value.to_le_bytes();
        }
        take(&buffer[..4 * chunk.len()]);
    }
}

/// Numbers as bytes, for a store or the wire.
pub fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 4 * values.len()];
    for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
    bytes
}

/// The numbers that [`to_bytes`] wrote; a rest of fewer than four bytes is no number.
pub fn from_bytes(bytes: &[u8]) -> Option<Vec<f32>> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| {
        chunks
            .iter()
            .map(|&chunk| f32::from_le_bytes(chunk))
            .collect()
    })
}

/// Another party's text, safe to print: control characters, which could give orders to a terminal,
/// and characters that change the direction of writing are escaped.
pub fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The same of a text that a peer may have made as long as it likes: its beginning.
pub fn shortened(text: &str) -> String {
    const LONGEST: usize = 300;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", printable(&text[..end])),
        None => printable(text),
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes behind hexadecimal digits.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_cannot_steer_a_terminal() {
        let shown = printable("a\u{1b}[2Jb\r\n\u{9b}c\u{202e}d\u{7f} e\u{e9}");
        assert_eq!(
            shown,
            "a\\u{1b}[2Jb\\u{d}\\u{a}\\u{9b}c\\u{202e}d\\u{7f} e\u{e9}"
        );
    }

    #[test]
    fn words_of_others_are_cut() {
        assert_eq!(shortened(&"\u{e9}".repeat(300)), "\u{e9}".repeat(300));
        let cut = shortened(&"\u{e9}\u{1b}".repeat(500_000));
        assert_eq!(cut, format!("{}...", "\u{e9}\\u{1b}".repeat(150)));
    }
}
