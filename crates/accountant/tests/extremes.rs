//! Whatever a peer asks for is answered in time: no description overflows, panics, hangs or eats
//! the memory, however absurd its numbers are.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use soteriafl_accountant::{AccountError, Adjacency, ClipScope, Estimator, Mechanism};

/// One question. Far above what any takes (up to four seconds),
/// so that a busy machine does not fail.
const LONGEST: Duration = Duration::from_secs(60);

const RECORDS: u64 = 400;

fn estimators() -> [Estimator; 6] {
    let clip = Some(0.5);
    [
        Estimator::Gd,
        Estimator::Sgd,
        Estimator::Svrg {
            snapshot_probability: 0.3,
            difference_clip: None,
        },
        Estimator::Svrg {
            snapshot_probability: 0.3,
            difference_clip: clip,
        },
        Estimator::Saga {
            difference_clip: None,
        },
        Estimator::Saga {
            difference_clip: clip,
        },
    ]
}

/// Noise, cost and odometer, as everything that prices a run asks for them.
fn price(
    mechanism: &Mechanism,
    adjacency: Adjacency,
    rounds: u64,
    epsilon: f64,
) -> Result<f64, AccountError> {
    let question = mechanism.question(rounds, 1e-5, adjacency)?;
    let cost = question.calibrate(epsilon)?;
    assert!(
        cost.epsilon <= epsilon * (1.0 + 1e-9),
        "{mechanism:?} {epsilon}"
    );
    let odometer = question.odometer(cost.sigma, 6)?;
    assert!(odometer.after(rounds) <= cost.epsilon);
    Ok(cost.epsilon)
}

fn mechanism(estimator: Estimator, batch: f64, rand_k: Option<f64>) -> Mechanism {
    Mechanism {
        estimator,
        records: RECORDS,
        batch,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k,
    }
}

/// Runs `questions` on a thread of its own, so that one that hangs fails by name.
fn answered_in_time(questions: Vec<(Mechanism, Adjacency, u64, f64)>) {
    let (send, receive) = mpsc::channel();
    let asked = questions.clone();
    let worker = std::thread::spawn(move || {
        for (mechanism, adjacency, rounds, epsilon) in asked {
            let began = Instant::now();
            let answer = price(&mechanism, adjacency, rounds, epsilon);
            if send.send((answer.is_ok(), began.elapsed())).is_err() {
                return;
            }
        }
    });
    let (mut answered, mut slowest) = (0, Duration::ZERO);
    for question in &questions {
        let (ok, took) = receive
            .recv_timeout(LONGEST)
            .unwrap_or_else(|error| panic!("{error}: {question:?}"));
        answered += usize::from(ok);
        if took > slowest {
            slowest = took;
            println!("{took:?} {question:?}");
        }
    }
    worker.join().unwrap();
    println!("{answered} of {} have an answer", questions.len());
    assert!(answered > 0);
}

#[test]
fn extreme_descriptions_are_answered_in_time() {
    let mut questions = Vec::new();
    for estimator in estimators() {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            for rand_k in [None, Some(0.05)] {
                for batch in [1e-6, RECORDS as f64] {
                    for rounds in [1, 1_000_000] {
                        for epsilon in [1e-12, 1e3, 1e6] {
                            let mechanism = mechanism(estimator, batch, rand_k);
                            questions.push((mechanism, adjacency, rounds, epsilon));
                        }
                    }
                }
            }
        }
    }
    answered_in_time(questions);
}

/// Targets that configurations refuse reach the accountant through its own door all the same.
#[test]
fn targets_beyond_all_sense_are_answered_in_time() {
    let mut questions = Vec::new();
    for estimator in estimators() {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            for epsilon in [1e4, 1e9, f64::MAX] {
                let mechanism = mechanism(estimator, 5.0, Some(0.05));
                questions.push((mechanism, adjacency, 100, epsilon));
            }
        }
    }
    answered_in_time(questions);
}
