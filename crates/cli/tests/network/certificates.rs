//! What `serve` and `join` say about certificates of their own that end.

use soteriafl_deploy::net::keys::Directory;

use crate::parties::Run;

const SMALL: &str = "[data]\nsource = \"synthetic:300x5\"\nclients = 1\n[algorithm]\nrounds = 3\n";

fn run(days: u32) -> Run {
    let run = Run::new(SMALL);
    Directory::init(&run.path("keys"), 1, &[], days, false).unwrap();
    Run {
        clients: 1,
        tls: true,
        data: "synthetic:300x5".to_string(),
        ..run
    }
}

#[test]
fn both_sides_are_warned_before_the_end() {
    let run = run(20);
    let mut server = run.serve();
    assert_eq!(run.join(0).code(), 0, "{}", run.log("join-0.log"));
    assert_eq!(server.code(), 0);
    for (log, file) in [("serve.log", "server.pem"), ("join-0.log", "client-0.pem")] {
        let said = run.log(log);
        let warning = said.lines().find(|line| line.contains(file));
        let warning = warning.unwrap_or_else(|| panic!("{said}"));
        assert!(warning.starts_with("warning: "), "{warning}");
        assert!(
            warning.contains("the certificate expires at 2"),
            "{warning}"
        );
        assert!(warning.contains("days; `soteria keys "), "{warning}");
    }
    // Where there is time nothing is said.
    let run = self::run(100);
    let mut server = run.serve();
    assert_eq!(run.join(0).code(), 0);
    assert_eq!(server.code(), 0);
    assert!(!run.log("serve.log").contains("expire"));
    assert!(!run.log("join-0.log").contains("expire"));
}

#[test]
fn an_expired_certificate_is_an_error_of_its_owner() {
    let run = run(0);
    assert_eq!(run.serve().code(), 2);
    assert_eq!(run.join(0).code(), 2);
    for (log, file) in [("serve.log", "server.pem"), ("join-0.log", "client-0.pem")] {
        let said = run.log(log);
        let error = said.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("{said}"));
        assert!(error.contains(file), "{said}");
        assert!(error.contains("the certificate expired at 2"), "{said}");
        assert!(said.contains("hint: `soteria keys "), "{said}");
    }
}
