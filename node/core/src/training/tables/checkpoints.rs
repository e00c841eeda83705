//! Checkpoints of tables: a [cut](crate::table::member::TakenCut) of all members, saved by each of them as far as it stores it.

use std::sync::Arc;

use peergrad_protocol::id::ContentDigest;
use peergrad_protocol::message::SavedCheckpoint;
use peergrad_protocol::table::TableChunk;
use peergrad_protocol::{Buffer, StepNumber};

use super::{TableEngine, TableMember};
use crate::io::{Output, Retention};
use crate::state::checkpoint::Checkpoint;
use crate::table::Init;
use crate::table::member::TakenCut;
use crate::table::server::Outbox;

impl TableEngine {
    /// This member, which has the lowest rank, asks all members for a cut. Returns false if that is not possible now.
    pub(crate) fn begin_cut(&mut self, out: &mut Vec<Output>) -> bool {
        let may_begin =
            !self.base.is_frozen && !self.base.barrier.is_waiting() && self.base.loss_watch.is_finite();
        may_begin && self.change_cut(TableMember::begin_cut, out)
    }

    /// This member, which has the lowest rank, gives up a cut that has not been taken for long: members may go on. Returns whether a cut was
    /// in progress. In a frozen member the messages wait.
    pub(crate) fn give_up_cut(&mut self, out: &mut Vec<Output>) -> bool {
        self.change_cut(TableMember::give_up_cut, out)
    }

    fn change_cut(
        &mut self,
        change: impl FnOnce(&mut TableMember, &mut Outbox) -> bool,
        out: &mut Vec<Output>,
    ) -> bool {
        let mut messages = Vec::new();
        let is_changed = change(&mut self.exchange.member, &mut messages);
        self.exchange.send(messages);
        self.make_progress(out);
        is_changed
    }

    /// Saves a cut that was taken.
    pub(super) fn save_cut(&mut self, out: &mut Vec<Output>) {
        if let Some(cut) = self.exchange.member.take_cut() {
            let checkpoint = Arc::new(self.checkpoint_of(cut));
            out.push(Output::SaveCheckpoint { checkpoint, retention: self.retention() });
        }
    }

    /// The present state, if this member is alone and has all chunks.
    pub(crate) fn checkpoint_alone(&mut self) -> Option<Checkpoint> {
        let is_alone = self.base.view().members.len() == 1;
        let cut = is_alone.then(|| self.exchange.member.cut_alone()).flatten()?;
        Some(self.checkpoint_of(cut))
    }

    /// Which checkpoints of the run are kept.
    pub(crate) fn retention(&self) -> Retention {
        Retention { keep: self.base.loaded.config.checkpoints_kept, candidates: Vec::new() }
    }

    fn checkpoint_of(&self, cut: TakenCut) -> Checkpoint {
        let (base, view) = (&self.base, self.base.view());
        // No two cuts of a run have the same view and number.
        let id = [&base.digest().0[..], &cut.number.to_be_bytes()].concat();
        let saved = SavedCheckpoint {
            steps: StepNumber(cut.number),
            branch: view.history.branch,
            cursor: view.cursor.clone(),
            digest: ContentDigest::of(&id),
            states: cut.saved.chunks.iter().map(|chunk| chunk.chunk as usize).collect(),
        };
        let parameters = self.parameters_with(&cut.saved.chunks);
        Checkpoint { tables: Some(cut.saved), ..base.checkpoint(saved, parameters) }
    }

    /// The parameters that the program has last read, with those of these chunks in their present state.
    fn parameters_with(&self, chunks: &[TableChunk]) -> Arc<Buffer> {
        let layout = &self.exchange.layout;
        let mut parameters = self.base.vectors.take(self.parameters.len());
        parameters.copy_from_slice(&self.parameters);
        for chunk in chunks {
            let index = chunk.chunk as usize;
            if layout.table_of(index).init == Init::Parameters {
                let numbers = chunk.rows.values.chunks_exact(layout.stride(index));
                for (row, numbers) in chunk.rows.indices.iter().zip(numbers) {
                    layout.write_row(index, row, &numbers[..layout.width(index)], &mut parameters);
                }
            }
        }
        Arc::new(parameters)
    }
}
