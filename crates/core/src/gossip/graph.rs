//! Who talks to whom, and with what weight.
//!
//! **What it computes.** The mixing matrix `W` of a connected graph by Metropolis' rule,
//! `W_ij = 1/(1 + max(deg_i, deg_j))` for neighbours and `W_ii = 1 - sum_j W_ij`: symmetric, doubly
//! stochastic, and a function of degrees that neighbours can tell each other. Its eigenvalues
//! `1 > l_2 >= ... >= l_n > -1` say how fast differences between clients vanish (the spectral gap
//! `1 - max(l_2, |l_n|)`) and how strongly they may be mixed (`1 - l_n`).
//!
//! **Cost.** As many numbers as there are edges. The star and the complete graph have
//! `W = 11'/n`, for which one sum serves all; they differ in what travels.

use std::collections::BTreeSet;

use crate::random::{PublicPurpose, PublicSeed, unit};

/// The choice of a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Topology {
    /// A server adds up all messages and sends the mean back.
    Star,
    /// Everybody hears everybody.
    Complete,
    /// Everybody hears the client before and the one after.
    Ring,
    /// A grid whose borders are joined; `None`: as near to a square as the number of clients
    /// allows.
    Torus(Option<[u32; 2]>),
    /// Every pair by a public coin of its own (Erdős, Rényi).
    Random {
        /// The probability of each pair.
        probability: f64,
        /// The seed of the coins.
        seed: u64,
    },
    /// Pairs of clients.
    Edges(Vec<[u32; 2]>),
}

/// Why there is no such graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Some clients cannot hear of some others.
    #[error("the graph is not connected: nothing of client 0 ever reaches client {0}")]
    Disconnected(u32),
    /// An edge of a client that does not exist.
    #[error("an edge names client {client}, but clients are numbered from 0 to {last}")]
    Unknown {
        /// The number found.
        client: u32,
        /// The last one.
        last: usize,
    },
    /// An edge from a client to itself.
    #[error("an edge joins client {0} to itself")]
    Loop(u32),
    /// A torus of another size.
    #[error("a torus of {rows} x {columns} has not {clients} clients")]
    Torus {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
        /// Clients of the run.
        clients: usize,
    },
    /// A number of clients that makes no grid.
    #[error("{0} clients make no torus: the number has no divisors")]
    Prime(usize),
    /// A probability outside (0, 1].
    #[error("the probability of an edge must lie in (0, 1], found {0}")]
    Probability(f64),
    /// More clients than a graph is made for.
    #[error("a graph of {0} clients is too large: at most {most}", most = MOST)]
    TooMany(usize),
}

/// The most clients of a graph other than star and complete.
const MOST: usize = 1 << 14;

/// One of those that a client hears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// Its number.
    pub client: u32,
    /// `W_ij`.
    pub weight: f64,
}

/// A connected graph with its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    clients: usize,
    star: bool,
    /// Whom each client hears, itself included, in ascending order; none where `W = 11'/n`.
    heard: Option<Vec<Vec<Neighbour>>>,
    /// The largest eigenvalue beside that of the mean, and the smallest.
    extremes: [f64; 2],
}

impl Graph {
    /// The graph of `clients` clients.
    ///
    /// # Errors
    /// When there is none, or some clients cannot hear of some others.
    pub fn new(topology: &Topology, clients: usize) -> Result<Self, GraphError> {
        if matches!(topology, Topology::Star | Topology::Complete) {
            return Ok(Self {
                clients,
                star: *topology == Topology::Star,
                heard: None,
                extremes: [0.0; 2],
            });
        }
        if clients > MOST {
            return Err(GraphError::TooMany(clients));
        }
        let neighbours = neighbours(topology, clients)?;
        check_connected(&neighbours)?;
        let heard = metropolis(&neighbours);
        Ok(Self {
            clients,
            star: false,
            extremes: extremes(&heard),
            heard: Some(heard),
        })
    }

    /// How many clients there are.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// Whether a server adds messages up and sends their mean back.
    pub fn has_server(&self) -> bool {
        self.star
    }

    /// Whom a client hears, itself included, in ascending order; `None` where everybody hears the
    /// mean of all.
    pub fn heard(&self, client: usize) -> Option<&[Neighbour]> {
        self.heard.as_ref().map(|heard| &heard[client][..])
    }

    /// Whether everybody hears the mean of all.
    pub fn is_uniform(&self) -> bool {
        self.heard.is_none()
    }

