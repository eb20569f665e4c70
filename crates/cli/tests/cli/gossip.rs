//! Clients without a server, through the whole program.

use crate::program::Place;

/// A small run of this preset with these settings.
fn settings<'a>(preset: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[preset, "data.clients=6", "algorithm.fraction=0.4"], more].concat()
}

/// The graph is said, in terminal, summary and report; every row ends with the consensus error, the
/// first with zero; on any graph the noise is the same, and the traffic is not.
#[test]
fn graphs_are_shown_and_cost_traffic_alone() {
    let place = Place::new();
    for preset in ["sdm-dsgd", "q-dpsgd-1", "porter"] {
        let chosen = format!("algorithm.preset={preset}");
        let mut sigmas = Vec::new();
        let mut traffic = Vec::new();
        for (name, topology) in [
            ("star", "algorithm.topology=star"),
            ("ring", "algorithm.topology=ring"),
            (
                "list",
                "algorithm.topology=[[0,1],[1,2],[2,3],[3,4],[4,5],[5,0]]",
            ),
        ] {
            let out = format!("{preset}-{name}");
            let said = place.train(&out, &settings(&chosen, &[topology])).well();
            assert!(said.stderr.contains("spectral gap"), "{}", said.stderr);
            assert!(said.stdout.contains("agreement"), "{}", said.stdout);
            let summary = place.json(&format!("{out}/summary.json"));
            assert_eq!(summary["algorithm"], preset);
            assert_eq!(summary["gossip"]["edges"], 6);
            assert_eq!(summary["privacy"]["claim"], "proved");
            let end = summary["gossip"]["consensus_error"].as_f64().unwrap();
            assert!(end > 0.0, "{preset} {name}: {end}");
            let table = place.text(&format!("{out}/rounds.csv"));
            let errors: Vec<f64> = table
                .lines()
                .skip(1)
                .map(|line| line.rsplit(',').next().unwrap().parse().unwrap())
                .collect();
            assert!(
                table
                    .lines()
                    .next()
                    .unwrap()
                    .ends_with(",epsilon,consensus_error")
            );
            assert_eq!((errors[0], *errors.last().unwrap()), (0.0, end));
            let page = place.text(&format!("{out}/report.html"));
            assert!(page.contains("Consensus error") && page.contains("models of their own"));
            sigmas.push(summary["privacy"]["sigma"].clone());
            traffic.push(summary["traffic"]["uplink_bytes"].as_u64().unwrap());
        }
        assert_eq!((&sigmas[0], &sigmas[1]), (&sigmas[1], &sigmas[2]));
        assert_eq!((2 * traffic[0], traffic[1]), (traffic[1], traffic[2]));
        // The list is the ring, and the written configuration repeats the run.
        let model = |name: &str| place.read(&format!("{preset}-{name}/model.safetensors"));
        assert_eq!(model("ring"), model("list"));
        let again = format!("train --config {preset}-list/config.toml --out {preset}-again");
        place.run(&words(&again)).well();
        assert_eq!(model("list"), model("again"));
    }
}

/// Noise on what travels is amplified as cdp-sgd's is; noise on what is kept is not, whatever
/// travels.
#[test]
fn amplification_is_for_what_is_not_kept() {
    let place = Place::new();
    let sigma = |name: &str, settings: &[&str]| {
        place.train(name, settings).well();
        let summary = place.json(&format!("{name}/summary.json"));
        let amplified = summary["privacy"]["amplified"].as_bool().unwrap();
        (summary["privacy"]["sigma"].as_f64().unwrap(), amplified)
    };
    let with = |preset, more: &[&'static str]| {
        let common = ["data.clients=3", "algorithm.batch=5", "algorithm.rounds=20"];
        let mut settings = vec![preset, "algorithm.fraction=0.2"];
        settings.extend(common);
        settings.extend(more);
        settings
    };
    let cdp = sigma("cdp", &with("algorithm.preset=cdp-sgd", &[]));
    let sdm = sigma("sdm", &with("algorithm.preset=sdm-dsgd", &[]));
    let whole = sigma("ldp", &with("algorithm.preset=ldp-sgd", &[]));
    let porter = sigma("porter", &with("algorithm.preset=porter", &[]));
    let random = ["algorithm.compressor=rand-k"];
    let random = sigma("random", &with("algorithm.preset=porter", &random));
    assert_eq!(sdm, cdp);
    assert!(cdp.1 && cdp.0 < 0.8 * whole.0, "{cdp:?} {whole:?}");
    assert_eq!((porter, random), (whole, whole));
}

/// Interrupted, a run goes on to the same bytes.
#[test]
fn a_run_goes_on() {
    let place = Place::new();
    let chosen = settings("algorithm.preset=porter", &["algorithm.topology=torus"]);
    place.train("whole", &chosen).well();
    place.train("part", &chosen).well();
    // What an interrupted run leaves: some rows.
    let table = place.text("part/rounds.csv");
    let kept: Vec<&str> = table.lines().take(4).collect();
    std::fs::write(place.path("part/rounds.csv"), kept.join("\n") + "\n").unwrap();
    std::fs::remove_file(place.path("part/summary.json")).unwrap();
    place.run(&words("train --resume part")).well();
    for file in ["rounds.csv", "model.safetensors"] {
        let bytes = |name: &str| place.read(&format!("{name}/{file}"));
        assert!(bytes("part") == bytes("whole"), "{file}");
    }
}

/// They stand beside the others in a comparison; a deployment and an audit say why not.
#[test]
fn other_commands_take_or_refuse_them() {
    let place = Place::new();
    let data = "--set data.source=synthetic:60x4 --set data.clients=3 --set algorithm.rounds=4";
    let line = format!(
        "compare --algorithms cdp-sgd,sdm-dsgd,q-dpsgd-1,porter --seeds 0..2 --out both {data}"
    );
    place.run(&words(&line)).well();
    let summary = place.json("both/summary.json");
    let rows = summary["algorithms"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row["claim"] == "proved"), "{rows:?}");
    for preset in ["sdm-dsgd", "porter"] {
        let audit = place.run(&words(&format!(
            "audit --set algorithm.preset={preset} {data}"
        )));
        assert!(audit.badly(2).contains("without a server"));
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
