//! Modules of the crate depend on each other in one direction only: a module uses modules that come
//! after it in this list, so that there are no cycles.

use std::path::{Path, PathBuf};

const ORDER: [&str; 17] = [
    "theory",
    "simulate",
    "gossip",
    "quality",
    "protocol",
    "ranges",
    "moments",
    "preliminary",
    "wire",
    "compress",
    "estimator",
    "privacy",
    "objective",
    "data",
    "sampling",
    "random",
    "linalg",
];

/// All source files below a directory.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn rank(module: &str) -> Option<usize> {
    ORDER.iter().position(|&name| name == module)
}

/// The modules that a line of code names as `crate::module`.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn modules_use_only_modules_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "{} files", files.len());
    let (mut uses, mut wrong) = (0, Vec::new());
    for path in files {
        let relative = path.strip_prefix(&root).unwrap();
        let first = relative.components().next().unwrap().as_os_str();
        let module = first.to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" || relative.ends_with("tests.rs") {
            continue;
        }
        let own = rank(module).unwrap_or_else(|| panic!("{module} has no place in the order"));
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().take_while(|line| *line != "#[cfg(test)]");
        for line in code.filter(|line| !line.trim_start().starts_with("//")) {
            for used in named(line).filter_map(rank) {
                uses += 1;
                if used < own {
                    wrong.push(format!("{}: {}", relative.display(), line.trim()));
                }
            }
        }
    }
    assert!(uses > 80, "{uses} uses");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
