//! Reading a run directory: `config.toml`, `rounds.csv`, `summary.json`.
//!
//! The files may come from anyone, so nothing is trusted: every fault names its file, and line and
//! column where there is one. A run that was interrupted is still a run: a table without rows is
//! accepted, and a last line without its line end is left out, since a number cut short still reads
//! as a number.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The columns of `rounds.csv`, in the order of [`Row`].
const COLUMNS: [&str; 9] = [
    "round",
    "paper_bits",
    "uplink_bytes",
    "downlink_bytes",
    "loss",
    "grad_norm_sq",
    "utility",
    "test_accuracy",
    "epsilon",
];

/// A column that deployments have besides: what a server measures on its test set.
const TEST_LOSS: &str = "test_loss";

/// A column that runs without a server have besides: how far clients' models are from their mean.
const CONSENSUS_ERROR: &str = "consensus_error";

/// The files of one run, as read.
#[derive(Debug, Clone)]
pub struct RunFiles {
    /// `config.toml`: the resolved configuration, as text; valid TOML where [`RunFiles::read`] has
    /// read it.
    pub config: String,
    /// `rounds.csv`: one row per evaluated round, in the order of the file.
    pub rounds: Vec<Row>,
    /// `summary.json`: one object.
    pub summary: Value,
}

/// One evaluated round. Traffic is cumulative over all clients; an empty cell of a metric is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// How many messages each client had sent; 0 is the start.
    pub round: u64,
    /// Uplink so far as the paper counts it: 64 bits per transmitted value.
    pub paper_bits: f64,
    /// Uplink so far as the wire codec produced it.
    pub uplink_bytes: u64,
    /// Downlink so far.
    pub downlink_bytes: u64,
    /// The objective.
    pub loss: f64,
    /// The squared norm of the objective's true gradient.
    pub grad_norm_sq: f64,
    /// The running mean of `grad_norm_sq`.
    pub utility: f64,
    /// The share of the test set that is classified rightly; none without a test set.
    pub test_accuracy: Option<f64>,
    /// What has been spent so far; none without a claim.
    pub epsilon: Option<f64>,
    /// The mean loss over a server's test set; none in a simulation, and without a test set.
    pub test_loss: Option<f64>,
    /// The mean squared distance of the clients' models to their mean; none where all have one.
    pub consensus_error: Option<f64>,
}

/// Why a run directory could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file is absent or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name says: broken TOML or JSON.
    #[error("{}, line {line}, column {column}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line of the fault, from 1.
        line: usize,
        /// The character of that line, from 1.
        column: usize,
        /// What the parser said.
        message: String,
    },
    /// `summary.json` holds something else than an object.
    #[error("{}: expected a JSON object, found {found}", path.display())]
    NotAnObject {
        /// The file.
        path: PathBuf,
        /// The kind of value that was there.
        found: &'static str,
    },
    /// `rounds.csv` is not the table of a run: a column, a cell or the order of rows is wrong.
    #[error("{}, line {line}{reason}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is expected there, and what was found.
        reason: String,
    },
}

impl RunFiles {
    /// Reads the files of a run directory.
    pub fn read(directory: &Path) -> Result<RunFiles, ReportError> {
        let (_, summary) = read_text(directory, "summary.json")?;
        Self::read_with(directory, &summary)
    }

    /// The same with the text of a summary that is not written yet.
    ///
    /// # Errors
    /// When another file is missing or cannot be understood.
    pub fn read_with(directory: &Path, summary: &str) -> Result<RunFiles, ReportError> {
        let (_, config) = read_text(directory, "config.toml")?;
        let (_, rounds) = read_text(directory, "rounds.csv")?;
        Self::of_texts(directory, &config, &rounds, summary)
    }

    /// The same from texts in memory; `directory` stands in errors only.
    ///
    /// # Errors
    /// When a text cannot be understood.
    pub fn of_texts(
        directory: &Path,
        config: &str,
        rounds: &str,
        summary: &str,
    ) -> Result<RunFiles, ReportError> {
        check_toml(&directory.join("config.toml"), config)?;
        let summary = parse_summary(&directory.join("summary.json"), summary)?;
        let interrupted = summary.get("interrupted") == Some(&Value::Bool(true));
        let rounds = parse_rounds(&directory.join("rounds.csv"), rounds, interrupted)?;
        Ok(RunFiles {
            config: config.to_owned(),
            rounds,
            summary,
        })
    }

    /// Whether the run was stopped before its last round.
    pub fn interrupted(&self) -> bool {
        self.summary.get("interrupted") == Some(&Value::Bool(true))
    }

    /// Whether this was a deployment: records and secrets were the clients' own.
    pub fn deployed(&self) -> bool {
        self.summary.get("kind").and_then(Value::as_str) == Some("deployment")
    }

