//! Streams of those who follow: one per client, and none that nobody reads.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use soteriafl_deploy::coordinator::{Coordinator, Unmeasured};
use soteriafl_deploy::dashboard::{About, FeedWriter};
use soteriafl_deploy::memory::ServerMemory;
use soteriafl_deploy::net::actor::{self, Observer};
use soteriafl_deploy::net::grpc::{Service, Streams};
use soteriafl_deploy::net::listen::Peer;
use soteriafl_deploy::net::rpc;
use soteriafl_deploy::net::rpc::coordinator_server::Coordinator as _;
use tokio_stream::StreamExt;
use tonic::Request;

use crate::harness::Deployment;

struct IgnoresChanges;

impl Observer<ServerMemory> for IgnoresChanges {
    fn changed(&mut self, _: &Coordinator<ServerMemory>, _: Vec<Unmeasured>) {}
}

fn ask(deployment: &Deployment, client: u32) -> Request<rpc::FollowRequest> {
    let mut request = Request::new(rpc::FollowRequest {
        run: deployment.description.run_id().to_vec().into(),
        have: Some(0),
        pending: None,
        every_round: false,
        tell_waiting: false,
    });
    let number = client.to_string().parse().unwrap();
    request.metadata_mut().insert(rpc::CLIENT_METADATA, number);
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    request.extensions_mut().insert(Peer::plain(address));
    request
}

/// Waits until so many streams are left; hangs if they never are.
async fn left(streams: &Streams, count: usize) {
    while streams.alive() != count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Who is connected, by the dashboard.
fn connected(feed: &FeedWriter) -> Vec<u32> {
    let rows = feed.feed().snapshot(usize::MAX).clients;
    let mut here: Vec<u32> = rows
        .iter()
        .filter(|row| row.client.connected)
        .map(|row| row.client.client)
        .collect();
    here.sort_unstable();
    here
}

#[test]
fn a_client_follows_once_and_not_after_it_has_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let deployment = Deployment::new(&[]);
        let mut coordinator = deployment.coordinator(Duration::ZERO).unwrap();
        for client in 0..2 {
            coordinator
                .join(client, deployment.records(client as usize), Duration::ZERO)
                .unwrap();
        }
        // Client 2 has not joined: everybody waits for the run to begin.
        let actor = actor::start(coordinator, IgnoresChanges, Instant::now());
        let feed = FeedWriter::new(About {
            clients: 3,
            ..About::default()
        });
        let service = Service::new(
            actor.coordinator.clone(),
            &deployment.description,
            feed.clone(),
        );
        let streams = service.streams();
        assert!(service.follow(ask(&deployment, 2)).await.is_err());
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, async {
            for _ in 0..100 {
                drop(service.follow(ask(&deployment, 0)).await.unwrap());
            }
            left(&streams, 0).await;
            let mut older = service
                .follow(ask(&deployment, 0))
                .await
                .unwrap()
                .into_inner();
            let _other = service.follow(ask(&deployment, 1)).await.unwrap();
            let _newer = service.follow(ask(&deployment, 0)).await.unwrap();
            assert!(older.next().await.is_none());
            left(&streams, 2).await;
            // Who took its own place was never away.
            assert_eq!(connected(&feed), [0, 1]);
            drop(_other);
            left(&streams, 1).await;
            assert_eq!(connected(&feed), [0]);
        })
        .await
        .expect("streams that end");
    });
}

/// A machine that is unplugged does not close its connection: it stays open, and nobody answers on
/// it.
#[test]
fn a_client_that_is_gone_without_a_word_is_noticed() {
    use soteriafl_deploy::net::connect::{Security as Dialled, Target};
    use soteriafl_deploy::net::listen::{self, Limits, Security};
    use soteriafl_deploy::net::rpc::coordinator_client::CoordinatorClient;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let deployment = Deployment::new(&[]);
    let mut coordinator = deployment.coordinator(Duration::ZERO).unwrap();
    let records = deployment.records(0);
    coordinator.join(0, records, Duration::ZERO).unwrap();
    let feed = FeedWriter::new(About {
        clients: 3,
        ..About::default()
    });
    let (address, _actor) = runtime.block_on(async {
        let actor = actor::start(coordinator, IgnoresChanges, Instant::now());
        let (asked, answers) = (Duration::from_millis(100), Duration::from_millis(200));
        let service = Service::new(
            actor.coordinator.clone(),
            &deployment.description,
            feed.clone(),
        )
        .with_keepalive(asked, answers);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (address, incoming) = listen::listen(any, Security::Plain, Limits::for_clients(3))
            .await
            .unwrap();
        let run = &deployment.description.resolved;
        let objective = deployment.description.model.objective();
        let compressor = soteriafl::run::plan_for(run, &objective)
            .unwrap()
            .compressor;
        tokio::spawn(async move {
            let never = std::future::pending();
            service.run(incoming, &compressor, never).await
        });
        (address, actor)
    });
    // A client whose runtime stands still when nobody waits for it: its socket is open, and nothing
    // comes from it.
    let frozen = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _stream = frozen.block_on(async {
        let target = Target::new(&format!("http://{address}"), &Dialled::Plain).unwrap();
        let mut stub = CoordinatorClient::new(target.channel(&target.endpoint()));
        let stream = stub.follow(ask(&deployment, 0)).await.unwrap();
        // For as long as it answers it is there.
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert_eq!(connected(&feed), [0]);
        (stub, stream)
    });
    let stopped = Instant::now();
    while !connected(&feed).is_empty() {
        assert!(
            stopped.elapsed() < Duration::from_secs(30),
            "nobody notices"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
