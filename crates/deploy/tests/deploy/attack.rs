//! What a server may offer, and two attacks on what a client would send then: how many records they
//! find, computed without the accountant.

use soteriafl::config::{Config, Document};
use soteriafl::problem::Preparation;
use soteriafl::record_shape::RecordShape;
use soteriafl_deploy::budget::{Priced, Refusal, Sent, check_claim, price};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::store::LedgerRun;

/// A run of which no message exists.
pub fn ledger_run(price: Priced) -> LedgerRun {
    LedgerRun {
        hash: [1; 32],
        description: String::new(),
        client: 0,
        data: [1; 32],
        part: None,
        price,
        messages: 0,
        finished: false,
    }
}

/// What some server describes, as a client with `records` records of 40 features reads it.
pub fn describe(records: usize, settings: &[String]) -> Description {
    let text = "[data]\nsource = \"libsvm:d.txt\"\nclients = 1\nwhiten = \"none\"\n[model]\nkind = \"logistic\"\nintercept = false\n[privacy]\nnoise = \"secure\"\n";
    let mut document = Document::from_text(text, "server").unwrap();
    for setting in settings {
        document.set(setting).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let shape = RecordShape {
        targets: None,
        names: None,
        features: 40,
        schema: None,
        labels: vec!["-1".to_string(), "+1".to_string()],
    };
    let preparation = Preparation::of(&config, &shape).unwrap();
    let (resolved, _) = config.resolve(&preparation.shape(vec![records])).unwrap();
    let model = preparation.model;
    let start = vec![0.0; model.objective().dimension()];
    let described = Description::new(&resolved, shape, &model, &start, None, [3; 16]).unwrap();
    Description::parse(described.text(), records).unwrap()
}

/// What a server may choose, and what the client has.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub records: usize,
    pub estimator: &'static str,
    /// Expected size of a minibatch; all records for gd.
    pub batch: f64,
    pub rounds: u32,
    pub clip: f64,
    pub delta: f64,
    pub adjacency: &'static str,
    pub compressor: &'static str,
    pub scope: &'static str,
}

impl Offer {
    fn settings(&self, sigma: f64) -> Vec<String> {
        let mut settings = vec![
            format!("algorithm.preset=soteriafl-{}", self.estimator),
            format!("algorithm.compressor={}", self.compressor),
            format!("algorithm.rounds={}", self.rounds),
            format!("privacy.clip={}", self.clip),
            format!("privacy.clip_scope={}", self.scope),
            format!("privacy.delta={}", self.delta),
            format!("privacy.adjacency={}", self.adjacency),
            format!("privacy.sigma={sigma}"),
        ];
        if self.estimator != "gd" {
            settings.push(format!("algorithm.batch={}", self.batch));
        }
        if self.two_terms() {
            settings.push(format!("privacy.difference_clip={}", self.clip / 4.0));
        }
        if self.compressor == "rand-k" {
            settings.push("algorithm.fraction=0.25".to_string());
        }
        settings
    }

    fn two_terms(&self) -> bool {
        matches!(self.estimator, "svrg" | "saga")
    }

    /// The run as a client prices it, or why it proves nothing.
    pub fn run(&self, sigma: f64) -> Result<LedgerRun, Refusal> {
        let description = describe(self.records, &self.settings(sigma));
        let price = price(&description, self.records)?;
        check_claim(&description, &price, Sent::Nothing)?;
        Ok(ledger_run(price))
    }

    /// How far a record moves a message: if its coin says no, if it says yes, and how probable that
    /// is. From the estimators' formulas.
    pub fn moves(&self) -> (f64, f64, f64) {
        let all = self.clip / self.records as f64;
        let rate = self.batch / self.records as f64;
        match self.estimator {
            "gd" => (all, all, 1.0),
            "sgd" => (0.0, self.clip / self.batch, rate),
            _ => (all, 0.25 * self.clip / self.batch + all, rate),
        }
    }

