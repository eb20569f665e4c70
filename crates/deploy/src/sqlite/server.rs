//! A coordinator's store: the run, its members, every closed round, the latest state, what was
//! evaluated.

use std::path::Path;

use rusqlite::{OptionalExtension, Transaction, params};
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, Round, ServerState};

use super::super::store::{
    ClosedRound, Evaluation, Member, ServerRecord, ServerStore, StoreError, Sums, count_taken,
};
use super::super::to_bytes;
use super::{Database, LOG_RESERVE, Schema};

/// Version of a server's schema. The first knew no releases before the first round, and nothing of
/// a compressed way down.
const SERVER_VERSION: i64 = 2;

/// Since version 2.
const SINCE_FIRST: &str = "
    CREATE TABLE released (number INTEGER PRIMARY KEY, noise REAL NOT NULL, average BLOB NOT NULL);
    ALTER TABLE rounds ADD COLUMN uncompressed BLOB NOT NULL DEFAULT x'';
    ALTER TABLE states ADD COLUMN target BLOB NOT NULL DEFAULT x'';
";

const SERVER_TABLES: &str = "
    CREATE TABLE run (one INTEGER PRIMARY KEY CHECK (one = 1), description TEXT NOT NULL);
    CREATE TABLE clients (client INTEGER PRIMARY KEY, records INTEGER NOT NULL, done INTEGER NOT NULL, radius REAL NOT NULL);
    CREATE TABLE rounds (round INTEGER PRIMARY KEY, accepted BLOB NOT NULL, average BLOB NOT NULL, sent_values INTEGER NOT NULL, uplink INTEGER NOT NULL, uncompressed BLOB NOT NULL DEFAULT x'');
    CREATE TABLE states (round INTEGER PRIMARY KEY, model BLOB NOT NULL, shift BLOB NOT NULL, velocity BLOB NOT NULL, target BLOB NOT NULL DEFAULT x'');
    CREATE TABLE evaluations (round INTEGER PRIMARY KEY, sent_values INTEGER NOT NULL, uplink INTEGER NOT NULL, downlink INTEGER NOT NULL, taken INTEGER NOT NULL, seconds REAL NOT NULL, accuracy REAL, loss REAL);
    CREATE TABLE released (number INTEGER PRIMARY KEY, noise REAL NOT NULL, average BLOB NOT NULL);
";

const SERVER_SCHEMA: Schema = Schema {
    version: SERVER_VERSION,
    tables: SERVER_TABLES,
    upgrade: SINCE_FIRST,
};

/// A server's journal on disk.
pub struct ServerSqlite(Database);

impl ServerSqlite {
    /// Opens or makes it.
    ///
    /// # Errors
    /// When another process has it, or it is no such state.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let database = Database::open(directory, "server.sqlite", &SERVER_SCHEMA)?;
        if database.cut_log()? {
            // The server's log is never cut again: it begins anew when it has a thousand pages.
            database.reserve_log(LOG_RESERVE.end);
        }
        Ok(Self(database))
    }
}