    /// `W_ii`.
    pub fn own_weight(&self, client: usize) -> f64 {
        let own = |neighbour: &&Neighbour| neighbour.client as usize == client;
        self.heard(client)
            .and_then(|heard| heard.iter().find(own))
            .map_or(1.0 / self.clients as f64, |neighbour| neighbour.weight)
    }

    /// How often a client sends a message: once for each neighbour, or once to the server.
    pub fn receivers(&self, client: usize) -> usize {
        match self.heard(client) {
            Some(heard) => heard.len() - 1,
            None if self.star => 1,
            None => self.clients - 1,
        }
    }

    /// Edges, each counted once.
    pub fn edges(&self) -> usize {
        match (&self.heard, self.star) {
            (Some(heard), _) => heard.iter().map(|heard| heard.len() - 1).sum::<usize>() / 2,
            (None, true) => self.clients,
            (None, false) => self.clients * (self.clients - 1) / 2,
        }
    }

    /// `1 - max(l_2, |l_n|)`: by this share the differences of models shrink when they are mixed
    /// once. One where everybody hears the mean of all.
    pub fn spectral_gap(&self) -> f64 {
        let [second, least] = self.extremes;
        1.0 - second.abs().max(least.abs())
    }

    /// `1 - l_n`, the largest eigenvalue of `I - W`; zero for a single client.
    pub fn widest(&self) -> f64 {
        match self.clients {
            1 => 0.0,
            _ => 1.0 - self.extremes[1],
        }
    }
}

/// Everybody's neighbours, without itself.
fn neighbours(topology: &Topology, clients: usize) -> Result<Vec<BTreeSet<u32>>, GraphError> {
    let mut found = vec![BTreeSet::new(); clients];
    let mut join = |a: usize, b: usize| {
        // Small rings and grids would have some edges twice, or to themselves.
        if a != b {
            found[a].insert(b as u32);
            found[b].insert(a as u32);
        }
    };
    match topology {
        Topology::Star | Topology::Complete => {}
        Topology::Ring => (0..clients).for_each(|client| join(client, (client + 1) % clients)),
        Topology::Torus(size) => {
            let [rows, columns] = torus(*size, clients)?;
            for client in 0..clients {
                let (row, column) = (client / columns, client % columns);
                join(client, row * columns + (column + 1) % columns);
                join(client, (row + 1) % rows * columns + column);
            }
        }
        Topology::Random { probability, seed } => {
            if !(*probability > 0.0 && *probability <= 1.0) {
                return Err(GraphError::Probability(*probability));
            }
            let mut coins = PublicSeed(*seed).stream(PublicPurpose::Topology, 0);
            for a in 0..clients {
                for b in a + 1..clients {
                    if unit(&mut coins) < *probability {
                        join(a, b);
                    }
                }
            }
        }
        Topology::Edges(edges) => {
            let last = clients.saturating_sub(1);
            for &[a, b] in edges {
                if let Some(&client) = [a, b].iter().find(|&&end| end as usize > last) {
                    return Err(GraphError::Unknown { client, last });
                }
                if a == b {
                    return Err(GraphError::Loop(a));
                }
                join(a as usize, b as usize);
            }
        }
    }
    Ok(found)
}

/// Rows and columns of a torus.
fn torus(size: Option<[u32; 2]>, clients: usize) -> Result<[usize; 2], GraphError> {
    if let Some([rows, columns]) = size {
        return match u64::from(rows) * u64::from(columns) == clients as u64 {
            true => Ok([rows as usize, columns as usize]),
            false => Err(GraphError::Torus {
                rows,
                columns,
                clients,
            }),
        };
    }
    let rows = (1..=clients.isqrt())
        .rev()
        .find(|rows| clients.is_multiple_of(*rows));
    match rows.unwrap_or(1) {
        1 if clients > 3 => Err(GraphError::Prime(clients)),
        rows => Ok([rows, clients / rows]),
    }
}

fn check_connected(neighbours: &[BTreeSet<u32>]) -> Result<(), GraphError> {
    let mut reached = vec![false; neighbours.len()];
    let mut open = vec![0u32];
    while let Some(client) = open.pop() {
        let before = reached
            .get_mut(client as usize)
            .is_none_or(|reached| std::mem::replace(reached, true));
        if !before {
            open.extend(&neighbours[client as usize]);
        }
    }
    match reached.iter().position(|reached| !reached) {
        Some(client) => Err(GraphError::Disconnected(client as u32)),
        None => Ok(()),
    }
}

