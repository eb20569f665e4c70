//! `soteria data`: the list, what a source holds, downloads against a small server, exports.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::program::{Place, Ran};

#[test]
fn known_sources_are_listed() {
    let place = Place::new();
    let list = place.run(&["data", "list"]).well().stdout;
    let line = |name: &str| {
        list.lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {list}"))
    };
    assert!(line("a9a").contains("32561") && line("a9a").contains("built in"));
    assert!(line("mnist").contains("60000") && line("mnist").contains("soteria data fetch mnist"));
    assert!(line("synthetic:").contains("seed"));
    for name in [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ] {
        place.write(&format!("sets/mnist/{name}"), "");
    }
    let mut command = place.command(&["data", "list", "--json"]);
    let by_variable = Ran::from(
        command
            .env("SOTERIA_DATA", place.path("sets"))
            .output()
            .unwrap(),
    )
    .well()
    .object();
    let option = place
        .run(&["data", "list", "--json", "--data", "sets"])
        .well()
        .object();
    for (object, folder) in [
        (by_variable, place.path("sets/mnist")),
        (option, "sets/mnist".into()),
    ] {
        let mnist = object["sources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|source| source["name"] == "mnist")
            .unwrap();
        assert_eq!(mnist["present"], true);
        assert_eq!(mnist["location"], folder.to_str().unwrap());
        assert_eq!(
            (&mnist["features"], &mnist["classes"]),
            (&784.into(), &10.into())
        );
    }
}

#[test]
fn a_source_is_shown() {
    let place = Place::new();
    let shown = place
        .run(&["data", "show", "a9a", "--json"])
        .well()
        .object();
    assert_eq!(
        (&shown["rows"], &shown["test_rows"], &shown["features"]),
        (&32561.into(), &16281.into(), &123.into())
    );
    // The counts of the Adult census data: 7841 earn more than 50K, 3846 of the test records.
    assert_eq!(shown["classes"][0]["rows"], 24720);
    assert_eq!(shown["classes"][1]["rows"], 7841);
    assert_eq!(shown["classes"][1]["test_rows"], 3846);
    assert_eq!(
        (&shown["values"]["min"], &shown["values"]["max"]),
        (&0.0.into(), &1.0.into())
    );
    let density = shown["density"].as_f64().unwrap();
    // 451,592 ones among 32561 * 123 values.
    assert!(
        (density - 451_592.0 / (32_561.0 * 123.0)).abs() < 1e-12,
        "{density}"
    );
    place.write("x.csv", "a,b,kind\n0.5,-2,rose\n0,3,lily\n1,0,rose\n");
    let text = place.run(&["data", "show", "csv:x.csv"]).well().stdout;
    for part in [
        "3, no test set",
        "-2 to 3",
        "66.67%",
        "lily",
        "rose",
        "dense",
    ] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    assert!(
        place
            .run(&["data", "show", "csv:absent.csv"])
            .badly(1)
            .contains("absent.csv")
    );
    assert!(
        place
            .run(&["data", "show", "nonsense"])
            .badly(2)
            .contains("nonsense")
    );
    let absent = place.run(&["data", "show", "mnist"]).badly(1);
    assert!(absent.contains("soteria data fetch mnist"), "{absent}");
}

/// What is exported reads back as the same data, in both formats; files are not overwritten.
#[test]
fn exports_read_back() {
    let place = Place::new();
    for (format, source) in [("libsvm", "libsvm:x.libsvm"), ("csv", "csv:x.csv")] {
        let path = format!("x.{format}");
        place
            .run(&[
                "data",
                "export",
                "synthetic:40x3",
                "--format",
                format,
                &path,
            ])
            .well();
        let back = place
            .run(&["data", "export", source, "--format", "csv", "-"])
            .well()
            .stdout;
        let direct = place
            .run(&["data", "export", "synthetic:40x3", "--format", "csv", "-"])
            .well()
            .stdout;
        assert_eq!(back, direct);
        let said = place
            .run(&[
                "data",
                "export",
                "synthetic:40x3",
                "--format",
                format,
                &path,
            ])
            .badly(2);
        assert!(said.contains(&path) && said.contains("--force"), "{said}");
        place
            .run(&[
                "data",
                "export",
                "synthetic:40x3",
                "--seed",
                "1",
                "--format",
                format,
                &path,
                "--force",
            ])
            .well();
        assert_ne!(
            place
                .run(&["data", "export", source, "--format", "csv", "-"])
                .well()
                .stdout,
            direct
        );
    }
    let test = place
        .run(&[
            "data",
            "export",
            "synthetic:40x3",
            "--test",
            "--format",
            "csv",
            "-",
        ])
        .well()
        .stdout;
    let train = place
        .run(&["data", "export", "synthetic:40x3", "--format", "csv", "-"])
        .well()
        .stdout;
    assert_ne!(test, train);
    let none = place
        .run(&[
            "data",
            "export",
            "csv:x.csv",
            "--test",
            "--format",
            "csv",
            "-",
        ])
        .badly(2);
    assert!(none.contains("no test set"), "{none}");
    assert!(
        place
            .run(&["data", "export", "a9a", "--format", "arff", "x"])
            .badly(2)
            .contains("arff")
    );
    let folder = place
        .run(&[
            "data",
            "export",
            "synthetic:4x3",
            "--format",
            "csv",
            "absent/x.csv",
        ])
        .badly(1);
    assert!(folder.contains("absent/x.csv"), "{folder}");
}

/// a9a as the LIBSVM collection spells it: a space after every entry, signed labels.
fn published(place: &Place, test: bool) -> Vec<u8> {
    let mut arguments = vec!["data", "export", "a9a", "--format", "libsvm", "-"];
    if test {
        arguments.push("--test");
    }
    let text = place.run(&arguments).well().stdout;
    let signed = |line: &str| {
        if line.starts_with('-') {
            format!("{line} \n")
        } else {
            format!("+{} \n", line.trim_start_matches('+'))
        }
    };
    text.lines().map(signed).collect::<String>().into_bytes()
}

/// How the server behaves for the next requests of a file.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Manner {
    Well,
    /// Breaks off after this many bytes, once.
    Short(usize),
    /// Sends everything although a range was asked for.
    NoRanges,
    /// One byte is wrong.
    Corrupt,
    /// Sends more than there is.
    Long,
    Status(u16),
}