    /// Whether the model left the range of numbers.
    pub fn diverged(&self) -> bool {
        self.summary.get("diverged") == Some(&Value::Bool(true))
    }
}

fn read_text(directory: &Path, name: &str) -> Result<(PathBuf, String), ReportError> {
    let path = directory.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(ReportError::Read { path, source }),
    }
}

fn check_toml(path: &Path, text: &str) -> Result<(), ReportError> {
    let Err(error) = text.parse::<toml::Table>() else {
        return Ok(());
    };
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    // The span is a byte offset, and nothing promises that it falls between two characters.
    let before = String::from_utf8_lossy(&text.as_bytes()[..start]);
    Err(ReportError::Syntax {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before.rsplit('\n').next().unwrap_or("").chars().count() + 1,
        message: error.message().to_owned(),
    })
}

fn parse_summary(path: &Path, text: &str) -> Result<Value, ReportError> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        ReportError::Syntax {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            // serde_json repeats the place at the end of its message.
            message: message
                .split(" at line ")
                .next()
                .unwrap_or(&message)
                .to_owned(),
        }
    })?;
    let found = match &value {
        Value::Object(_) => return Ok(value),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
    };
    Err(ReportError::NotAnObject {
        path: path.to_owned(),
        found,
    })
}

fn parse_rounds(path: &Path, text: &str, interrupted: bool) -> Result<Vec<Row>, ReportError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let whole = match text.rfind('\n') {
        Some(end) if interrupted => &text[..=end],
        _ => text,
    };
    let fault = |line, reason| ReportError::Table {
        path: path.to_owned(),
        line,
        reason,
    };
    let mut lines = whole.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let mut places = [0; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        *place = names
            .iter()
            .position(|name| *name == column)
            .ok_or_else(|| {
                let found = shorten(header);
                fault(
                    1,
                    format!(": expected a column `{column}`, found `{found}`"),
                )
            })?;
    }
    let place = |column| names.iter().position(|name| *name == column);
    let (test_loss, consensus_error) = (place(TEST_LOSS), place(CONSENSUS_ERROR));
    let mut rows: Vec<Row> = Vec::new();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let line = index + 1;
        if cells.len() != names.len() {
            let (expected, found) = (names.len(), cells.len());
            let reason = format!(": expected {expected} cells, found {found}");
            return Err(fault(line, reason));
        }
        let cells = Cells {
            cells: places.map(|place| cells[place]),
            test_loss: test_loss.map(|place| cells[place]),
            consensus_error: consensus_error.map(|place| cells[place]),
        };
        let row = cells.row().map_err(|reason| fault(line, reason))?;
        let previous = rows.last().map(|row| row.round);
        if let Some(previous) = previous.filter(|last| *last >= row.round) {
            let reason = format!(": expected a round after {previous}, found {}", row.round);
            return Err(fault(line, reason));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The cells of one line, in the order of [`COLUMNS`].
struct Cells<'a> {
    cells: [&'a str; COLUMNS.len()],
    test_loss: Option<&'a str>,
    consensus_error: Option<&'a str>,
}

impl Cells<'_> {
    fn row(&self) -> Result<Row, String> {
        Ok(Row {
            round: self.count(0)?,
            paper_bits: self.number(1)?.unwrap_or(f64::NAN),
            uplink_bytes: self.count(2)?,
            downlink_bytes: self.count(3)?,
            loss: self.number(4)?.unwrap_or(f64::NAN),
            grad_norm_sq: self.number(5)?.unwrap_or(f64::NAN),
            utility: self.number(6)?.unwrap_or(f64::NAN),
            test_accuracy: self.number(7)?,
            epsilon: self.number(8)?,
            test_loss: match self.test_loss {
                Some(cell) => read_number(cell, TEST_LOSS)?,
                None => None,
            },
            consensus_error: match self.consensus_error {
                Some(cell) => read_number(cell, CONSENSUS_ERROR)?,
                None => None,
            },
        })
    }

    fn count(&self, at: usize) -> Result<u64, String> {
        self.cells[at]
            .parse()
            .map_err(|_| fault(self.cells[at], COLUMNS[at], "a whole number"))
    }

    fn number(&self, at: usize) -> Result<Option<f64>, String> {
        read_number(self.cells[at], COLUMNS[at])
    }
}

/// A cell that may be empty.
fn read_number(cell: &str, column: &str) -> Result<Option<f64>, String> {
    match cell {
        "" => Ok(None),
        cell => cell
            .parse()
            .map(Some)
            .map_err(|_| fault(cell, column, "a number")),
    }
}

fn fault(cell: &str, column: &str, expected: &str) -> String {
    let found = shorten(cell);
    format!(", column `{column}`: expected {expected}, found `{found}`")
}

