//! The secret keys of a message, and what they are bound to.
//!
//! A round's keys are a hash of fresh bytes of the operating system and of everything that the
//! message depends on: run, round, model, records, and a running digest of all that this process
//! was told, found in its store and sent. Copies of a machine whose generators are in the same
//! state can repeat a message, but cannot put the noise of one message on another one.

use sha2::{Digest, Sha256};
use soteriafl_core::protocol::{Round, ServerState};
use soteriafl_core::random::{ClientKeys, EntropyError, SecretKey};

use super::super::Hash;
use super::super::store::{Checkpoint, StoredMessage};

/// Where a message's keys come from: drawn after the round's model has arrived. The digest is one
/// of everything that the message depends on.
pub type Secrets = Box<dyn FnMut(Round, &Hash) -> Result<ClientKeys, EntropyError> + Send>;

/// Fresh keys of the operating system, bound to the message that they are for: two copies of a
/// machine whose generators are in the same state still do not use one noise for two messages.
///
/// # Errors
/// When the operating system has none.
pub fn fresh_secrets(purpose: &Hash) -> Result<ClientKeys, EntropyError> {
    Ok(bind(&SecretKey::from_operating_system()?, purpose))
}

/// `SHA-256(label || bytes || purpose)`, one for each label: neither key tells anything about the
/// other.
fn bind(drawn: &SecretKey, purpose: &Hash) -> ClientKeys {
    let key = |label: &[u8; 16]| {
        let mut hasher = Sha256::new();
        hasher.update(label);
        hasher.update(drawn.expose());
        hasher.update(purpose);
        SecretKey::kept(hasher.finalize().into())
    };
    ClientKeys {
        coins: key(b"soteria coins 1."),
        noise: key(b"soteria noise 1."),
    }
}

/// A running digest of everything that a client's state has come from. It need not be the same
/// after a restart; it must differ wherever the client's state does.
pub(super) struct HistoryDigest(Hash);

impl HistoryDigest {
    /// From the records, in their order, and from what the store holds.
    pub(super) fn from(records: &Hash, state: Option<&Checkpoint>, rows: &[StoredMessage]) -> Self {
        let mut history = Self(*records);
        if let Some(Checkpoint { server, client }) = state {
            history.add(b"state", server.round, true, &[&server_bytes(server)]);
            let shift = crate::to_bytes(&client.shift);
            history.add(b"own  ", server.round, true, &[&shift, &client.memory]);
        }
        for row in rows {
            let coins = row.coins.as_ref().map_or(&[][..], |coins| coins);
            let parts: [&[u8]; 3] = [&row.model, &row.message, coins];
            history.add(b"row  ", row.round, row.accepted.is_some(), &parts);
            history.add(b"taken", row.round, row.accepted == Some(true), &[]);
        }
        history
    }

    /// `BLAKE3(before || event || round || flag || length and bytes of each part)`.
    pub(super) fn add(&mut self, event: &[u8; 5], round: Round, flag: bool, parts: &[&[u8]]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        hasher.update(event);
        hasher.update(&round.to_le_bytes());
        hasher.update(&[u8::from(flag)]);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        self.0 = hasher.finalize().into();
    }

    /// What the message of a round depends on.
    pub(super) fn purpose(&self, run: &Hash, round: Round, model: &Hash) -> Hash {
        let mut purpose = Self(self.0);
        purpose.add(b"speak", round, true, &[run, model]);
        purpose.0
    }
}

/// A server's state as bytes: the digests of its vectors.
pub(super) fn server_bytes(state: &ServerState) -> Vec<u8> {
    let vectors = [&state.model, &state.shift, &state.velocity];
    vectors
        .iter()
        .flat_map(|values| vector_digest(values))
        .collect()
}

/// A vector's digest in this client's state: BLAKE3 of the bytes of its numbers. One is computed
/// for every message, and SHA-256 would be several times slower.
pub(super) fn vector_digest(values: &[f32]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    crate::in_pieces(values, |bytes| {
        hasher.update(bytes);
    });
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use soteriafl_core::protocol::ClientState;

    use super::*;

    /// A generator that repeats itself gives one noise per message, and the coins tell nothing
    /// about it.
    #[test]
    fn secrets_are_bound_to_what_they_are_for() {
        let drawn = SecretKey::kept([9; 32]);
        let secrets = |purpose| {
            let ClientKeys { coins, noise } = bind(&drawn, &[purpose; 32]);
            [*coins.expose(), *noise.expose()]
        };
        let first = secrets(1);
        assert_eq!(first, secrets(1));
        let [coins, noise] = secrets(2);
        let different = [first[0], first[1], coins, noise, *drawn.expose()];
        for (at, one) in different.iter().enumerate() {
            assert!(different[at + 1..].iter().all(|other| other != one));
        }
    }

    /// Every change in the history, however its parts are cut, gives another purpose.
    #[test]
    fn secrets_are_bound_to_the_whole_history() {
        let row = |message: &[u8], coins: Option<u8>, accepted| StoredMessage {
            round: 4,
            message: message.to_vec(),
            coins: coins.map(|byte| [byte; 32]),
            model: [3; 32],
            accepted,
        };
        let checkpoint = |value: f32, memory: u8| Checkpoint {
            server: ServerState {
                round: 4,
                model: vec![value; 2],
                shift: vec![0.0; 2],
                velocity: Vec::new(),
                target: Vec::new(),
            },
            client: ClientState {
                shift: vec![0.0; 2],
                memory: vec![memory],
            },
        };
        let first = HistoryDigest::from(&[1; 32], None, &[]);
        let mut all = vec![
            first.purpose(&[2; 32], 4, &[3; 32]),
            first.purpose(&[0; 32], 4, &[3; 32]),
            first.purpose(&[2; 32], 0, &[3; 32]),
            first.purpose(&[2; 32], 4, &[0; 32]),
        ];
        let purpose = |history: HistoryDigest| history.purpose(&[2; 32], 4, &[3; 32]);
        all.push(purpose(HistoryDigest::from(&[0; 32], None, &[])));
        for (value, memory) in [(0.0, 0), (1.0, 0), (0.0, 1)] {
            let state = checkpoint(value, memory);
            all.push(purpose(HistoryDigest::from(&[1; 32], Some(&state), &[])));
        }
        for row in [
            row(b"a", None, None),
            row(b"b", None, None),
            row(b"a", Some(1), None),
            row(b"a", Some(2), None),
            row(b"a", None, Some(true)),
            row(b"a", None, Some(false)),
        ] {
            all.push(purpose(HistoryDigest::from(&[1; 32], None, &[row])));
        }
        type Parts<'a> = (&'a [u8; 5], u32, bool, &'a [&'a [u8]]);
        let parts: [Parts<'_>; 7] = [
            (b"heard", 3, true, &[b"ab"]),
            (b"heard", 3, false, &[b"ab"]),
            (b"heard", 2, true, &[b"ab"]),
            (b"heard", 3, true, &[b"a", b"b"]),
            (b"heard", 3, true, &[b"ac"]),
            (b"moved", 3, true, &[b"ab"]),
            (b"spoke", 3, true, &[b"ab"]),
        ];
        for (event, round, flag, parts) in parts {
            let mut history = HistoryDigest::from(&[1; 32], None, &[]);
            history.add(event, round, flag, parts);
            all.push(purpose(history));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
