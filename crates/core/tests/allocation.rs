//! A round allocates nothing once buffers have grown: a counting allocator says so.
//!
//! The one exception is the matrix product behind a network's gradient on *all* coordinates, for
//! which the gemm library packs its operands into memory of its own: so much, measured alone, is
//! allowed there.
#![allow(unsafe_code)] // An allocator cannot be written without.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::*;
use soteriafl_accountant::Recursion;
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::linalg::{Matrix, matmul};
use soteriafl_core::objective::{Objective, Regularizer};
use soteriafl_core::protocol::{Estimator, Server, shift_step};
use soteriafl_core::sampling::{Coins, Sampling};

type Storage = fn(&[Vec<f32>], &[u32], usize) -> Dataset;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and is of no interest.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator as it is; counting allocates nothing
// and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about the layout is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above, and every pointer that was given out is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds until all buffers have met their largest batch; and rounds that are watched.
const WARM: u32 = 150;
const WATCHED: u32 = 50;
/// Records of a client, and their features.
const ROWS: usize = 60;
const COLUMNS: usize = 20;

/// Allocations in the watched rounds of a run of two clients.
fn allocations(setting: &Setting) -> u64 {
    let mut server = Server::new(setting.server.clone(), setting.start.clone());
    let mut senders: Vec<Sender> = setting.clients().into_iter().map(Sender::new).collect();
    let mut start = 0;
    while !server.finished() {
        if server.round() == WARM {
            start = COUNT.get();
        }
        for (i, sender) in senders.iter_mut().enumerate() {
            let Sender {
                client,
                scratch,
                update,
                ..
            } = sender;
            let message = client
                .message(server.round(), server.model(), scratch)
                .unwrap();
            if message.update.is_some() {
                let decoded = server.decode(i as u32, message.bytes, update);
                assert_eq!(decoded, Ok(true));
                server.add(i as u32, update).unwrap();
                client.accepted(update);
            }
        }
        server.close().unwrap();
    }
    COUNT.get() - start
}

/// The most that products make of the shapes in the gradient of a network with these layers.
fn packing(sizes: &[usize], dense: bool) -> u64 {
    let layers = sizes.windows(2).skip(usize::from(!dense));
    let worst = layers.map(|pair| {
        let counts = (1..=ROWS).map(|batch| {
            let (left, right) = (vec![1.0; batch * pair[0]], vec![1.0; batch * pair[1]]);
            let mut target = vec![0.0; pair[0] * pair[1]];
            let left = Matrix::new(&left, batch, pair[0], pair[0]).transposed();
            let right = Matrix::new(&right, batch, pair[1], pair[1]);
            let before = COUNT.get();
            matmul(&mut target, left, right);
            COUNT.get() - before
        });
        counts.max().unwrap_or(0)
    });
    worst.sum()
}

/// The estimators, each with a way to sample that goes with it.
fn algorithms() -> [(Estimator, Sampling); 6] {
    let poisson = Sampling::Poisson {
        batch: 12.0,
        coins: Coins::Fast,
    };
    let difference_clip = Some(0.3);
    let svrg = Estimator::Svrg {
        snapshot_probability: 0.0,
        difference_clip,
    };
    [
        (Estimator::Sgd, Sampling::Full),
        (Estimator::Sgd, poisson),
        (svrg, poisson),
        (Estimator::Saga { difference_clip }, poisson),
        (Estimator::Sag { memory: 0.5 }, poisson),
        (Estimator::Recursive(Recursion::momentum(0.3)), poisson),
    ]
}

/// A run of two clients; where records are clipped on what travels, also with a regularizer.
fn setting(
    objective: &Arc<dyn Objective>,
    storage: Storage,
    kind: CompressorKind,
    (estimator, sampling): (Estimator, Sampling),
    selected: bool,
) -> Setting {
    let data = |client: u64| {
        let (rows, labels) = table(client, ROWS, COLUMNS, 2);
        Arc::new(storage(&rows, &labels, 2))
    };
    let mut plan = client_plan(Arc::clone(objective), kind);
    plan.estimator = estimator;
    if estimator.recursion().is_none() {
        plan.shift_step = Some(shift_step(plan.compressor.omega()));
    }
    plan.regularizer = selected.then_some(Regularizer::L2 { lambda: 0.1 });
    plan.clipping = match selected {
        true => Clipping::Selected(0.5),
        false => Clipping::Record(0.5),
    };
    let mut server = server_plan(&plan, 2, WARM + WATCHED);
    server.step_size = 0.01;
    Setting {
        name: format!("{kind:?} {estimator:?} {sampling:?} {selected}"),
        sampling,
        sigma: 0.01,
        server,
        naive: naive_logistic(),
        data: vec![data(1), data(2)],
        start: vec![0.01; objective.dimension()],
        seed: 1,
        plan,
    }
}

/// How many sums over all coordinates a client computes in a round: of the estimate, and of a
/// table's mean.
fn full_sums(estimator: Estimator, kind: CompressorKind) -> u64 {
    let sides = match estimator {
        Estimator::Gd | Estimator::Sgd | Estimator::Sag { .. } => 1,
        _ => 2,
    };
    let estimate = match kind {
        CompressorKind::Identity => sides,
        _ => 0,
    };
    let mean = match estimator {
        Estimator::Saga { .. } | Estimator::Sag { .. } => 2,
        _ => 0,
    };
    estimate + mean
}

#[test]
fn a_round_allocates_nothing() {
    let before = COUNT.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert!(COUNT.get() > before, "the counter counts");
    let objectives: [(&[usize], Arc<dyn Objective>); 3] = [
        (&[], logistic(COLUMNS)),
        (&[COLUMNS, 8, 2], network(COLUMNS, &[8], 2)),
        (&[COLUMNS, 100, 70, 2], network(COLUMNS, &[100, 70], 2)),
    ];
    let mut found = Vec::new();
    for (sizes, objective) in &objectives {
        let k = objective.dimension() / 10;
        for (dense_rows, storage) in [(true, dense as Storage), (false, sparse)] {
            let one_sum = packing(sizes, dense_rows);
            for kind in [CompressorKind::Identity, CompressorKind::RandK { k }] {
                for (estimator, sampling) in algorithms() {
                    for selected in [false, true] {
                        if selected && estimator != Estimator::Sgd {
                            continue;
                        }
                        let algorithm = (estimator, sampling);
                        let setting = setting(objective, storage, kind, algorithm, selected);
                        let sums = full_sums(estimator, kind);
                        let allowed = 2 * u64::from(WATCHED) * sums * one_sum;
                        let count = allocations(&setting);
                        if count > allowed {
                            found.push(format!("{sizes:?} {}: {count} > {allowed}", setting.name));
                        }
                    }
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "allocations in {WATCHED} rounds: {found:#?}"
    );
}
