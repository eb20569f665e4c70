//! What a run looks like to people: one self-contained `report.html`, and static figures.
//!
//! Everything here is built from the three files of a run directory (`config.toml`, `rounds.csv`,
//! `summary.json`) and from nothing else, so a report can be rebuilt at any time and sent alone:
//! the page loads nothing, its styles, its scripts and its data are inside it. Whatever comes from
//! a file is escaped before it becomes part of a page or a figure; a page's size is bounded,
//! because long runs are thinned to [`MAX_POINTS`] rows (extremes and the last row stay).
//!
//! - [`RunFiles::read`] reads a run; its errors name file, line and column.
//! - [`html`] writes the page: headline numbers, interactive charts of what was measured, what is
//!   claimed, the set-up.
//! - [`svg`] writes the same curves as a static figure for documents.
//! - [`Figure`] draws any curves with mean and spread, for comparisons and for the accountant.

mod charts;
mod claim;
mod decimate;
mod figure;
mod files;
mod page;
mod png;
mod quality;
mod setup;
mod study_page;
mod svg;
mod text;
mod ticks;

pub use charts::MAX_POINTS;
pub use figure::{Figure, Panel, Series};
pub use files::{ReportError, Row, RunFiles};
pub use png::PictureError;
pub use study_page::{Part, StudyPage, Table};

/// The report of a run: one HTML file that needs nothing beside it.
pub fn html(run: &RunFiles) -> String {
    page::html(run)
}

/// What a run claims about privacy, in a few sentences without markup; or that, and why, it claims
/// nothing.
pub fn statement(run: &RunFiles) -> String {
    claim::statement(run)
}

/// The curves of a run as one static SVG figure: utility, loss, test accuracy and epsilon, as far
/// as the run has them.
pub fn svg(run: &RunFiles) -> String {
    charts::figure(run).to_svg()
}
