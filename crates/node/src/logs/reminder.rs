//! When something that lasts is mentioned again: soon, then every minute, then every ten.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// When a state that lasts was last mentioned.
#[derive(Debug, Default)]
pub struct Reminder(Option<Instant>);

impl Reminder {
    /// Whether to mention it now, when it has lasted for so long; if so, that is noted. Something that comes and goes is not
    /// mentioned more often than something that stays.
    pub fn due(&mut self, lasted: Duration, now: Instant) -> bool {
        let gap = if lasted < 5 * MINUTE {
            MINUTE
        } else {
            10 * MINUTE
        };
        let due = self
            .0
            .is_none_or(|last| now.saturating_duration_since(last) >= gap);
        if due {
            self.0 = Some(now);
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

    #[test]
    fn many_short_waits_are_a_line_a_minute() {
        let (mut reminder, start) = (Reminder::default(), Instant::now());
        let due = |second: &u64| {
            let now = start + Duration::from_secs(*second);
            reminder.due(Duration::from_secs(second % 3), now)
        };
        assert_eq!((0..600).filter(due).count(), 10);
    }
}
