//! A small run with all its parties: the same configuration simulated, and by coordinator and
//! participants over stores that outlive them.

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteriafl::accounting::{self, Privacy};
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{Config, Document};
use soteriafl::problem::{Problem, regularizer};
use soteriafl::record_shape::RecordShape;
use soteriafl::run;
use soteriafl_core::protocol::{Client, Server};
use soteriafl_core::random::{ClientKeys, SecretKey};
use soteriafl_core::simulate::EvaluationPlan;
use soteriafl_data::{DataDirectories, Dataset};
use soteriafl_deploy::budget::{self, Priced};
use soteriafl_deploy::coordinator::{CatchUp, Coordinator, CoordinatorError};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::memory::{ClientMemory, ServerMemory};
use soteriafl_deploy::participant::{Opening, Participant, ParticipantError, Parts, Secrets};
use soteriafl_deploy::store::{ClientStore, LedgerRun, StoreError};

/// What the run is.
pub struct Setting {
    /// As the rounds train on it.
    pub problem: Problem,
    /// The clients' records before anything was released.
    pub raw: Vec<Arc<Dataset>>,
    pub resolved: Resolved,
    pub description: Description,
    pub sigmas: Vec<f64>,
    pub start: Vec<f32>,
    prices: Vec<Priced>,
}

/// The run, and what its parties have stored.
pub struct Deployment {
    setting: Arc<Setting>,
    pub server_store: ServerMemory,
    pub client_stores: Vec<ClientMemory>,
    pub checkpoint_every: u32,
    /// Whether coins and noise have keys of their own, as in deployment.
    pub split: bool,
}

impl Deref for Deployment {
    type Target = Setting;

    fn deref(&self) -> &Setting {
        &self.setting
    }
}

pub type TestCoordinator = Coordinator<ServerMemory>;
pub type TestParticipant = Participant<ClientMemory>;

/// Three clients of unequal size on 61 records.
pub const BASE: &str = r#"
[data]
source = "synthetic:61x6"
clients = 3
partition = "iid"
[algorithm]
preset = "soteriafl-sgd"
fraction = 0.4
batch = 5
rounds = 7
[privacy]
sigma = 0.05
clip = 1.0
accountant = "rdp"
amplification = "off"
[run]
seed = 11
"#;

/// Settings by which the records of [`BASE`] are whitened by a release before the first round.
pub const WHITENED: [&str; 5] = [
    "data.features=unit",
    "data.whiten=0.15",
    "model.kind=logistic",
    "algorithm.rounds=4",
    "privacy.epsilon=8",
];

/// [`BASE`] without a fixed noise.
pub const TARGETED: &str = r#"
[data]
source = "synthetic:61x6"
clients = 3
partition = "iid"
[privacy]
clip = 1.0
noise = "secure"
[run]
seed = 11
"#;

impl Deployment {
    /// A run whose records are whitened.
    pub fn whitened() -> Self {
        Self::with(TARGETED, &WHITENED)
    }

    pub fn new(overrides: &[&str]) -> Self {
        Self::build(BASE, overrides, false)
    }

    /// A run of another configuration than the usual one, whose secrets nobody knows, if `secret`.
    pub fn of_secrets(base: &str, overrides: &[&str], secret: bool) -> Self {
        Self::build(base, overrides, secret)
    }

    /// A run of another configuration than the usual one.
    pub fn with(base: &str, overrides: &[&str]) -> Self {
        Self::build(base, overrides, false)
    }

    /// A run whose secrets nobody knows, if `secret`; otherwise they are those of the simulated
    /// run.
    pub fn with_secrets(overrides: &[&str], secret: bool) -> Self {
        Self::build(BASE, overrides, secret)
    }

