//! Closing a round so that nobody's messages can take the model out of the range of numbers.
//!
//! Messages are added in ascending order of clients. Should the average, or the state that it leads
//! to, exceed [`LARGEST`], then the messages that weigh most are left out, 1 at first and twice as
//! many with every further attempt, until it does not: the round closes without them, as if they
//! had not come. What is left out is a function of the messages and of the state alone, and the
//! accepted set is committed with the round, so a restart ends in the same place.
//!
//! Cost: `O(k)` per message and `O(d)`; a copy of the state only when numbers are large enough to
//! need one; at most `log2 n` further attempts.

use std::collections::BTreeSet;

use bytes::Bytes;
use soteriafl_core::compress::{BUCKET, Update};
use soteriafl_core::linalg::largest;
use soteriafl_core::objective::Regularizer;
use soteriafl_core::protocol::{ClientId, Server, ServerError};
use soteriafl_core::wire;

/// No coordinate of a message, of the model or of the mean shift may be larger. Far beyond anything
/// that learns, and far enough from the largest `f32` for sums of such numbers.
pub const LARGEST: f32 = 18_446_744_073_709_551_616.0;

/// What became of a round's messages.
#[derive(Debug)]
pub struct Averaged {
    /// One bit per client, lowest first.
    pub accepted: Vec<u8>,
    /// What goes over the wire: the averaged message, or what is told in its place.
    pub average: Bytes,
    /// The averaged message itself where another one goes over the wire; empty otherwise.
    pub uncompressed: Bytes,
    /// Values that the accepted messages carried.
    pub values: u64,
    /// Clients whose messages were left out.
    pub left_out: BTreeSet<ClientId>,
}

/// Closes the server's open round with `messages`, one per client; `note` is called for every
/// message that is added, also of those that are left out in the end. `None`: not even without
/// messages does the state stay finite.
///
/// # Errors
/// When a message is none of this round, or the run has ended.
pub fn close(
    server: &mut Server,
    messages: &[Option<Bytes>],
    update: &mut Update,
    mut note: impl FnMut(ClientId, &Update),
) -> Result<Option<Averaged>, ServerError> {
    let mut left_out = BTreeSet::new();
    for attempt in 0_u32.. {
        let mut accepted = vec![0; messages.len().div_ceil(8)];
        let mut values = 0;
        let mut influence = Vec::new();
        server.reset();
        for (client, message) in messages.iter().enumerate() {
            let id = client as ClientId;
            let Some(message) = message.as_ref().filter(|_| !left_out.contains(&id)) else {
                continue;
            };
            if !server.decode(id, message, update)? {
                continue;
            }
            values += update.values().len() as u64;
            accepted[client / 8] |= 1 << (client % 8);
            server.add(id, update)?;
            note(id, update);
            influence.push((
                server.plan().weights[client] * f64::from(largest(update.values())),
                id,
            ));
        }
        let mut average = Vec::new();
        wire::put_average(server.average(), server.round(), &mut average);
        let alone = influence.is_empty();
        if step(server, alone)? {
            let average = Bytes::from(average);
            let (average, uncompressed) = match server.broadcast() {
                Some(told) => (Bytes::copy_from_slice(told), average),
                None => (average, Bytes::new()),
            };
            return Ok(Some(Averaged {
                accepted,
                average,
                uncompressed,
                values,
                left_out,
            }));
        }
        if alone {
            break;
        }
        // The heaviest first; of equals the lowest number.
        influence.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let more = 1_usize.checked_shl(attempt).unwrap_or(usize::MAX);
        left_out.extend(influence.iter().take(more).map(|(_, id)| *id));
    }
    Ok(None)
}

/// Takes the step if it stays in range (without messages: if it stays finite); otherwise the state
/// is as before.
fn step(server: &mut Server, alone: bool) -> Result<bool, ServerError> {
    let average = f64::from(largest(server.average()));
    if average > f64::from(LARGEST) {
        return Ok(false);
    }
    let plan = server.plan();
    let lambda = match plan.regularizer {
        Some(Regularizer::L2 { lambda } | Regularizer::Nonconvex { lambda }) => f64::from(lambda),
        _ => 0.0,
    };
    // What is told of a coordinate is at most the norm of its bucket's differences.
    let told = match plan.downlink {
        Some(_) => 2.0 * (BUCKET as f64).sqrt() + 1.0,
        None => 1.0,
    };
    // Momentum is below one: what the state can become at most.
    let growth =
        told * (1.0 + plan.step_size) * (4.0 + 2.0 * lambda + plan.shift_step.unwrap_or(0.0));
    if f64::from(server.largest()).max(average).max(1.0) * growth <= f64::from(LARGEST) {
        server.close()?;
        return Ok(true);
    }
    let before = server.state();
    server.close()?;
    let limit = if alone { f32::MAX } else { LARGEST };
    if server.largest() <= limit {
        return Ok(true);
    }
    server.restore(before)?;
    Ok(false)
}
