//! What others can do to a log: little.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::parties::{Run, eventually};

const SMALL: &str = "[data]\nsource = \"synthetic:300x5\"\nclients = 3\n[algorithm]\nrounds = 10\n";

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(body);
    frame
}

/// Requests that are taken back in the same breath, which is what HTTP libraries complain about.
fn rapid_resets(requests: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    for request in 0..requests {
        let stream = 2 * request + 1;
        // POST / over http, from HPACK's table.
        bytes.extend(frame(1, 5, stream, &[0x83, 0x86, 0x84]));
        bytes.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    bytes
}

/// The most lines of one kind in a log since then: five in each minute that has begun, whose first
/// one may have begun before.
fn most(since: Instant) -> usize {
    5 * (2 + since.elapsed().as_secs() as usize / 60)
}

#[test]
fn rapid_resets_do_not_fill_the_log() {
    let run = Run::new(SMALL);
    let _server = run.serve_anew();
    let begun = Instant::now();
    let before = run.log("serve.log").lines().count();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", run.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        // The server may hang up in the middle of it.
        let _ = stream.write_all(&rapid_resets(200));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let log = run.log("serve.log");
    let complaints = log.lines().skip(before);
    let complaints = complaints.filter(|line| line.contains("reset")).count();
    let most = most(begun);
    assert!((1..=most).contains(&complaints), "{complaints}: {log}");
    assert!(log.lines().count() < before + most + 10, "{log}");
}

/// A client that comes and goes a hundred times is a few lines, too.
#[test]
fn joining_again_and_again_does_not_fill_the_log() {
    use soteriafl_deploy::net::client::Caller;
    use soteriafl_deploy::net::connect::{Security, Target};
    let run = Run::new(SMALL);
    let _server = run.serve_anew();
    let begun = Instant::now();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let address = format!("http://127.0.0.1:{}", run.port);
        let target = Target::new(&address, &Security::Plain).unwrap();
        let mut caller = Caller::new(&target, 0);
        let text = caller.describe().await.unwrap();
        let digest = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
        let id = bytes::Bytes::copy_from_slice(&digest[..16]);
        let mut caller = caller.for_run(id, 6, 0);
        for _ in 0..100 {
            caller.join(100).await.unwrap();
        }
    });
    let log = run.log("serve.log");
    let joined = log.lines().filter(|line| line.contains("joined")).count();
    assert!((1..=most(begun)).contains(&joined), "{joined}: {log}");
}

/// Out of file descriptors, a server waits, says so a few times, and goes on when there are some
/// again.
#[cfg(target_os = "linux")]
#[test]
fn too_many_open_files_are_mentioned_and_survived() {
    let mut run = Run::new(SMALL);
    run.data = "synthetic:300x5:{}/3".to_string();
    let mut limited = Command::new("sh");
    let limit = "ulimit -n 40; exec \"$0\" \"$@\"";
    limited.args(["-c", limit, env!("CARGO_BIN_EXE_soteria")]);
    let begun = Instant::now();
    let mut server = run.serve_by(limited, &[]);
    let connect = || TcpStream::connect(("127.0.0.1", run.port));
    eventually("the server listens", || connect().is_ok());
    let crowd: Vec<_> = (0..60).map(|_| connect().unwrap()).collect();
    let complaints = || {
        let log = run.log("serve.log");
        log.matches("cannot accept a connection").count()
    };
    eventually("it says so", || complaints() > 0);
    std::thread::sleep(Duration::from_secs(2));
    assert!(complaints() <= most(begun), "{}", run.log("serve.log"));
    drop(crowd);
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    for client in &mut clients {
        assert_eq!(client.code(), 0, "{}", run.log("serve.log"));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
}
