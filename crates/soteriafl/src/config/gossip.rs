//! Clients without a server: which graph they form, what they tell each other, and how far each
//! goes towards its neighbours' mix.
//!
//! The mixing that is taken where none is given: half of the largest stable one for losses with
//! `L = 1` (SDM-DSGD), the authors' `11/sqrt(T)`, at most 1 (Q-DPSGD-1), half of the rule for
//! PORTER. All of them are public numbers.

use std::path::Path;

use soteriafl_core::compress::Compressor;
use soteriafl_core::gossip::{Graph, GraphError, Topology, Transport};
use toml::Value;

use super::document::{ConfigError, Document};
use super::private_ranges;
use super::resolve::{Resolved, StepSizeOrigin};
use super::write::{number, text};
use super::{AccountantName, Auto, ClipScope, Config, Preset, ShiftChoice, Theory};
use crate::specification::Gossip;
use crate::words::readable;

const KEY: &str = "algorithm.topology";

/// What is typed: a graph, or the file that lists its edges.
enum Typed {
    Graph(Topology),
    File(String),
}

/// Reads the graph.
///
/// # Errors
/// When it is none, or its file cannot be read.
pub(super) fn topology(document: &Document) -> Result<Option<Topology>, ConfigError> {
    let typed = document.read(KEY, None, |value| {
        let typed = value.as_str().map_or_else(|| inline(value), named);
        typed.map(Some)
    })?;
    match typed {
        Some(Typed::File(path)) => from_file(Path::new(&path)).map(Some),
        Some(Typed::Graph(topology)) => Ok(Some(topology)),
        None => Ok(None),
    }
}

fn named(name: &str) -> Option<Typed> {
    let graph = match name.split_once(':') {
        None => match name {
            "star" => Topology::Star,
            "complete" => Topology::Complete,
            "ring" => Topology::Ring,
            "torus" => Topology::Torus(None),
            _ => return None,
        },
        Some(("torus", size)) => {
            let (rows, columns) = size.split_once('x')?;
            let size = [rows.parse().ok()?, columns.parse().ok()?];
            Topology::Torus(Some(size).filter(|size| !size.contains(&0)))
        }
        Some(("random", rest)) => {
            let (probability, seed) = rest.split_once(':').unwrap_or((rest, "0"));
            let probability = probability.parse().ok()?;
            let seed = seed.parse().ok()?;
            Topology::Random { probability, seed }
        }
        Some(("edges", path)) if !path.is_empty() => return Some(Typed::File(path.to_string())),
        Some(_) => return None,
    };
    Some(Typed::Graph(graph))
}

/// A list of pairs.
fn inline(value: &Value) -> Option<Typed> {
    let end = |value: &Value| value.as_integer()?.try_into().ok();
    let edge = |value: &Value| match &value.as_array()?[..] {
        [a, b] => Some([end(a)?, end(b)?]),
        _ => None,
    };
    let edges = value.as_array()?.iter().map(edge).collect::<Option<_>>()?;
    Some(Typed::Graph(Topology::Edges(edges)))
}

/// A pair of clients in each line, separated by a comma or blanks; what follows a # is a remark.
fn from_file(path: &Path) -> Result<Topology, ConfigError> {
    let name = path.display().to_string();
    let content = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: name.clone(),
        reason: error.to_string(),
    })?;
    let mut edges = Vec::new();
    for (at, line) in content.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let fields = line
            .split([',', ' ', '\t'])
            .filter(|field| !field.is_empty());
        let ends: Vec<&str> = fields.collect();
        match ends[..] {
            [] => {}
            [a, b] if a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok() => {
                edges.push([a, b].map(|end| end.parse().unwrap_or_default()));
            }
            _ => {
                return Err(ConfigError::Syntax {
                    place: format!("{name}:{}", at + 1),
                    reason: "expected the numbers of two clients, such as 0 1".to_string(),
                });
            }
        }
    }
    Ok(Topology::Edges(edges))
}

/// As it is written in a configuration.
fn written(topology: &Topology) -> String {
    match topology {
        Topology::Edges(edges) => {
            let edges: Vec<String> = edges.iter().map(|[a, b]| format!("[{a}, {b}]")).collect();
            format!("[{}]", edges.join(", "))
        }
        named => text(&shown(named)),
    }
}