/// At most 60 characters of a file for a message, so that an error stays one line.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "round,paper_bits,uplink_bytes,downlink_bytes,loss,grad_norm_sq,utility,test_accuracy,epsilon\n";

    fn parse(body: &str, interrupted: bool) -> Result<Vec<Row>, ReportError> {
        parse_rounds(
            Path::new("rounds.csv"),
            &format!("{HEADER}{body}"),
            interrupted,
        )
    }

    #[test]
    fn reads_numbers_empty_cells_and_non_finite_values() {
        let rows = parse(
            "0,0,0,0,0.69,NaN,inf,,\r\n5,3840,320,99,0.5,0.1,0.2,0.84,1.5\n\n",
            false,
        )
        .unwrap();
        assert_eq!(rows.len(), 2);
        assert!(rows[0].grad_norm_sq.is_nan() && rows[0].utility == f64::INFINITY);
        assert_eq!((rows[0].test_accuracy, rows[0].epsilon), (None, None));
        let expected = Row {
            round: 5,
            paper_bits: 3840.0,
            uplink_bytes: 320,
            downlink_bytes: 99,
            loss: 0.5,
            grad_norm_sq: 0.1,
            utility: 0.2,
            test_accuracy: Some(0.84),
            epsilon: Some(1.5),
            test_loss: None,
            consensus_error: None,
        };
        assert_eq!(rows[1], expected);
    }

    #[test]
    fn a_deployment_has_one_column_more() {
        let header = format!("{},test_loss\n", HEADER.trim_end());
        let read =
            |row: &str| parse_rounds(Path::new("rounds.csv"), &format!("{header}{row}\n"), false);
        let measured = read("1,10,20,30,,,,0.8,1,0.4").unwrap()[0];
        assert_eq!(
            (measured.test_loss, measured.test_accuracy),
            (Some(0.4), Some(0.8))
        );
        assert!(measured.loss.is_nan());
        assert_eq!(read("1,10,20,30,,,,,1,").unwrap()[0].test_loss, None);
        let fault = read("1,10,20,30,,,,0.8,1,x").unwrap_err().to_string();
        assert!(fault.contains("column `test_loss`"), "{fault}");
    }

    #[test]
    fn columns_are_found_by_name() {
        let text = "epsilon,extra,round,paper_bits,uplink_bytes,downlink_bytes,loss,grad_norm_sq,utility,test_accuracy\n\
                    2,x,1,10,20,30,0.1,0.2,0.3,0.4\n";
        let rows = parse_rounds(Path::new("rounds.csv"), text, false).unwrap();
        assert_eq!(
            (rows[0].round, rows[0].epsilon, rows[0].uplink_bytes),
            (1, Some(2.0), 20)
        );
    }

    #[test]
    fn faults_name_line_and_column() {
        let message = |body: &str| parse(body, false).unwrap_err().to_string();
        assert_eq!(
            message("0,0,0,0,1,1,1,,\n1,0,0,0,x1,1,1,,\n"),
            "rounds.csv, line 3, column `loss`: expected a number, found `x1`"
        );
        assert_eq!(
            message("0,0,-3,0,1,1,1,,\n"),
            "rounds.csv, line 2, column `uplink_bytes`: expected a whole number, found `-3`"
        );
        assert_eq!(
            message("0,0,0\n"),
            "rounds.csv, line 2: expected 9 cells, found 3"
        );
        assert_eq!(
            message("4,0,0,0,1,1,1,,\n4,0,0,0,1,1,1,,\n"),
            "rounds.csv, line 3: expected a round after 4, found 4"
        );
        let missing = parse_rounds(Path::new("rounds.csv"), "round,loss\n", false).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "rounds.csv, line 1: expected a column `paper_bits`, found `round,loss`"
        );
        assert!(parse_rounds(Path::new("rounds.csv"), "", false).is_err());
    }

    #[test]
    fn a_cut_last_line_is_left_out_of_an_interrupted_run_only() {
        let body = "0,0,0,0,1,1,1,,\n10,64,8,8,0.5,0.5,0.7,0.8";
        assert_eq!(parse(body, true).unwrap().len(), 1);
        assert!(parse(body, false).is_err());
        assert!(parse("", true).unwrap().is_empty());
    }

    #[test]
    fn toml_and_json_faults_have_a_place() {
        let toml = check_toml(Path::new("config.toml"), "[data]\nsource = \"é\" x\n").unwrap_err();
        assert!(
            toml.to_string()
                .starts_with("config.toml, line 2, column 14: "),
            "{toml}"
        );
        let json = parse_summary(Path::new("summary.json"), "{\"a\": 1,\n  b}").unwrap_err();
        assert_eq!(
            json.to_string(),
            "summary.json, line 2, column 3: key must be a string"
        );
        let list = parse_summary(Path::new("summary.json"), "[]").unwrap_err();
        assert_eq!(
            list.to_string(),
            "summary.json: expected a JSON object, found a list"
        );
    }
}
