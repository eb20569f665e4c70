//! `soteria keys`: a private certificate authority for one deployment.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use soteriafl_core::protocol::ClientId;

use super::{Failure, Verbosity, print, print_json};
use soteriafl_deploy::net::keys::{DEFAULT_DAYS, Directory, KeysError, Listed, today};

/// Make, list and revoke the certificates of a deployment
#[derive(clap::Args, Debug)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Make an authority, the server's certificate and one per client
    Init {
        /// The directory to make
        directory: PathBuf,
        /// How many clients
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        clients: u32,
        /// A name or address of the server, beside localhost, 127.0.0.1 and ::1
        #[arg(long = "host", value_name = "NAME")]
        hosts: Vec<String>,
        #[command(flatten)]
        validity: Validity,
        /// Replace an authority that is there; all its certificates become worthless
        #[arg(long)]
        force: bool,
    },
    /// Make certificates for more clients, or another one for a client
    Add {
        /// The directory
        directory: PathBuf,
        /// How many more clients
        #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "client",
              value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        clients: u32,
        /// Replace the certificate of this client, which must be revoked
        #[arg(long, value_name = "I")]
        client: Option<ClientId>,
        #[command(flatten)]
        validity: Validity,
        /// With --client: the old certificate need not be revoked and stays good
        #[arg(long, requires = "client")]
        force: bool,
    },
    /// Refuse a client from now on; a running server notices by itself
    Revoke {
        /// The directory
        directory: PathBuf,
        /// The clients
        #[arg(value_name = "CLIENT", required = true)]
        clients: Vec<ClientId>,
    },
    /// Replace the server's certificate, for other names or another term
    Server {
        /// The directory
        directory: PathBuf,
        /// A name or address of the server, beside localhost, 127.0.0.1 and ::1
        #[arg(long = "host", value_name = "NAME")]
        hosts: Vec<String>,
        #[command(flatten)]
        validity: Validity,
    },
    /// List all certificates
    List {
        /// The directory
        directory: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args, Clone, Copy, Debug)]
struct Validity {
    /// How many days certificates are good for
    #[arg(
        long,
        value_name = "N",
        default_value_t = DEFAULT_DAYS,
        value_parser = clap::value_parser!(u32).range(1..=36_500)
    )]
    days: u32,
}

impl From<KeysError> for Failure {
    fn from(error: KeysError) -> Self {
        let hint = match &error {
            KeysError::Exists(_) => "give another directory, or --force to replace everything",
            KeysError::NoAuthority(_) => "`soteria keys init DIR --clients N` makes one",
            KeysError::InForce(_) => "revoke it first, or give --force to let both be good",
            KeysError::NoClient { .. } => "`soteria keys list DIR` shows who has one",
            KeysError::Host(_) => "give a name like fl.example.org or an address like 192.0.2.7",
            KeysError::Revoked(_) => "`soteria keys add DIR --client I` gives it another one",
            _ => return Failure::Failed(error.to_string()),
        };
        Failure::Usage {
            message: error.to_string(),
            hint: Some(hint.to_string()),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When the directory does not allow it.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    match &options.action {
        Action::Init {
            directory,
            clients,
            hosts,
            validity,
            force,
        } => {
            Directory::init(directory, *clients, hosts, validity.days, *force)?;
            init_text(directory, *clients, validity.days, verbosity);
            Ok(())
        }
        Action::Add {
            directory,
            clients,
            client,
            validity,
            force,
        } => {
            let opened = Directory::open(directory)?;
            let made = match client {
                Some(client) => {
                    opened.replace(*client, validity.days, *force)?;
                    vec![*client]
                }
                None => opened.add(*clients, validity.days)?,
            };
            for client in made {
                let base = directory.join(format!("client-{client}"));
                let base = base.display();
                verbosity.say(format!(
                    "wrote {base}.pem and {base}.key, good for {} days",
                    validity.days
                ));
            }
            Ok(())
        }
        Action::Revoke { directory, clients } => {
            let opened = Directory::open(directory)?;
            for client in clients {
                opened.revoke(*client)?;
                verbosity.say(format!("client {client} is revoked"));
            }
            verbosity.say(format!(
                "a server that uses this directory knows at once; another one needs a copy of {}",
                directory.join("revoked").display()
            ));
            Ok(())
        }
        Action::Server {
            directory,
            hosts,
            validity,
        } => {
            Directory::open(directory)?.replace_server(hosts, validity.days)?;
            verbosity.say(format!(
                "wrote {}, good for {} days; the server reads it when it starts",
                directory.join("server.pem").display(),
                validity.days
            ));
            Ok(())
        }
        Action::List { directory, json } => list(directory, *json),
    }
}

fn init_text(directory: &Path, clients: u32, days: u32, verbosity: Verbosity) {
    let shown = directory.display();
    verbosity.say(format!(
        "wrote an authority, a server's certificate and {clients} client{} to {shown}, good for \
         {days} days",
        if clients == 1 { "" } else { "s" },
    ));
    verbosity.say("the server needs  ca.pem server.pem server.key revoked");
    verbosity.say("client N needs    ca.pem client-N.pem client-N.key");
    verbosity
        .say("ca.key makes new certificates: where machines are several, it belongs on neither");
}

fn list(directory: &Path, as_json: bool) -> Result<(), Failure> {
    let listed = Directory::open(directory)?.list()?;
    let today = today();
    let days = |one: &Listed| {
        let until = one.until?;
        let span = today.until(until).ok()?;
        Some(i64::from(span.get_days()))
    };
    let state = |one: &Listed| match days(one) {
        _ if one.revoked => "revoked",
        Some(days) if days <= 0 => "expired",
        Some(days) if days <= 30 => "ends soon",
        _ => "good",
    };
    if as_json {
        let certificates: Vec<Value> = listed
            .iter()
            .map(|one| {
                json!({
                    "name": one.name,
                    "client": one.client,
                    "state": state(one),
                    "until": one.until.map(|date| date.to_string()),
                    "fingerprint": one.fingerprint.to_string(),
                })
            })
            .collect();
        return print_json(&json!({ "certificates": certificates }));
    }
    let width = listed.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for one in &listed {
        let until = one
            .until
            .map_or("?".to_string(), |date| format!("until {date}"));
        let print = one.fingerprint.to_string();
        text += &format!(
            "{:<width$}  {:<9}  {until:<16}  {}\n",
            one.name,
            state(one),
            &print[..16]
        );
    }
    print(&text)
}