impl ServerStore for ServerSqlite {
    fn load(&mut self) -> Result<ServerRecord, StoreError> {
        let released: Vec<(f64, Vec<u8>)> = self.0.query(|connection| {
            connection
                .prepare("SELECT noise, average FROM released ORDER BY number")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let average = |(noise, values): (f64, Vec<u8>)| {
            let values = self.0.floats(&values)?;
            Ok(Average { values, noise })
        };
        let released = released.into_iter().map(average);
        let released = released.collect::<Result<_, StoreError>>()?;
        let record = self.0.query(|connection| {
            let description = connection
                .query_row("SELECT description FROM run", [], |row| row.get(0))
                .optional()?;
            let members = connection
                .prepare("SELECT client, records, done, radius FROM clients ORDER BY client")?
                .query_map([], |row| {
                    let member = Member {
                        records: row.get::<_, i64>(1)? as u64,
                        done: row.get(2)?,
                        radius: row.get(3)?,
                    };
                    Ok((row.get(0)?, member))
                })?
                .collect::<Result<_, _>>()?;
            let mut taken = Vec::new();
            let rounds: Vec<(Round, u32)> = connection
                .prepare("SELECT round, length(average), accepted FROM rounds ORDER BY round")?
                .query_map([], |row| {
                    count_taken(&mut taken, row.get_ref(2)?.as_blob()?);
                    Ok((row.get(0)?, row.get(1)?))
                })?
                .collect::<Result<_, _>>()?;
            let traffic: (i64, i64) = connection.query_row(
                "SELECT coalesce(sum(sent_values), 0), coalesce(sum(uplink), 0) FROM rounds",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let snapshots = connection
                .prepare("SELECT round FROM states ORDER BY round")?
                .query_map([], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let evaluations = connection
                .prepare("SELECT * FROM evaluations ORDER BY round")?
                .query_map([], |row| {
                    Ok(Evaluation {
                        round: row.get(0)?,
                        sums: Sums {
                            values: row.get::<_, i64>(1)? as u64,
                            uplink: row.get::<_, i64>(2)? as u64,
                            downlink: row.get::<_, i64>(3)? as u64,
                        },
                        taken: row.get(4)?,
                        seconds: row.get(5)?,
                        accuracy: row.get(6)?,
                        loss: row.get(7)?,
                    })
                })?
                .collect::<Result<_, _>>()?;
            Ok((
                rounds
                    .iter()
                    .enumerate()
                    .all(|(at, round)| at as u32 == round.0),
                ServerRecord {
                    description,
                    members,
                    released,
                    averages: rounds.iter().map(|round| round.1).collect(),
                    traffic: (traffic.0 as u64, traffic.1 as u64),
                    taken,
                    snapshots,
                    evaluations,
                },
            ))
        })?;
        match record {
            (true, record) => Ok(record),
            (false, _) => Err(self.0.corrupt("a round is missing")),
        }
    }

    fn begin(&mut self, description: &str, start: &ServerState) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction.execute("INSERT INTO run VALUES (1, ?1)", [description])?;
            insert_state(transaction, start)
        })
    }

    fn join(&mut self, client: ClientId, records: u64) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .execute(
                    "INSERT INTO clients VALUES (?1, ?2, 0, 0)",
                    params![client, records as i64],
                )
                .map(drop)
        })
    }

    fn released(&mut self, number: u32, average: &Average) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            let insert = "INSERT INTO released VALUES (?1, ?2, ?3)";
            let values = to_bytes(&average.values);
            transaction
                .execute(insert, params![number, average.noise, values])
                .map(drop)
        })
    }

    fn close(
        &mut self,
        round: &ClosedRound,
        radii: &[(ClientId, f64)],
        state: Option<&ServerState>,
    ) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .prepare_cached("INSERT INTO rounds VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
                .execute(params![
                    round.round,
                    round.accepted,
                    round.average.as_ref(),
                    round.values as i64,
                    round.uplink as i64,
                    round.uncompressed.as_ref()
                ])?;
            let mut update =
                transaction.prepare_cached("UPDATE clients SET radius = ?2 WHERE client = ?1")?;
            for (client, radius) in radii {
                update.execute(params![client, radius])?;
            }
            let Some(state) = state else { return Ok(()) };
            // The start and the last two suffice: whoever is further behind takes one of them.
            transaction.execute(
                "DELETE FROM states WHERE round > 0 AND round < (SELECT max(round) FROM states)",
                [],
            )?;
            // Whoever starts again does so from this state.
            transaction.execute(
                "UPDATE rounds SET uncompressed = x'' WHERE round < ?1 AND uncompressed != x''",
                [state.round],
            )?;
            insert_state(transaction, state)
        })
    }

    fn acknowledge(&mut self, client: ClientId) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .execute("UPDATE clients SET done = 1 WHERE client = ?1", [client])
                .map(drop)
        })
    }

    fn evaluated(&mut self, evaluation: Evaluation) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .execute(
                    "INSERT OR REPLACE INTO evaluations VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![
                        evaluation.round,
                        evaluation.sums.values as i64,
                        evaluation.sums.uplink as i64,
                        evaluation.sums.downlink as i64,
                        evaluation.taken,
                        evaluation.seconds,
                        evaluation.accuracy,
                        evaluation.loss
                    ],
                )
                .map(drop)
        })
    }

    fn round(&mut self, round: Round) -> Result<ClosedRound, StoreError> {
        self.0.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT accepted, average, sent_values, uplink, uncompressed FROM rounds
                     WHERE round = ?1",
                )?
                .query_row([round], |row| {
                    Ok(ClosedRound {
                        round,
                        accepted: row.get(0)?,
                        average: row.get::<_, Vec<u8>>(1)?.into(),
                        values: row.get::<_, i64>(2)? as u64,
                        uplink: row.get::<_, i64>(3)? as u64,
                        uncompressed: row.get::<_, Vec<u8>>(4)?.into(),
                    })
                })
        })
    }

    fn snapshot(&mut self, round: Round) -> Result<ServerState, StoreError> {
        type Blobs = [Vec<u8>; 4];
        let [model, shift, velocity, target]: Blobs = self.0.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT model, shift, velocity, target FROM states WHERE round = ?1",
                )?
                .query_row([round], |row| {
                    Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
                })
        })?;
        Ok(ServerState {
            round,
            model: self.0.floats(&model)?,
            shift: self.0.floats(&shift)?,
            velocity: self.0.floats(&velocity)?,
            target: self.0.floats(&target)?,
        })
    }
}

fn insert_state(transaction: &Transaction<'_>, state: &ServerState) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT INTO states VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![
            state.round,
            to_bytes(&state.model),
            to_bytes(&state.shift),
            to_bytes(&state.velocity),
            to_bytes(&state.target)
        ])
        .map(drop)
}
