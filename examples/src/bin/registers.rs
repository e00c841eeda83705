//! A register with compare-and-set, as ZooKeeper has it: candidates on many machines elect a leader again and again.
//!
//! The register holds a version and the leader of each version so far. A candidate names the version that it has read, and itself. It becomes
//! the leader of the next version if the register is still at that version. So one of several that try at once wins, and the others
//! read again.
//!
//! *How it works.* A sample of this task is a candidate, which leads once in each epoch. Its worker reads the register until the
//! candidate has won, and tries to set it before each further read. Then the worker notes the win in a second table, together with the end of
//! its clock. If a worker is lost in between, another one gets the sample, finds the win in the register, and notes it. So each
//! version has one leader and is noted exactly once, also if peers were killed.
//!
//! An addition has no reply: only a later read says whether it has won. That is why the register keeps the leaders of all its versions.
//!
//! ```text
//! cargo run --release -p peergrad-examples --bin registers -- start
//! cargo run --release -p peergrad-examples --bin registers -- join pg1...   (what `start` printed; on any machine)
//! ```
//! The run ends with an accuracy of 1 (the share of the 640 versions with one leader, who has noted that version once) and a loss of 0 (how far
//! a candidate's versions are from 40, one per epoch, on average). While it runs, the loss is the mean number of attempts per win.
//!
//! *Reading.* Hunt, Konar, Junqueira and Reed, *ZooKeeper: Wait-free coordination for Internet-scale systems*, 2010, `setData` with a version.

use peergrad::prelude::*;

const CANDIDATES: u32 = 16;
const EPOCHS: u64 = 40;
const VERSIONS: usize = CANDIDATES as usize * EPOCHS as usize;

/// The owner's rule: `added` starts with the expected version and the candidate, counted from 1.
fn compare_and_set(RowChange { values, added, .. }: RowChange<'_>) {
    let version = values[0];
    if version == added[0] && (version as usize) < VERSIONS {
        values[1 + version as usize] = added[1];
        values[0] = version + 1.0;
    }
}

/// Row 0 is the register; row 1 + v is version v: how often it was noted, and the sum of the candidates that noted it.
fn table_spec(_: &Loaded) -> TableSpec {
    // Each attempt is sent before the next one, so there is nothing to join.
    let combine = |_: &mut [f32], _: &[f32]| ();
    let rule = RowRule { name: "compare-and-set", moments: 0, apply: compare_and_set, combine };
    let register = Table::additive("register", 1, 1 + VERSIONS);
    let register = Table { rule: TableRule::Custom(rule), init: Init::Parameters, ..register };
    let notes = Table { init: Init::Parameters, ..Table::additive("notes", VERSIONS as u64, 2) };
    TableSpec::new(vec![register, notes], ReadPolicy::Unbounded)
}

/// The algorithm at one worker.
struct Electing;

impl Program for Electing {
    const NAME: &'static str = "electing";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            clock.finish();
            clock.parameters().await?;
            return Ok(Flow::Break(()));
        }
        let (mut won, mut attempts) = (Vec::new(), 0.0);
        for candidate in clock.samples.iter().map(|sample| (sample + 1) as f32) {
            loop {
                let register = clock.pull(0..1).expect("there is such a row").await?.values;
                let version = register.first().copied().unwrap_or(0.0);
                let leaders = register.iter().skip(1).enumerate();
                let mut own = leaders.filter(|(_, leader)| **leader == candidate);
                if let Some((version, _)) = own.nth(clock.epoch as usize) {
                    won.push((version as u64, candidate));
                    break;
                }
                if version as usize == VERSIONS {
                    // All versions have a leader: a run file asks for more epochs than the register has room for.
                    break;
                }
                let mut values = vec![0.0; 1 + VERSIONS];
                values[..2].copy_from_slice(&[version, candidate]);
                clock.add(Rows { indices: RowSet::range(0..1), values }).expect("a finite row");
                attempts += 1.0;
            }
        }
        // All notes come last: a pull after one of them would send it by itself, and not together with the end of the clock.
        for (version, candidate) in won {
            let indices = RowSet::range(1 + version..2 + version);
            clock.add(Rows { indices, values: vec![1.0, candidate] }).expect("a finite row");
        }
        let samples = clock.samples.len() as u64;
        clock.end(SampleStats { samples, loss: attempts });
        Ok(Flow::Continue(()))
    }
}

/// The task whose parameters, which begin at zero, are the two tables.
struct Election;

impl Task for Election {
    fn manifest(&self) -> Manifest {
        Manifest::tensor("register", [1 + VERSIONS as u32]).and("notes", [VERSIONS as u32, 2])
    }

    fn sample_count(&self) -> u32 {
        CANDIDATES
    }

    fn gradient(&self, _parameters: &[f32], _samples: &[u32], _gradient: &mut [f32]) -> f64 {
        unreachable!("the program of this task computes no gradient")
    }

    fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let (register, notes) = parameters.split_at(1 + VERSIONS);
        let leaders = &register[1..];
        let is_right = |(leader, note): &(&f32, &[f32])| **leader > 0.0 && **note == [1.0, **leader];
        let right = leaders.iter().zip(notes.chunks_exact(2)).filter(is_right).count();
        let versions_of = |candidate| leaders.iter().filter(|leader| **leader == candidate as f32).count();
        let surplus: u64 = (1..=CANDIDATES).map(|one| EPOCHS.abs_diff(versions_of(one) as u64)).sum();
        Evaluation {
            samples: VERSIONS as u32,
            loss: surplus as f64 / f64::from(CANDIDATES),
            accuracy: Some(right as f64 / VERSIONS as f64),
        }
    }
}

fn main() -> ExitCode {
    peergrad::train("election", Election).tables(table_spec, |_| Electing).epochs(EPOCHS).batch(1).run()
}
