//! The parts of a run file that are the same for all data.

/// The first line of `[sync]`.
pub(super) const SYNC: &str = "kind = \"sync\"              # how the peers train together:";
/// The same for models whose steps touch few parameters: only those travel.
pub(super) const SSP: &str = "kind = \"ssp\"               # how the peers train together:";

/// The beginning of a run file.
pub(super) const HEAD: &str = "\
# A run of peergrad, ready to use:
#   peer start run.toml      on the first machine; it prints the command for the others
# All values are defaults or were inferred from the data. Change them before the first peer starts.

";

/// Everything after the sections `[model]` and `[optimizer]`.
pub(super) const REST: &str = "
[sync]
kind = \"sync\"              # how the peers train together:
                           #   \"sync\": synchronous steps, as in data-parallel training on one machine
                           #   \"backup-workers\": synchronous steps that do not wait for the slowest peers
                           #   \"local\": local steps, then averaged parameters (local SGD)
                           #   \"diloco\": local steps, then a step of an outer optimizer (DiLoCo)
                           #   \"ds-sync\": parameters averaged in small groups that change (divide and shuffle)
                           #   \"ssp\": parameters in a table; no peer gets far ahead of the slowest (bounded staleness)
                           #   \"async\": parameters in a table; no peer waits for another
                           #   \"downpour\": as \"async\", but peers send and read only every few steps
                           #   \"l-bfgs\": passes over all rows and quasi-Newton steps, for small convex models
topology = \"auto\"          # \"direct\": tensors go straight to their owner; \"ring\": from neighbour to neighbour;
                           # \"auto\": direct, unless a ring is faster
gradients = \"f32\"          # encoding of gradients; \"bf16\", \"f16\", \"int8\" and \"top-k\" need less bandwidth
parameters = \"f32\"         # encoding of new parameters; \"bf16\", \"f16\" and \"int8\" need less bandwidth
segment_kib = 128          # size of one segment on the wire, in KiB
digest_every = 100         # steps after which members compare their parameters; 0: only at the start and the end
patience_seconds = 10      # a peer that computes at one step for longer counts as stuck: the others go on without it;
                           # they wait for ten times the longest recent step, if that is more
# local_steps = 32         # \"local\", \"diloco\": steps that each peer takes by itself in a round; or \"epoch\"
# round_seconds = 30       # the same: how long these steps take, by the measured speeds; then local_steps (4) is only for the first rounds
# dealing = \"even\"         # equal parts of each batch for all peers; without this, parts by measured speed, where results allow it

[shards]
replicas = 2               # how many peers hold the optimizer state of each parameter; with 2, one may fail without a loss;
                           # \"all\", with up to 32 peers: nothing is lost, but memory per peer does not shrink

[checkpoints]
seconds = 30               # seconds between two checkpoints, from which peers continue after all of them have stopped
keep = 3                   # how many checkpoints each peer keeps

# [evaluation]
# every = 100              # steps between two evaluations on the held-out rows; all peers keep the best model as best.safetensors
# stop_after = 5            # ends the run after so many evaluations in a row that were not the best

[partition]
policy = \"majority\"        # in a network partition: \"majority\": the part with most of the members continues, the others wait;
                           # \"merge\", \"winner\": all parts continue; later their models are averaged, or the one with more steps is kept

[network]                  # settings of this peer only; other peers may use other values
port = 4747                # port to listen on (TCP and UDP); direct tensor connections use TCP on the port 1000 above it
peers = 2                  # how many peers, this one included, a new run waits for
mdns = true                # whether peers on the local network find each other

[compute]                  # settings of this peer only
# threads = 2              # threads that compute a gradient, with the same result for any number; without this, the cores that the
                           # peer may use, divided by the peers of this user on the machine
# device = \"gpu\"           # computes deep networks on a graphics card, in a `peer` with the feature `deep-wgpu`
";
