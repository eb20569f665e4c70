//! What a run claims about privacy, in plain language.
//!
//! The numbers are the summary's own; this module only says what they mean. Epsilon and delta are
//! rounded up where they are written, so that a page never promises more than the accountant did.

use super::files::RunFiles;
use super::setup::{Settings, facts, number_at, numbers_at, range, text_at};
use super::text::{self, append, escape};
use crate::claim::START_IS_PUBLIC;
use soteriafl_accountant::round_up;

/// What the summary says about privacy.
pub(super) struct Claim<'a> {
    /// Epsilon, where the run has one.
    pub(super) epsilon: Option<f64>,
    /// Delta, where the run has one.
    pub(super) delta: Option<f64>,
    /// The neighbouring relation as the summary names it.
    pub(super) adjacency: Option<&'a str>,
    /// How many records of one person are meant.
    person: u32,
    /// The column that says whose each record is.
    column: Option<&'a str>,
    /// Why there is no claim; none for a proved one.
    reason: Option<&'a str>,
}

impl Claim<'_> {
    pub(super) fn of(run: &RunFiles) -> Claim<'_> {
        let epsilon =
            number_at(run, "/privacy/epsilon").filter(|value| value.is_finite() && *value >= 0.0);
        let delta = number_at(run, "/privacy/delta").filter(|value| (0.0..=1.0).contains(value));
        let reason = match text_at(run, "/privacy/claim") {
            // A proof of nothing in particular is no claim.
            Some("proved") if epsilon.is_some() && delta.is_some() => None,
            Some("proved") => Some("no epsilon and delta"),
            Some(reason) => Some(reason),
            None => Some("not stated"),
        };
        Claim {
            epsilon,
            delta,
            adjacency: text_at(run, "/privacy/adjacency"),
            person: number_at(run, "/privacy/records_per_person").map_or(1, |most| most as u32),
            column: text_at(run, "/privacy/person_column"),
            reason,
        }
    }

    /// The claim in a word or two: green when it is proved, amber with the reason when it is not.
    pub(super) fn badge(&self) -> String {
        match self.reason {
            None => "<span class=\"badge proved\">proved</span>".to_owned(),
            Some(reason) => format!(
                "<span class=\"badge unproved\">no claim: {}</span>",
                escape(reason)
            ),
        }
    }

    /// `δ = 10⁻⁵, replace-one`.
    pub(super) fn terms(&self) -> String {
        let delta = self
            .delta
            .map(|delta| format!("δ = {}", text::number_rounded_up(delta, 3)));
        let persons = match self.column {
            Some(column) => Some(format!("persons by {}", escape(column))),
            None => (self.person > 1).then(|| format!("up to {} records each", self.person)),
        };
        let parts: Vec<String> = delta
            .into_iter()
            .chain(self.adjacency.map(escape))
            .chain(persons)
            .collect();
        parts.join(", ")
    }

    fn prose(&self, deployed: bool) -> String {
        match (self.reason, self.epsilon, self.delta) {
            (None, Some(epsilon), Some(delta)) => self.meaning(epsilon, delta, deployed),
            (reason, ..) => {
                let reason = reason.unwrap_or("no delta");
                format!(
                    "<p><strong>This run makes no privacy claim</strong> ({}). {}</p>\n\
                     <p>Whatever noise was added, nothing in this report should be read as a \
                     bound on what the messages reveal.</p>\n",
                    escape(reason),
                    explanation(reason)
                )
            }
        }
    }

    fn meaning(&self, epsilon: f64, delta: f64, deployed: bool) -> String {
        let bounded = self.column.is_some();
        let (pair, exchange) = match (self.adjacency, self.person) {
            (Some("replace-one"), _) if bounded => (
                "replace-one",
                "is exchanged for anything else about them, or about somebody who is not there",
            ),
            (Some("zero-out"), _) if bounded => {
                ("zero-out", "is left out and they are counted all the same")
            }
            (Some("replace-one"), 1) => ("replace-one", "is exchanged for any other record"),
            (Some("zero-out"), 1) => (
                "zero-out",
                "is replaced by an empty record that contributes nothing",
            ),
            (Some("replace-one"), _) => ("replace-one", "are exchanged for any other records"),
            (Some("zero-out"), _) => (
                "zero-out",
                "are replaced by empty records that contribute nothing",
            ),
            (Some(other), _) => (other, "is changed as that relation allows"),
            (None, _) => ("unnamed", "is changed"),
        };
        let (who, others) = match (self.column, self.person) {
            (Some(column), most) => (
                format!(
                    "everything that one client has about one person, named by its column \
                     <code>{}</code> (of which {most} at most is used),",
                    escape(column)
                ),
                "person's records",
            ),
            (None, 1) => ("one record of one client".to_owned(), "record"),
            (None, most) => (
                format!("all records of one person at one client, {most} at most,"),
                "person's records",
            ),
        };
        let held = if self.person == 1 && !bounded {
            "record"
        } else {
            "person whose records are"
        };
        // The two error rates of any test obey a + e^eps b >= 1 - delta both ways, so their sum is
        // at least 2 (1 - delta) / (1 + e^eps). The form below does not overflow.
        let guess = 1.0 - (1.0 - delta) * (-epsilon).exp() / (1.0 + (-epsilon).exp());
        let guess = (guess * 1000.0 - 1e-9).ceil() / 10.0;
        // A server cannot know whether two clients hold the same record.
        let clients = if deployed {
            "Clients are accounted one by one"
        } else {
            "Clients hold disjoint records and are accounted one by one"
        };
        format!(
            "<p>Each client's messages are (ε, δ)-differentially private with <strong>ε = \
             {}</strong> and <strong>δ = {}</strong> under <strong>{}</strong> adjacency: if {who} \
             {exchange}, the probability of anything that can be concluded \
             from all the messages this client sends in the whole run grows by a factor of at \
             most <span class=\"formula\">e<sup>ε</sup> = {}</span>, plus δ.</p>\n\
             <p>Put as a game: somebody who knows every other {others}, sees every message and \
             every model, and has to tell which of two such candidates was used, is right in at \
             most <strong>{guess}&#8239;%</strong> of the cases. A blind guess is right in \
             50&#8239;%.</p>\n\
             <p>The number is the largest over the clients. {clients}; a {held} held by several \
             clients, or used in several runs with independent randomness, costs at most the sum \
             of what each spends. How many records a client has, how many features and classes \
             there are, and how records were dealt to clients counts as public. So does the start \
             of the model: {START_IS_PUBLIC}.</p>\n",
            text::number_rounded_up(epsilon, 4),
            text::number_rounded_up(delta, 3),
            escape(pair),
            text::number_rounded_up(epsilon.exp(), 3),
        )
    }
}

