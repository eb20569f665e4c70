//! A page that tells of many runs: prose, tables, and figures whose curves can be hovered, hidden
//! and put on logarithmic axes. One file that loads nothing, like a run's report, with whose styles
//! it is written.

use serde_json::{Value, json};

use super::decimate;
use super::figure::{Figure, Panel, Series};
use super::page::{CREDIT, Shell};
use super::text::{append, escape};

const PAGE_STYLE: &str = include_str!("../../assets/study_page.css");
const PAGE_SCRIPT: &str = include_str!("../../assets/study_page.js");

/// Points of a curve that a page holds at most.
const POINTS: usize = 500;

/// A page.
#[derive(Clone, Debug, Default)]
pub struct StudyPage {
    /// A few words above the title.
    pub kicker: String,
    /// The title.
    pub title: String,
    /// A line below it.
    pub subtitle: String,
    /// The numbers to see first: name, value, a line below.
    pub cards: Vec<(String, String, String)>,
    /// The rest, from top to bottom.
    pub parts: Vec<Part>,
}

/// A piece of a page.
#[derive(Clone, Debug)]
pub enum Part {
    /// Opens a section with a heading.
    Heading(String),
    /// A paragraph of plain text.
    Text(String),
    /// A smaller heading.
    Subheading(String),
    /// A remark in small print.
    Note(String),
    /// A table.
    Table(Table),
    /// An interactive figure; groups that are not named are hidden until asked for.
    Figure {
        /// The curves.
        figure: Box<Figure>,
        /// Which groups of curves are shown first; all if empty.
        shown: Vec<String>,
    },
    /// Text as it was typed.
    Code(String),
}

/// A table of plain text.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The head.
    pub columns: Vec<String>,
    /// The rows; a cell that starts with `+` or `-` followed by a space becomes a badge that says
    /// good or bad.
    pub rows: Vec<Vec<String>>,
}

impl StudyPage {
    /// The page as one HTML file.
    pub fn to_html(&self) -> String {
        let mut out = format!(
            "<header>\n<p class=\"kicker\">{}</p>\n<h1>{}</h1>\n\
             <p class=\"subtitle\">{}</p>\n</header>\n",
            escape(&self.kicker),
            escape(&self.title),
            escape(&self.subtitle)
        );
        self.write_cards(&mut out);
        let mut figures = Vec::new();
        let mut open = false;
        for part in &self.parts {
            if let Part::Heading(text) = part {
                out.push_str(if open { "</section>\n" } else { "" });
                let heading = escape(text);
                append!(&mut out, "<section>\n<h2>{heading}</h2>\n");
                open = true;
            } else {
                part.write(&mut out, &mut figures);
            }
        }
        out.push_str(if open { "</section>\n" } else { "" });
        out.push_str(CREDIT);
        Shell {
            title: &self.title,
            style: PAGE_STYLE,
            hidden: ".charts, .keys",
            data: ("story-data", &Value::Array(figures)),
            script: PAGE_SCRIPT,
        }
        .around(&out)
    }

    fn write_cards(&self, out: &mut String) {
        if self.cards.is_empty() {
            return;
        }
        out.push_str("<section class=\"cards\" aria-label=\"Headline numbers\">\n");
        for (name, value, line) in &self.cards {
            append!(
                out,
                "<div class=\"card\"><h2>{}</h2><div class=\"value\">{}</div><p>{}</p></div>\n",
                escape(name),
                escape(value),
                escape(line)
            );
        }
        out.push_str("</section>\n");
    }
}

impl Part {
    /// Opens a section.
    pub fn heading(text: impl Into<String>) -> Self {
        Part::Heading(text.into())
    }

    /// A paragraph.
    pub fn text(text: impl Into<String>) -> Self {
        Part::Text(text.into())
    }

    /// Small print.
    pub fn note(text: impl Into<String>) -> Self {
        Part::Note(text.into())
    }

