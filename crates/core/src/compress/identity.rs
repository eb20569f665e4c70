//! No compression: every value as it is, `omega = 0`.

use super::{Decoded, Outgoing, Scheme, Update, put_values, take_values};

pub struct Identity;

impl Scheme for Identity {
    fn wire_kind(&self) -> u8 {
        1
    }

    fn omega(&self, _dimension: usize) -> Option<f64> {
        Some(0.0)
    }

    fn encoded_len(&self, dimension: usize) -> usize {
        4 * dimension
    }

    fn encode(&self, values: &[f32], message: Outgoing<'_>) {
        let Outgoing { body, update, .. } = message;
        let values = values.iter().copied();
        put_values(values, message.scale, body, &mut update.values);
        update.selection.some = false;
    }

    fn decode(&self, body: &[u8], _dimension: usize, update: &mut Update) -> Decoded {
        take_values(body, &mut update.values)
    }
}
