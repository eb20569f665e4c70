//! Runs the program the way a user does, away from the user's own files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A directory of its own in which commands run; it is also their home.
pub struct Place {
    directory: TempDir,
}

/// What a command left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    pub fn new() -> Place {
        Place {
            directory: TempDir::new().expect("a temporary directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("a folder");
        }
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).expect("text")
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).expect("JSON")
    }

    /// The command, not yet started, with an environment that is the same everywhere.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("soteria"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("HOME", self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in FOREIGN {
            command.env_remove(name);
        }
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.command(arguments)
            .output()
            .expect("the program starts")
            .into()
    }

    /// `soteria train` on the small problem, with these settings, into `out`.
    pub fn train(&self, out: &str, settings: &[&str]) -> Ran {
        let mut arguments = vec!["train", "--out", out];
        for setting in SMALL.iter().chain(settings) {
            arguments.extend(["--set", setting]);
        }
        self.run(&arguments)
    }
}

/// What the user's environment must not decide in a test.
const FOREIGN: &[&str] = &[
    "SOTERIA_DATA",
    "SOTERIA_MIRROR",
    "XDG_CACHE_HOME",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "RUST_BACKTRACE",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// Three clients with twenty records each, four features, five rounds.
pub const SMALL: &[&str] = &[
    "data.source=synthetic:60x4",
    "data.clients=3",
    "algorithm.rounds=5",
];

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Checks the exit code 0.
    pub fn well(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Checks the exit code and that there is one line `error: ...`, perhaps a hint and nothing
    /// more; returns both.
    pub fn badly(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let said: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| !line.starts_with("warning: "))
            .collect();
        assert!(
            said.first().is_some_and(|line| line.starts_with("error: ")),
            "{self:?}"
        );
        assert!(
            said.len() <= 2 && said.iter().skip(1).all(|line| line.starts_with("hint: ")),
            "{self:?}"
        );
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        said.join("\n")
    }

    /// Stdout as the one JSON object it must be.
    pub fn object(&self) -> Value {
        let value: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert!(value.is_object(), "{self:?}");
        value
    }
}

/// The keys of an object, in order of the alphabet.
pub fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// The rows of a table of rounds, header checked.
pub fn rounds(text: &str) -> Vec<Vec<Option<f64>>> {
    let header = "round,paper_bits,uplink_bytes,downlink_bytes,loss,grad_norm_sq,utility,test_accuracy,epsilon";
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(header));
    let number = |cell: &str| (!cell.is_empty()).then(|| cell.parse().expect("a number"));
    lines
        .map(|line| line.split(',').map(number).collect())
        .collect()
}

/// Name, shape and values of a tensor.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

/// Every tensor of a model file, by name, and the model's description.
pub fn tensors(path: &Path) -> (Vec<Tensor>, Value) {
    let bytes = std::fs::read(path).expect("a model");
    let (_, metadata) =
        safetensors::SafeTensors::read_metadata(&bytes).expect("a safetensors header");
    let description = metadata.metadata().as_ref().expect("metadata")["soteria"].clone();
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            assert_eq!(view.dtype(), safetensors::Dtype::F32);
            let values = view
                .data()
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            (name, view.shape().to_vec(), values.collect())
        })
        .collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    (
        tensors,
        serde_json::from_str(&description).expect("a description"),
    )
}
