//! What a run costs, in words: for the owner of the records, before anything has left.

use soteriafl::specification::neighbours;
use soteriafl::words::{counted, readable};
use soteriafl_accountant::{Adjacency, round_up};

use super::{Cost, Judged, UNKNOWN_BITS, epsilon_text, strict_limit};
use crate::description::Description;
use crate::{hex, shortened};

impl Cost<'_> {
    /// For people: what the run is, what it costs, what was spent before, and how that compares
    /// with the limits.
    pub fn lines(&self, description: &Description) -> Vec<String> {
        let Cost { run, limits, .. } = self;
        let price = &run.price;
        let mut lines = vec![format!(
            "run {}: {} with {}, client {} of {}, {}, {}",
            &hex(&run.hash)[..16],
            description.resolved.algorithm(),
            counted(description.dimension() as u64, "parameter"),
            run.client,
            description.resolved.clients,
            counted(price.records, "record"),
            counted(price.messages(), "message"),
        )];
        let beside = if price.adjacency == Adjacency::ZeroOut {
            let replaced = price
                .cost(Adjacency::ReplaceOne, price.delta)
                .unwrap_or(None);
            format!("; {} replace-one", epsilon_text(replaced))
        } else {
            String::new()
        };
        lines.push(format!(
            "this run costs {} at delta {}, {}{beside} (claim: {})",
            epsilon_text(price.epsilon),
            readable(price.delta),
            neighbours(price.adjacency, price.records_per_person),
            price.claim
        ));
        if let Some(column) = description.person_column() {
            lines.push(format!(
                "the run takes the column \"{}\" for the name of a person: what is claimed is about \
                 whom it names",
                shortened(column)
            ));
        }
        if run.messages > 0 {
            lines.push(format!(
                "this run goes on: {} of its {} were made, and all of them are counted",
                run.messages,
                counted(price.messages(), "message")
            ));
        }
        lines.push(match self.before.runs {
            0 => "before this run nothing was spent".to_string(),
            count => format!(
                "before this run {} spent {} at delta {}, {}",
                counted(count, "run"),
                epsilon_text(self.before.epsilon),
                readable(self.before.delta),
                neighbours(self.before.adjacency, self.before.records_per_person)
            ),
        });
        let allowed = |limit: Option<f64>| {
            limit.map_or(String::new(), |limit| {
                format!(" (limit {})", readable(round_up(limit, 4)))
            })
        };
        let Judged { spent, strict, .. } = &self.total;
        lines.push(format!(
            "with all of this run {} at delta {}{}, {} at delta {}{}, {}",
            epsilon_text(spent.epsilon),
            readable(spent.delta),
            allowed(limits.epsilon),
            epsilon_text(strict.epsilon),
            readable(strict.delta),
            allowed(limits.epsilon.map(strict_limit)),
            neighbours(spent.adjacency, spent.records_per_person),
        ));
        if self.counted.is_known() {
            lines.push(format!(
                "of {} in all the server is expected to read at most {} exactly{}, \
                 if it lacks {UNKNOWN_BITS} bits of each",
                self.total.records,
                self.total.read_in_words(),
                limits.epsilon.map_or(String::new(), |_| {
                    format!(" (limit {})", readable(limits.most_read()))
                }),
            ));
        }
        lines
    }
}