/// For people.
pub fn shown(topology: &Topology) -> String {
    match topology {
        Topology::Star => "star".to_string(),
        Topology::Complete => "complete".to_string(),
        Topology::Ring => "ring".to_string(),
        Topology::Torus(None) => "torus".to_string(),
        Topology::Torus(Some([rows, columns])) => format!("torus:{rows}x{columns}"),
        Topology::Random { probability, seed } => format!("random:{probability}:{seed}"),
        Topology::Edges(edges) => format!("list of {}", crate::words::counted(edges.len(), "edge")),
    }
}

impl Preset {
    /// What clients of this row tell each other, if they have no server.
    pub fn transport(self) -> Option<Transport> {
        match self {
            Preset::SdmDsgd => Some(Transport::Differences),
            Preset::QDpsgd1 => Some(Transport::Models),
            Preset::Porter => Some(Transport::Tracking),
            _ => None,
        }
    }
}

impl Config {
    /// The step size of a preset without a server. Q-DPSGD-1 has its authors'; SDM-DSGD's is
    /// multiplied by a mixing far below one.
    pub(super) fn gossip_step(&self, rounds: u32) -> Option<f64> {
        Some(match self.preset.transport()? {
            Transport::Differences => 1.0,
            Transport::Models => short(0.3 / f64::from(rounds).powf(1.0 / 6.0)),
            Transport::Tracking => 0.1,
        })
    }

    /// The graph and the mixing of a preset without a server.
    ///
    /// # Errors
    /// When there is no such graph, the compressor is not one for it, or models would fly apart.
    pub(super) fn gossip(
        &self,
        compressor: &Compressor,
        clients: usize,
        step_size: f64,
        rounds: u32,
    ) -> Result<Option<Gossip>, ConfigError> {
        let Some(transport) = self.preset.transport() else {
            return Ok(None);
        };
        if self.participation < 1.0 {
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.participation` is {}, but clients without a server speak in every round",
                    readable(self.participation)
                ),
                "leave it out",
            ));
        }
        transport.check(compressor).map_err(|error| {
            ConfigError::with_hint(
                format!("`algorithm.compressor` does not suit this preset: {error}"),
                "leave algorithm.compressor out",
            )
        })?;
        let topology = self.topology.clone().unwrap_or(Topology::Star);
        let graph = Graph::new(&topology, clients).map_err(|error| unfit(&error))?;
        let most = transport.largest_mixing(compressor, &graph, 0.0);
        let mixing = self.mixing.or_else(|| {
            short(match transport {
                Transport::Differences => {
                    0.5 * transport.largest_mixing(compressor, &graph, step_size)
                }
                Transport::Models => (11.0 / f64::from(rounds).sqrt()).min(1.0).min(most),
                Transport::Tracking => (0.5 * most).min(1.0),
            })
        });
        if mixing > most && transport.bound_is_proved(compressor) {
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.mixing` is {}, above the stability bound {} of this graph and \
                     compressor: the clients' models would move apart",
                    readable(mixing),
                    readable(short(most))
                ),
                "use a smaller one, a graph with more edges or a compressor that keeps more; \
                 `auto` takes a stable one",
            ));
        }
        Ok(Some(Gossip {
            transport,
            topology,
            mixing,
        }))
    }

    /// Refuses what clients without a server do not have, as far as it was asked for.
    pub(super) fn check_gossip(&self, resolved: &Resolved) -> Result<(), ConfigError> {
        let Some(gossip) = &resolved.gossip else {
            return Ok(());
        };
        let keeps = gossip.transport.keeps_noise();
        let theory = self.rounds == Auto::Given(Theory::Theory)
            || resolved.step_size_origin == StepSizeOrigin::Theory;
        let gradient = resolved.estimator.is_memoryless();
        let refused: [(bool, &str, &str); 13] = [
            (
                !gradient,
                "`algorithm.estimator`: clients without a server have gradients of whole data or batches only",
                "use sgd or gd",
            ),
            (
                resolved.shift != ShiftChoice::Off,
                "`algorithm.shift` does not go with clients that have models of their own: what they send are differences to what all know already",
                "use algorithm.shift = \"off\"",
            ),
            (
                resolved.clip_scope == ClipScope::Selected && keeps,
                "`privacy.clip_scope = \"selected\"` does not go with this preset: clients keep noisy vectors, of which every coordinate travels sooner or later",
                "leave it out",
            ),
            (
                resolved.shared_coordinates && keeps,
                "`algorithm.coordinates = \"shared\"` does not go with this preset: each client chooses what it sends of what it keeps",
                "leave it out",
            ),
            (
                resolved.momentum > 0.0,
                "`algorithm.momentum` is a server's, and there is none",
                "leave it out",
            ),
            (
                resolved.step_cap.is_some() || resolved.smoothing > 0 || resolved.equalize > 0.0,
                "`algorithm.step_cap`, `smoothing` and `equalize` are a server's, and there is none",
                "leave them out",
            ),
            (
                resolved.regularizer_at_client,
                "`model.regularizer_at = \"client\"` does not go with clients that have models of their own: each adds the exact gradient already, neither clipped nor noised",
                "leave it out",
            ),
            (
                resolved.trusted_aggregation,
                "`privacy.trusted_aggregation` does not go with clients whose neighbours hear each message",
                "leave it out",
            ),
            (
                resolved.whiten.is_some(),
                "`data.whiten` needs a server that averages second moments",
                "use data.whiten = \"none\"",
            ),
            (
                private_ranges(self.schema.as_deref()).is_some(),
                "`range = \"private\"` needs a server that averages what clients release of their columns",
                "give the columns public ranges",
            ),
            (
                resolved.downlink.is_some(),
                "`algorithm.downlink` is about what a server sends, and there is none",
                "leave it out",
            ),
            (
                theory,
                "the paper's theory has no step size and no rounds for clients without a server",
                "give numbers for algorithm.step_size and algorithm.rounds",
            ),
            (
                resolved.accountant == AccountantName::Paper,
                "the paper has no formula for the noise of clients without a server",
                "use privacy.accountant = \"pld\"",
            ),
        ];
        match refused.into_iter().find(|(applies, ..)| *applies) {
            Some((_, message, hint)) => Err(ConfigError::with_hint(message, hint)),
            None => Ok(()),
        }
    }
}

