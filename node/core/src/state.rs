//! State: the chunks that a member stores, how they are assigned to members, and how they are saved.

pub(crate) mod assignment;
pub(crate) mod blend;
pub mod checkpoint;
pub(crate) mod optimizer_shard;
pub(crate) mod optimizer_state;
pub(crate) mod owner_rule;
pub(crate) mod round_size;
pub(crate) mod shard_map;
pub mod shared_cache;
pub(crate) mod snapshot_id;
