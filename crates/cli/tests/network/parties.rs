//! Processes of a run in a directory of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A run's directory, with how its parties are started.
pub struct Run {
    pub directory: TempDir,
    pub port: u16,
    pub clients: usize,
    pub seed: Option<u64>,
    pub tls: bool,
    /// What the clients read, with `{}` for the client's number.
    pub data: String,
}

impl Run {
    /// A run of `config` with three clients and a test seed, over plain text.
    pub fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run.toml"), config).unwrap();
        Self {
            directory,
            port: free_port(),
            clients: 3,
            seed: Some(5),
            tls: false,
            data: "synthetic:3000x20:{}/3".to_string(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn make_keys(&mut self) {
        self.tls = true;
        let keys = self.path("keys");
        let count = self.clients.to_string();
        let status = soteria(&["keys", "init", text(&keys), "--clients", &count]);
        assert!(status.success());
    }

    /// The model of the same configuration, simulated.
    pub fn simulated(&self) -> Vec<u8> {
        let (config, out) = (self.path("run.toml"), self.path("simulated"));
        let seed = self.seed.unwrap_or(0).to_string();
        let arguments = [
            "train",
            "--config",
            text(&config),
            "--seed",
            &seed,
            "--out",
            text(&out),
        ];
        assert!(soteria(&arguments).success());
        std::fs::read(out.join("model.safetensors")).unwrap()
    }

    pub fn model(&self) -> Vec<u8> {
        std::fs::read(self.path("out/model.safetensors")).unwrap()
    }

    pub fn summary(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.path("out/summary.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn serve(&self) -> Process {
        self.serve_with(&[])
    }

    pub fn serve_with(&self, more: &[&str]) -> Process {
        self.serve_by(program(), more)
    }

    /// The same, and it listens when this returns: a client whose last run is over looks for
    /// another one only once.
    pub fn serve_anew(&self) -> Process {
        let server = self.serve();
        let address = ("127.0.0.1", self.port);
        eventually("the server listens", || TcpStream::connect(address).is_ok());
        server
    }

    /// The server as an argument of another program.
    pub fn serve_by(&self, mut command: Command, more: &[&str]) -> Process {
        command.args(["serve", "--config", text(&self.path("run.toml"))]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        command.args([
            "--state",
            text(&self.path("server")),
            "--out",
            text(&self.path("out")),
        ]);
        command.args(more);
        self.protect(&mut command);
        Process::start(command, &self.path("serve.log"))
    }

    pub fn join(&self, client: usize) -> Process {
        self.join_with(client, &["--yes"])
    }

    pub fn join_with(&self, client: usize, more: &[&str]) -> Process {
        self.join_from(&format!("client-{client}"), client, more)
    }

    /// A client with its state in this directory.
    pub fn join_from(&self, state: &str, client: usize, more: &[&str]) -> Process {
        let mut command = program();
        let scheme = if self.tls { "https" } else { "http" };
        let server = format!("{scheme}://127.0.0.1:{}", self.port);
        let log = self.path(&format!("{}.log", state.replace("client", "join")));
        let state = self.path(state);
        let data = self.data.replace("{}", &client.to_string());
        command.args(["join", "--server", &server, "--client", &client.to_string()]);
        command.args(["--state", text(&state), "--data", &data]);
        command.args(more);
        self.protect(&mut command);
        Process::start(command, &log)
    }

    pub fn ledger(&self, client: usize) -> serde_json::Value {
        let state = self.path(&format!("client-{client}"));
        let output = program()
            .args(["ledger", "--state", text(&state), "--json"])
            .output()
            .unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn protect(&self, command: &mut Command) {
        match self.tls {
            true => command.args(["--tls", text(&self.path("keys"))]),
            false => command.arg("--insecure"),
        };
        if let Some(seed) = self.seed {
            command.args(["--test-seed", &seed.to_string()]);
        }
    }

    /// What a party has said.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// A process that does not outlive its test.
pub struct Process(Child);

impl Process {
    fn start(mut command: Command, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Self(command.spawn().unwrap())
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    pub fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.unwrap().success());
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for the end; a test that hangs fails.
    pub fn code(&mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status.code().unwrap_or(-1);
            }
            assert!(
                start.elapsed() < Duration::from_secs(240),
                "it does not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the dashboard answers; nothing if there is none.
pub fn ask(port: u16, path: &str) -> String {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        let host = "Host: localhost\r\nConnection: close";
        stream.write_all(format!("GET {path} HTTP/1.1\r\n{host}\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    body.unwrap_or_default().to_string()
}

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_soteria"))
}

fn soteria(arguments: &[&str]) -> ExitStatus {
    program()
        .args(arguments)
        .arg("--quiet")
        .stdout(Stdio::null())
        .status()
        .unwrap()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Waits until something holds.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(240), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
