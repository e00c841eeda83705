//! The protocol of peergrad: names, agreed records, messages, and their bytes.
//!
//! All of it is pure: no sockets, no tasks, no clock. The caller passes in time and bytes and sends the bytes that come out, so the
//! same code runs between two continents and inside a simulator.
//!
//! # Glossary
//! One word, one meaning, in code, logs, commands and documents.
//!
//! **Who**
//!
//! | word | meaning |
//! |---|---|
//! | peer | a process with a [`PeerId`] (an ed25519 key) |
//! | incarnation | a number that grows with each start of a peer, and each time a peer rejoins after the members excluded it |
//! | member, rank | a peer that is in the current view; its index there, meaningless without the view |
//! | founder, joiner | the peer that creates a run; a peer that asks to become a member |
//! | coordinator | the member of lowest rank with parameters whose disk can be written: it admits joiners, and negotiates merges |
//! | secret, rekey | the random bytes that peers prove to know on each connection; to replace them during the run |
//! | excluded | not in the next view, for instance after a silence; the peer may rejoin |
//! | complaint | what a member tells all others of a fault that it has noticed of one of them |
//! | quarantined | excluded because of complaints; the peer may rejoin, but is expelled if it happens too often |
//! | expelled | removed from the run for good, on a user's order or after too many violations or faults; later views refuse the peer's key |
//!
//! **What is trained**
//!
//! | word | meaning |
//! |---|---|
//! | run | one training job; its [`RunId`] is the hash of the specification and of 32 random bytes |
//! | task, program | what a user provides: a model with its loss, gradient and data; a training algorithm, the same on every peer |
//! | chunk | a contiguous block of the flat parameter vector: the unit of placement, versioning, hashing and transfer |
//! | owner, replica | the member whose optimizer state of a chunk is authoritative; another member that stores the same state (the setting `replicas` counts the owner too) |
//! | shard | the chunks that one member owns |
//! | epoch | one pass over the data |
//! | data cursor | what has been trained: the epoch, the position in its permutation, and the ranges that were returned or deferred |
//! | checkpoint | what a member has on disk of a committed step: all parameters, and the optimizer state that it stores |
//!
//! **One step**
//!
//! | word | meaning |
//! |---|---|
//! | step | one update of the shared parameters; under `local` and `diloco`, one round of local steps |
//! | round | one collective operation: a reduce-scatter, the owners' update, and an all-gather |
//! | segment | a piece of a shard that fits into one frame |
//! | priority | how soon a message is sent: *urgent* ones (heartbeats, votes, requests to join, orders of users) overtake *normal* ones that wait in a link |
//! | credit, window | how many more segments a member may send over a link; how many the other end allows in flight, and waiting there |
//! | speed, dealing | how many samples a minute a member computes; how a batch is divided among the members: in proportion to their speeds, or evenly |
//! | line | what carries a member's frames to the others: how much it can send in all, and how long a round trip takes; a *long* line has a round trip of some milliseconds or more |
//! | contribution | the vector that a member adds to a round (usually its summed gradient), with the number of its samples |
//! | codec, residual | how elements are encoded as bytes, exactly or lossily; what a lossy codec has left out of a member's contributions so far |
//! | master copy | the exact parameters at owners and replicas, where members compute with rounded ones |
//! | backup worker, late | a member whose contribution a step need not wait for; a member whose contribution a step does not include |
//! | complete, committed | a member has *completed* a step when it holds all new parameters and its own new optimizer state; a step is *committed* when all members have completed it |
//!
//! **A view change**
//!
//! | word | meaning |
//! |---|---|
//! | view | an agreed [record](view::View) of the members and of where training resumes |
//! | view change | what [changes](view::ViewChange) from one view to the next; the value that members agree on |
//! | ballot, promise, accept | the terms of Paxos; see [`agreement`] |
//! | withdraw | to give up a ballot before anything is proposed under it; members that have stopped for it go on |
//! | placement, move | the owner and the replicas of each chunk, computed from the view; a chunk that changes hands during a view |
//! | newcomer | a member without parameters: it gets them in its first step |
//! | roll forward | to complete an interrupted step from what the remaining members hold together |
//! | suspected | silent for longer than the [failure detector](failure_detector) allows |
//! | rejoin candidate | a former member that is back after all members had stopped |
//! | companion | another restarted member of the same view, while none of its members is active |
//!
//! **Branches and merging**
//!
//! | word | meaning |
//! |---|---|
//! | branch | a stretch of the run's history without a step back; it starts with the run, with a restart from checkpoints, or with a fork |
//! | fork | two branches with a common ancestor, after a partition of the network in which both parts continued |
//! | ancestor | a view that a later view descends from |
//! | partitioned peer | a lost member that may train on another branch |
//! | merge | to average the state of another branch into the own one; the other members then join |
//! | merge snapshot, offer | the state that a branch keeps for another one; the message that describes it and names the members that store it |
//! | yield | to give up a branch so that its members join the other one |
//!
//! **Tables**
//!
//! | word | meaning |
//! |---|---|
//! | table, row, column | shared state that workers read and add to; its unit; the values at one place of all rows |
//! | worker, server | a member's part that reads and adds; its part that stores chunks of tables, as owner or replica |
//! | clock, tick | the number of iterations that a worker has completed; the message that says so |
//! | staleness | how many clocks a worker may be ahead of the slowest one when it reads |
//! | lease | samples that a worker is given to compute; they are returned if it is lost |
//! | transaction | changes of one worker that are carried out together or not at all: as a rule, those of one clock |
//! | cut | copies of all chunks of tables, of one moment at which no change is under way: a checkpoint of tables |
//! | journal, keeper | transactions of a worker that are not safe yet; another member that keeps them, and completes them if the worker is lost |
//! | handover | a chunk on its way to its new owner |
//!
//! **Wire**
//!
//! | word | meaning |
//! |---|---|
//! | frame | the bytes of one message: a prefix, a header, and a payload |
//! | link | a reliable channel between two peers, in which frames of one priority stay in order; it survives lost connections |
//! | violation | a frame that no correct peer sends; it is rejected and counted |
//! | lane, direct lane | one direction of a link: a substream of libp2p; a separate TLS connection |
//! | invite | one line of text with all that a joiner needs |
//! | record | a value in its canonical bytes, for hashing and for files |
//!
//! # Where to start
//! [`message`] lists all messages and when they are sent; [`wire`] is their form as bytes; [`view`] and [`placement`] say which
//! peers are members and what each of them owns; [`limits`] holds the bounds on what a run and its messages may hold.

#![forbid(unsafe_code)]

pub mod agreement;
pub mod buffer;
pub mod chunk_set;
pub mod clique;
pub mod cursor;
pub mod durable;
pub mod failure_detector;
pub mod id;
pub mod invite;
pub mod limits;
pub mod manifest;
pub mod message;
pub mod placement;
pub mod table;
pub mod time;
pub mod view;
pub mod wire;

pub use buffer::{Buffer, Pool};
pub use id::{Incarnation, PeerId, Rank, RunId, StepNumber, ViewDigest, ViewNumber};
pub use time::Instant;
pub use wire::Frame;
