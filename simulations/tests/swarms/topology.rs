//! The topology that is chosen: it changes with the shares, in the middle of a view, and does not change the result.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peergrad_config::specification::RunFile;
use peergrad_protocol::ViewDigest;
use peergrad_protocol::message::{Message, Phase, TrainingMessage};
use peergrad_simulations::filters::{Envelope, FrameAction};
use peergrad_simulations::scenario::{Fault, FaultTime, Scenario};
use peergrad_simulations::simulation::{Outcome, Simulation};
use peergrad_simulations::workload::Workload;

/// By view and step: whether members other than the owner sent its new values.
type Relayed = BTreeMap<(ViewDigest, u64), bool>;

/// A founder that seven peers join at once, and the senders of new values.
fn joined(topology: &str) -> (Outcome, Relayed) {
    let text = format!(
        "epochs = 5\nbatch = 64\n[optimizer]\nrule = \"adam\"\nrate = 0.01\n[sync]\ntopology = \"{topology}\"\nsegment_kib = 16"
    );
    let workload = Workload::integers(&RunFile::parse(&text).unwrap(), 400_000, 640).unwrap();
    let mut scenario = Scenario::new("joined", 1, workload).at(FaultTime::Step(5), Fault::Join { count: 7 });
    scenario.sample_time = Duration::from_millis(5);
    let mut simulation = Simulation::new(&scenario, 2);
    let relayed = Arc::<Mutex<Relayed>>::default();
    let noted = Arc::clone(&relayed);
    // The first sender of an owner's new values, by view, step and rank of the owner.
    let mut senders: BTreeMap<(ViewDigest, u64, u32), _> = BTreeMap::new();
    simulation.cluster.add_filter(Box::new(move |envelope: &Envelope<'_>| {
        if let Some(Message::InView { view, message: TrainingMessage::Segment(segment) }) = envelope.message()
            && segment.phase == Phase::Gather
        {
            let step = segment.step.0;
            let first = *senders.entry((view, step, segment.owner)).or_insert(envelope.from);
            *noted.lock().unwrap().entry((view, step)).or_default() |= first != envelope.from;
        }
        FrameAction::Pass
    }));
    let outcome = simulation.run();
    assert_eq!(outcome.violations, [], "{topology}");
    let relayed = std::mem::take(&mut *relayed.lock().unwrap());
    (outcome, relayed)
}

#[test]
fn tensors_go_around_a_ring_until_shares_are_even_and_then_directly() {
    let (chosen, relayed) = joined("auto");
    let are_rings = of_last_view(&relayed);
    let rings = are_rings.iter().take_while(|is_ring| **is_ring).count();
    assert!(rings > 0 && rings < are_rings.len(), "{are_rings:?}");
    assert!(are_rings[rings..].iter().all(|is_ring| !is_ring), "{are_rings:?}");
    for topology in ["ring", "direct"] {
        let (fixed, relayed) = joined(topology);
        assert_eq!(fixed.digest, chosen.digest, "{topology}");
        assert!(of_last_view(&relayed).iter().all(|is_ring| *is_ring == (topology == "ring")), "{topology}");
    }
}

/// Whether values were forwarded, by step of the last view.
fn of_last_view(relayed: &Relayed) -> Vec<bool> {
    let (view, _) = relayed.keys().max_by_key(|(_, step)| *step).unwrap();
    relayed.iter().filter(|((of, _), _)| of == view).map(|(_, is_ring)| *is_ring).collect()
}
