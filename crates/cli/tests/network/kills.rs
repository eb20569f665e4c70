//! Parties killed by SIGKILL at random instants, again and again.
//!
//! `make soak` runs the long version: `SOTERIA_SOAK_KILLS` kills (default 300) for every estimator.

use std::time::Duration;

use crate::parties::{Process, Run};

fn config(preset: &str, rounds: u32) -> String {
    format!(
        "[data]\nsource = \"synthetic:3000x20\"\nclients = 3\n[algorithm]\npreset = \"{preset}\"\nbatch = 50\nrounds = {rounds}\n[run]\neval_every = 10\n"
    )
}

/// Kills a random party every few hundredths of a second until `kills` are done or the run is over,
/// and lets it end. Returns the number of kills: how many fit into a run depends on the machine.
fn survive(run: &Run, kills: u32, seed: u64) -> u32 {
    let expected = run.simulated();
    let start = |party: usize| match party {
        0 => run.serve(),
        client => run.join(client - 1),
    };
    let mut parties: Vec<Process> = (0..=run.clients).map(start).collect();
    let mut state = seed;
    let mut random = |bound: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % bound
    };
    let mut done = 0;
    while done < kills {
        std::thread::sleep(Duration::from_millis(20 + random(280)));
        let party = random(parties.len() as u64) as usize;
        if parties[party].ended().is_some() {
            break;
        }
        parties[party].kill();
        std::thread::sleep(Duration::from_millis(random(60)));
        parties[party] = start(party);
        done += 1;
    }
    for (party, process) in parties.iter_mut().enumerate() {
        let code = process.code();
        let log = if party == 0 {
            "serve.log".to_string()
        } else {
            format!("join-{}.log", party - 1)
        };
        assert_eq!(code, 0, "party {party}: {}", run.log(&log));
    }
    assert!(
        run.model() == expected,
        "the model differs from the simulated one"
    );
    for client in 0..run.clients {
        let ledger = run.ledger(client);
        let messages = ledger["datasets"][0]["messages"].as_u64().unwrap();
        let rounds = ledger["datasets"][0]["runs"][0]["rounds"].as_u64().unwrap();
        assert_eq!(messages, rounds, "client {client}");
    }
    done
}

#[test]
fn killed_processes_go_on() {
    // A faster machine gets a longer run.
    let (mut done, mut rounds) = (0, 400);
    while done < 5 {
        done = survive(&Run::new(&config("soteriafl-saga", rounds)), 16, 1);
        rounds *= 4;
    }
}

#[test]
#[ignore = "takes minutes: `make soak`"]
fn soak() {
    let kills = std::env::var("SOTERIA_SOAK_KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok());
    let kills: u32 = kills.unwrap_or(300);
    for (number, preset) in [
        "soteriafl-gd",
        "soteriafl-sgd",
        "soteriafl-svrg",
        "soteriafl-saga",
        "soteriafl-sag",
        "ldp-srm",
        "ldp-spider",
    ]
    .into_iter()
    .enumerate()
    {
        let (mut done, mut runs) = (0, 0);
        while done < kills {
            let rounds = 40 * kills * (1 + runs as u32);
            let mut run = Run::new(&config(preset, rounds));
            run.make_keys();
            done += survive(&run, kills - done, 100 * (number + 1) as u64 + runs);
            runs += 1;
        }
        eprintln!("{preset}: {done} kills survived in {runs} runs");
    }
}
