//! What the dashboard reads: the state of a run and its curves, in memory.
//! [`FeedWriter`](super::FeedWriter) alone changes them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::histogram::Histogram;
use soteriafl_core::protocol::{ClientId, Round};

use super::status::{About, Client, POINTS, Phase, Point, ROWS, Snapshot, Status};
use super::waiting::Waiting;
use crate::accept::ConnectionCounters;

/// How long one serialised snapshot serves all viewers.
const SHARED_FOR: Duration = Duration::from_millis(500);

/// Rounds from whose time the usual one is computed.
const RECENT: usize = 20;

/// The state of a run, as viewers read it. Clones are the same feed.
#[derive(Clone)]
pub struct Feed {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    about: About,
    state: Mutex<State>,
    /// How long rounds took.
    pub(super) seconds: Histogram,
    pub(super) connections: Mutex<Option<Arc<ConnectionCounters>>>,
    /// The last event for the page, and when it was made.
    text: Mutex<Option<(Instant, Arc<str>)>>,
}

pub(super) struct State {
    pub(super) status: Status,
    pub(super) history: History,
}

/// The points of the curves, by round. Each carries the count of changes up to its own last one, so
/// that a viewer can ask for what it lacks.
#[derive(Default)]
pub(super) struct History {
    points: Vec<(Point, u64)>,
    /// Rounds between two kept points; the last point always stays.
    stride: u32,
    /// Changes so far.
    changes: u64,
    /// Grows when points are removed: viewers then need all of them again.
    generation: u64,
}

impl Feed {
    /// A feed of a run in which nothing has happened.
    pub(super) fn new(about: About) -> Self {
        let mut status = Status {
            started: unix_time(),
            ..Status::default()
        };
        status.clients = (0..about.clients)
            .map(|client| Client {
                client: ClientId::try_from(client).unwrap_or(ClientId::MAX),
                ..Client::default()
            })
            .collect();
        let state = State {
            status,
            history: History {
                stride: 1,
                ..History::default()
            },
        };
        let buckets = [
            0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0,
        ];
        Self {
            shared: Arc::new(Shared {
                about,
                state: Mutex::new(state),
                seconds: Histogram::new(buckets),
                connections: Mutex::default(),
                text: Mutex::default(),
            }),
        }
    }

    /// What does not change.
    pub fn about(&self) -> &About {
        &self.shared.about
    }

    /// Whether a client is one of those whom the run waits for.
    pub fn awaits(&self, client: ClientId) -> bool {
        let state = self.lock();
        let client = state.status.clients.get(client as usize);
        client.is_some_and(|client| state.status.awaits(client))
    }

    /// Whether the server is neither done nor shutting down.
    pub fn goes_on(&self) -> bool {
        let state = self.lock();
        let phase = matches!(state.status.phase, Phase::Waiting | Phase::Running);
        phase && state.status.trouble.is_none()
    }

    /// How far the run is and what it waits for, if it waits.
    pub fn waiting(&self) -> (Phase, Round, Option<Waiting>) {
        let state = self.lock();
        let pace = state.history.pace();
        let waiting = state.status.waiting(&self.shared.about, pace, unix_time());
        (state.status.phase, state.status.round, waiting)
    }

    /// The state now, with at most `rows` clients.
    pub fn snapshot(&self, rows: usize) -> Snapshot {
        let state = self.lock();
        let (last, pace) = (state.history.last(), state.history.pace());
        state
            .status
            .snapshot(&self.shared.about, last, pace, unix_time(), rows)
    }

    /// The state for the page as JSON; all viewers within half a second get the same bytes.
    pub(super) fn page_event(&self) -> Arc<str> {
        let mut text = self
            .shared
            .text
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((made, text)) = &*text
            && made.elapsed() < SHARED_FOR
        {
            return Arc::clone(text);
        }
        let json = serde_json::to_string(&self.snapshot(ROWS)).unwrap_or_default();
        let json: Arc<str> = json.into();
        *text = Some((Instant::now(), Arc::clone(&json)));
        json
    }

    /// All points, or those that changed since a viewer asked; with the mark for its next question.
    pub(super) fn points_since(&self, mark: Option<Mark>) -> (bool, Vec<Point>, Mark) {
        let state = self.lock();
        let history = &state.history;
        let next = Mark {
            generation: history.generation,
            changes: history.changes,
        };
        let known = mark.filter(|mark| mark.generation == history.generation);
        let since = known.map_or(0, |mark| mark.changes);
        let changed = history.points.iter().filter(|(_, change)| *change > since);
        (
            known.is_none(),
            changed.map(|(point, _)| *point).collect(),
            next,
        )
    }

