//! The dashboard over HTTP and in a real browser.

mod browser;
mod http;

use soteriafl_deploy::dashboard::{About, FeedWriter, Point};

/// A run of so many clients in which nothing has happened.
pub fn feed(clients: usize) -> FeedWriter {
    FeedWriter::new(About {
        run: "0123456789abcdef".into(),
        algorithm: "soteriafl-sgd".into(),
        model: "logistic <b>regression</b>".into(),
        dimension: 50_890,
        rounds: 100,
        clients,
        quorum: None,
        deadline: None,
        epsilon: Some(1.00004),
        delta: 1e-5,
        claim: "proved".into(),
        tested: true,
        version: "9.9.9".into(),
    })
}

/// A closed round with all clients in it.
pub fn point(round: u32, clients: u32) -> Point {
    let sent = u64::from(round) * u64::from(clients);
    Point {
        round,
        test_loss: Some(0.7 / (1.0 + 0.05 * f64::from(round))),
        test_accuracy: Some(0.85 - 0.35 / (1.0 + 0.2 * f64::from(round))),
        uplink_bytes: 10_000 * sent,
        downlink_bytes: 12_000 * sent,
        seconds: 0.2 + 0.01 * f64::from(round % 7),
        taken: if round == 0 { 0 } else { clients },
        epsilon: Some(0.01 * f64::from(round)),
    }
}

/// Closes a round in which everybody took part.
pub fn close(feed: &FeedWriter, round: u32, clients: u32) {
    for client in 0..clients {
        feed.submitted(client, 10_000, round);
        feed.sent(client, 12_000);
        feed.connected(client, true);
        feed.set_client(client, |client| {
            client.joined = true;
            client.round = round;
            client.answered = round;
            client.taken += 1;
            client.epsilon = Some(0.01 * f64::from(round));
        });
    }
    feed.append(point(round, clients));
}
