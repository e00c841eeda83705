//! Steps allocate nothing of a vector's size: counted at the allocator itself, over whole nodes that train.
//!
//! Three nodes pass their outputs directly to each other, so all allocations are those of the node, its collectives or its optimizer; state
//! is allocated in small pieces, chunk by chunk. The task is a plain loop; the gradients of the built-in models are counted in a separate
//! test.

#![allow(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use peergrad_config::specification::RunFile;
use peergrad_config::specification::custom::{CustomLoader, CustomSpecification};
use peergrad_core::io::{Event, Input, Output};
use peergrad_core::node::{Config, Node, StartMode};
use peergrad_core::program::ProgramFactory;
use peergrad_core::state::shared_cache::SharedCache;
use peergrad_models::data::dataset::{Dataset, Samples};
use peergrad_models::data::labels::Labels;
use peergrad_models::task::activation::Activation;
use peergrad_models::task::loss::Loss;
use peergrad_models::task::network::Network;
use peergrad_models::task::supervised::Supervised;
use peergrad_models::task::{Evaluation, Task};
use peergrad_protocol::manifest::Manifest;
use peergrad_protocol::{Incarnation, Instant, PeerId, Pool};

/// A run with optimizer state.
const RUN_FILE: &str = "epochs = 3\nbatch = 60\n[optimizer]\nrule = \"adam\"\n[sync]\nsegment_kib = 8";
/// Elements of the parameter vector.
const PARAMETERS: usize = 50_000;
/// Allocations of at least a tenth of a vector are counted.
const LARGE_BYTES: usize = PARAMETERS * 4 / 10;
static LARGE_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of allocations of a whole vector or more.
static VECTOR_COUNT: AtomicUsize = AtomicUsize::new(0);
/// A test holds this lock while it counts.
static COUNTING: Mutex<()> = Mutex::new(());

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to `System` with the same arguments, so `System` keeps the contract; counting only changes two numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGE_COUNT.fetch_add(usize::from(layout.size() >= LARGE_BYTES), Ordering::Relaxed);
        VECTOR_COUNT.fetch_add(usize::from(layout.size() >= PARAMETERS * 4), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `block` came from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// A task in which the best value of every parameter is one.
struct Ones;

impl Task for Ones {
    fn manifest(&self) -> Manifest {
        Manifest::new([("ones", &[PARAMETERS as u32][..])])
    }

    fn sample_count(&self) -> u32 {
        1440
    }

    fn gradient(&self, parameters: &[f32], samples: &[u32], gradient: &mut [f32]) -> f64 {
        for (slope, parameter) in gradient.iter_mut().zip(parameters) {
            *slope = (parameter - 1.0) * samples.len() as f32;
        }
        samples.len() as f64
    }

    fn evaluate(&self, _parameters: &[f32]) -> Evaluation {
        Evaluation { samples: 0, loss: 0.0, accuracy: None }
    }
}

const PEERS: usize = 3;

#[test]
fn steps_allocate_nothing_vector_sized() {
    let _alone = COUNTING.lock();
    // With one replica beside the owner, and with replicas at all members.
    for (written, replicas) in [("2", 2), ("\"all\"", 3)] {
        // Three vectors: parameters before and after, and the gradient. Two states: both moments.
        assert_allocations("", written, replicas, 3, 2);
        // Two vectors for residuals: the committed one, and those of two steps after it. One more state: the exact parameters.
        let lossy = "\ngradients = \"int8\"\nparameters = \"bf16\"";
        assert_allocations(lossy, written, replicas, 6, 3);
    }
}

/// On other processors the library copies the operands of a product into memory that it allocates at each call.
#[cfg(target_arch = "x86_64")]
#[test]
fn gradients_of_the_built_in_models_allocate_nothing() {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return;
    }
    let _alone = COUNTING.lock();
    let network = Network::new(&[300, 200, 100, 10], Activation::Relu, Loss::SoftmaxCrossEntropy);
    let (rows, columns) = (500, network.features());
    let features = (0..rows * columns).map(|index| ((index * 7919) % 1009) as f32 / 504.0 - 1.0).collect();
    let labels = Labels::Classes((0..rows as u32).map(|row| row % 10).collect());
    let samples = Samples { features, columns, labels };
    let mut parameters = vec![0.0; network.manifest().parameter_count()];
    network.initial(1, &mut parameters);
    let mut gradient = vec![0.0; parameters.len()];
    assert!(gradient.len() >= PARAMETERS, "what is counted is smaller than this");
    let task = Supervised::new(network, Dataset { held_out: samples.clone(), training: samples });
    let batch: Vec<u32> = (0..rows as u32).collect();
    let mut counts = Vec::with_capacity(3);
    for _ in 0..3 {
        task.gradient(&parameters, &batch, &mut gradient);
        task.evaluate(&parameters);
        counts.push(LARGE_COUNT.load(Ordering::Relaxed));
    }
    assert_eq!(counts[2] - counts[0], 0, "large allocations after the first gradient");
}