fn metropolis(neighbours: &[BTreeSet<u32>]) -> Vec<Vec<Neighbour>> {
    let row = |(client, own): (usize, &BTreeSet<u32>)| {
        let weight = |other: &u32| {
            let most = own.len().max(neighbours[*other as usize].len());
            1.0 / (1.0 + most as f64)
        };
        let given: f64 = own.iter().map(weight).sum();
        let itself = Neighbour {
            client: client as u32,
            weight: 1.0 - given,
        };
        let mut heard: Vec<Neighbour> = own
            .iter()
            .map(|other| Neighbour {
                client: *other,
                weight: weight(other),
            })
            .chain([itself])
            .collect();
        heard.sort_by_key(|neighbour| neighbour.client);
        heard
    };
    neighbours.iter().enumerate().map(row).collect()
}

/// The largest and the smallest eigenvalue of `W` on vectors that sum to zero, by Lanczos' method
/// with every vector kept orthogonal to all before, from a start that has a part of every
/// eigenvector. Exact up to rounding for graphs of up to [`STEPS`] clients; beyond, the extremes
/// have converged long before all eigenvalues have.
fn extremes(heard: &[Vec<Neighbour>]) -> [f64; 2] {
    /// The most steps.
    const STEPS: usize = 500;
    let clients = heard.len();
    let mut coins = PublicSeed(0).stream(PublicPurpose::Topology, 1);
    let mut vector: Vec<f64> = (0..clients).map(|_| unit(&mut coins) - 0.5).collect();
    let mut basis: Vec<Vec<f64>> = vec![vec![1.0 / (clients as f64).sqrt(); clients]];
    let (mut diagonal, mut beside): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    while diagonal.len() < STEPS.min(clients - 1) {
        // Twice: once loses as many digits as the vector is nearly a sum of those before.
        for known in basis.iter().chain(&basis) {
            let part: f64 = known.iter().zip(&vector).map(|(a, b)| a * b).sum();
            vector
                .iter_mut()
                .zip(known)
                .for_each(|(value, known)| *value -= part * known);
        }
        let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        if length < 1e-12 {
            break;
        }
        vector.iter_mut().for_each(|value| *value /= length);
        if !diagonal.is_empty() {
            beside.push(length);
        }
        let image: Vec<f64> = heard
            .iter()
            .map(|heard| {
                heard
                    .iter()
                    .map(|near| near.weight * vector[near.client as usize])
                    .sum()
            })
            .collect();
        diagonal.push(image.iter().zip(&vector).map(|(a, b)| a * b).sum());
        basis.push(std::mem::replace(&mut vector, image));
    }
    match diagonal.len() {
        0 => [0.0; 2],
        count => [
            eigenvalue(&diagonal, &beside, count - 1),
            eigenvalue(&diagonal, &beside, 0),
        ],
    }
}

