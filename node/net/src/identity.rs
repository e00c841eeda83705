//! The identity: the ed25519 key pair behind a peer's id, kept in a file that only its owner can read.
//!
//! A peer's id *is* its public key, so libp2p's form of it and ours hold the same 32 bytes, and each can be converted to the
//! other without a table.

use std::io;
use std::path::{Path, PathBuf};

use libp2p::identity::{Keypair, PublicKey, ed25519};
use peergrad_config::file_error::explained;
use peergrad_protocol::PeerId;

use super::files;

/// A key pair, and the id that follows from it.
#[derive(Clone, Debug)]
pub struct Identity {
    keypair: Keypair,
    peer: PeerId,
}

impl Identity {
    /// A new identity that is not saved.
    #[must_use]
    pub fn generate() -> Self {
        let keypair = ed25519::Keypair::generate();
        Self { peer: PeerId(keypair.public().to_bytes()), keypair: keypair.into() }
    }

    /// Reads the identity in `path`, or creates one there if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read or written, or holds no identity. It is left as it was.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        let failed = |cause| IdentityError::Unreadable { path: path.to_owned(), cause };
        match std::fs::read(path) {
            Ok(bytes) => {
                Self::from_file_bytes(&bytes).ok_or(IdentityError::Damaged { path: path.to_owned() })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let identity = Self::generate();
                files::write_private(path, &identity.file_bytes()).map_err(failed)?;
                Ok(identity)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The peer's id.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    pub(super) fn keypair(&self) -> &Keypair {
        &self.keypair
    }

    fn from_file_bytes(bytes: &[u8]) -> Option<Self> {
        let keypair = Keypair::from_protobuf_encoding(bytes).ok()?;
        let public = keypair.public().try_into_ed25519().ok()?;
        Some(Self { peer: PeerId(public.to_bytes()), keypair })
    }

    /// The format of libp2p key files, so that other tools can read it.
    fn file_bytes(&self) -> Vec<u8> {
        self.keypair.to_protobuf_encoding().expect("an ed25519 key has a file form")
    }
}

/// The identity cannot be read or created.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file does not hold a key.
    #[error("{} is damaged; restore it from a copy, or delete it to continue as a new peer", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("cannot use {}: {}, or choose another --dir", path.display(), explained(cause))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// The id in libp2p's form; `None` if the 32 bytes are not a point on the curve, so that no peer can have this id.
#[must_use]
pub fn to_libp2p(peer: PeerId) -> Option<libp2p::PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(&peer.0).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

/// Our form of a libp2p id; `None` if its key is not an ed25519 key.
#[must_use]
pub fn from_libp2p(peer: &libp2p::PeerId) -> Option<PeerId> {
    let key = PublicKey::try_decode_protobuf(peer.as_ref().digest()).ok()?;
    Some(PeerId(key.try_into_ed25519().ok()?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_created_once_and_loaded_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        let made = Identity::load_or_create(&path).unwrap();
        assert_eq!(Identity::load_or_create(&path).unwrap().peer(), made.peer());
    }

    #[cfg(unix)]
    #[test]
    fn only_its_owner_can_read_the_identity_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        Identity::load_or_create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        Identity::load_or_create(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], b"", b"not a key"] {
            std::fs::write(&path, damaged).unwrap();
            let error = Identity::load_or_create(&path).unwrap_err().to_string();
            assert!(error.contains("is damaged") && error.contains("delete it"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn both_forms_of_a_peer_id_have_the_same_text() {
        let identity = Identity::generate();
        let theirs = to_libp2p(identity.peer()).unwrap();
        assert_eq!(theirs, identity.keypair().public().to_peer_id());
        assert_eq!(theirs.to_string(), identity.peer().to_string());
        assert_eq!(from_libp2p(&theirs), Some(identity.peer()));
    }
}