    fn build(base: &str, overrides: &[&str], secret: bool) -> Self {
        let mut document = Document::from_text(base, "deployment").unwrap();
        for assignment in overrides {
            document.set(assignment).unwrap();
        }
        let config = Config::read(&document).unwrap();
        let problem = Problem::load(&config, &DataDirectories::default()).unwrap();
        let (resolved, _) = config.resolve(&problem.shape(&config).unwrap()).unwrap();
        let records = problem.sizes();
        let dimension = problem.objective.dimension();
        let privacy =
            Privacy::calibrate(&resolved.specification(), dimension, &records, false).unwrap();
        let raw = problem.shards.clone();
        let problem = problem.whitened(&resolved).unwrap().into_owned();
        let start = problem.start(&resolved).unwrap();
        let shape = RecordShape {
            targets: None,
            // The names are the schema's, where there is one.
            names: problem
                .shape
                .schema
                .as_ref()
                .and(problem.shape.names.clone()),
            ..problem.shape.clone()
        };
        let seed = (!secret).then_some(resolved.seed);
        let nonce = [7; 16];
        let described = Description::new(
            &resolved,
            shape,
            &problem.preparation.model,
            &start,
            seed,
            nonce,
        )
        .unwrap();
        // What a client reads is what was described.
        let description = Description::parse(described.text(), records[0]).unwrap();
        assert_eq!(description.hash(), described.hash());
        let prices = records
            .iter()
            .map(|&rows| budget::price(&description, rows).unwrap());
        let setting = Setting {
            prices: prices.collect(),
            sigmas: privacy.sigmas,
            problem,
            raw,
            resolved,
            description,
            start,
        };
        Self::of(Arc::new(setting))
    }

    fn of(setting: Arc<Setting>) -> Self {
        let stores = setting
            .problem
            .shards
            .iter()
            .map(|_| ClientMemory::default());
        Self {
            client_stores: stores.collect(),
            server_store: ServerMemory::default(),
            setting,
            checkpoint_every: 3,
            split: false,
        }
    }

    /// The same run, of which nothing has happened.
    pub fn anew(&self) -> Self {
        Self {
            split: self.split,
            ..Self::of(Arc::clone(&self.setting))
        }
    }

    /// The keys of a client: those of the simulated run, unless they are split.
    pub fn keys(&self, client: usize) -> ClientKeys {
        let key = |more| SecretKey::simulated(self.resolved.seed + more, client as u32);
        ClientKeys {
            coins: key(0),
            noise: key(u64::from(self.split)),
        }
    }

    pub fn clients(&self) -> usize {
        self.problem.shards.len()
    }

    /// The model that the simulator ends with.
    pub fn simulated(&self) -> Vec<u32> {
        let mut simulation = run::simulation(&self.resolved, &self.problem, &self.sigmas).unwrap();
        let weights = self.problem.weights(&self.resolved);
        let plan = EvaluationPlan {
            objective: self.problem.objective.as_ref(),
            regularizer: regularizer(self.resolved.regularizer, self.resolved.lambda),
            weights: &weights,
            test: None,
            every: 0,
            from: u32::MAX,
        };
        simulation
            .run(1, &plan, |_, _| ControlFlow::Continue(()))
            .unwrap();
        bits(simulation.server().model())
    }

    pub fn coordinator(&self, now: Duration) -> Result<TestCoordinator, CoordinatorError> {
        let store = self.server_store.clone();
        Coordinator::new(store, self.description.clone(), self.start.clone(), 4, now)
    }

    pub fn ledger_run(&self, client: usize) -> LedgerRun {
        LedgerRun {
            hash: *self.description.hash(),
            description: self.description.text().to_string(),
            client: client as u32,
            data: [client as u8; 32],
            part: None,
            price: self.prices[client].clone(),
            messages: 0,
            finished: false,
        }
    }

    /// A client as a process that has just started, before the first round. `Ok(None)`: its run is
    /// over.
    pub fn opening(
        &self,
        client: usize,
    ) -> Result<Option<Opening<ClientMemory>>, ParticipantError> {
        self.opening_over(self.client_stores[client].clone(), client)
    }

    /// The same over another store.
    pub fn opening_over<S: ClientStore>(
        &self,
        mut store: S,
        client: usize,
    ) -> Result<Option<Opening<S>>, ParticipantError> {
        if !self.begin(&mut store, client)? {
            return Ok(None);
        }
        let data = Arc::clone(&self.raw[client]);
        let run = self.resolved.specification();
        let releases = accounting::preliminaries(&run, data.records()).unwrap();
        let aim = soteriafl::preliminary::aim(&self.resolved);
        let keys = self.keys(client);
        let secrets = Box::new(move |_, _: &_| Ok(keys.clone()));
        Opening::new(
            store,
            *self.description.hash(),
            releases,
            data,
            aim,
            secrets,
        )
        .map(Some)
    }

