//! `soteria schema`: what the columns of a table mean, drafted from a file and checked against one.

use std::path::PathBuf;

use serde_json::json;
use soteriafl::schema_text;
use soteriafl::words::counted;
use soteriafl_data::Source;
use soteriafl_data::schema::{Checked, Role};

use super::{Failure, Verbosity, print, print_json};

/// Describe the columns of a table: draft a schema, or check a file against one
///
/// A schema says of every column whether the model sees it, what can stand in it (a number with its
/// range, one of some values, yes or no, a date), and what a gap becomes. Name it by data.schema,
/// or write it under `[schema]` in the configuration.
#[derive(clap::Args, Debug)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Propose a schema from what stands in a table
    ///
    /// The draft says that its ranges were read from records: a run with it claims nothing until a
    /// person has looked at every column and written `ranges = "public"`. Its comments quote the
    /// records; they are for the owner of the table.
    Draft {
        /// A table as in `data.source`; csv:PATH?label=NAME says which column is predicted
        #[arg(value_name = "SPEC")]
        data: Source,
        /// Where to write it [default: stdout]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Overwrite the file
        #[arg(long)]
        force: bool,
    },
    /// Say what in a table does not fit a schema, everything at once
    Check {
        /// A table as in `data.source`
        #[arg(value_name = "SPEC")]
        data: Source,
        /// The schema
        #[arg(long, value_name = "FILE")]
        schema: PathBuf,
        /// The table need not have labels, as one for `soteria predict`
        #[arg(long)]
        unlabelled: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// When the table or the schema cannot be read, or do not fit each other.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    match &options.action {
        Action::Draft { data, out, force } => draft(data, out.as_ref(), *force, verbosity),
        Action::Check {
            data,
            schema,
            unlabelled,
            json,
        } => check(data, schema, !unlabelled, *json, verbosity),
    }
}

fn draft(
    data: &Source,
    out: Option<&PathBuf>,
    force: bool,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    if let Some(path) = out.filter(|path| path.exists() && !force) {
        return Err(Failure::Usage {
            message: format!("{} exists", path.display()),
            hint: Some("give another --out, or --force to overwrite".to_owned()),
        });
    }
    let draft = data.draft_schema()?;
    let schema = draft.schema().map_err(|error| Failure::Usage {
        message: format!("{data}: {error}"),
        hint: Some(
            "the columns that could be features look like identifiers, or have one value only"
                .to_owned(),
        ),
    })?;
    let text = schema_text::draft(&draft, &schema, &data.to_string());
    let Some(path) = out else {
        return print(&text);
    };
    soteriafl::output::write_whole(path, text.as_bytes()).map_err(Failure::at(path))?;
    let ignored: Vec<&str> = draft
        .columns
        .iter()
        .filter(|seen| seen.column.role == Role::Ignored)
        .map(|seen| &*seen.column.name)
        .collect();
    let file = path.display();
    verbosity.say(format!(
        "wrote {file}: {}, which make {}; label {}",
        counted(draft.columns.len(), "column"),
        counted(schema.features().len(), "feature"),
        schema.label(),
    ));
    if !ignored.is_empty() {
        verbosity.say(format!(
            "ignored, unless you say otherwise: {}",
            ignored.join(", ")
        ));
    }
    verbosity.say(format!(
        "its ranges were read from the records: look at every column, then say \
         ranges = \"public\" in {file}; until then a run with it claims nothing"
    ));
    Ok(())
}

fn check(
    data: &Source,
    path: &PathBuf,
    labelled: bool,
    json: bool,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let schema = schema_text::from_file(path)?;
    let checked = data.check_schema(&schema, labelled)?;
    let faults: Vec<String> = checked.iter().flat_map(Checked::lines).collect();
    let rows: u64 = checked.iter().map(|file| file.rows).sum();
    let adjustments = checked.iter().flat_map(|file| &file.adjustments);
    let adjustments: Vec<String> = adjustments.map(ToString::to_string).collect();
    if json {
        print_json(&json!({
            "data": data.to_string(),
            "schema": path,
            "fits": faults.is_empty(),
            "rows": rows,
            "faults": faults,
            "adjustments": adjustments,
        }))?;
    }
    if !faults.is_empty() {
        let mut advice: Vec<String> = checked.iter().flat_map(Checked::advice).collect();
        advice.dedup();
        return Err(Failure::usage(faults.join("\nerror: ")).with_hints(advice));
    }
    if json {
        return Ok(());
    }
    for adjustment in &adjustments {
        verbosity.say(adjustment);
    }
    print(&format!(
        "{data} fits {}: {}, {}\n",
        path.display(),
        counted(rows, "row"),
        counted(schema.features().len(), "feature"),
    ))
}
