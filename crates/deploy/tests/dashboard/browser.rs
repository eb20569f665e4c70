//! The page in Debian's chromium, driven over its debugging pipe. Without chromium (`make browser`)
//! the test says so and passes; `SOTERIA_BROWSER` names another binary. `SOTERIA_SCREENSHOTS=DIR`
//! keeps pictures of the page.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use soteriafl_deploy::dashboard::{self, FeedWriter, Options, Phase, Point};
use tempfile::TempDir;

use crate::{close, feed, point};

/// Long enough that only a hang runs into it.
const PATIENCE: Duration = Duration::from_secs(120);

fn chromium() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SOTERIA_BROWSER") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| {
            ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name))
        })
        .find(|file| file.is_file())
}

/// A page in a browser. Messages are JSON between zero bytes, on the descriptors 3 and 4.
struct Page {
    browser: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    next: u64,
    events: Vec<Value>,
    _profile: TempDir,
}

impl Page {
    fn open(binary: &PathBuf, url: &str) -> Page {
        let profile = TempDir::new().expect("a directory");
        let mut browser = Command::new("sh")
            // The shell turns stdin and stdout, which Rust can pipe, into the descriptors wanted.
            .args([
                "-c",
                "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null",
            ])
            .arg(binary)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-extensions",
                "--disable-background-networking",
            ])
            .args(["--remote-debugging-pipe", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = browser.stdin.take().expect("piped");
        let from = BufReader::new(browser.stdout.take().expect("piped"));
        let mut page = Page {
            browser,
            to,
            from,
            session: String::new(),
            next: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = target["targetId"].clone();
        let attached = page.call(
            "Target.attachToTarget",
            json!({ "targetId": target, "flatten": true }),
        );
        page.session = attached["sessionId"]
            .as_str()
            .expect("a session")
            .to_string();
        for domain in [
            "Page.enable",
            "Runtime.enable",
            "Log.enable",
            "Network.enable",
        ] {
            page.call(domain, json!({}));
        }
        page.call("Page.navigate", json!({ "url": url }));
        page
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let mut bytes = Vec::new();
            self.from
                .read_until(0, &mut bytes)
                .expect("the browser speaks");
            assert_eq!(bytes.pop(), Some(0), "the browser has gone during {method}");
            let message: Value = serde_json::from_slice(&bytes).expect("JSON");
            if message["id"] == json!(self.next) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let result = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true }),
        );
        assert!(
            result.get("exceptionDetails").is_none(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    fn text(&mut self, id: &str) -> String {
        // Before the page is there, there is no text.
        let element = format!("document.getElementById('{id}')");
        let value = self.evaluate(&format!("{element}?.textContent ?? ''"));
        value.as_str().expect("text").to_string()
    }

    fn wait(&mut self, id: &str, wanted: &str) {
        let start = Instant::now();
        loop {
            let found = self.text(id);
            if found == wanted {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{id} is {found:?}, not {wanted:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn picture(&mut self, name: &str, width: u32, dark: bool) {
        let Some(folder) = std::env::var_os("SOTERIA_SCREENSHOTS").map(PathBuf::from) else {
            return;
        };
        let scheme = if dark { "dark" } else { "light" };
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        );
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false }),
        );
        std::thread::sleep(Duration::from_millis(500));
        let shot = self.call(
            "Page.captureScreenshot",
            json!({ "captureBeyondViewport": true }),
        );
        let text = shot["data"].as_str().expect("a picture");
        std::fs::write(folder.join(format!("{name}.png.base64")), text).expect("written");
    }

    /// Messages of the browser about something wrong, and addresses that were asked for.
    fn complaints_and_requests(&self) -> (Vec<String>, Vec<String>) {
        let (mut complaints, mut requests) = (Vec::new(), Vec::new());
        for event in &self.events {
            let parameters = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => complaints.push(parameters.to_string()),
                Some("Runtime.consoleAPICalled") => complaints.push(parameters.to_string()),
                Some("Log.entryAdded") => complaints.push(parameters["entry"].to_string()),
                Some("Network.requestWillBeSent") => {
                    let url = &parameters["request"]["url"];
                    requests.push(url.as_str().unwrap_or("?").to_string());
                }
                _ => {}
            }
        }
        (complaints, requests)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

fn serve(runtime: &tokio::runtime::Runtime, port: u16, feed: &FeedWriter) -> dashboard::Running {
    let options = Options::at(([127, 0, 0, 1], port).into());
    runtime
        .block_on(dashboard::serve(options, feed.feed().clone()))
        .expect("an address")
}

#[test]
fn the_page_lives_in_a_real_browser() {
    let Some(binary) = chromium() else {
        // Past the capture of the test runner, which would swallow it.
        let warning = "*** SKIPPED: no chromium on PATH, the page was NOT tested in a browser ***";
        writeln!(std::io::stderr(), "\n{warning}\n").expect("stderr");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let feed_of_three = feed(3);
    let running = serve(&runtime, 0, &feed_of_three);
    let port = running.address.port();
    let origin = format!("http://{}/", running.address);
    let mut page = Page::open(&binary, &origin);

    // Before the first round.
    page.wait("round", "0 of 100");
    assert_eq!(page.text("clients"), "0 of 3");
    assert_eq!(
        page.evaluate("document.querySelectorAll('.absent').length"),
        4
    );
    let absent = "document.querySelector('.absent').textContent";
    assert_eq!(page.evaluate(absent), "nothing is measured yet");
    let title = page.text("title");
    assert_eq!(
        title, "soteriafl-sgd, logistic <b>regression</b>",
        "text, not markup"
    );
    assert_eq!(page.text("epsilon"), "ε = 1.001", "never rounded down");

    // Rounds arrive.
    feed_of_three.append(point(0, 3));
    for round in 1..=60 {
        close(&feed_of_three, round, 3);
    }
    feed_of_three.phase(Phase::Running);
    feed_of_three.set_client(1, |client| {
        client.round = 55;
        client.missed = 5;
    });
    page.wait("round", "60 of 100");
    page.wait("link", "live");
    assert_eq!(page.text("up"), "1.8 MB");
    assert_eq!(
        page.evaluate("document.querySelectorAll('.plot canvas').length"),
        4
    );
    let behind = "document.querySelector('#rows tr').innerText.replace(/\\s+/g, ' ')";
    let row = page.evaluate(behind);
    let row = row.as_str().expect("a row");
    assert!(
        row.starts_with("1 behind 55 5 60 5 600 kB 720 kB 0.6 "),
        "{row}"
    );
    assert_eq!(
        page.evaluate("document.querySelectorAll('#rows tr').length"),
        3
    );
    // Up to date is who answers in time, and keeps nobody waiting.
    feed_of_three.set_client(1, |client| (client.round, client.missed_last) = (60, true));
    page.wait("clients-note", "1 behind");
    feed_of_three.set_client(1, |client| client.missed_last = false);
    page.wait("clients-note", "all here and up to date");
    feed_of_three.answered(0, 61);
    feed_of_three.answered(2, 61);
    feed_of_three.set_status(|status| (status.opened, status.arrived) = (Some(0.0), 2));
    page.wait("clients-note", "waiting for client 1");
    let row = page.evaluate("document.querySelectorAll('#rows tr')[1].innerText");
    let row = row.as_str().expect("a row");
    assert!(row.contains("waited for"), "{row}");
    let usual = page.text("pace-note");
    assert_eq!(usual, "waiting", "nobody knows how long that takes");
    feed_of_three.set_status(|status| (status.opened, status.arrived) = (None, 0));
    page.wait("clients-note", "all here and up to date");
    let shown = "document.getElementById('waiting').hidden";
    assert_eq!(page.evaluate(shown), true);
    assert!(page.text("pace-note").ends_with(" to go"));
    // A client is lost.
    feed_of_three.connected(1, false);
    page.wait("clients", "2 of 3");
    page.wait("clients-note", "waiting for client 1");
    assert_eq!(page.evaluate(shown), false);
    let said = page.text("waiting");
    assert!(
        said.starts_with("The round has been waiting since "),
        "{said}"
    );
    assert!(said.contains(": client 1 (no connection since "), "{said}");
    assert_eq!(page.text("pace-note"), "waiting");
    let row = page.evaluate("document.querySelector('#rows tr').innerText");
    let row = row.as_str().expect("a row");
    assert!(
        row.starts_with('1') && row.contains("not connected"),
        "{row}"
    );
    page.picture("waiting", 1240, false);
    feed_of_three.connected(1, true);
    page.wait("clients-note", "all here and up to date");
    // The curves are really drawn: some pixels are not transparent.
    let drawn = "(() => { const c = document.querySelector('.plot canvas'); \
                 return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0); })()";
    assert_eq!(page.evaluate(drawn), true);
    let wide = "document.documentElement.scrollWidth <= window.innerWidth";
    assert_eq!(page.evaluate(wide), true);
    page.picture("light", 1240, false);
    page.picture("dark", 1240, true);
    page.picture("narrow", 400, false);
    let (complaints, requests) = page.complaints_and_requests();
    assert_eq!(complaints, [] as [&str; 0]);
    let foreign = |url: &&String| !url.starts_with(&origin) && !url.starts_with("data:");
    assert!(!requests.is_empty());
    assert_eq!(requests.iter().find(foreign), None);

    // The server restarts with a thousand clients and the rounds it had stored.
    drop(running);
    page.wait("link", "no connection to the server; what you see is old");
    let many = feed(1000);
    many.restore((0..=80).map(|round| point(round, 1000)));
    many.set_status(|status| {
        for client in &mut status.clients {
            (client.joined, client.connected) = (true, true);
            client.round = 80;
        }
    });
    let running = serve(&runtime, port, &many);
    page.wait("round", "80 of 100");
    assert_eq!(
        page.evaluate("document.querySelectorAll('#rows tr').length"),
        50
    );
    assert!(page.text("more").contains("950 more"));
    page.picture("thousand", 1240, false);
    many.phase(Phase::Finished);
    page.wait("round-note", "all rounds are done");

    // A model of a number is measured by its loss, and nothing says that this is still to come.
    drop(running);
    page.wait("link", "the run is finished and the server has gone");
    let numbers = feed(3);
    numbers.restore((0..=70).map(|round| Point {
        test_accuracy: None,
        ..point(round, 3)
    }));
    let _running = serve(&runtime, port, &numbers);
    page.wait("round", "70 of 100");
    page.wait("accuracy-title", "Test loss");
    assert_eq!(page.text("accuracy"), "0.1556");
    assert_eq!(
        page.evaluate(absent),
        "the model predicts a number, which is not right or wrong"
    );
}