    /// A figure of which these groups of curves are shown first; all if there are none.
    pub fn figure(figure: Figure, shown: &[&str]) -> Self {
        Part::Figure {
            figure: Box::new(figure),
            shown: shown.iter().map(ToString::to_string).collect(),
        }
    }

    fn write(&self, out: &mut String, figures: &mut Vec<Value>) {
        let mut element = |open: &str, text: &str, close: &str| {
            append!(out, "{open}{}{close}\n", escape(text));
        };
        match self {
            Part::Heading(_) => {}
            Part::Text(text) => element("<p class=\"prose\">", text, "</p>"),
            Part::Subheading(text) => element("<h3>", text, "</h3>"),
            Part::Note(text) => element("<p class=\"note\">", text, "</p>"),
            Part::Code(text) => element("<pre><code>", text, "</code></pre>"),
            Part::Table(table) => table.write(out),
            Part::Figure { figure, shown } => {
                write_figure(out, figure, figures.len());
                figures.push(data(figure, shown));
            }
        }
    }
}

impl Table {
    /// A table whose head is given as names between bars: `algorithm|rounds`.
    pub fn new(columns: &str, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self {
            columns: columns.split('|').map(str::to_string).collect(),
            rows: rows.into_iter().collect(),
        }
    }

    /// The table for a document.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells
                .iter()
                .map(|cell| bare(cell).replace('|', "\\|"))
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out = line(&self.columns);
        out += &line(&vec!["---".to_string(); self.columns.len()]);
        out.extend(self.rows.iter().map(|row| line(row)));
        out
    }

    /// The table for a terminal: columns as wide as they need to be, badges as their words.
    pub fn to_text(&self) -> String {
        let rows: Vec<Vec<String>> = std::iter::once(&self.columns)
            .chain(&self.rows)
            .map(|row| row.iter().map(|cell| bare(cell).to_string()).collect())
            .collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let gap = width - cell.chars().count().min(*width) + 2;
                line += cell;
                line.extend(std::iter::repeat_n(' ', gap));
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }

    fn write(&self, out: &mut String) {
        out.push_str("<div class=\"scroll\"><table class=\"numbers\">\n<thead><tr>");
        for column in &self.columns {
            append!(out, "<th>{}</th>", escape(column));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for cell in row {
                let badge = cell
                    .strip_prefix("+ ")
                    .map(|text| ("proved", text))
                    .or_else(|| cell.strip_prefix("- ").map(|text| ("unproved", text)));
                match badge {
                    Some((class, text)) => append!(
                        out,
                        "<td><span class=\"badge {class}\">{}</span></td>",
                        escape(text)
                    ),
                    None => append!(out, "<td>{}</td>", escape(cell)),
                }
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
    }
}

/// A cell without the mark of its badge.
fn bare(cell: &str) -> &str {
    let inside = cell.strip_prefix("+ ").or_else(|| cell.strip_prefix("- "));
    inside.unwrap_or(cell)
}

/// Frames that the script fills, and the static figure for readers without one.
fn write_figure(out: &mut String, figure: &Figure, index: usize) {
    append!(
        out,
        "<div class=\"story-figure\" data-figure=\"{index}\">\n<div class=\"keys\"></div>\n\
         <div class=\"charts\">\n"
    );
    for panel in &figure.panels {
        append!(
            out,
            "<figure class=\"chart\"><figcaption><div><h3>{}</h3></div><div class=\"switches\">\
             <button type=\"button\" data-log=\"x\" aria-pressed=\"{}\" title=\"logarithmic \
             horizontal axis\">log x</button>\
             <button type=\"button\" data-log=\"y\" aria-pressed=\"{}\" title=\"logarithmic \
             vertical axis\">log y</button>\
             </div></figcaption><div class=\"plot\"></div></figure>\n",
            escape(&panel.title),
            panel.log_x,
            panel.log_y
        );
    }
    append!(
        out,
        "</div>\n<noscript><div class=\"static\">{}</div></noscript>\n</div>\n",
        figure.to_svg()
    );
}

fn data(figure: &Figure, shown: &[String]) -> Value {
    let panels: Vec<Value> = figure.panels.iter().map(panel_data).collect();
    json!({ "panels": panels, "shown": shown })
}

fn panel_data(panel: &Panel) -> Value {
    let series: Vec<Value> = panel.series.iter().map(series_data).collect();
    json!({ "x": panel.x_label, "title": panel.title, "series": series })
}

fn series_data(series: &Series) -> Value {
    let kept = decimate::keep(series.points.len(), POINTS, &[&|at| series.points[at].1]);
    // Six digits are more than a screen shows, and keep the page small.
    let short = |value: f64| -> Value {
        if value.is_finite() {
            json!(format!("{value:.5e}").parse::<f64>().unwrap_or(value))
        } else {
            Value::Null
        }
    };
    let column = |value: &dyn Fn(usize) -> f64| -> Vec<Value> {
        kept.iter().map(|at| short(value(*at))).collect()
    };
    let band = series.band.as_ref();
    json!({
        "label": series.label,
        "group": series.group,
        "color": series.color,
        "dashed": series.dashed,
        "bold": series.bold,
        "x": kept.iter().map(|at| json!(series.points[*at].0)).collect::<Vec<_>>(),
        "y": column(&|at| series.points[at].1),
        "low": band.map(|band| column(&|at| band[at].0)),
        "high": band.map(|band| column(&|at| band[at].1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            columns: vec!["name".to_owned(), "verdict".to_owned()],
            rows: vec![
                vec!["a|b".to_owned(), "+ good".to_owned()],
                vec!["longer ±".to_owned(), "- bad".to_owned()],
            ],
        }
    }

    #[test]
    fn tables_for_terminals_and_documents() {
        assert_eq!(
            table().to_text(),
            "name      verdict\na|b       good\nlonger ±  bad\n"
        );
        assert_eq!(
            table().to_markdown(),
            "| name | verdict |\n| --- | --- |\n| a\\|b | good |\n| longer ± | bad |\n"
        );
    }

    /// Nothing that comes from outside can end a tag, a script or an attribute, and the page loads
    /// nothing.
    #[test]
    fn foreign_text_stays_text() {
        let hostile = "</script><script>alert(1)</script>\"'&";
        let series = Series {
            band: Some(vec![(f64::NAN, 1.0), (0.0, f64::INFINITY)]),
            group: hostile.to_owned(),
            ..Series::new(hostile, vec![(0.0, f64::NAN), (1.0, 2.0)])
        };
        let figure = Figure {
            title: hostile.to_owned(),
            panels: vec![Panel {
                title: hostile.to_owned(),
                x_label: hostile.to_owned(),
                series: vec![series],
                ..Panel::default()
            }],
        };
        let text = || hostile.to_owned();
        let page = StudyPage {
            kicker: text(),
            title: text(),
            subtitle: text(),
            cards: vec![(text(), text(), text())],
            parts: vec![
                Part::Heading(text()),
                Part::Text(text()),
                Part::Subheading(text()),
                Part::Note(text()),
                Part::Code(text()),
                Part::Table(Table {
                    columns: vec![text()],
                    rows: vec![vec![text()], vec![format!("+ {hostile}")]],
                }),
                Part::Figure {
                    figure: Box::new(figure),
                    shown: vec![text()],
                },
            ],
        }
        .to_html();
        assert!(!page.contains("<script>alert"));
        // The data, uPlot, the axes and the charts.
        assert_eq!(page.matches("</script>").count(), 4);
        assert_eq!(
            page.matches("<section").count(),
            page.matches("</section>").count()
        );
        assert!(!page.contains("src=") && !page.contains("<link"));
    }
}