    pub(super) fn with_metrics<T>(
        &self,
        read: impl FnOnce(
            &Status,
            Option<&Waiting>,
            Option<Point>,
            &Histogram,
            Option<&ConnectionCounters>,
        ) -> T,
    ) -> T {
        let connections = self
            .shared
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let state = self.lock();
        let pace = state.history.pace();
        let waiting = state.status.waiting(&self.shared.about, pace, unix_time());
        read(
            &state.status,
            waiting.as_ref(),
            state.history.last(),
            &self.shared.seconds,
            connections.as_deref(),
        )
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a viewer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    generation: u64,
    changes: u64,
}

impl History {
    /// Forgets all points.
    pub(super) fn clear(&mut self) {
        *self = Self {
            stride: 1,
            generation: self.generation + 1,
            ..Self::default()
        };
    }

    pub(super) fn last(&self) -> Option<Point> {
        self.points.last().map(|(point, _)| *point)
    }

    /// How long rounds took lately: the mean of the last kept ones.
    fn pace(&self) -> Option<f64> {
        let recent = self.points.iter().rev().map(|(point, _)| point);
        let recent = recent.filter(|point| point.round > 0).take(RECENT);
        let (count, sum) = recent.fold((0, 0.0), |(count, sum), point| {
            (count + 1, sum + point.seconds)
        });
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Says whether the round is new.
    pub(super) fn push(&mut self, point: Point) -> bool {
        self.changes += 1;
        let place = self
            .points
            .partition_point(|(known, _)| known.round < point.round);
        if let Some((known, change)) = self.points.get_mut(place) {
            // A round that was thinned out is not worth a place between others.
            if known.round == point.round {
                *known = Point {
                    test_loss: point.test_loss.or(known.test_loss),
                    test_accuracy: point.test_accuracy.or(known.test_accuracy),
                    epsilon: point.epsilon.or(known.epsilon),
                    ..*known
                };
                *change = self.changes;
            }
            return false;
        }
        // The newest point stands even between two kept ones, until the next comes.
        if let [.., (last, _)] = self.points[..]
            && last.round % self.stride != 0
        {
            self.points.pop();
        }
        self.points.push((point, self.changes));
        if self.points.len() > POINTS {
            self.stride = self.stride.saturating_mul(2);
            let (stride, newest) = (self.stride, point.round);
            self.points
                .retain(|(point, _)| point.round % stride == 0 || point.round == newest);
            self.generation += 1;
        }
        true
    }
}

/// Seconds since 1970.
pub(super) fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::FeedWriter;
    use super::*;

    fn point(round: u32) -> Point {
        Point {
            round,
            ..Point::default()
        }
    }

    fn rounds(points: &[Point]) -> Vec<u32> {
        points.iter().map(|point| point.round).collect()
    }

    #[test]
    fn viewers_get_what_they_lack() {
        let writer = FeedWriter::new(About::default());
        let feed = writer.feed();
        let (whole, points, mark) = feed.points_since(None);
        assert!(whole && points.is_empty());
        assert_eq!(feed.points_since(Some(mark)).1, []);
        writer.append(point(0));
        writer.append(point(1));
        let (whole, points, mark) = feed.points_since(Some(mark));
        assert_eq!((whole, rounds(&points)), (false, vec![0, 1]));
        writer.append(point(2));
        let (whole, points, mark) = feed.points_since(Some(mark));
        assert_eq!((whole, rounds(&points)), (false, vec![2]));
        // Round 1 is measured after round 2 has closed.
        let measured = Point {
            test_accuracy: Some(0.5),
            ..point(1)
        };
        writer.append(measured);
        let (whole, points, mark) = feed.points_since(Some(mark));
        assert_eq!((whole, points), (false, vec![measured]));
        assert_eq!(rounds(&feed.points_since(None).1), [0, 1, 2]);
        writer.restore([point(0), point(1)]);
        let (whole, points, _) = feed.points_since(Some(mark));
        assert_eq!((whole, rounds(&points)), (true, vec![0, 1]));
    }

    #[test]
    fn long_runs_keep_a_bounded_curve_with_both_ends() {
        let writer = FeedWriter::new(About::default());
        let feed = writer.feed();
        let mut mark = None;
        let mut seen: Vec<u32> = Vec::new();
        for round in 0..50_001 {
            writer.append(point(round));
            if round % 1000 == 0 {
                let (whole, points, next) = feed.points_since(mark);
                if whole {
                    seen.clear();
                }
                seen.extend(rounds(&points));
                assert!(rounds(&points).len() <= POINTS);
                mark = Some(next);
            }
        }
        let (_, points, _) = feed.points_since(None);
        assert!(
            points.len() <= POINTS && points.len() > POINTS / 4,
            "{}",
            points.len()
        );
        assert_eq!(
            (points[0].round, points[points.len() - 1].round),
            (0, 50_000)
        );
        assert!(seen.is_sorted() && seen.last() == Some(&50_000));
    }
}
