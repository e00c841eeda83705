//! Arrivals: what the network delivers, as inputs of the nodes that receive it.

use peergrad_core::io::Input;
use peergrad_protocol::{Frame, Instant};

use crate::filters::Filters;
use crate::host::HostId;
use crate::hosts::Hosts;
use crate::network::{Delivery, LinkEvent};
use crate::trace::Trace;

/// A delivery as an input of its receiver's node; `None` if a filter conceals it.
pub(super) fn input_of(
    Delivery { to, from, event }: Delivery,
    now: Instant,
    hosts: &Hosts,
    filters: &mut Filters,
    trace: &mut Trace,
) -> Option<Input> {
    let peer = hosts.peer(from);
    Some(match event {
        LinkEvent::Up => Input::LinkUp(peer),
        LinkEvent::Down(_) if !filters.hears_link_down(to, from) => return None,
        LinkEvent::Down(reason) => Input::LinkDown { peer, reason: reason.to_owned() },
        LinkEvent::Credit(segments) => Input::Credit { peer, segments },
        LinkEvent::Frame(frame) => {
            trace.frame(now, from, to, &frame);
            Input::Frame { from: peer, frame: received(hosts, to, frame) }
        }
    })
}

/// The frame as its receiver holds it: bytes, in a buffer from the receiver's pool.
fn received(hosts: &Hosts, to: HostId, frame: Frame) -> Frame {
    let Some(process) = &hosts.get(to).process else { return frame };
    let payload = frame.payload.map(|sent| {
        let mut payload = process.segments.take_bytes(sent.byte_count());
        payload.bytes_mut().copy_from_slice(sent.bytes());
        payload
    });
    Frame { head: frame.head, payload }
}
