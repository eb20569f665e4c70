//! Answers questions from standard input, one per line, with the value and the seconds it took:
//!
//! ```text
//! epsilon zero-out SIGMA ROUNDS DELTA SHIFT:PROBABILITY...
//! calibrate replace-one RATE ROUNDS EPSILON DELTA
//! ```
//!
//! The second form is for Poisson sampling with unit clip over unit batch: sigma is the noise
//! multiplier.

use soteriafl_accountant::{Adjacency, Question, ShiftMixture};
use std::error::Error;
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let start = Instant::now();
        match answer(&words) {
            Ok(value) => println!("{value:e} {:e}", start.elapsed().as_secs_f64()),
            Err(error) => println!("error: {error}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn answer(words: &[&str]) -> Result<f64, Box<dyn Error>> {
    let [question, adjacency, first, rounds, third, rest @ ..] = words else {
        return Err("too few words".into());
    };
    let adjacency: Adjacency = adjacency.parse()?;
    let (first, rounds, third): (f64, u64, f64) = (first.parse()?, rounds.parse()?, third.parse()?);
    match *question {
        "epsilon" => {
            let (mut shifts, mut probabilities) = (Vec::new(), Vec::new());
            for part in rest {
                let (shift, probability) = part.split_once(':').ok_or("shift:probability")?;
                shifts.push(shift.parse()?);
                probabilities.push(probability.parse()?);
            }
            let shifts = ShiftMixture::new(&shifts, &probabilities)?;
            let question = Question::new(shifts, rounds, third, adjacency);
            Ok(question.cost(first)?.epsilon)
        }
        "calibrate" => {
            let delta = rest.first().ok_or("delta is missing")?.parse()?;
            let shifts = ShiftMixture::new(&[0.0, 1.0], &[1.0 - first, first])?;
            let question = Question::new(shifts, rounds, delta, adjacency);
            Ok(question.calibrate(third)?.sigma)
        }
        other => Err(format!("no question {other}").into()),
    }
}