/// The claim without markup, with what it presumes.
pub(super) fn statement(run: &RunFiles) -> String {
    let claim = Claim::of(run);
    let (Some(epsilon), Some(delta), None) = (claim.epsilon, claim.delta, claim.reason) else {
        let reason = claim.reason.unwrap_or("no delta");
        let text = format!("No privacy claim: {reason}. {}", explanation(reason));
        return text.trim_end().to_owned();
    };
    let whom = match (claim.column, claim.person) {
        (Some(column), most) => format!(
            "everything that the client has about one person, named by its column \"{column}\" (of \
             which {most} at most is used),"
        ),
        (None, 1) => "one record of the client".to_owned(),
        (None, most) => format!("all records of one person at the client, {most} at most,"),
    };
    let exchange = match (claim.adjacency, claim.person) {
        (Some("replace-one"), _) if claim.column.is_some() => {
            "exchanged for anything else about them, or about somebody who is not there"
        }
        (Some("zero-out"), _) if claim.column.is_some() => {
            "left out, while they are counted all the same"
        }
        (Some("replace-one"), 1) => "exchanged for any other",
        (Some("replace-one"), _) => "exchanged for any others",
        (Some("zero-out"), 1) => "replaced by one that contributes nothing",
        (Some("zero-out"), _) => "replaced by some that contribute nothing",
        _ => "changed as that relation says",
    };
    let randomness = match (run.deployed(), text_at(run, "/privacy/noise")) {
        (true, _) => "The randomness was each client's own.",
        (false, Some("secure")) => {
            "This is a simulation: the claim speaks of the same mechanism with secret seeds."
        }
        (false, _) => {
            "This is a simulation: the claim speaks of the same mechanism with ideal Gaussian \
             noise, ideal coins and secret seeds."
        }
    };
    let epsilon = round_up(epsilon, 4);
    let delta = round_up(delta, 3);
    format!(
        "Each client's messages in the whole run are (epsilon, delta)-differentially private \
         with epsilon {epsilon} and delta {delta:e} under {} adjacency: {whom} {exchange}. {randomness} \
         Numbers of records, features and classes, and which client has how many, count as \
         public; {START_IS_PUBLIC}.",
        claim.adjacency.unwrap_or("unnamed"),
    )
}