    /// Attacks on one record, all of whose gradient lies in one coordinate, by a server that knows
    /// everything else: from the best single message, and from the sum of all. Each as (how often
    /// it succeeds, how often it would without the record) for a threshold in standard deviations.
    fn attacks(&self, sigma: f64, threshold: f64) -> [(f64, f64); 2] {
        let (low, high, rate) = self.moves();
        let travels = match self.compressor {
            "rand-k" => 0.25,
            _ => 1.0,
        };
        let rounds = f64::from(self.rounds);
        // Every message is looked at; the record is in it and its coordinate travels.
        let seen = travels
            * (rate * tail(threshold - high / sigma)
                + (1.0 - rate) * tail(threshold - low / sigma));
        let once = (travels * tail(threshold), seen);
        let any = |one: f64| -f64::exp_m1(rounds * f64::ln_1p(-one.min(1.0 - 1e-16)));
        let mean = rate * high + (1.0 - rate) * low;
        let sum = tail(threshold - (rounds * travels).sqrt() * mean / sigma);
        [(any(once.1), any(once.0)), (sum, tail(threshold))]
    }

    /// How many records are expected to be read exactly, where 40 bits of each are not known and
    /// all of them must come out right.
    pub fn read(&self, sigma: f64) -> f64 {
        let guess = 2f64.powi(-40);
        let single = threshold(guess / f64::from(self.rounds));
        let [(one, _), _] = self.attacks(sigma, single);
        let [_, (sum, _)] = self.attacks(sigma, threshold(guess));
        self.records as f64 * f64::max(one, sum)
    }

    /// How many records are expected to be found beyond `e^epsilon` times guessing, over all
    /// thresholds.
    pub fn beyond_guessing(&self, sigma: f64, epsilon: f64) -> f64 {
        let thresholds = (0..200).map(|step| -3.0 + 0.1 * f64::from(step));
        let beyond = thresholds.flat_map(|threshold| {
            self.attacks(sigma, threshold)
                .map(|(with, without)| with - epsilon.exp() * without)
        });
        self.records as f64 * beyond.fold(0.0, f64::max)
    }
}

/// The probability that a standard normal number exceeds `x`, by Simpson's rule.
fn tail(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - tail(-x);
    }
    let (steps, width) = (400, 12.0 / (1.0 + x));
    let density = |at: f64| (-0.5 * at * at).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let sum: f64 = (0..=steps)
        .map(|step| {
            let weight = match step {
                0 => 1.0,
                step if step == steps => 1.0,
                step if step % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * density(x + width * f64::from(step) / f64::from(steps))
        })
        .sum();
    sum * width / f64::from(steps) / 3.0
}

/// Where the tail has this probability.
fn threshold(probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 20.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if tail(middle) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The example that was found: 22 of 100 messages were single records in the clear, at "epsilon 0".
pub const BOUGHT: Offer = Offer {
    records: 32_561,
    estimator: "sgd",
    batch: 0.3,
    rounds: 100,
    clip: 1.0,
    delta: 1e-3,
    adjacency: "replace-one",
    compressor: "identity",
    scope: "record",
};

#[test]
fn the_numbers_of_this_test_are_right() {
    // From tables.
    for (x, expected) in [
        (0.0, 0.5),
        (1.0, 0.158_655_25),
        (3.0, 1.349_898e-3),
        (7.0, 1.279_81e-12),
    ] {
        assert!((tail(x) / expected - 1.0).abs() < 1e-5, "{x}: {}", tail(x));
    }
    assert!((threshold(1.349_898e-3) - 3.0).abs() < 1e-5);
    assert!((tail(-1.0) + tail(1.0) - 1.0).abs() < 1e-12);
    // The example gives away about thirty records, each at some time with probability 100 * 0.3 /
    // 32561.
    let read = BOUGHT.read(0.02);
    assert!((29.0..31.0).contains(&read), "{read}");
    assert!(BOUGHT.beyond_guessing(0.02, 3.0) > 20.0);
    // It was within the limit at the server's delta.
    let run = BOUGHT.run(0.02).unwrap();
    assert_eq!(
        run.price
            .cost(soteriafl_accountant::Adjacency::ReplaceOne, 1e-3)
            .unwrap(),
        Some(0.0)
    );
}
