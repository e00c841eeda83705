//! Latent Dirichlet allocation by collapsed Gibbs sampling: a topic model on documents, without a coordinator.
//!
//! The topic of each word is stored beside the counts of words and topics, in three [tables](crate::table), so another worker can go on with the
//! documents of one that is lost:
//!
//! ```text
//! word_topics   (vocabulary, topics)      how often each word has each topic: the parameters
//! topics        (topics) integers         how many words have each topic
//! assignments   for each document, in     how often the document was swept, then the topics of its next words,
//!               rows of 32 numbers        from 1; 0 for a word that has none yet
//! ```
//! A worker sweeps a [portion](crate::table::Portions::Kept) of the documents: it reads the counts of their words, draws a new topic for each
//! word, and adds the differences. A clock is [atomic](crate::table::Atomicity::Clock): so the counts stay those of the
//! assignments, also if a worker is lost. Other workers sweep other documents meanwhile, so a worker's counts are a little old. Models become as good with them.
//!
//! Workers keep their documents. One that has swept a portion in the epoch before remembers its topics, and reads counts only.
//!
//! # Invariants
//! - Each document is swept once in each epoch, from the topics that the sweep before has left. A worker that takes over a document may ask for
//!   its topics before they have arrived. It sees so by the number of sweeps, and asks again.
//!
//! # Reading
//! Newman et al., *Distributed Algorithms for Topic Models*, 2009. Li et al., *Scaling Distributed Machine Learning with the Parameter Server*,
//! 2014, section 5.2.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::ControlFlow::Continue;
use std::sync::Arc;

use peergrad_models::task::lda::{Lda, TopicCounts};
use peergrad_protocol::cursor::mixed;
use peergrad_protocol::message::SampleStats;
use peergrad_protocol::table::RowSet;

use crate::program::context::{Clock, Context, Interrupted};
use crate::program::programs::ssp::finish;
use crate::program::{Flow, Program};
use crate::table::{Portions, ReadPolicy, TableSpec};
use places::Places;

mod places;

/// The program of a topic model.
pub struct GibbsSampling {
    /// The model and its documents.
    task: Arc<Lda>,
    /// Where everything is in the tables.
    places: Arc<Places>,
    /// The portions that this worker has swept last, by their positions.
    remembered: BTreeMap<u64, Swept>,
}

/// A portion of the documents, as a worker has left it.
struct Swept {
    /// The epoch in which it was swept.
    epoch: u64,
    /// The documents, ascending.
    documents: Arc<[u32]>,
    /// The topics of their words, one document after the other.
    assignments: Vec<u32>,
}

impl GibbsSampling {
    /// The program for a topic model.
    #[must_use]
    pub fn of(task: Arc<Lda>) -> Self {
        let places = Arc::new(Places::of(&task));
        Self { task, places, remembered: BTreeMap::new() }
    }

    /// The tables of a topic model, with its documents in so many portions.
    ///
    /// # Panics
    /// If the tables are larger than those of a run can be.
    #[must_use]
    pub fn table_spec(task: &Lda, portions: NonZeroU64) -> TableSpec {
        let portions = Some(Portions::Kept(portions));
        TableSpec { portions, ..TableSpec::new(Places::of(task).tables(), ReadPolicy::Unbounded) }
    }

    /// The topics of these documents, unless this worker remembers them, and the counts of their words.
    async fn read(
        &self,
        clock: &Clock,
        documents: &Arc<[u32]>,
        remembered: Option<Vec<u32>>,
    ) -> Result<(Vec<u32>, TopicCounts), Interrupted> {
        let (task, of) = (Arc::clone(&self.task), Arc::clone(documents));
        let words = clock.compute(0, move || task.words_of(&of)).await?;
        let of_documents = if remembered.is_none() { &documents[..] } else { &[] };
        let wanted: RowSet = self.places.rows(&words, of_documents).collect();
        loop {
            let rows = clock.pull(wanted.clone()).expect("the tables have such rows").await?;
            let assignments = match &remembered {
                Some(assignments) => Some(assignments.clone()),
                None => self.places.assignments(documents, clock.epoch, &rows),
            };
            if let Some(assignments) = assignments {
                return Ok((assignments, self.places.counts(words, &rows)));
            }
        }
    }

    /// Sweeps the documents of a clock, and ends it.
    ///
    /// # Errors
    /// [`Interrupted`] if the run ends first.
    ///
    /// # Panics
    /// If the tables are not those of [`table_spec`](Self::table_spec).
    pub async fn sweep(&mut self, clock: Clock) -> Result<(), Interrupted> {
        let (position, epoch) = (clock.position, clock.epoch);
        let mut documents = clock.samples.to_vec();
        documents.sort_unstable();
        let documents: Arc<[u32]> = documents.into();
        // A worker that is interrupted forgets the portion, and reads it the next time.
        self.remembered.retain(|_, swept| swept.epoch + 1 >= epoch);
        let is_last =
            |swept: &Swept| clock.is_kept && swept.epoch + 1 == epoch && swept.documents == documents;
        let swept = self.remembered.remove(&position).filter(is_last);
        let remembered = swept.map(|swept| swept.assignments);
        let (assignments, counts) = self.read(&clock, &documents, remembered).await?;
        let (task, places, of) = (Arc::clone(&self.task), Arc::clone(&self.places), Arc::clone(&documents));
        let seed = seed(clock.info().seed, epoch, position);
        let cost = documents.len() as u64;
        let work = move || {
            let (mut new, mut after) = (assignments.clone(), counts.clone());
            let loss = task.sweep(seed, &of, &mut new, &mut after);
            let additions = places.additions(&of, [&assignments, &new], [&counts, &after]);
            (new, additions, loss)
        };
        let (assignments, additions, loss) = clock.compute(cost, work).await?;
        clock.add(additions).expect("finite rows of these tables");
        self.remembered.insert(position, Swept { epoch, documents, assignments });
        // The worker does not wait until the additions are safe: the node repeats them until they are.
        drop(clock.commit(SampleStats { samples: cost, loss: loss * cost as f64 }));
        Ok(())
    }
}

impl Program for GibbsSampling {
    const NAME: &'static str = "lda";

    async fn round(&mut self, context: &Context) -> Result<Flow, Interrupted> {
        let clock = context.begin_clock().await?;
        if clock.is_over {
            return finish(clock).await;
        }
        if clock.samples.is_empty() {
            clock.end(SampleStats::default());
            return Ok(Continue(()));
        }
        self.sweep(clock).await?;
        Ok(Continue(()))
    }
}

/// The seed of the random numbers of one sweep over one portion.
fn seed(of_clock: u64, epoch: u64, position: u64) -> [u8; 32] {
    let mut seed = [0; 32];
    let parts = [of_clock, epoch, position, mixed(of_clock ^ mixed(epoch) ^ position)];
    seed.chunks_exact_mut(8).zip(parts).for_each(|(bytes, part)| bytes.copy_from_slice(&part.to_le_bytes()));
    seed
}
