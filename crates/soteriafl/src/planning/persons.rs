//! What it costs to speak of persons: noise and epsilon against the number of records of a person.

use super::Inquiry;
use crate::accounting::{self, PrivacyError};
use crate::report::{Panel, Series};
use crate::specification::{NoiseTarget, Specification};

/// Numbers of records of a person that a plan looks at.
const RECORDS: [u32; 6] = [1, 2, 3, 5, 10, 20];

/// One number of records of a person.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PersonRow {
    /// `K`.
    pub records_per_person: u32,
    /// The noise that meets the target for such persons.
    pub sigma: f64,
    /// What the noise that meets the target for single records gives such persons; `None` where no
    /// accountant can say.
    pub epsilon: Option<f64>,
}

/// The rows as pictures: what single records' noise gives persons, and the noise that they need.
pub fn panels(rows: &[PersonRow]) -> Vec<Panel> {
    if rows.len() < 2 {
        return Vec::new();
    }
    let panel = |title: &str, y_label: &str, value: &dyn Fn(&PersonRow) -> Option<f64>| {
        let points = rows.iter().filter_map(|row| {
            let value = value(row).filter(|value| value.is_finite())?;
            Some((f64::from(row.records_per_person), value))
        });
        Panel {
            title: title.to_string(),
            x_label: "records of a person".to_string(),
            y_label: y_label.to_string(),
            log_x: true,
            log_y: true,
            series: vec![Series::new(title, points.collect())],
        }
    };
    vec![
        panel(
            "with the noise for single records",
            "epsilon of a person",
            &|row| row.epsilon,
        ),
        panel("for the epsilon asked for", "sigma", &|row| Some(row.sigma)),
    ]
}

impl Inquiry {
    /// Noise and epsilon of the configuration against the number of records of a person. Empty
    /// where the configuration's own mechanism is not what is planned for.
    ///
    /// # Errors
    /// When the accountant refuses.
    pub fn persons(&self) -> Result<Vec<PersonRow>, PrivacyError> {
        let run = self.terms.specification();
        // What releases before the rounds cost a person is not a matter of sigma.
        if !run.preliminaries().is_empty() {
            return Ok(Vec::new());
        }
        let (dimension, records) = (self.shape.dimension, &self.shape.records[..]);
        let least = records.iter().copied().min().unwrap_or(0);
        let level = |records_per_person, target| {
            let run = Specification {
                records_per_person,
                target,
                ..run.clone()
            };
            accounting::level(&run, dimension, records)
        };
        let Some(single) = level(1, run.target)? else {
            return Ok(Vec::new());
        };
        let mut rows = Vec::new();
        for records_per_person in RECORDS.into_iter().filter(|most| *most as usize <= least) {
            let Some(noise) = level(records_per_person, run.target)? else {
                break;
            };
            let spent = level(records_per_person, NoiseTarget::Sigma(single.sigma))?;
            rows.push(PersonRow {
                records_per_person,
                sigma: noise.sigma,
                epsilon: spent.map(|spent| spent.epsilon),
            });
        }
        Ok(rows)
    }
}
