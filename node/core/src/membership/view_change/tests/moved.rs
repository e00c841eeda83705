//! How many chunks move when a peer joins or leaves: hardly more than necessary.

use super::*;

/// The parameters are cut into the largest possible number of chunks.
const PARAMETERS: usize = 1 << 16;
const SEEDS: u32 = 8;

/// Peers with keys as random as real ones.
fn peers(seed: u32, count: usize) -> Vec<Member> {
    let key = |index: usize| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(&(index as u64).to_le_bytes());
        PeerId(*hasher.finalize().as_bytes())
    };
    (0..count).map(|index| Member { peer: key(index), ..member(0) }).collect()
}

/// The chunks that get another owner in the view that follows `before` by `churn`, and those whose state has to travel to it.
fn moved(before: &[Member], churn: &Churn) -> (usize, usize) {
    let mut view = view(&[]);
    view.members = before.to_vec();
    view.members.sort_by_key(|member| member.peer);
    let sharding = ShardingConfig { chunks: Chunks::of(PARAMETERS), ..sharding(2, true) };
    let before = shard_map(view, sharding);
    let change = between_steps(&before, churn).expect("the run goes on");
    let next = before.view.apply(before.digest, &change).expect("a valid change");
    let digest = next.digest();
    let after = ShardMap::new(Arc::new(next), digest, sharding);
    let owner = |shard_map: &ShardMap, chunk| shard_map.view.member(shard_map.target.owner(chunk)).peer;
    let count = sharding.chunks.count();
    let others = (0..count).filter(|&chunk| owner(&before, chunk) != owner(&after, chunk)).count();
    let list = &after.view.moves.list;
    let sent = list.iter().filter(|moved| moved.from[0] != after.target.owner(moved.chunk as usize)).count();
    (others, sent)
}

/// One of `count` peers joins or leaves: ideally `1 / count` of all chunks move.
fn row(name: &str, count: usize, churn: impl Fn(Vec<Member>) -> (Vec<Member>, Churn)) {
    let all = Chunks::of(PARAMETERS).count() as f64;
    assert!(all / count as f64 >= 100.0, "peers own 100 chunks and more");
    let share = |moved: usize| moved as f64 / all * count as f64;
    let mut others = Vec::new();
    let mut sent = Vec::new();
    for seed in 0..SEEDS {
        let (before, churn) = churn(peers(seed, count));
        let moved = moved(&before, &churn);
        others.push(share(moved.0));
        sent.push(share(moved.1));
    }
    let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len() as f64;
    let most = others.iter().copied().fold(0.0, f64::max);
    println!("{name} {count:2}  {:.2}  {most:.2}  {:.2}", mean(&others), mean(&sent));
    assert!(mean(&others) <= 1.15 && most <= 1.3, "{name} {count}: {others:?}");
}

#[test]
fn a_join_or_a_departure_moves_little_more_than_one_share() {
    println!("of the share 1/N of a peer: owners that change, mean and most; states sent, mean");
    for count in 2..=32 {
        row("join ", count, |mut all| {
            let joiners = vec![all.remove(0)];
            (all, Churn { joiners, ..Churn::default() })
        });
        if count > 2 {
            row("leave", count, |all| {
                let leavers = vec![Rank::from_index(count / 2)];
                (all, Churn { leavers, ..Churn::default() })
            });
        }
    }
}
