//! Strangers that hold connections open: a newcomer from another machine gets in, and the user is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use peergrad_net::{Identity, Machine, Notice};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{SECRET, address_of, next, start, start_joining, within_reason};

/// Another address of this machine: Linux has all of 127.0.0.0/8.
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

async fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(STRANGER, 0))?;
    socket.connect(to).await
}

/// Holds so many connections open without a word, and replaces each that ends at once.
fn hold(count: usize, to: SocketAddr) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        tasks.spawn(async move {
            loop {
                match connect(to).await {
                    Ok(mut stream) => _ = stream.read_to_end(&mut Vec::new()).await,
                    // No port is free at the moment.
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
    }
    tasks
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_gets_in_while_a_stranger_renews_idle_connections() {
    within_reason(async {
        let (mut member, mut notices) = start(Identity::generate(), SECRET).await;
        let _strangers = hold(300, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), member.port()));
        let notice = notices.recv().await.unwrap();
        let Notice::ConnectionsRefused { from, count } = notice else { panic!("{notice}") };
        assert_eq!(from, Machine::from(STRANGER));
        assert!(count >= 16 && member.counters().read().refused_strangers >= count);

        let (mut newcomer, _) = start_joining(Identity::generate(), SECRET, vec![address_of(&member)]).await;
        assert_eq!(next(&mut newcomer).await, format!("up {}", member.peer().short()));
        assert_eq!(next(&mut member).await, format!("up {}", newcomer.peer().short()));

        // Another one that was there before comes back at once.
        let (identity, to) = (Identity::generate(), address_of(&member));
        for _ in 0..2 {
            let (mut other, _) = start_joining(identity.clone(), SECRET, vec![to.clone()]).await;
            assert_eq!(next(&mut other).await, format!("up {}", member.peer().short()));
            other.close().await;
        }
    })
    .await;
}