    /// Whether the run goes on, once it has begun in the store.
    fn begin(&self, store: &mut impl ClientStore, client: usize) -> Result<bool, StoreError> {
        let runs = store.runs()?;
        let known = runs.iter().find(|run| run.hash == *self.description.hash());
        if known.is_none() {
            store.begin(&self.ledger_run(client))?;
        }
        Ok(known.is_none_or(|run| !run.finished))
    }

    /// A client as a process that has just started, in the rounds. `Ok(None)`: its run is over.
    pub fn participant(&self, client: usize) -> Result<Option<TestParticipant>, ParticipantError> {
        let keys = self.keys(client);
        let secrets = Box::new(move |_, _: &_| Ok(keys.clone()));
        self.participant_over(self.client_stores[client].clone(), client, secrets)
    }

    /// The same over another store, with other secrets.
    pub fn participant_over<S: ClientStore>(
        &self,
        store: S,
        client: usize,
        secrets: Secrets,
    ) -> Result<Option<Participant<S>>, ParticipantError> {
        let Some(opening) = self.opening_over(store, client)? else {
            return Ok(None);
        };
        let (store, data) = opening.into_parts().expect("nothing is left to release");
        self.participant_on(data, store, client, secrets)
    }

    /// The same on other records.
    pub fn participant_on<S: ClientStore>(
        &self,
        data: Arc<Dataset>,
        mut store: S,
        client: usize,
        secrets: Secrets,
    ) -> Result<Option<Participant<S>>, ParticipantError> {
        if !self.begin(&mut store, client)? {
            return Ok(None);
        }
        let plan = Arc::new(run::client_plan(&self.resolved, &self.problem).unwrap());
        let core = Client::new(
            client as u32,
            Arc::clone(&plan),
            data,
            self.resolved.specification().sampling(),
            self.sigmas[client],
            SecretKey::simulated(0, 0),
        )
        .unwrap();
        let replica = Server::follower(
            run::server_plan(
                &self.resolved,
                &self.problem.preparation.model,
                &plan,
                vec![1.0],
            ),
            self.description.compute_start().unwrap(),
        );
        Participant::new(Parts {
            store,
            trained_on: None,
            run: *self.description.hash(),
            client: core,
            compressor: plan.compressor.clone(),
            replica,
            awaits_start: None,
            secrets,
            checkpoint_every: self.checkpoint_every,
        })
        .map(Some)
    }

    pub fn records(&self, client: usize) -> u64 {
        self.problem.shards[client].records() as u64
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A client's connection: what the server sends it next.
pub struct Session {
    next: u32,
}

impl Session {
    /// Follows the run from the participant's position.
    pub fn open(
        coordinator: &mut TestCoordinator,
        client: usize,
        participant: &mut TestParticipant,
    ) -> Result<Self, PartyError> {
        let position = participant.position();
        let CatchUp {
            snapshot,
            from,
            accepted,
            taken,
            ..
        } = coordinator
            .catch_up(client as u32, position)
            .map_err(PartyError::Server)?;
        if let Some(state) = snapshot {
            participant
                .jump(state.as_ref().clone(), accepted, taken)
                .map_err(PartyError::Client)?;
        }
        Ok(Self { next: from })
    }

    /// Gives the next closed round to the participant, if there is one.
    pub fn deliver_next(
        &mut self,
        coordinator: &mut TestCoordinator,
        client: usize,
        participant: &mut TestParticipant,
    ) -> Result<bool, PartyError> {
        if self.next >= coordinator.round() {
            return Ok(false);
        }
        let closed = coordinator.closed(self.next).map_err(PartyError::Server)?;
        self.next += 1;
        participant
            .closed(closed.round, closed.accepts(client as u32), &closed.average)
            .map_err(PartyError::Client)?;
        Ok(true)
    }
}

#[derive(Debug)]
pub enum PartyError {
    Server(CoordinatorError),
    Client(ParticipantError),
}

/// Whether the client may make a message now, and which.
pub fn next_message(
    coordinator: &TestCoordinator,
    participant: &mut TestParticipant,
) -> Result<Option<(u32, Bytes)>, ParticipantError> {
    let replica = participant.replica();
    if !coordinator.begun() || replica.finished() || replica.round() < coordinator.round() {
        return Ok(None);
    }
    participant.message()
}
