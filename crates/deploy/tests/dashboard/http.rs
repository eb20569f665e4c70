//! What `curl` and Prometheus see.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use soteriafl_deploy::dashboard::{self, FeedWriter, Options, Phase};

use crate::{close, feed};

/// A server in a runtime of its own.
struct Place {
    address: SocketAddr,
    running: Option<dashboard::Running>,
    _runtime: tokio::runtime::Runtime,
}

fn serve(feed: &FeedWriter, hosts: &[&str]) -> Place {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let options = Options {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        hosts: hosts.iter().map(|host| host.to_string()).collect(),
    };
    let running = runtime
        .block_on(dashboard::serve(options, feed.feed().clone()))
        .expect("an address");
    Place {
        address: running.address,
        running: Some(running),
        _runtime: runtime,
    }
}

fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a time limit");
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

/// The head and the body of an answer.
fn exchange(address: SocketAddr, request: &str) -> (String, String) {
    let mut text = String::new();
    send(address, request)
        .read_to_string(&mut text)
        .expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_string())
}

fn get(place: &Place, path: &str) -> (String, String) {
    get_as(place, path, "*/*")
}

fn get_as(place: &Place, path: &str, accept: &str) -> (String, String) {
    let host = place.address;
    exchange(
        host,
        &format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        ),
    )
}

#[test]
fn the_page_brings_everything_with_it() {
    let place = serve(&feed(3), &[]);
    let (head, page) = get(&place, "/");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    for expected in [
        "content-security-policy: default-src 'none'; script-src 'self'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(head.contains(expected), "{head}");
    }
    assert!(
        !page.contains("://")
            || page.matches("://").count() == page.matches("http://www.w3.org/2000/svg").count()
    );
    for file in ["uplot.css", "dashboard.css", "uplot.js", "dashboard.js"] {
        assert!(page.contains(file));
        let (head, text) = get(&place, &format!("/{file}"));
        assert!(
            head.starts_with("http/1.1 200") && text.len() > 100,
            "{file}: {head}"
        );
    }
    assert!(get(&place, "/nothing").0.starts_with("http/1.1 404"));
}

#[test]
fn status_counts_and_lists_everybody() {
    let feed = feed(1000);
    close(&feed, 1, 999);
    feed.phase(Phase::Running);
    let place = serve(&feed, &[]);
    let (_, body) = get(&place, "/api/status");
    let status: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status["phase"], "running");
    assert_eq!(status["round"], 1);
    assert_eq!(status["about"]["run"], "0123456789abcdef");
    assert_eq!(status["summary"]["joined"], 999);
    assert_eq!(status["summary"]["missing"], 1);
    assert_eq!(status["summary"]["bytes_up"], 9_990_000);
    let clients = status["clients"].as_array().expect("a list");
    assert_eq!(clients.len(), 1000);
    assert_eq!(clients[0]["client"], 999);
    assert_eq!(clients[0]["lag"], 1);
    assert_eq!(clients[1]["epsilon"], 0.01);
}

