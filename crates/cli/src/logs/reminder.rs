//! When something that lasts is mentioned: at once, again after a minute, and later every ten.

use std::time::{Duration, Instant};

use soteriafl_deploy::log_quota::Quota;

const MINUTE: Duration = Duration::from_secs(60);

/// When a state that comes and goes was last mentioned.
#[derive(Debug, Default)]
pub struct Reminder {
    last: Option<Instant>,
    quota: Quota,
}

impl Reminder {
    /// Whether to mention it now, when it has lasted for so long; if so, that is noted. What began
    /// since the last time is mentioned at once, though not more often than other things that
    /// happen again and again ([`Quota`]).
    pub fn due(&mut self, lasted: Duration, now: Instant) -> bool {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        let due = match since.filter(|&since| since <= lasted) {
            None => self.quota.note(now),
            Some(since) if lasted < 5 * MINUTE => since >= MINUTE,
            Some(since) => since >= 10 * MINUTE,
        };
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_waiting_is_a_few_lines() {
        let (mut reminder, start) = (Reminder::default(), Instant::now());
        let due = |second: &u64| {
            let lasted = Duration::from_secs(*second);
            reminder.due(lasted, start + lasted)
        };
        let said: Vec<u64> = (0..3600).filter(due).collect();
        assert_eq!(said, [0, 60, 120, 180, 240, 840, 1440, 2040, 2640, 3240]);
    }

    /// Another wait is mentioned at once, also if the one before was a moment ago; many of them are
    /// not.
    #[test]
    fn many_short_waits_are_a_few_lines_a_minute() {
        let (mut reminder, start) = (Reminder::default(), Instant::now());
        let due = |second: &u64| {
            let now = start + Duration::from_secs(*second);
            reminder.due(Duration::from_secs(second % 4), now)
        };
        let said: Vec<u64> = (0..120).filter(due).collect();
        assert_eq!(said, [0, 4, 8, 12, 16, 60, 64, 68, 72, 76]);
    }
}
