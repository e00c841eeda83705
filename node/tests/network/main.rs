//! Networks in one process over loopback: the guarantees of links, under load, with cuts, restarts, strangers, unknown peers and malformed bytes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod courier;
mod direct;
mod exchange;
mod links;
mod malformed_input;
mod quic;
mod strangers;

use std::net::Ipv4Addr;
use std::time::Duration;

use peergrad_net::link::LinkEvent;
use peergrad_net::{BootstrapAddress, Identity, Listen, Mdns, Network, NetworkOptions, Notice, Port};
use peergrad_protocol::invite::Secret;
use peergrad_protocol::{Incarnation, Pool};
use tokio::sync::mpsc::UnboundedReceiver;

/// The secret of these tests' run.
const SECRET: Secret = Secret([7; 32]);

/// Starts a network on loopback that dials no peer.
async fn start(identity: Identity, secret: Secret) -> (Network, UnboundedReceiver<Notice>) {
    start_joining(identity, secret, vec![]).await
}

/// Starts a network on loopback that dials `bootstrap_addresses`.
async fn start_joining(
    identity: Identity,
    secret: Secret,
    bootstrap_addresses: Vec<BootstrapAddress>,
) -> (Network, UnboundedReceiver<Notice>) {
    Network::start(options(identity, secret, bootstrap_addresses)).await.expect("loopback has free ports")
}

fn options(identity: Identity, secret: Secret, bootstrap_addresses: Vec<BootstrapAddress>) -> NetworkOptions {
    NetworkOptions {
        identity,
        start: Incarnation(1),
        secret,
        listen: Listen { address: Some(Ipv4Addr::LOCALHOST.into()), port: Port::Any },
        external: vec![],
        upnp: false,
        bootstrap_addresses,
        mdns: Mdns::Off,
        pool: Pool::new(64),
    }
}

/// The address of `network`, without its id.
fn address_of(network: &Network) -> BootstrapAddress {
    network.contact().addresses[0].parse().unwrap()
}

/// The next event of a link that is not a measurement, as short text.
async fn next(network: &mut Network) -> String {
    match network.next().await {
        LinkEvent::LineMeasured { .. } | LinkEvent::UplinkMeasured { .. } => Box::pin(next(network)).await,
        LinkEvent::BadStream(peer) => format!("bad stream {}", peer.short()),
        LinkEvent::Up(link) => format!("up {}", link.peer().short()),
        LinkEvent::Frame { link, frame, .. } => format!("frame {} {:?}", link.peer().short(), frame.decode()),
        LinkEvent::Credit { link, segments } => format!("credit {} {segments}", link.peer().short()),
        LinkEvent::NoLongerRelayed(link) => format!("widened {}", link.peer().short()),
        LinkEvent::ReachabilityChanged { addresses, is_reachable } => {
            format!("placed {addresses:?} {is_reachable}")
        }
        LinkEvent::DuplicateIdentity { by } => format!("outdated {}", by.short()),
        LinkEvent::Down { link, reason } => format!("down {} {reason}", link.peer().short()),
    }
}

/// Runs a test; one that hangs fails. The limit is no promise of speed.
async fn within_reason(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(180), test).await.expect("the test came to an end");
}
