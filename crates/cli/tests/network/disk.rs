//! States on disks that are full or may not be written. Such disks are made in a mount namespace of
//! their own, which needs no privileges where the system has user namespaces; where it has none,
//! the tests say so and pass.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::process::{Command, Stdio};

use crate::parties::{Run, text};

/// A command that runs a script, whose arguments are the program and what follows, in a mount
/// namespace.
fn apart(script: &str) -> Option<Command> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]);
        command
    };
    let possible = shell("mount -t tmpfs -o size=1m tmpfs /tmp")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !possible {
        let warning = "*** SKIPPED: no mount namespace, small disks were NOT tested ***";
        // Past the capture of the test runner, which would swallow it.
        writeln!(std::io::stderr(), "\n{warning}\n").expect("stderr");
        return None;
    }
    let mut command = shell(script);
    command.arg(env!("CARGO_BIN_EXE_soteria"));
    Some(command)
}

/// Nine megabytes of rounds on a disk of eight, which then gets two more: fewer than SQLite's log
/// would like to have.
#[test]
fn a_state_that_ran_into_a_full_disk_goes_on_with_little_room() {
    let run = Run::new(
        "[data]\nsource = \"synthetic:300x20000\"\nclients = 3\n[algorithm]\npreset = \"ldp-sgd\"\nbatch = 10\nrounds = 100\n\
         [run]\neval_every = 0\n",
    );
    let disk = run.path("server");
    std::fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=8m,mode=700 tmpfs {disk}
         \"$0\" \"$@\"; test $? = 1 || exit 10
         \"$0\" \"$@\"; test $? = 1 || exit 11
         mount -o remount,size=10m {disk} || exit 12
         exec \"$0\" \"$@\"",
        disk = text(&disk)
    );
    let Some(command) = apart(&script) else {
        return;
    };
    let run = Run {
        data: "synthetic:300x20000:{}/3".to_string(),
        ..run
    };
    let mut server = run.serve_by(command, &[]);
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    let code = server.code();
    let log = run.log("serve.log");
    assert_eq!(code, 0, "{log}");
    for client in &mut clients {
        assert_eq!(client.code(), 0);
    }
    let full: Vec<&str> = log
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(full.len(), 2, "{log}");
    for line in full {
        assert!(line.contains("the disk is full: "), "{line}");
        assert!(line.contains("server.sqlite"), "{line}");
    }
    assert!(log.contains("little is left on this disk"), "{log}");
    assert!(run.model() == run.simulated());
}

#[test]
fn a_disk_that_may_not_be_written_is_called_so() {
    let run =
        Run::new("[data]\nsource = \"synthetic:300x5\"\nclients = 1\n[algorithm]\nrounds = 3\n");
    let run = Run {
        clients: 1,
        data: "synthetic:300x5".to_string(),
        ..run
    };
    let mut server = run.serve_anew();
    assert_eq!(run.join(0).code(), 0);
    assert_eq!(server.code(), 0);
    let state = run.path("client-0");
    let script = format!(
        "mount --bind {state} {state} && mount -o remount,ro,bind {state} && exec \"$0\" \"$@\"",
        state = text(&state)
    );
    let Some(mut command) = apart(&script) else {
        return;
    };
    let output = command
        .args(["ledger", "--state", text(&state)])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the file system is read-only"), "{said}");
    assert!(said.contains("client.sqlite"), "{said}");
}
