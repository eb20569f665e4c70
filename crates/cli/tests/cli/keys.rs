//! `soteria keys`, as users and their scripts see it.

use crate::program::Place;

#[test]
fn makes_the_files_that_are_promised_and_no_open_keys() {
    let place = Place::new();
    place
        .run(&[
            "keys",
            "init",
            "keys",
            "--clients",
            "3",
            "--host",
            "fl.example.org",
        ])
        .well();
    for name in ["ca", "server", "client-0", "client-1", "client-2"] {
        assert!(
            place
                .text(&format!("keys/{name}.pem"))
                .contains("BEGIN CERTIFICATE")
        );
        assert!(
            place
                .text(&format!("keys/{name}.key"))
                .contains("PRIVATE KEY")
        );
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let path = place.path(&format!("keys/{name}.key"));
            let mode = std::fs::metadata(path)
                .expect("a file")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
    assert!(!place.path("keys/client-3.pem").exists());
    let leftovers = std::fs::read_dir(place.path("keys")).expect("a directory");
    let leftovers = leftovers.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().ends_with(".tmp")
    });
    assert_eq!(leftovers.count(), 0);
}

#[test]
fn nothing_is_replaced_unless_that_is_asked_for() {
    let place = Place::new();
    place
        .run(&["keys", "init", "keys", "--clients", "2"])
        .well();
    let before = place.read("keys/ca.pem");
    let said = place
        .run(&["keys", "init", "keys", "--clients", "2"])
        .badly(2);
    assert!(
        said.contains("ca.pem exists") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(place.read("keys/ca.pem"), before);
    place
        .run(&["keys", "init", "keys", "--clients", "1", "--force"])
        .well();
    assert_ne!(place.read("keys/ca.pem"), before);
    assert!(
        !place.path("keys/client-1.pem").exists(),
        "of the old authority"
    );
}

#[test]
fn clients_come_and_go() {
    let place = Place::new();
    place
        .run(&["keys", "init", "keys", "--clients", "2"])
        .well();
    place.run(&["keys", "add", "keys", "--clients", "2"]).well();
    assert!(place.path("keys/client-3.key").exists());
    place.run(&["keys", "revoke", "keys", "1", "3"]).well();
    let state = |place: &Place| -> Vec<(String, String)> {
        let list = place
            .run(&["keys", "list", "keys", "--json"])
            .well()
            .object();
        let text = |value: &serde_json::Value| value.as_str().expect("text").to_string();
        let certificates = list["certificates"].as_array().expect("a list");
        certificates
            .iter()
            .map(|one| (text(&one["name"]), text(&one["state"])))
            .collect()
    };
    let expected = [
        ("server", "good"),
        ("client-0", "good"),
        ("client-1", "revoked"),
        ("client-2", "good"),
        ("client-3", "revoked"),
    ];
    let expected = expected.map(|(name, state)| (name.to_string(), state.to_string()));
    assert_eq!(state(&place), expected);
    let said = place.run(&["keys", "revoke", "keys", "1"]).badly(2);
    assert!(said.contains("revoked already"), "{said}");
    let said = place.run(&["keys", "revoke", "keys", "9"]).badly(2);
    assert!(said.contains("client 9"), "{said}");
    let said = place
        .run(&["keys", "add", "keys", "--client", "0"])
        .badly(2);
    assert!(said.contains("not revoked"), "{said}");
    let before = place.read("keys/client-1.pem");
    place.run(&["keys", "add", "keys", "--client", "1"]).well();
    assert_ne!(place.read("keys/client-1.pem"), before);
    assert_eq!(state(&place).len(), 6);
    let table = place.run(&["keys", "list", "keys"]).well();
    assert_eq!(table.stdout.lines().count(), 6);
    // Numbers are not used twice, even when the files have been moved to the client.
    for name in ["client-3.pem", "client-3.key"] {
        std::fs::remove_file(place.path(&format!("keys/{name}"))).expect("removed");
    }
    place.run(&["keys", "add", "keys"]).well();
    assert!(place.path("keys/client-4.pem").exists());
    assert!(!place.path("keys/client-3.pem").exists());
}

#[test]
fn mistakes_are_one_clear_line() {
    let place = Place::new();
    place.run(&["keys", "init", "keys"]).badly(2);
    place
        .run(&["keys", "init", "keys", "--clients", "0"])
        .badly(2);
    let said = place
        .run(&[
            "keys",
            "init",
            "keys",
            "--clients",
            "1",
            "--host",
            "no such name",
        ])
        .badly(2);
    assert!(said.contains("no such name"), "{said}");
    assert!(!place.path("keys").exists());
    let said = place.run(&["keys", "add", "keys"]).badly(2);
    assert!(said.contains("no authority"), "{said}");
    place.write("file", "");
    place
        .run(&["keys", "init", "file", "--clients", "1"])
        .badly(1);
    place
        .run(&["keys", "init", "keys", "--clients", "1"])
        .well();
    place.write("keys/revoked", "garbage\n");
    let said = place.run(&["keys", "list", "keys"]).badly(1);
    assert!(said.contains("revoked, line 1"), "{said}");
}