/// A server on the loopback that has the files of a9a; it notes what it was asked for.
struct Mirror {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    manner: Arc<Mutex<Manner>>,
}

impl Mirror {
    fn new(place: &Place) -> Mirror {
        let files = Arc::new([published(place, false), published(place, true)]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let manner = Arc::new(Mutex::new(Manner::Well));
        let (notes, mood) = (Arc::clone(&asked), Arc::clone(&manner));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that goes away is part of the game.
                let _ = serve(stream.unwrap(), &files, &notes, &mood);
            }
        });
        Mirror {
            address,
            asked,
            manner,
        }
    }

    fn fetch(&self, place: &Place, manner: Manner) -> Ran {
        *self.manner.lock().unwrap() = manner;
        self.asked.lock().unwrap().clear();
        let mut command = place.command(&["data", "fetch", "a9a", "--data", "sets"]);
        command
            .env("SOTERIA_MIRROR", &self.address)
            .output()
            .unwrap()
            .into()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    stream: TcpStream,
    files: &[Vec<u8>; 2],
    notes: &Mutex<Vec<String>>,
    mood: &Mutex<Manner>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut from = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        if let Some(range) = line
            .to_ascii_lowercase()
            .trim()
            .strip_prefix("range: bytes=")
        {
            from = range.trim_end_matches('-').parse().unwrap();
        }
        line.clear();
    }
    notes.lock().unwrap().push(format!("{path} {from}"));
    let manner = *mood.lock().unwrap();
    let mut stream = stream;
    let whole = match path.as_str() {
        "/a9a/a9a" => &files[0],
        "/a9a/a9a.t" => &files[1],
        _ => {
            return write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    };
    let mut body = whole.clone();
    match manner {
        Manner::Status(status) => {
            return write!(
                stream,
                "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        Manner::Corrupt => body[1000] ^= 1,
        Manner::Long => body.push(b'\n'),
        Manner::NoRanges => from = 0,
        Manner::Well | Manner::Short(_) => {}
    }
    let length = body.len();
    let sent = &body[from..];
    match from {
        0 => write!(stream, "HTTP/1.1 200 OK\r\n")?,
        _ => write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{length}\r\n",
            length - 1
        )?,
    }
    write!(
        stream,
        "Content-Length: {}\r\nConnection: close\r\n\r\n",
        sent.len()
    )?;
    if let Manner::Short(count) = manner {
        *mood.lock().unwrap() = Manner::Status(503);
        return stream.write_all(&sent[..count]);
    }
    stream.write_all(sent)
}

#[test]
fn fetching_verifies_resumes_and_says_where() {
    let place = Place::new();
    let mirror = Mirror::new(&place);

    // Broken off in the middle, and the server is gone: an error, the part stays, nothing is called
    // a9a.
    let broken = mirror.fetch(&place, Manner::Short(700_000)).badly(1);
    assert!(
        broken.contains("cannot fetch a9a")
            && broken.contains(&mirror.address)
            && broken.contains("503"),
        "{broken}"
    );
    assert!(!place.path("sets/a9a/a9a").exists());
    assert_eq!(place.read("sets/a9a/a9a.part").len(), 700_000);
    assert_eq!(mirror.asked(), ["/a9a/a9a 0", "/a9a/a9a 700000"]);

    // The next one asks for the rest only.
    let ran = mirror.fetch(&place, Manner::Well).well();
    assert_eq!(mirror.asked(), ["/a9a/a9a 700000", "/a9a/a9a.t 0"]);
    assert_eq!(ran.stdout, "sets/a9a\n");
    assert!(
        ran.stderr.contains("going on after") && ran.stderr.contains("checksum verified"),
        "{ran:?}"
    );
    assert!(place.read("sets/a9a/a9a") == published(&place, false));
    assert!(place.read("sets/a9a/a9a.t") == published(&place, true));
    assert!(
        !place.path("sets/a9a/a9a.part").exists() && !place.path("sets/a9a/a9a.t.part").exists()
    );
    let shown = place
        .run(&["data", "show", "libsvm:sets/a9a/a9a", "--json"])
        .well()
        .object();
    assert_eq!(
        (&shown["rows"], &shown["features"]),
        (&32561.into(), &123.into())
    );

    // Everything is here: nothing is asked for.
    let again = mirror.fetch(&place, Manner::Well).well();
    assert!(again.stderr.contains("here already"), "{again:?}");
    assert_eq!(mirror.asked(), [""; 0]);

    // A damaged file is noticed and replaced.
    place.write("sets/a9a/a9a.t", "+1 1:1\n");
    let repaired = mirror.fetch(&place, Manner::Well).well();
    assert!(
        repaired
            .stderr
            .contains("warning: a9a.t is not the published file"),
        "{repaired:?}"
    );
    assert!(place.read("sets/a9a/a9a.t") == published(&place, true));
}

#[test]
fn bad_mirrors_leave_nothing_behind() {
    let place = Place::new();
    let mirror = Mirror::new(&place);
    for (manner, reason) in [
        (Manner::Corrupt, "checksum"),
        (Manner::Long, "longer than 2329875 bytes"),
        (Manner::Status(404), "status 404"),
        (Manner::Status(500), "status 500"),
    ] {
        let said = mirror.fetch(&place, manner).badly(1);
        assert!(said.contains(reason), "{manner:?}: {said}");
        assert!(!place.path("sets/a9a/a9a").exists(), "{manner:?}");
    }
    // A part of something else fails its checksum once, then the file is fetched from the start.
    place.write("sets/a9a/a9a.part", vec![b'x'; 5000]);
    mirror.fetch(&place, Manner::Well).well();
    assert_eq!(
        mirror.asked(),
        ["/a9a/a9a 5000", "/a9a/a9a 0", "/a9a/a9a.t 0"]
    );
    // A server that knows no ranges sends everything: what was there is dropped.
    std::fs::remove_file(place.path("sets/a9a/a9a")).unwrap();
    place.write("sets/a9a/a9a.part", &published(&place, false)[..9000]);
    mirror.fetch(&place, Manner::NoRanges).well();
    assert!(place.read("sets/a9a/a9a") == published(&place, false));
    // A part that is longer than the file is none.
    std::fs::remove_file(place.path("sets/a9a/a9a")).unwrap();
    place.write("sets/a9a/a9a.part", vec![b'x'; 3_000_000]);
    mirror.fetch(&place, Manner::Well).well();
    assert_eq!(mirror.asked(), ["/a9a/a9a 0"]);
}

#[test]
fn without_a_network_the_error_names_what_was_tried() {
    let place = Place::new();
    // A port that was free a moment ago: nobody listens.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = place.command(&["data", "fetch", "mnist"]);
    let ran = Ran::from(
        command
            .env("SOTERIA_MIRROR", format!("http://127.0.0.1:{port}"))
            .output()
            .unwrap(),
    );
    let said = ran.badly(1);
    assert!(
        said.contains("cannot fetch train-images-idx3-ubyte.gz"),
        "{said}"
    );
    assert!(
        said.contains(&format!(
            "http://127.0.0.1:{port}/mnist/train-images-idx3-ubyte.gz"
        )),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let left = std::fs::read_dir(place.path(".cache/soteria/mnist"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "an empty part is left");
    let said = place.run(&["data", "fetch", "cifar"]).badly(2);
    assert!(
        said.contains("cifar") && said.contains("fashion-mnist"),
        "{said}"
    );
    let mut command = place.command(&["data", "fetch", "mnist"]);
    let homeless = Ran::from(command.env_remove("HOME").output().unwrap()).badly(2);
    assert!(homeless.contains("--data"), "{homeless}");
    place.write("file", "");
    let said = place
        .run(&["data", "fetch", "mnist", "--data", "file"])
        .badly(1);
    assert!(said.contains("file/mnist"), "{said}");
}

/// Readers that go away early do not make the program panic.
#[test]
fn closed_pipes_are_no_panic() {
    let place = Place::new();
    for arguments in [
        &["data", "list"] as &[&str],
        &["completions", "bash"],
        &["data", "export", "a9a", "--format", "csv", "-"],
    ] {
        let mut child = place.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(
            (ran.code, ran.stderr.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
    let mut child = place
        .command(&[
            "train",
            "--set",
            "data.source=synthetic:60x4",
            "--set",
            "algorithm.rounds=2",
        ])
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    let mut child = place
        .command(&["train", "--set", "data.source=nonsense"])
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(2));
}
