//! How long a certificate is good for, told before it is too late.
//!
//! A certificate that has expired is refused by the other side, at the next connection and in its
//! words. Whoever owns it is told here: an error at the start if it is over, a warning from
//! [`SOON`] on, and again every day while the process runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use super::tls::{self, TlsError};

/// From when on the end of a certificate is mentioned.
pub const SOON: Duration = Duration::from_secs(30 * 86_400);

/// How often a process that runs looks at its certificate, and how often it mentions it.
const LOOK: Duration = Duration::from_secs(3600);
const MENTION: Duration = Duration::from_secs(86_400);

/// A certificate of one's own, and its term in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    path: PathBuf,
    from: Option<u64>,
    until: Option<u64>,
}

/// Whether a certificate is within its term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validity {
    /// There is time.
    Good,
    /// It ends soon, or has not begun: what to say.
    Warning(String),
    /// It has expired: what to say.
    Over(String),
}

impl Term {
    /// The term of the certificate `NAME.pem` in a directory of keys.
    ///
    /// # Errors
    /// When there is no certificate that can be read.
    pub fn of(directory: &Path, name: &str) -> Result<Self, TlsError> {
        let path = directory.join(format!("{name}.pem"));
        let chain = tls::certificates(&path)?;
        let (from, until) = term(&chain[0]);
        Ok(Self { path, from, until })
    }

    /// Whether it is valid at a time in seconds since 1970.
    pub fn validity(&self, now: u64) -> Validity {
        let path = self.path.display();
        if let Some(from) = self.from.filter(|&from| now < from) {
            return Validity::Warning(format!(
                "{path}: the certificate is good from {} on, which is not yet: is the clock right?",
                day(from)
            ));
        }
        match self.until {
            Some(until) if now > until => {
                Validity::Over(format!("{path}: the certificate expired at {}", day(until)))
            }
            Some(until) if until - now <= SOON.as_secs() => Validity::Warning(format!(
                "{path}: the certificate expires at {}, in {}",
                day(until),
                days((until - now) / 86_400)
            )),
            _ => Validity::Good,
        }
    }

    /// Whether it is valid now.
    pub fn now(&self) -> Validity {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.validity(now.map_or(0, |now| now.as_secs()))
    }

    /// Mentions it every day while it is not good, for as long as this is polled. `hint` says what
    /// to do.
    pub async fn watch(self, hint: String) {
        let mut said: Option<(SystemTime, bool)> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let (text, over) = match self.now() {
                Validity::Good => continue,
                Validity::Warning(text) => (text, false),
                Validity::Over(text) => (text, true),
            };
            // A day in the machine's life: it may have slept.
            let lately = |(last, before): (SystemTime, bool)| {
                before == over && last.elapsed().is_ok_and(|since| since < MENTION)
            };
            if said.is_some_and(lately) {
                continue;
            }
            said = Some((SystemTime::now(), over));
            match over {
                true => tracing::error!(hint, "{text}: new connections are refused"),
                false => tracing::warn!(hint, "{text}"),
            }
        }
    }
}

/// When a certificate begins and ends. It is read by asking for its validity long before and long
/// after: the answers name the limits, and no second parser of certificates is needed.
fn term(certificate: &CertificateDer<'_>) -> (Option<u64>, Option<u64>) {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else {
        return (None, None);
    };
    let at = |seconds: u64| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let usage = KeyUsage::server_auth();
        let verified = parsed.verify_for_usage(&[], &[], &[], time, usage, None, None);
        verified.err()
    };
    let from = match at(0) {
        Some(webpki::Error::CertNotValidYet { not_before, .. }) => Some(not_before.as_secs()),
        _ => None,
    };
    let until = match at(u64::MAX >> 1) {
        Some(webpki::Error::CertExpired { not_after, .. }) => Some(not_after.as_secs()),
        _ => None,
    };
    (from, until)
}

fn day(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().map(Timestamp::from_second);
    match time {
        Some(Ok(time)) => time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        _ => "an unknown time".to_string(),
    }
}

fn days(count: u64) -> String {
    match count {
        0 => "less than a day".to_string(),
        1 => "1 day".to_string(),
        count => format!("{count} days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::keys::Directory;

    #[test]
    fn the_end_is_told_before_it_comes() {
        let place = tempfile::tempdir().expect("a directory");
        Directory::init(place.path(), 1, &[], 100, false).expect("keys");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs();
        for name in ["server", "client-0"] {
            let term = Term::of(place.path(), name).expect("a certificate");
            let (from, until) = (term.from.expect("a begin"), term.until.expect("an end"));
            // From yesterday's midnight to that of the last day.
            assert!(from < now && now - from <= 2 * 86_400);
            assert!(until > now + 98 * 86_400 && until <= now + 100 * 86_400);
            assert_eq!(term.validity(now), Validity::Good);
            assert_eq!(term.validity(until - 31 * 86_400), Validity::Good);
            let said = |time| match term.validity(time) {
                Validity::Warning(text) => text,
                other => panic!("{other:?}"),
            };
            let soon = said(until - 3 * 86_400);
            let file = format!("{name}.pem");
            assert!(
                soon.contains(&file) && soon.ends_with("in 3 days"),
                "{soon}"
            );
            assert!(said(until).ends_with("less than a day"));
            assert!(said(from - 1).contains("is the clock right?"));
            assert!(matches!(term.validity(until + 1), Validity::Over(_)));
        }
    }
}