/// Checks a run with this number of vectors at each peer, and this number of states for each element.
fn assert_allocations(sync: &str, written: &str, replicas: u64, vector_count: usize, state_count: u64) {
    let vectors_before = VECTOR_COUNT.load(Ordering::Relaxed);
    let large_before = LARGE_COUNT.load(Ordering::Relaxed);
    let task: Arc<dyn Task> = Arc::new(Ones);
    let specification = specification_of(sync, written, &*task);
    let peer = |index: usize| PeerId([index as u8 + 1; 32]);
    let node = |index: usize| {
        let specification = Arc::clone(&specification);
        let founder = StartMode::Bootstrap { specification, nonce: [0; 32], peers: PEERS, from: None };
        Node::new(Config {
            peer: peer(index),
            incarnation: Incarnation(1),
            addresses: vec![],
            capacity: Some(1),
            loader: Arc::new(CustomLoader::new("ones", Arc::clone(&task), ProgramFactory::sync())),
            segments: Pool::new(64),
            cache: SharedCache::default(),
            restored: None,
            saved: vec![],
            start_mode: if index == 0 { founder } else { StartMode::Join { run: None } },
        })
    };
    let mut nodes: Vec<Node> = (0..PEERS).map(node).collect();
    let mut queue: VecDeque<(usize, Input)> = VecDeque::with_capacity(100);
    queue.extend((0..PEERS).map(|index| (index, Input::Tick)));
    for (a, b) in (0..PEERS).flat_map(|a| (0..PEERS).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        queue.push_back((a, Input::LinkUp(peer(b))));
    }

    let index_of = |peer: PeerId| usize::from(peer.0[0]) - 1;
    let mut committed = vec![0; PEERS];
    let mut counts = Vec::with_capacity(1000);
    let mut optimizer_bytes = 0;
    let mut out = Vec::with_capacity(100);
    while let Some((index, input)) = queue.pop_front() {
        nodes[index].handle(Instant(0), input, &mut out);
        for output in out.drain(..) {
            match output {
                Output::Send { to, frame } => {
                    queue.push_back((index_of(to), Input::Frame { from: peer(index), frame }));
                }
                Output::Credit { to, segments } => {
                    queue.push_back((index_of(to), Input::Credit { peer: peer(index), segments }));
                }
                Output::Compute(job) => {
                    queue.push_back((index, Input::Computed { job: job.id, result: job.run(drop) }));
                }
                Output::Persist { id, .. } => {
                    queue.push_back((index, Input::Persisted(id)));
                }
                Output::Event(Event::Committed(_)) => {
                    committed[index] += 1;
                    counts.push(LARGE_COUNT.load(Ordering::Relaxed));
                }
                Output::Event(Event::Ended(ended)) => {
                    assert_eq!(ended.outcome, Ok(()));
                    optimizer_bytes += ended.state.expect("it has trained").optimizer_bytes;
                }
                // There is no network to dial, and no disk.
                _ => {}
            }
        }
    }
    assert_eq!(committed, [72; PEERS], "three epochs of 24 steps");
    // The first steps fill the pools; the closing barrier is followed by the evaluation, which may allocate.
    let (warm, last) = (counts[5 * PEERS], counts[71 * PEERS]);
    assert_eq!(last - warm, 0, "large allocations after the fifth step");
    let vectors = VECTOR_COUNT.load(Ordering::Relaxed) - vectors_before;
    assert_eq!(vectors, vector_count * PEERS, "vectors, over the whole run");
    assert!(warm - large_before >= vectors, "the counter counts");
    // The committed state and space for the next, at the owner and at the holders of replicas.
    assert_eq!(optimizer_bytes, replicas * 2 * state_count * PARAMETERS as u64 * 4);
}

/// The specification of a run with these settings of `[sync]` and `replicas`.
fn specification_of(sync: &str, written: &str, task: &dyn Task) -> Arc<[u8]> {
    let run_file =
        RunFile::parse(&format!("{RUN_FILE}{sync}\n[shards]\nreplicas = {written}")).expect("a run file");
    let specification = CustomSpecification::resolve(&run_file, "ones", task, &ProgramFactory::sync());
    let specification = specification.and_then(|specification| specification.to_bytes());
    specification.expect("a specification").into()
}
