//! How many lines of one kind a log gets in a minute.
//!
//! Some lines are written because somebody else did something: a client that comes and goes, a
//! stranger's handshake, a library's complaint about a connection. Whoever can cause one can cause
//! a million, and a log must not grow by all of them. Of each kind and origin [`PER_MINUTE`] lines
//! are written in a minute; the others are counted, and the count is written later
//! ([`tell_left_out`]). One origin does not use up what another one may write.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one kind and origin in a minute.
pub const PER_MINUTE: u32 = 5;

/// Kinds and origins that are kept apart; beyond that a line is counted under its kind alone.
const APART: usize = 10_000;

const MINUTE: Duration = Duration::from_secs(60);

/// The lines of one kind since its minute began.
#[derive(Debug, Default)]
pub struct Quota {
    began: Option<Instant>,
    seen: u32,
    left_out: u32,
}

impl Quota {
    /// Notes one more; says whether it is to be written.
    pub fn note(&mut self, now: Instant) -> bool {
        self.turn(now);
        self.began.get_or_insert(now);
        self.seen = self.seen.saturating_add(1);
        self.seen <= PER_MINUTE
    }

    /// How many were not written in minutes that are over, if any; they are told once.
    pub fn left_out(&mut self, now: Instant) -> Option<u32> {
        self.turn(now);
        Some(std::mem::take(&mut self.left_out)).filter(|&count| count > 0)
    }

    /// Whether nothing happened in the minute that is open.
    fn idle(&self) -> bool {
        self.began.is_none()
    }

    fn turn(&mut self, now: Instant) {
        let over = |began: Instant| now.saturating_duration_since(began) >= MINUTE;
        if self.began.is_some_and(over) {
            let more = self.seen.saturating_sub(PER_MINUTE);
            self.left_out = self.left_out.saturating_add(more);
            (self.began, self.seen) = (None, 0);
        }
    }
}

/// A kind of line, and the number of the client that it is about.
type Key = (String, Option<u32>);

static QUOTAS: Mutex<BTreeMap<Key, Quota>> = Mutex::new(BTreeMap::new());

fn quotas() -> MutexGuard<'static, BTreeMap<Key, Quota>> {
    QUOTAS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether one more line of a kind, about a client if it is about one, is to be written now.
pub fn may_say(kind: &str, client: Option<u32>) -> bool {
    let (mut quotas, mut key) = (quotas(), (kind.to_string(), client));
    if quotas.len() >= APART && !quotas.contains_key(&key) {
        key.1 = None;
    }
    quotas.entry(key).or_default().note(Instant::now())
}

/// Writes how many lines were left out, in minutes that are over. Whoever runs for long calls it
/// now and then.
pub fn tell_left_out() {
    let now = Instant::now();
    let mut told = Vec::new();
    quotas().retain(|key, quota| {
        told.extend(quota.left_out(now).map(|count| (key.clone(), count)));
        !quota.idle()
    });
    // The lock is free again: what is written here passes by it, too.
    for ((kind, client), more) in told {
        tracing::warn!(kind, client, more, "more lines of this kind were left out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strangers must not fill the log.
    #[test]
    fn a_few_are_named_and_the_others_counted() {
        let (mut quota, start) = (Quota::default(), Instant::now());
        assert_eq!(quota.left_out(start), None);
        let named = (0..1000).filter(|_| quota.note(start)).count();
        assert_eq!(named as u32, PER_MINUTE);
        assert_eq!(quota.left_out(start + Duration::from_secs(59)), None);
        let later = start + MINUTE;
        assert_eq!(quota.left_out(later), Some(1000 - PER_MINUTE));
        assert_eq!(quota.left_out(later + MINUTE), None);
        assert!(quota.note(later), "a new minute");
    }

    /// A minute ends also if nobody asks, and nothing that was counted is lost.
    #[test]
    fn a_flood_over_minutes_is_counted() {
        let (mut quota, start) = (Quota::default(), Instant::now());
        let seconds = 0..180;
        let named = seconds.filter(|&second| quota.note(start + Duration::from_secs(second)));
        assert_eq!(named.count() as u32, 3 * PER_MINUTE);
        let end = start + Duration::from_secs(240);
        assert_eq!(quota.left_out(end), Some(180 - 3 * PER_MINUTE));
    }

    #[test]
    fn one_client_does_not_silence_another() {
        let named = |client| (0..100).filter(|_| may_say("a test", Some(client))).count() as u32;
        assert_eq!((named(1), named(2)), (PER_MINUTE, PER_MINUTE));
    }
}