/// What stands behind the reasons that the program gives.
fn explanation(reason: &str) -> &'static str {
    let known = [
        (
            "paper",
            "The noise follows the paper's formula; for the mechanism that ran, no proof says \
             which epsilon that gives.",
        ),
        ("no noise", "Messages were sent without noise."),
        (
            "scaling",
            "Features were scaled by constants computed from the records themselves, and no \
             accounting covers that use of them.",
        ),
        (
            "step size",
            "The step size was computed from the records or chosen by what they gave, and no \
             accounting covers that use of them.",
        ),
        (
            "estimate",
            "Each client's whole estimate was clipped instead of each record's gradient, so the \
             influence of one record is not bounded as the accounting needs.",
        ),
        (
            "replacement",
            "Records were drawn with replacement, which the accounting does not cover.",
        ),
        (
            "ranges were read",
            "What the schema cuts off and scales by was read from the records themselves, and no \
             accounting covers that use of them.",
        ),
        (
            "too little noise",
            "The noise is so small that no bound worth the name follows.",
        ),
        (
            "trusted aggregation",
            "The noise hides the average of all clients only. Each client has a part of it: a single \
             client's message is nearly unprotected against whoever sees it.",
        ),
        (
            "seed",
            "The randomness came from a known seed, so noise can be computed and subtracted.",
        ),
    ];
    known
        .iter()
        .find(|(part, _)| reason.contains(part))
        .map_or("", |(_, text)| text)
}

fn noise(run: &RunFiles) -> String {
    let kind = text_at(run, "/privacy/noise").unwrap_or_default();
    let mut text = String::new();
    if kind.contains("secure") {
        text += "<p>The noise is <strong>secure</strong>: drawn on a grid, by a method whose \
                 result does not carry the traces that floating-point noise leaves.</p>\n";
    }
    if run.deployed() {
        text += "<p>This was a <strong>deployment</strong>: each client drew its noise and coins \
                 from its own operating system, for one message each, and said nothing about its \
                 records but these messages and how many there are. This report is the server's \
                 and cannot look into a client: what a client's records have spent, in this run \
                 and in others, stands in its own ledger (<code>soteria ledger</code>).</p>\n";
    } else if kind != "none" && run.summary.get("seed").is_some_and(|seed| !seed.is_null()) {
        let arithmetic = if kind.contains("secure") {
            ""
        } else {
            "ideal Gaussian noise, ideal coins and "
        };
        text += &format!(
            "<p>This is a <strong>simulation</strong>: the claim speaks of the mechanism with \
             {arithmetic}secret seeds. The randomness here comes from a seed that stands in the \
             configuration, so the claim says what a deployment of this run would promise, not \
             that these very messages are safe to publish.</p>\n"
        );
    }
    text
}

