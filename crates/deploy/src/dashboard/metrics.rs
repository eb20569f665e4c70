//! The run in the text format of Prometheus, or as OpenMetrics for clients that ask for it.
//!
//! The older format is made from the newer one, line by line: it has no units, no end mark and no
//! kind `info`, and calls a counter by the name of its samples.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::feed::Feed;
use super::status::{Phase, Point, Status};
use super::waiting::Waiting;
use crate::accept::ConnectionCounters;

/// Beyond so many clients there are no series of single clients: Prometheus pays for each of them.
pub const CLIENT_SERIES: usize = 2000;

/// What an answer can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus 0.0.4: what everybody reads.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// What is wanted by a header `Accept`: OpenMetrics if it is named, and not named after plain
    /// text.
    pub fn accepted(accept: &str) -> Self {
        let quality = |kind: &str| {
            let ranges = accept
                .split(',')
                .map(|range| range.split(';').map(str::trim));
            let wanted = ranges.filter_map(|mut range| {
                let named = range.next()?.eq_ignore_ascii_case(kind);
                let given = range.find_map(|parameter| parameter.strip_prefix("q="));
                named.then(|| given.map_or(1.0, |given| given.parse().unwrap_or(0.0)))
            });
            wanted.fold(0.0, f64::max)
        };
        let open = quality("application/openmetrics-text");
        match open > 0.0 && open >= quality("text/plain") {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfClient {
    client: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InState {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

type Float = Gauge<f64, AtomicU64>;

/// All metrics now. They are gathered when asked for, so that no number is kept twice.
pub fn text(feed: &Feed, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("soteria");
    let about = feed.about();
    registry.register(
        "run",
        "The run that is coordinated",
        Info::new(vec![
            ("id", about.run.clone()),
            ("algorithm", about.algorithm.clone()),
            ("version", about.version.clone()),
        ]),
    );
    gauge(
        &mut registry,
        "rounds_planned",
        "Rounds of the whole run",
        f64::from(about.rounds),
    );
    gauge(
        &mut registry,
        "clients_expected",
        "Clients of the run",
        about.clients as f64,
    );
    if let Some(bytes) = resident_bytes() {
        let help = "Memory of this process";
        gauge_in(
            &mut registry,
            "resident_memory",
            help,
            Unit::Bytes,
            bytes as f64,
        );
    }
    feed.with_metrics(|status, waiting, last, seconds, connections| {
        of_run(&mut registry, status);
        registry.register_with_unit(
            "round_duration",
            "How long rounds took",
            Unit::Seconds,
            seconds.clone(),
        );
        of_all_clients(&mut registry, status, waiting);
        if let Some(last) = last {
            of_model(&mut registry, status, last);
        }
        if let Some(connections) = connections {
            of_connections(&mut registry, connections);
        }
        if status.clients.len() <= CLIENT_SERIES {
            of_clients(&mut registry, status);
        }
    });
    let mut out = String::new();
    encode(&mut out, &registry)?;
    Ok(match format {
        Format::Text => older(&out),
        Format::OpenMetrics => out,
    })
}

/// Where the run stands.
fn of_run(registry: &mut Registry, status: &Status) {
    for (name, help, value) in [
        ("rounds_closed", "Rounds closed so far", status.round),
        (
            "messages_waiting",
            "Messages that the open round has",
            status.arrived,
        ),
        (
            "up",
            "1 when the coordinator can go on",
            u32::from(status.trouble.is_none()),
        ),
    ] {
        gauge(registry, name, help, f64::from(value));
    }
    let phases = Family::<InState, Float>::default();
    for (state, phase) in [
        ("waiting", Phase::Waiting),
        ("running", Phase::Running),
        ("finished", Phase::Finished),
        ("stopping", Phase::Stopping),
    ] {
        let now = f64::from(u8::from(status.phase == phase));
        phases.get_or_create(&InState { state }).set(now);
    }
    registry.register("phase", "Where the run stands", phases);
}

/// What its clients do, all together.
fn of_all_clients(registry: &mut Registry, status: &Status, waiting: Option<&Waiting>) {
    let summary = status.summary();
    let clients = Family::<InState, Float>::default();
    for (state, count) in [
        ("missing", summary.missing),
        ("away", summary.away),
        ("current", summary.current),
        ("behind", summary.behind),
        ("finished", summary.finished),
    ] {
        clients.get_or_create(&InState { state }).set(count as f64);
    }
    registry.register("clients", "Clients by state", clients);
    gauge(
        registry,
        "clients_connected",
        "Clients that follow the run now",
        summary.connected as f64,
    );
    gauge(
        registry,
        "clients_awaited",
        "Clients that the run waits for; 0 while it goes on",
        waiting.map_or(0.0, |waiting| waiting.missing as f64),
    );
    gauge_in(
        registry,
        "waiting",
        "For how long the run has waited; 0 while it goes on",
        Unit::Seconds,
        waiting.map_or(0.0, |waiting| waiting.seconds),
    );
    gauge(
        registry,
        "largest_lag",
        "Rounds that the last client is behind",
        f64::from(summary.largest_lag),
    );
    let traffic = Family::<Direction, Counter>::default();
    for (direction, bytes) in [("up", summary.bytes_up), ("down", summary.bytes_down)] {
        traffic
            .get_or_create(&Direction { direction })
            .inc_by(bytes);
    }
    registry.register_with_unit(
        "traffic",
        "Bytes from and to all clients",
        Unit::Bytes,
        traffic,
    );
}

/// What was measured last, and what it has cost.
fn of_model(registry: &mut Registry, status: &Status, last: Point) {
    let spent = status.clients.iter().filter_map(|client| client.epsilon);
    let spent = spent.reduce(f64::max);
    for (name, help, value) in [
        ("test_loss", "Loss on the server's test set", last.test_loss),
        (
            "test_accuracy",
            "Accuracy on the server's test set",
            last.test_accuracy,
        ),
        (
            "epsilon_spent",
            "Largest epsilon that a client can have spent",
            spent.or(last.epsilon),
        ),
    ] {
        if let Some(value) = value {
            gauge(registry, name, help, value);
        }
    }
}

/// What listening has counted.
fn of_connections(registry: &mut Registry, connections: &ConnectionCounters) {
    for (name, help, value) in [
        ("connections", "Connections accepted", &connections.accepted),
        (
            "handshakes_refused",
            "Handshakes that failed: strangers, revoked certificates",
            &connections.refused,
        ),
        (
            "handshakes_dropped",
            "Handshakes that took too long or gave way to newer ones",
            &connections.dropped,
        ),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(value.load(Ordering::Relaxed));
        registry.register(name, help, counter);
    }
    let open = connections.open.load(Ordering::Relaxed) as f64;
    gauge(registry, "connections_open", "Connections open now", open);
}

/// The series of single clients.
fn of_clients(registry: &mut Registry, status: &Status) {
    let lag = Family::<OfClient, Float>::default();
    let seen = Family::<OfClient, Float>::default();
    let connected = Family::<OfClient, Float>::default();
    let away = Family::<OfClient, Float>::default();
    let missed = Family::<OfClient, Counter>::default();
    for client in &status.clients {
        let of = OfClient {
            client: client.client,
        };
        lag.get_or_create(&of).set(f64::from(status.lag(client)));
        let rounds = u64::from(client.missed);
        missed.get_or_create(&of).inc_by(rounds);
        if let Some(time) = client.last_seen {
            seen.get_or_create(&of).set(time);
        }
        let here = f64::from(u8::from(client.connected));
        connected.get_or_create(&of).set(here);
        if let Some(since) = client.since.filter(|_| !client.connected) {
            away.get_or_create(&of).set(since);
        }
    }
    registry.register("client_lag", "Rounds that a client is behind", lag);
    registry.register(
        "client_connected",
        "1 while a client follows the run",
        connected,
    );
    registry.register(
        "client_away_since_timestamp",
        "When a client that is not connected was lost, in seconds since 1970",
        away,
    );
    registry.register(
        "client_missed",
        "Rounds that closed without a client",
        missed,
    );
    registry.register(
        "client_last_seen_timestamp",
        "When something last came from a client, in seconds since 1970",
        seen,
    );
}

/// OpenMetrics in the older format.
fn older(text: &str) -> String {
    let mut kinds = HashMap::new();
    for line in text.lines() {
        let kind = line.strip_prefix("# TYPE ");
        if let Some((name, kind)) = kind.and_then(|rest| rest.split_once(' ')) {
            kinds.insert(name, kind);
        }
    }
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let parts = (words.next(), words.next(), words.next(), words.next());
        match parts {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) => {
                let (ending, kind) = match kinds.get(name) {
                    Some(&"counter") => ("_total", "counter"),
                    Some(&"info") => ("_info", "gauge"),
                    other => ("", other.copied().unwrap_or("untyped")),
                };
                let rest = if what == "TYPE" { kind } else { rest };
                out.extend(["# ", what, " ", name, ending, " ", rest]);
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

fn gauge_in(registry: &mut Registry, name: &str, help: &str, unit: Unit, value: f64) {
    let gauge = Float::default();
    gauge.set(value);
    registry.register_with_unit(name, help, unit, gauge);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Float::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

/// What the operating system says that this process occupies.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