#[test]
fn events_bring_history_then_news_and_few_rows() {
    let feed = feed(1000);
    feed.append(crate::point(0, 1000));
    close(&feed, 1, 1000);
    let place = serve(&feed, &[]);
    let mut stream = send(
        place.address,
        &format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", place.address),
    );
    let mut seen = String::new();
    let mut read_until = |wanted: &str, seen: &mut String| {
        let mut buffer = [0; 4096];
        while !seen.contains(wanted) {
            let count = stream.read(&mut buffer).expect("events");
            assert_ne!(count, 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    read_until("event: status", &mut seen);
    read_until("\"trouble\":null}", &mut seen);
    assert!(seen.contains("text/event-stream"), "{seen}");
    let history = seen.find("event: history").expect("history first");
    assert!(history < seen.find("event: status").expect("a status"));
    assert!(seen.contains("\"more_clients\":950"));
    assert!(seen.len() < 40_000, "{}", seen.len());
    close(&feed, 2, 1000);
    let mut fresh = String::new();
    read_until("event: points", &mut fresh);
    read_until("\"round\":2", &mut fresh);
    // After a restart the coordinator tells the whole story again.
    feed.restore([crate::point(0, 1000), crate::point(1, 1000)]);
    read_until("event: history", &mut fresh);
}

#[test]
fn prometheus_can_read_it() {
    let feed = feed(3);
    close(&feed, 1, 2);
    feed.set_client(2, |client| client.missed = 7);
    feed.phase(Phase::Running);
    let place = serve(&feed, &[]);
    // As Prometheus asks.
    let accept =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let (head, text) = get_as(&place, "/metrics", accept);
    assert!(head.contains("application/openmetrics-text"), "{head}");
    for line in [
        "soteria_rounds_closed 1.0",
        "soteria_rounds_planned 100.0",
        "soteria_up 1.0",
        "soteria_phase{state=\"running\"} 1.0",
        "soteria_clients{state=\"missing\"} 1.0",
        "soteria_clients{state=\"current\"} 2.0",
        "soteria_traffic_bytes_total{direction=\"up\"} 20000",
        "soteria_client_lag{client=\"2\"} 1.0",
        "soteria_client_missed_total{client=\"2\"} 7",
        "soteria_round_duration_seconds_count 1",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(text.contains("soteria_run_info{id=\"0123456789abcdef\""));
    assert!(
        text.contains("# TYPE soteria_resident_memory_bytes gauge"),
        "{text}"
    );
}

/// Names, kinds and values as a reader of the format 0.0.4 understands them; it fails on what the
/// format does not have.
fn parse_text(text: &str) -> (HashMap<String, String>, HashMap<String, f64>) {
    let (mut kinds, mut samples) = (HashMap::new(), HashMap::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            let known = ["counter", "gauge", "histogram", "summary", "untyped"];
            assert!(known.contains(&kind), "{line}");
            assert!(kinds.insert(name.into(), kind.into()).is_none(), "{line}");
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(rest.contains(' '), "{line}");
        } else {
            assert!(!line.starts_with('#'), "{line}");
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let family = name.split('{').next().expect("a name");
            let histogram = ["_bucket", "_sum", "_count"].iter().any(|ending| {
                let family = family.strip_suffix(ending);
                family
                    .is_some_and(|family| kinds.get(family).is_some_and(|kind| kind == "histogram"))
            });
            assert!(
                histogram || kinds.contains_key(family),
                "{line} has no kind"
            );
            let value = value.parse().expect("a number");
            assert!(samples.insert(name.to_string(), value).is_none(), "{line}");
        }
    }
    (kinds, samples)
}

/// Most readers of metrics know the older format, and get it unless they ask for the newer one.
#[test]
fn everybody_else_can_read_it_too() {
    let feed = feed(3);
    close(&feed, 1, 2);
    feed.set_client(2, |client| client.missed = 7);
    let place = serve(&feed, &[]);
    for accept in [
        "*/*",
        "text/plain",
        "text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.1",
        "application/openmetrics-text;q=0",
    ] {
        let (head, text) = get_as(&place, "/metrics", accept);
        let kind = "content-type: text/plain; version=0.0.4; charset=utf-8";
        assert!(head.contains(kind), "{accept}: {head}");
        let (kinds, samples) = parse_text(&text);
        assert_eq!(kinds["soteria_run_info"], "gauge");
        assert_eq!(kinds["soteria_client_missed_total"], "counter");
        assert_eq!(kinds["soteria_traffic_bytes_total"], "counter");
        assert_eq!(kinds["soteria_round_duration_seconds"], "histogram");
        assert_eq!(samples["soteria_client_missed_total{client=\"2\"}"], 7.0);
        assert_eq!(samples["soteria_round_duration_seconds_count"], 1.0);
        assert_eq!(samples["soteria_rounds_closed"], 1.0);
    }
    let (head, _) = get_as(&place, "/metrics", "application/openmetrics-text");
    assert!(head.contains("application/openmetrics-text"), "{head}");
}

#[test]
fn health_tells_trouble() {
    let feed = feed(1);
    let place = serve(&feed, &[]);
    let (head, body) = get(&place, "/healthz");
    assert!(
        head.starts_with("http/1.1 200") && body.contains("\"ok\""),
        "{head}{body}"
    );
    feed.trouble(Some("the disk is full".into()));
    let (head, body) = get(&place, "/healthz");
    assert!(
        head.starts_with("http/1.1 503") && body.contains("the disk is full"),
        "{head}{body}"
    );
    assert!(get(&place, "/metrics").1.contains("soteria_up 0.0"));
    feed.trouble(None);
    assert!(get(&place, "/healthz").0.starts_with("http/1.1 200"));
}

#[test]
fn other_names_and_other_methods_are_refused() {
    let place = serve(&feed(1), &["Fl.Example.Org"]);
    let port = place.address.port();
    let code = |request: String| {
        let (head, _) = exchange(place.address, &request);
        head.split(' ').nth(1).expect("a code").to_string()
    };
    let with_host = |host: &str| {
        code(format!(
            "GET /api/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ))
    };
    for good in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST:1",
        "[::1]:8080",
        "fl.example.org",
        "192.0.2.1",
    ] {
        assert_eq!(with_host(good), "200", "{good}");
    }
    for bad in [
        "evil.example.org",
        "",
        "localhost.evil.example.org",
        "127.0.0.1.evil.example.org",
    ] {
        assert_eq!(with_host(&format!("{bad}:{port}")), "421", "{bad}");
    }
    let twice = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n";
    assert_eq!(code(twice.into()), "421");
    for method in ["POST", "PUT", "DELETE"] {
        let request = format!(
            "{method} /api/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(code(request), "405");
    }
}

#[test]
fn viewers_are_bounded_and_go_when_they_leave() {
    let place = serve(&feed(1), &[]);
    let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", place.address);
    let open = || {
        let mut stream = send(place.address, &request);
        let mut code = [0; 12];
        stream.read_exact(&mut code).expect("an answer");
        (stream, code.ends_with(b"200"))
    };
    let viewers: Vec<TcpStream> = (0..64)
        .map(|_| {
            let (stream, welcome) = open();
            assert!(welcome);
            stream
        })
        .collect();
    assert!(!open().1, "one too many");
    assert!(get(&place, "/healthz").0.starts_with("http/1.1 200"));
    drop(viewers);
    while !open().1 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connections that say nothing, or half a sentence, however many, keep nobody from asking whether
/// the server is well.
#[test]
fn half_open_requests_do_not_delay_others() {
    let place = serve(&feed(1), &[]);
    let watching = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", place.address);
    let mut viewer = send(place.address, &watching);
    viewer.read_exact(&mut [0; 12]).expect("an answer");
    let silent: Vec<TcpStream> = (0..300)
        .map(|number| {
            let begun = if number % 2 == 0 {
                "GET /healthz HT"
            } else {
                ""
            };
            send(place.address, begun)
        })
        .collect();
    let start = std::time::Instant::now();
    for _ in 0..3 {
        let (head, body) = get(&place, "/healthz");
        assert!(head.starts_with("http/1.1 200"), "{head}{body}");
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    // The viewer was there before all of them, and still is.
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("event: status") {
        let mut buffer = [0; 4096];
        let count = viewer.read(&mut buffer).expect("events");
        assert_ne!(count, 0);
        seen.extend(&buffer[..count]);
    }
    drop(silent);
}

#[test]
fn a_run_that_waits_says_for_whom() {
    let feed = feed(3);
    close(&feed, 1, 3);
    feed.phase(Phase::Running);
    let place = serve(&feed, &[]);
    let status = |feed_place: &Place| -> Value {
        serde_json::from_str(&get(feed_place, "/api/status").1).expect("JSON")
    };
    assert_eq!(status(&place)["waiting"], Value::Null);
    assert!(
        get(&place, "/metrics")
            .1
            .contains("soteria_waiting_seconds 0.0")
    );
    feed.connected(1, false);
    feed.answered(0, 2);
    feed.answered(2, 2);
    let seen = status(&place);
    let waiting = &seen["waiting"];
    assert_eq!(waiting["missing"], 1);
    assert_eq!(waiting["clients"][0]["client"], 1);
    assert_eq!(waiting["clients"][0]["connected"], false);
    let row = |client: usize| &seen["clients"][client];
    assert!(row(0)["client"] == 1 && row(0)["answered"] == false && row(0)["lag"] == 1);
    assert!(row(1)["client"] == 0 && row(1)["answered"] == true && row(1)["lag"] == 0);
    // That a client is missing is no trouble of the server's, and said nevertheless.
    let (head, body) = get(&place, "/healthz");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(body.contains("\"missing\":1"), "{body}");
    feed.connected(1, true);
    assert_eq!(status(&place)["waiting"], Value::Null);
}

#[test]
fn dropping_it_ends_it() {
    let mut place = serve(&feed(1), &[]);
    let address = place.address;
    drop(place.running.take());
    while TcpStream::connect(address).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
}
