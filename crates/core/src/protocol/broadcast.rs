//! What goes down when the server compresses it: the model that everybody holds, and how it follows
//! the server's own.
//!
//! ```text
//!     x^{t+1} = x^t - eta K g^t               the server's step, with all that a plan may ask for;
//!                                             clients computed g^t at w^t
//!     w^{t+1} = w^t + C(x^{t+1} - w^t)        C(..) is sent, and everybody adds it
//! ```
//!
//! `w` is *the* model: clients compute at it, metrics and the result are of it, and it is the shift
//! that all parties track. `x` is the server's alone.
//!
//! **Why the difference of models and not the averaged message.** The averaged message is mostly
//! noise that is new in every round. No shift can foresee it, so an unbiased compression of
//! `average - shift` multiplies the noise by `1 + omega` (twenty for 5% of the coordinates), for
//! good. Here what a round leaves out remains in `x - w` and travels later: all of the noise and
//! all of the signal arrive exactly once, late by about `1/delta` rounds, where `delta` is the
//! contraction of [`crate::compress::Downlink`]. It is error feedback in the form known as
//! EF21-P, and needs no unbiasedness.
//!
//! **Guarantee.** A function of released messages and public randomness: no privacy is spent. Who
//! adds the same bytes to the same model has the same bits; the server reads what it sends.
//!
//! **Cost.** `O(d)` per round and `d` numbers at the server; nothing at a client but the model.

use super::Round;
use crate::compress::{DecodeError, Downlink, Selection, Update};
use crate::wire;

/// The server's own model, and what is told of it.
#[derive(Clone, Debug)]
pub(super) struct Broadcast {
    downlink: Downlink,
    /// The server's own model `x`; empty where somebody follows the server.
    pub(super) target: Vec<f32>,
    difference: Vec<f32>,
    selection: Selection,
    update: Update,
    bytes: Vec<u8>,
}

impl Broadcast {
    /// For a server that starts at `start`, or for somebody who follows it.
    pub(super) fn new(downlink: &Downlink, start: &[f32], follows: bool) -> Self {
        Self {
            downlink: downlink.clone(),
            target: if follows { Vec::new() } else { start.to_vec() },
            difference: Vec::new(),
            selection: Selection::default(),
            update: Update::default(),
            bytes: Vec::new(),
        }
    }

    /// Tells how far the server has come from `model`.
    pub(super) fn tell(&mut self, round: Round, model: &[f32]) {
        wire::put_downlink_header(&self.downlink, round, &mut self.bytes);
        self.downlink.encode(
            round,
            &self.target,
            model,
            &mut self.difference,
            &mut self.selection,
            &mut self.bytes,
        );
        let own = wire::decode_downlink(&self.downlink, round, &self.bytes, &mut self.update);
        debug_assert_eq!(own, Ok(()), "what is told must be readable by its sender");
    }

    /// Reads what the server told in `round`.
    pub(super) fn hear(&mut self, round: Round, bytes: &[u8]) -> Result<(), DecodeError> {
        wire::decode_downlink(&self.downlink, round, bytes, &mut self.update)
    }

    /// Moves the model by what was told or heard, once.
    pub(super) fn apply(&mut self, model: &mut [f32]) {
        self.update.add_to(1.0, model);
        self.update.clear();
    }

    /// Forgets what was heard.
    pub(super) fn reset(&mut self) {
        self.update.clear();
    }

    /// What was told last.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