fn amplification(run: &RunFiles) -> Option<String> {
    let amplified = run.summary.pointer("/privacy/amplified")?.as_bool()?;
    let without = number_at(run, "/privacy/epsilon_unamplified")
        .map(|value| text::number_rounded_up(value, 4));
    Some(match (amplified, without) {
        (true, Some(without)) => format!("counted; without it ε = {without}"),
        (true, None) => "counted".to_owned(),
        // Then the two numbers are one.
        (false, _) => "not counted".to_owned(),
    })
}

/// What no epsilon covers.
fn outside(run: &RunFiles) -> &'static str {
    let tested = run.summary.get("test").is_some_and(|test| !test.is_null());
    match (run.deployed(), tested) {
        (false, _) => {
            "<p class=\"caveat\"><strong>Outside every claim:</strong> the metrics in this report \
             (loss, gradient norm, accuracy, clip fractions) are a simulation's privilege. They \
             are computed from the raw records without noise, and no epsilon covers them.</p>\n"
        }
        (true, true) => {
            "<p class=\"caveat\"><strong>Outside every claim:</strong> the records of the \
             server's test set. Test loss and test accuracy are computed from them without noise. \
             Of the clients' records they know what the model knows, which the messages' epsilon \
             covers; nothing was measured at clients.</p>\n"
        }
        (true, false) => {
            "<p class=\"caveat\">Nothing in this report was measured on anybody's records: the \
             server has no test set, and nothing is measured at clients.</p>\n"
        }
    }
}

