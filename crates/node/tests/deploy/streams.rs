//! Streams of those who follow: one per client, and none that nobody reads.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use soteria_node::dashboard::{About, Feed};
use soteria_node::deploy::coordinator::{Coordinator, News};
use soteria_node::deploy::memory::ServerMemory;
use soteria_node::net::desk::{self, Observer};
use soteria_node::net::listen::Peer;
use soteria_node::net::rpc;
use soteria_node::net::rpc::coordinator_server::Coordinator as _;
use soteria_node::net::service::{Service, Streams};
use tokio_stream::StreamExt;
use tonic::Request;

use crate::world::World;

struct Deaf;

impl Observer<ServerMemory> for Deaf {
    fn changed(&mut self, _: &Coordinator<ServerMemory>, _: Vec<News>) {}
}

fn ask(world: &World, client: u32) -> Request<rpc::FollowRequest> {
    let mut request = Request::new(rpc::FollowRequest {
        run: world.description.run_id().to_vec().into(),
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

#[test]
fn a_client_follows_once_and_not_after_it_has_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let world = World::new(&[]);
        let mut coordinator = world.coordinator(Duration::ZERO).unwrap();
        for client in 0..2 {
            coordinator
                .join(client, world.records(client as usize), Duration::ZERO)
                .unwrap();
        }
        // Client 2 has not joined: everybody waits for the run to begin.
        let opened = desk::open(coordinator, Deaf, Instant::now());
        let feed = Feed::new(About::default());
        let service = Service::new(opened.desk.clone(), &world.description, feed);
        let streams = service.streams();
        assert!(service.follow(ask(&world, 2)).await.is_err());
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, async {
            for _ in 0..100 {
                drop(service.follow(ask(&world, 0)).await.unwrap());
            }
            left(&streams, 0).await;
            let mut older = service.follow(ask(&world, 0)).await.unwrap().into_inner();
            let _other = service.follow(ask(&world, 1)).await.unwrap();
            let _newer = service.follow(ask(&world, 0)).await.unwrap();
            assert!(older.next().await.is_none());
            left(&streams, 2).await;
        })
        .await
        .expect("streams that end");
    });
}
