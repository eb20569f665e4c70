//! Static figures: well-formed, complete, and drawn whatever the numbers are.

use super::*;

fn comparison() -> Figure {
    let curve = |seed: u64, rate: f64, level: f64| -> Vec<(f64, f64)> {
        let wobble =
            |t: f64| 1.0 + 0.25 * ((t * 0.7 + seed as f64 * 2.1).sin() + (seed as f64).cos()) / 2.0;
        (0..150)
            .map(|t| t as f64)
            .map(|t| (t, (0.8 * (-t / rate).exp() + level) * wobble(t)))
            .collect()
    };
    let algorithms = [
        ("LDP-SGD", 8.0, 0.02),
        ("LDP-SVRG", 12.0, 0.03),
        ("CDP-SGD", 20.0, 0.06),
        ("SoteriaFL-SGD", 11.0, 0.012),
        ("SoteriaFL-SVRG", 14.0, 0.009),
    ];
    let panel = |title: &str, x_label: &str, scale: f64, log_x: bool| Panel {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        y_label: "utility".to_owned(),
        log_x,
        log_y: true,
        series: algorithms
            .iter()
            .map(|(name, rate, level)| {
                let scale = if log_x && name.starts_with("LDP") {
                    scale * 20.0
                } else {
                    scale
                };
                let runs: Vec<Vec<(f64, f64)>> = (0..5)
                    .map(|seed| {
                        curve(seed, *rate, *level)
                            .iter()
                            .map(|(x, y)| (x * scale, *y))
                            .collect()
                    })
                    .collect();
                Series::over_runs(*name, &runs)
            })
            .collect(),
    };
    let panels = vec![
        panel("against rounds", "rounds", 1.0, false),
        panel("against bits", "bits sent by all clients", 162_816.0, true),
    ];
    Figure {
        title: "a9a at ε = 1 <five seeds>".to_owned(),
        panels,
    }
}

fn profile() -> Figure {
    let curve = |mu: f64| {
        (1..200)
            .map(|i| i as f64 * 0.02)
            .map(|e| (e, (-(e / mu) * (e / mu)).exp() * 0.2))
            .collect()
    };
    let series = vec![
        Series::new("PLD", curve(0.9)),
        Series {
            dashed: true,
            ..Series::new("RDP", curve(1.1))
        },
    ];
    Figure::delta_by_epsilon("300 rounds, sigma 0.0058", series)
}

#[test]
fn figures_are_well_formed_and_draw_every_series() {
    let svg = comparison().to_svg();
    let found = tags(&svg);
    assert!(svg.starts_with("<svg xmlns="));
    assert!(svg.contains("&lt;five seeds&gt;"));
    assert_eq!(
        found
            .iter()
            .filter(|tag| tag.contains("fill-opacity"))
            .count(),
        10
    );
    assert_eq!(
        found
            .iter()
            .filter(|tag| tag.contains("stroke-width=\"2\""))
            .count(),
        10
    );
    assert_eq!(
        svg.matches(">SoteriaFL-SVRG<").count(),
        1,
        "one legend for both panels"
    );
    tags(&profile().to_svg());
    assert!(profile().to_svg().contains(">delta<"));
}

#[test]
fn a_band_is_one_sample_deviation_around_the_mean() {
    let runs = [
        vec![(0.0, 1.0), (1.0, 5.0)],
        vec![(0.0, 3.0), (3.0, 5.0), (9.0, 9.0)],
        vec![(0.0, 5.0), (2.0, 5.0)],
    ];
    let series = Series::over_runs("s", &runs);
    assert_eq!(series.points, [(0.0, 3.0), (2.0, 5.0)]);
    assert_eq!(series.band, Some(vec![(1.0, 5.0), (5.0, 5.0)]));
    assert_eq!(Series::over_runs("s", &runs[..1]).band, None);
    assert!(Series::over_runs("s", &[]).points.is_empty());
}

#[test]
fn figures_survive_what_cannot_be_drawn() {
    let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-300, f64::MAX];
    for (log_x, log_y) in [(false, false), (false, true), (true, false), (true, true)] {
        for value in odd {
            let points = vec![(1.0, 1.0), (2.0, value), (value, 3.0), (4.0, 4.0)];
            let band = Some(vec![(0.0, value), (value, 1.0)]);
            let series = vec![
                Series {
                    band,
                    ..Series::new("", points)
                },
                Series::new("empty", Vec::new()),
            ];
            let svg = Figure {
                panels: vec![Panel {
                    log_x,
                    log_y,
                    series,
                    ..Panel::default()
                }],
                ..Figure::default()
            }
            .to_svg();
            tags(&svg);
            assert!(
                !svg.contains("NaN") && !svg.contains("inf"),
                "{value} {log_x} {log_y}: {svg}"
            );
        }
    }
}

#[test]
#[ignore = "writes pages to look at into the directory SOTERIA_REPORT_SAMPLE"]
fn sample() {
    let directory =
        std::env::var("SOTERIA_REPORT_SAMPLE").expect("SOTERIA_REPORT_SAMPLE names a directory");
    let directory = Path::new(&directory);
    write_run(&directory.join("plain"), &run());
    let mut unproved = run();
    unproved.rounds.truncate(101);
    for row in &mut unproved.rounds {
        (row.test_accuracy, row.epsilon) = (None, None);
    }
    unproved.summary["interrupted"] = true.into();
    unproved.summary["final"]["test_accuracy"] = serde_json::Value::Null;
    unproved.summary["privacy"] = serde_json::json!({"epsilon": null, "delta": 1e-3, "adjacency": "replace-one",
        "sigma": 0.0057, "noise": "float (simulated)", "accountant": "paper", "amplified": false, "claim": "paper calibration"});
    write_run(&directory.join("unproved"), &unproved);
    let mut one = run();
    one.rounds.truncate(1);
    write_run(&directory.join("one"), &one);
    fs::write(directory.join("comparison.svg"), comparison().to_svg()).unwrap();
    fs::write(directory.join("profile.svg"), profile().to_svg()).unwrap();
}