/// The section that says what is claimed, under which terms, and what stands outside.
pub(super) fn section(run: &RunFiles) -> String {
    let claim = Claim::of(run);
    let mut out = String::from(
        "<section id=\"claim\">\n<h2>What is claimed</h2>\n\
         <div class=\"claim\"><div class=\"prose\">\n",
    );
    out.push_str(&claim.prose(run.deployed()));
    if claim.reason.is_none() {
        out.push_str(&noise(run));
    }
    out.push_str(outside(run));
    out.push_str("</div>\n");
    let sigmas = numbers_at(run, "/privacy/sigmas");
    // Whoever copies it must not get less noise.
    let sigma = |value: f64| text::number_rounded_up(value, 4);
    let spread = range(&sigmas, sigma).filter(|_| sigmas.len() > 1);
    let settings = Settings::of(run);
    let clip =
        settings
            .text("privacy", "clip")
            .map(|clip| match settings.text("privacy", "clip_scope") {
                Some(scope) => format!("{clip} ({scope})"),
                None => clip,
            });
    let list = vec![
        (
            "Epsilon",
            claim
                .epsilon
                .map(|value| text::number_rounded_up(value, 4))
                .or(Some("none".to_owned())),
        ),
        (
            "Delta",
            claim.delta.map(|value| text::number_rounded_up(value, 3)),
        ),
        ("Adjacency", claim.adjacency.map(str::to_owned)),
        (
            "Records of a person",
            (claim.person > 1).then(|| format!("up to {}", claim.person)),
        ),
        (
            "Accountant",
            text_at(run, "/privacy/accountant").map(str::to_owned),
        ),
        ("Random-k amplification", amplification(run)),
        ("Noise", text_at(run, "/privacy/noise").map(str::to_owned)),
        (
            "Noise sigma (largest)",
            number_at(run, "/privacy/sigma").map(sigma),
        ),
        (
            // A server knows bounds; each client computes its own.
            if run.deployed() {
                "Sigma over clients (at most)"
            } else {
                "Sigma over clients"
            },
            spread,
        ),
        ("Clip", clip),
    ];
    let heading = format!("Terms {}", claim.badge());
    append!(&mut out, "{}</div>\n</section>\n", facts(&heading, &list));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Reason;

    fn run(privacy: &str) -> RunFiles {
        let summary = serde_json::from_str(&format!("{{\"privacy\": {privacy}}}")).unwrap();
        RunFiles {
            config: String::new(),
            rounds: Vec::new(),
            summary,
        }
    }

    #[test]
    fn the_guess_bound_is_the_closed_form_rounded_up() {
        let page = section(&run(
            r#"{"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace-one", "claim": "proved"}"#,
        ));
        // (e + 1e-5) / (e + 1) = 0.731061...
        assert!(page.contains("<strong>73.2&#8239;%</strong>"), "{page}");
        assert!(page.contains("<strong>ε = 1</strong>") && page.contains("δ = 10⁻⁵"));
        assert!(
            page.contains("e<sup>ε</sup> = 2.72</span>,")
                && page.contains("exchanged for any other record")
        );
        let zero = section(&run(
            r#"{"epsilon": 0, "delta": 0, "adjacency": "zero-out", "claim": "proved"}"#,
        ));
        assert!(zero.contains("<strong>50&#8239;%</strong>") && zero.contains("empty record"));
        let huge = section(&run(
            r#"{"epsilon": 5000, "delta": 1e-5, "claim": "proved"}"#,
        ));
        assert!(huge.contains("<strong>100&#8239;%</strong>") && huge.contains("= ∞"));
    }

    #[test]
    fn a_claim_about_persons_says_so() {
        let page = section(&run(
            r#"{"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace-one", "claim": "proved", "records_per_person": 3}"#,
        ));
        assert!(
            page.contains("if all records of one person at one client, 3 at most, are exchanged")
        );
        assert!(page.contains("every other person's records") && page.contains("up to 3"));
    }

    /// Where a column says whose each record is, exchanging a record for one of somebody else moves
    /// what is kept of two persons: nothing is claimed about single records.
    #[test]
    fn a_claim_about_whom_a_column_names_is_about_no_record() {
        for adjacency in ["replace-one", "zero-out"] {
            let files = run(&format!(
                r#"{{"epsilon": 1.0, "delta": 1e-5, "adjacency": "{adjacency}", "claim": "proved", "person_column": "<who>"}}"#,
            ));
            let page = section(&files);
            let said = "if everything that one client has about one person, named by its column \
                        <code>&lt;who&gt;</code> (of which 1 at most is used),";
            assert!(page.contains(said), "{page}");
            assert!(!page.contains("one record of one client"), "{page}");
            let text = statement(&files);
            assert!(
                text.contains("column \"<who>\" (of which 1 at most is used)"),
                "{text}"
            );
            assert!(!text.contains("one record of the client"), "{text}");
        }
    }

    /// Every reason of the program comes with what stands behind it.
    #[test]
    fn reasons_are_explained() {
        for reason in Reason::words() {
            let page = section(&run(&format!(
                r#"{{"epsilon": null, "delta": 1e-3, "claim": "{reason}"}}"#
            )));
            assert!(page.contains("no privacy claim"), "{page}");
            assert!(!explanation(reason).is_empty(), "{reason}");
        }
        assert!(explanation("trusted aggregation: only averages are seen").contains("unprotected"));
    }

    #[test]
    fn without_a_proof_there_is_no_meaning() {
        for privacy in [
            r#"{"epsilon": null, "delta": 1e-3, "claim": "paper calibration"}"#,
            r#"{"epsilon": 3.0, "delta": 1e-3, "claim": "data-dependent scaling"}"#,
            r#"{"epsilon": null, "claim": "proved"}"#,
            r#"{"epsilon": "nan", "delta": 1e-3, "claim": "proved"}"#,
            r#"{"epsilon": "inf", "delta": 1e-3, "claim": "proved"}"#,
            r#"{"epsilon": 1, "delta": -1, "claim": "proved"}"#,
            "null",
        ] {
            let page = section(&run(privacy));
            assert!(
                page.contains("makes no privacy claim") && page.contains("badge unproved"),
                "{page}"
            );
            assert!(!page.contains("Put as a game") && !page.contains("badge proved"));
        }
    }

    #[test]
    fn amplification_is_told_with_both_numbers() {
        let page = section(&run(
            r#"{"epsilon": 0.53, "delta": 1e-5, "claim": "proved", "amplified": true, "epsilon_unamplified": 2.1671}"#,
        ));
        assert!(page.contains("counted; without it ε = 2.168"));
        assert!(page.contains("Outside every claim"));
    }
}
