//! The keyring: the run's current secret, shared by all parts that make handshakes.
//!
//! The secret may change during the run. Each handshake that begins after the change needs the new secret. Open connections
//! have shown the old one: those with members stay, and the actor closes all others.

use std::iter;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::UpgradeInfo;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p::identity::Keypair;
use libp2p::{PeerId, noise};
use peergrad_protocol::invite::Secret;

/// A shared handle to the current secret.
#[derive(Clone, Debug)]
pub(super) struct Keyring(Arc<Mutex<Secret>>);

impl Keyring {
    pub(super) fn new(secret: Secret) -> Self {
        Self(Arc::new(Mutex::new(secret)))
    }

    pub(super) fn secret(&self) -> Secret {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, secret: Secret) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = secret;
    }

    /// Noise, with the secret that is current when a connection begins.
    pub(super) fn noise(&self, keypair: &Keypair) -> Result<Noise, noise::Error> {
        Ok(Noise { config: noise::Config::new(keypair)?, keyring: self.clone() })
    }
}

/// Noise with the run's secret in its prologue.
#[derive(Clone)]
pub(super) struct Noise {
    config: noise::Config,
    keyring: Keyring,
}

impl Noise {
    fn now(self) -> noise::Config {
        self.config.with_prologue(self.keyring.secret().handshake_prologue().to_vec())
    }
}

impl UpgradeInfo for Noise {
    type Info = <noise::Config as UpgradeInfo>::Info;
    type InfoIter = iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.config.protocol_info()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> InboundConnectionUpgrade<T> for Noise {
    type Output = (PeerId, noise::Output<T>);
    type Error = noise::Error;
    type Future = <noise::Config as InboundConnectionUpgrade<T>>::Future;

    fn upgrade_inbound(self, socket: T, info: Self::Info) -> Self::Future {
        self.now().upgrade_inbound(socket, info)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> OutboundConnectionUpgrade<T> for Noise {
    type Output = (PeerId, noise::Output<T>);
    type Error = noise::Error;
    type Future = <noise::Config as OutboundConnectionUpgrade<T>>::Future;

    fn upgrade_outbound(self, socket: T, info: Self::Info) -> Self::Future {
        self.now().upgrade_outbound(socket, info)
    }
}