/// The eigenvalue with so many below it of a symmetric tridiagonal matrix with eigenvalues in
/// [-1, 1], by bisection: a number has as many eigenvalues below it as the elimination of the
/// matrix less that number has negative pivots (Sturm).
fn eigenvalue(diagonal: &[f64], beside: &[f64], below: usize) -> f64 {
    let count = |bound: f64| {
        let mut pivot = 1.0;
        let pivots = diagonal.iter().enumerate().map(|(i, &value)| {
            let square = if i == 0 {
                0.0
            } else {
                beside[i - 1] * beside[i - 1]
            };
            pivot = value - bound - square / pivot;
            if pivot == 0.0 {
                pivot = f64::MIN_POSITIVE;
            }
            pivot
        });
        pivots.filter(|pivot| *pivot < 0.0).count()
    };
    let (mut low, mut high) = (-1.0 - 1e-9, 1.0 + 1e-9);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        match count(middle) > below {
            true => high = middle,
            false => low = middle,
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(topology: Topology, clients: usize) -> Graph {
        Graph::new(&topology, clients).unwrap()
    }

    /// All pairs, as a list of edges.
    fn pairs(clients: u32) -> Topology {
        let pair = |a| (a + 1..clients).map(move |b| [a, b]);
        Topology::Edges((0..clients).flat_map(pair).collect())
    }

    #[test]
    fn weights_are_symmetric_and_doubly_stochastic() {
        let random = Topology::Random {
            probability: 0.3,
            seed: 1,
        };
        let path = Topology::Edges(vec![[0, 1], [1, 2], [3, 2], [1, 0]]);
        for (topology, clients) in [
            (Topology::Ring, 7),
            (Topology::Torus(None), 12),
            (random, 15),
            (path, 4),
            (Topology::Ring, 1),
            (Topology::Ring, 2),
        ] {
            let graph = graph(topology, clients);
            let weight = |a: usize, b: usize| {
                let heard = graph.heard(a).unwrap().iter();
                let found = heard.filter(|near| near.client as usize == b);
                found.map(|near| near.weight).sum::<f64>()
            };
            for a in 0..clients {
                let row: f64 = (0..clients).map(|b| weight(a, b)).sum();
                assert!((row - 1.0).abs() < 1e-15, "{row}");
                assert!(weight(a, a) > 0.0);
                assert_eq!(weight(a, a), graph.own_weight(a));
                for b in 0..clients {
                    assert_eq!(weight(a, b), weight(b, a));
                }
            }
        }
    }

    /// Eigenvalues against closed forms: the ring's are `1/3 + 2/3 cos(2 pi k/n)`, the torus' of
    /// degree four `1/5 + 2/5 (cos + cos)`, the complete graph's all zero.
    #[test]
    fn eigenvalues_in_closed_form() {
        let angle = |k: usize, n: usize| (std::f64::consts::TAU * k as f64 / n as f64).cos();
        for clients in [3usize, 4, 10, 33, 600] {
            let ring = graph(Topology::Ring, clients);
            let (second, least) = (angle(1, clients), angle(clients / 2, clients));
            let [second, least] = [second, least].map(|cosine| (1.0 + 2.0 * cosine) / 3.0);
            let gap = 1.0 - second.abs().max(least.abs());
            assert!((ring.spectral_gap() - gap).abs() < 1e-9, "{clients}");
            assert!((ring.widest() - (1.0 - least)).abs() < 1e-9, "{clients}");
        }
        let torus = graph(Topology::Torus(Some([4, 5])), 20);
        let least = (1.0 + 2.0 * (angle(2, 4) + angle(2, 5))) / 5.0;
        assert!((torus.widest() - (1.0 - least)).abs() < 1e-12);
        let complete = graph(pairs(9), 9);
        assert!((complete.spectral_gap() - 1.0).abs() < 1e-12);
        assert!((complete.widest() - 1.0).abs() < 1e-12);
        assert_eq!(complete.edges(), graph(Topology::Complete, 9).edges());
        let single = graph(Topology::Complete, 1);
        assert_eq!((single.spectral_gap(), single.widest()), (1.0, 0.0));
        assert_eq!(graph(Topology::Ring, 1).widest(), 0.0);
    }

    #[test]
    fn what_is_no_graph_is_refused() {
        let refused = |topology: Topology, clients| Graph::new(&topology, clients).unwrap_err();
        let edges = |edges: &[[u32; 2]]| Topology::Edges(edges.to_vec());
        let apart = refused(edges(&[[0, 1], [2, 3]]), 4);
        assert_eq!(apart, GraphError::Disconnected(2));
        assert_eq!(refused(edges(&[]), 2), GraphError::Disconnected(1));
        let unknown = GraphError::Unknown { client: 4, last: 3 };
        assert_eq!(refused(edges(&[[0, 4]]), 4), unknown);
        assert_eq!(refused(edges(&[[1, 1]]), 4), GraphError::Loop(1));
        assert_eq!(refused(Topology::Torus(None), 7), GraphError::Prime(7));
        assert!(matches!(
            refused(Topology::Torus(Some([u32::MAX, u32::MAX])), 9),
            GraphError::Torus { .. }
        ));
        for probability in [0.0, 1.1, f64::NAN] {
            let topology = Topology::Random {
                probability,
                seed: 0,
            };
            assert!(matches!(refused(topology, 3), GraphError::Probability(_)));
        }
        let sparse = Topology::Random {
            probability: 0.01,
            seed: 0,
        };
        assert!(matches!(refused(sparse, 50), GraphError::Disconnected(_)));
    }

    #[test]
    fn random_graphs_follow_their_seed() {
        let random = |seed| {
            let probability = 0.4;
            graph(Topology::Random { probability, seed }, 40)
        };
        assert_eq!(random(1), random(1));
        assert_ne!(random(1), random(2));
        // 780 pairs: 312 expected, standard deviation 13.7.
        assert!((230..394).contains(&random(1).edges()));
    }

    #[test]
    fn messages_go_to_every_neighbour() {
        let receivers = |topology, clients| graph(topology, clients).receivers(0);
        assert_eq!(receivers(Topology::Star, 9), 1);
        assert_eq!(receivers(Topology::Complete, 9), 8);
        assert_eq!(receivers(Topology::Ring, 9), 2);
        assert_eq!(receivers(Topology::Torus(None), 9), 4);
        assert_eq!(receivers(Topology::Complete, 1), 0);
    }
}