/// Four digits, rounded down: a bound that is shown can be typed.
fn short(value: f64) -> f64 {
    let unit = 10f64.powf(3.0 - value.log10().floor());
    let rounded = (value * unit).floor() / unit;
    if rounded.is_finite() { rounded } else { value }
}

fn unfit(error: &GraphError) -> ConfigError {
    let hint = match error {
        GraphError::Disconnected(_) => {
            "add edges, raise the probability or take another seed (random:P:SEED): what clients \
             that cannot hear of each other learn never becomes one model"
        }
        GraphError::Prime(_) | GraphError::Torus { .. } => {
            "use torus:ROWSxCOLUMNS with ROWS times COLUMNS clients, or ring"
        }
        _ => "see algorithm.topology in docs/configuration.md",
    };
    ConfigError::with_hint(format!("`{KEY}`: {error}"), hint)
}

impl Resolved {
    /// The graph of a run without a server.
    pub fn graph(&self) -> Option<Graph> {
        let gossip = self.gossip.as_ref()?;
        Graph::new(&gossip.topology, self.clients).ok()
    }

    /// One line on who talks to whom, for a run without a server.
    pub fn graph_text(&self) -> Option<String> {
        let (gossip, graph) = (self.gossip.as_ref()?, self.graph()?);
        let told = match gossip.transport {
            Transport::Differences => "differences of models",
            Transport::Models => "models",
            Transport::Tracking => "differences of models and of tracked gradients",
        };
        Some(format!(
            "clients have models of their own and send {told}: topology {}, {}, spectral gap {:.4}, mixing {}",
            shown(&gossip.topology),
            crate::words::counted(graph.edges(), "edge"),
            graph.spectral_gap(),
            readable(gossip.mixing),
        ))
    }

    /// The lines of a run without a server in the section `algorithm`.
    pub(super) fn gossip_lines(&self) -> Vec<(&'static str, String)> {
        let Some(gossip) = &self.gossip else {
            return Vec::new();
        };
        vec![
            ("topology", written(&gossip.topology)),
            ("mixing", number(gossip.mixing)),
        ]
    }

    /// What to know about the mixing: where its bound is a rule, going beyond it is not refused.
    pub(super) fn gossip_warning(&self, compressor: &Compressor) -> Option<String> {
        let (gossip, graph) = (self.gossip.as_ref()?, self.graph()?);
        let most = gossip.transport.largest_mixing(compressor, &graph, 0.0);
        (gossip.mixing > most).then(|| {
            format!(
                "`algorithm.mixing` is {}, above {}, which is the rule for this graph and compressor: \
                 the clients' models may move apart",
                readable(gossip.mixing),
                readable(short(most))
            )
        })
    }
}
