//! `soteria audit --ledger`: a client's own books.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;
use soteriafl::words::{counted, readable};
use soteriafl_accountant::round_up;
use soteriafl_deploy::books::{Books, BooksError, RunBooks};
use soteriafl_deploy::sqlite::ClientSqlite;

use super::super::{Failure, print, print_json};

/// Looks at the books of a state directory, and fails if they do not agree.
pub(super) fn run(state: &Path, as_json: bool) -> Result<(), Failure> {
    let books = Books::of(&mut ClientSqlite::open_to_read(state)?)?;
    let agree = books.agree();
    if as_json {
        let verdict = if agree { "agree" } else { "disagree" };
        print_json(&json!({
            "verdict": verdict,
            "runs": books.runs,
            "disagreements": books.disagreements,
        }))?;
    } else {
        print(&text(&books))?;
    }
    match agree {
        true => Ok(()),
        false => Err(Failure::failed("the books do not agree")),
    }
}

fn text(books: &Books) -> String {
    let mut text = String::new();
    for run in &books.runs {
        let _ = writeln!(
            text,
            "run {}  client {}  {}  {} of {} paid for, {} kept and {} of them read",
            &run.run[..16],
            run.client,
            counted(run.records, "record"),
            run.messages,
            counted(run.paid, "message"),
            run.kept,
            run.decoded,
        );
        let _ = writeln!(text, "  {}", cost(run));
        for found in &run.disagreements {
            let _ = writeln!(text, "  {}", found.what);
        }
    }
    for found in &books.disagreements {
        let _ = writeln!(text, "{}", found.what);
    }
    text.push_str(match (books.agree(), books.runs.is_empty()) {
        (true, true) => "no runs yet\n",
        (true, false) => "every message was charged for as the descriptions ask\n",
        (false, _) => "the books do not agree\n",
    });
    text
}

fn cost(run: &RunBooks) -> String {
    let epsilon = |epsilon: Option<f64>| match epsilon {
        Some(epsilon) if epsilon.is_finite() => {
            format!("epsilon {}", readable(round_up(epsilon, 4)))
        }
        Some(_) => "epsilon beyond any accountant".to_string(),
        None => "no epsilon".to_string(),
    };
    format!(
        "charged {}, computed {}, at delta {}",
        epsilon(run.charged_epsilon),
        epsilon(run.computed_epsilon),
        readable(run.delta)
    )
}

impl From<BooksError> for Failure {
    fn from(error: BooksError) -> Self {
        match error {
            BooksError::Store(error) => error.into(),
            error => Failure::failed(error.to_string()),
        }
    }
}
