//! The messages that a founder receives before the first view: requests to join.

use peergrad_protocol::PeerId;
use peergrad_protocol::message::{JoinMessage, Message, Refusal};

use super::{Machine, NodeRole};
use crate::io::{Output, Reject};

impl Machine {
    pub(super) fn founder_received(
        &mut self,
        from: PeerId,
        message: Message,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let NodeRole::Founder(founder) = &mut self.role else { return Err(Reject::OutOfPlace) };
        match message {
            Message::Join(JoinMessage::Join(join)) => {
                match self.preparation.as_ref().filter(|preparation| preparation.has_data()) {
                    Some(preparation) => founder.join(from, join, preparation.specification(), out),
                    // An admitted joiner may ask for the data at once.
                    None => self.send(from, &JoinMessage::Refuse(Refusal::NotReady).into(), None, out),
                }
                Ok(())
            }
            Message::Join(JoinMessage::Ready) if founder.ready(from, out) => Ok(()),
            Message::Join(JoinMessage::WantData(want)) => self.send_data_piece(from, want, out),
            Message::Leave(departure) => {
                founder.peer_left(from, departure.reason, out);
                Ok(())
            }
            Message::Heartbeat(_) => Ok(()),
            _ => Err(Reject::OutOfPlace),
        }
    }
}
