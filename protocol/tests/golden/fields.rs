//! Messages taken apart by hand, field by field, in the order in which they are on the wire.
//!
//! Patterns name every field, so that a new one does not compile until it is shown.

use peergrad_protocol::cursor::{DataCursor, Span};
use peergrad_protocol::message::{
    Accepted, ChunkBatch, ChunkContent, ChunkEntry, Closed, Complete, DataPiece, Departure, Heartbeat, Join,
    MemberReport, MergeAccept, MergeOffer, MergeProbe, MergeReady, Message, Nack, PartialStep, Phase,
    Prepare, Promise, Propose, Refusal, RejoinCandidate, Rekey, SaveAt, SavedCheckpoint, Segment,
    SnapshotDonor, StepContributors, StepProgress, TableFrame, WantChunks, WantData, WantSnapshot, Welcome,
};
use peergrad_protocol::view::{
    Ancestor, BatchParts, Branch, Donor, Expulsion, ExpulsionCause, Member, Merge, Move, Moves, Recovery,
    Resume, RollForward, View, ViewChange,
};

use crate::sheet::Sheet;

/// The frame of a sample: what the encoder makes must be these fields end to end.
pub(crate) fn frame_sheet(message: &Message, payload: Option<&[u8]>) -> Sheet {
    let header = fields(message);
    let header_bytes = header.bytes().len();
    let payload_bytes = payload.map_or(0, <[u8]>::len);
    let (kind, kind_name) = match message {
        Message::Segment(_) | Message::TableFrame(_) => (1, "segment"),
        Message::Data(_) => (2, "data"),
        Message::ChunkBatch(_) | Message::SnapshotChunks(_) => (3, "chunk_batch"),
        _ => (0, "control"),
    };
    let mut sheet = Sheet::default();
    sheet.raw(&[1], "prefix: version");
    sheet.raw(&[kind], format!("prefix: kind = {kind_name}"));
    sheet.raw(&(header_bytes as u32).to_le_bytes(), format!("prefix: header bytes = {header_bytes}"));
    sheet.raw(&(payload_bytes as u32).to_le_bytes(), format!("prefix: payload bytes = {payload_bytes}"));
    sheet.lines.extend(header.lines);
    if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
        sheet.raw(payload, "payload");
    }
    sheet
}

/// The header of `message`, a line for each field.
///
/// A message that is missing here does not compile: give it an arm, a sample in `samples.rs` and a file.
fn fields(message: &Message) -> Sheet {
    let mut sheet = Sheet::default();
    let (tag, name) = tag(message);
    sheet.raw(&[tag], format!("message = {name}"));
    match message {
        Message::Ready | Message::Retire => {}
        Message::Join(join) => join_fields(join, &mut sheet),
        Message::Welcome(welcome) => welcome_fields(welcome, &mut sheet),
        Message::Redirect(contact) => sheet.contact("contact", contact),
        Message::Refuse(refusal) => refusal_fields(refusal, &mut sheet),
        Message::WantData(WantData { digest, offset }) | Message::Data(DataPiece { digest, offset }) => {
            sheet.array("digest", &digest.0);
            sheet.value("offset", offset);
        }
        Message::Candidate(member) => member_fields(member, &mut sheet),
        Message::Install(view) => view_fields(view, &mut sheet),
        Message::Heartbeat(heartbeat) => heartbeat_fields(heartbeat, &mut sheet),
        Message::Prepare(Prepare { view, ballot, before }) => {
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
            sheet.some("before", before.as_ref(), |sheet, before| sheet.value("before", before));
        }
        Message::Promise(promise) => promise_fields(promise, &mut sheet),
        Message::Nack(Nack { view, ballot, promised, step }) => {
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
            sheet.some("promised", promised.as_ref(), |sheet, ballot| sheet.ballot("promised", ballot));
            sheet.value("step", step);
        }
        Message::Propose(Propose { ballot, change }) => {
            sheet.ballot("ballot", ballot);
            change_fields(change, &mut sheet);
        }
        Message::Accepted(Accepted { view, ballot }) => {
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
        }
        Message::Learn(change) => change_fields(change, &mut sheet),
        Message::Segment(segment) => segment_fields(segment, &mut sheet),
        Message::WantChunks(WantChunks { view, steps, chunks }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.chunks("chunks", chunks);
        }
        Message::ChunkBatch(chunk_batch) | Message::SnapshotChunks(chunk_batch) => {
            chunk_batch_fields(chunk_batch, &mut sheet)
        }
        Message::Complete(Complete { view, steps, left_out }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.value("left_out", left_out);
        }
        Message::Closed(Closed { view, left_out }) => {
            sheet.array("view", &view.0);
            sheet.value("left_out", left_out);
        }
        Message::Leave(Departure { reason }) => sheet.text("reason", reason),
        Message::StepProgress(StepProgress { view, step, has_contribution, left_out }) => {
            sheet.array("view", &view.0);
            sheet.value("step", step);
            sheet.value("has_contribution", has_contribution);
            sheet.value("left_out", left_out);
        }
        Message::StepContributors(contributors) => step_contributors_fields(contributors, &mut sheet),
        Message::SaveCheckpoint(SaveAt { view, steps }) | Message::TakeSnapshot(SaveAt { view, steps }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
        }
        Message::Expel(expulsion) => expulsion_fields(expulsion, &mut sheet),
        Message::MergeProbe(probe) => merge_probe_fields(probe, &mut sheet),
        Message::MergeOffer(offer) => merge_offer_fields(offer, &mut sheet),
        Message::WantSnapshot(WantSnapshot { view, steps, content, chunks }) => {
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            content_field(*content, &mut sheet);
            sheet.chunks("chunks", chunks);
        }
        Message::MergeReady(MergeReady { recipients, view, steps, missing }) => {
            sheet.array("recipients", &recipients.0);
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.value("missing", missing);
        }
        Message::MergeAccept(MergeAccept { view, question, is_merged, contacts }) => {
            sheet.array("view", &view.0);
            sheet.value("question", question);
            sheet.value("is_merged", is_merged);
            sheet.list("contacts", contacts, |sheet, contact| sheet.contact("contact", contact));
        }
        Message::Rekey(Rekey { at, by, secret }) => {
            sheet.value("at", at);
            sheet.array("by", &by.0);
            sheet.array("secret", &secret.0);
        }
        Message::Rekeyed(at) => sheet.value("at", at),
        Message::TableFrame(TableFrame { view }) => sheet.array("view", &view.0),
    }
    sheet
}

/// The number of a message on the wire, and its name.
fn tag(message: &Message) -> (u8, &'static str) {
    match message {
        Message::Join(_) => (0, "Join"),
        Message::Welcome(_) => (1, "Welcome"),
        Message::Redirect(_) => (2, "Redirect"),
        Message::Refuse(_) => (3, "Refuse"),
        Message::WantData(_) => (4, "WantData"),
        Message::Data(_) => (5, "Data"),
        Message::Ready => (6, "Ready"),
        Message::Candidate(_) => (7, "Candidate"),
        Message::Retire => (8, "Retire"),
        Message::Install(_) => (9, "Install"),
        Message::Heartbeat(_) => (10, "Heartbeat"),
        Message::Prepare(_) => (11, "Prepare"),
        Message::Promise(_) => (12, "Promise"),
        Message::Nack(_) => (13, "Nack"),
        Message::Propose(_) => (14, "Propose"),
        Message::Accepted(_) => (15, "Accepted"),
        Message::Learn(_) => (16, "Learn"),
        Message::Segment(_) => (17, "Segment"),
        Message::WantChunks(_) => (18, "WantChunks"),
        Message::ChunkBatch(_) => (19, "ChunkBatch"),
        Message::Complete(_) => (20, "Complete"),
        Message::Closed(_) => (21, "Closed"),
        Message::Leave(_) => (22, "Leave"),
        Message::StepProgress(_) => (23, "StepProgress"),
        Message::StepContributors(_) => (24, "StepContributors"),
        Message::SaveCheckpoint(_) => (25, "SaveCheckpoint"),
        Message::Expel(_) => (26, "Expel"),
        Message::MergeProbe(_) => (27, "MergeProbe"),
        Message::TakeSnapshot(_) => (28, "TakeSnapshot"),
        Message::MergeOffer(_) => (29, "MergeOffer"),
        Message::WantSnapshot(_) => (30, "WantSnapshot"),
        Message::SnapshotChunks(_) => (31, "SnapshotChunks"),
        Message::MergeReady(_) => (32, "MergeReady"),
        Message::MergeAccept(_) => (33, "MergeAccept"),
        Message::Rekey(_) => (34, "Rekey"),
        Message::Rekeyed(_) => (35, "Rekeyed"),
        Message::TableFrame(_) => (36, "TableFrame"),
    }
}

fn step_contributors_fields(contributors: &StepContributors, sheet: &mut Sheet) {
    let StepContributors { view, step, late, left_out } = contributors;
    sheet.array("view", &view.0);
    sheet.value("step", step);
    sheet.length("late", late.len());
    late.iter().for_each(|rank| sheet.value("rank", rank));
    sheet.value("left_out", left_out);
}

// Coming.

fn join_fields(join: &Join, sheet: &mut Sheet) {
    let Join { run, incarnation, addresses, capacity } = join;
    sheet.some("run", run.as_ref(), |sheet, run| sheet.array("run", &run.0));
    sheet.value("incarnation", incarnation);
    sheet.addresses(addresses);
    sheet.value("capacity", capacity);
}

fn welcome_fields(welcome: &Welcome, sheet: &mut Sheet) {
    let Welcome { specification, nonce, members, non_owners } = welcome;
    sheet.length("specification", specification.len());
    sheet.raw(specification, format!("{:?}", String::from_utf8_lossy(specification)));
    sheet.array("nonce", nonce);
    sheet.list("members", members, |sheet, contact| sheet.contact("member", contact));
    sheet.list("non_owners", non_owners, |sheet, worker| sheet.array("worker", &worker.0));
}

fn refusal_fields(refusal: &Refusal, sheet: &mut Sheet) {
    match refusal {
        Refusal::OtherRun { run } => {
            sheet.raw(&[0], "refusal = OtherRun");
            sheet.array("run", &run.0);
        }
        Refusal::Full => sheet.raw(&[1], "refusal = Full"),
        Refusal::RunComplete => sheet.raw(&[2], "refusal = RunComplete"),
        Refusal::DuplicateIdentity => sheet.raw(&[3], "refusal = DuplicateIdentity"),
        Refusal::NotReady => sheet.raw(&[4], "refusal = NotReady"),
        Refusal::Expelled(expulsion) => {
            sheet.raw(&[5], "refusal = Expelled");
            expulsion_fields(expulsion, sheet);
        }
    }
}

// Views.

fn member_fields(member: &Member, sheet: &mut Sheet) {
    let Member { peer, incarnation, addresses, capacity } = member;
    sheet.array("member.peer", &peer.0);
    sheet.value("member.incarnation", incarnation);
    sheet.addresses(addresses);
    sheet.value("member.capacity", capacity);
}

pub(crate) fn view_fields(view: &View, sheet: &mut Sheet) {
    let View {
        run,
        number: view_number,
        parents,
        members,
        branch,
        earlier_branches,
        recovery,
        cursor,
        moves,
        expelled,
        ancestors,
        partitioned,
    } = view;
    sheet.array("run", &run.0);
    sheet.value("number", view_number);
    sheet.list("parents", parents, |sheet, parent| sheet.array("parent", &parent.0));
    sheet.list("members", members, |sheet, member| member_fields(member, sheet));
    branch_fields(branch, sheet);
    sheet.list("earlier_branches", earlier_branches, |sheet, branch| branch_fields(branch, sheet));
    match recovery {
        Recovery::Initialize => sheet.raw(&[0], "recovery = Initialize"),
        Recovery::Resume(resume) => {
            sheet.raw(&[1], "recovery = Resume");
            resume_fields(resume, sheet);
        }
    }
    cursor_fields(cursor, sheet);
    moves_fields(moves, sheet);
    sheet.list("expelled", expelled, |sheet, expulsion| expulsion_fields(expulsion, sheet));
    ancestors_fields(ancestors, sheet);
    sheet.list("partitioned", partitioned, |sheet, contact| sheet.contact("contact", contact));
}

fn ancestors_fields(ancestors: &[Ancestor], sheet: &mut Sheet) {
    sheet.list("ancestors", ancestors, |sheet, Ancestor { view, trained }| {
        sheet.array("ancestor.view", &view.0);
        sheet.value("ancestor.trained", trained);
    });
}

fn expulsion_fields(Expulsion { peer, by, cause }: &Expulsion, sheet: &mut Sheet) {
    sheet.array("expelled.peer", &peer.0);
    sheet.array("expelled.by", &by.0);
    match cause {
        ExpulsionCause::Request => sheet.raw(&[0], "expelled.cause = Request"),
        ExpulsionCause::Violations => sheet.raw(&[1], "expelled.cause = Violations"),
    }
}

fn branch_fields(Branch { view_number, step, fork }: &Branch, sheet: &mut Sheet) {
    sheet.value("branch.view_number", view_number);
    sheet.value("branch.step", step);
    sheet.some("branch.fork", fork.as_ref(), |sheet, fork| sheet.value("fork", fork));
}

fn resume_fields(resume: &Resume, sheet: &mut Sheet) {
    let Resume { step, newcomers, batch: deal, forward, is_restored, merge } = resume;
    sheet.value("resume.step", step);
    sheet.list("resume.newcomers", newcomers, |sheet, rank| sheet.value("newcomer", rank));
    sheet.some("resume.batch", deal.as_ref(), |sheet, BatchParts { epoch, parts }| {
        sheet.value("batch.epoch", epoch);
        sheet.list("batch.parts", parts, |sheet, part| {
            sheet.list("part", part, |sheet, span| span_fields(span, sheet));
        });
    });
    sheet.some("resume.forward", forward.as_ref(), |sheet, RollForward { stats, donors }| {
        sheet.stats("forward.stats", stats);
        sheet.list("forward.donors", donors, |sheet, Donor { first, end, rank }| {
            sheet.value("donor.first", first);
            sheet.value("donor.end", end);
            sheet.value("donor.rank", rank);
        });
    });
    sheet.value("resume.is_restored", is_restored);
    sheet.some("resume.merge", merge.as_deref(), |sheet, merge| {
        let Merge { view, steps, ours, theirs, cursor, history } = merge;
        sheet.array("merge.view", &view.0);
        sheet.value("merge.steps", steps);
        sheet.value("merge.ours", ours);
        sheet.value("merge.theirs", theirs);
        cursor_fields(cursor, sheet);
        ancestors_fields(history, sheet);
    });
}

fn cursor_fields(cursor: &DataCursor, sheet: &mut Sheet) {
    let DataCursor { epoch, position, returned, deferred } = cursor;
    sheet.value("cursor.epoch", epoch);
    sheet.value("cursor.position", position);
    sheet.list("cursor.returned", returned, |sheet, span| span_fields(span, sheet));
    sheet.list("cursor.deferred", deferred, |sheet, span| span_fields(span, sheet));
}

fn span_fields(span: &Span, sheet: &mut Sheet) {
    let Span { start, end } = span;
    sheet.value("span.start", start);
    sheet.value("span.end", end);
}

fn moves_fields(moves: &Moves, sheet: &mut Sheet) {
    let Moves { list, rate, restarted } = moves;
    sheet.list("moves.list", list, |sheet, Move { chunk, from }| {
        sheet.value("move.chunk", chunk);
        sheet.list("move.from", from, |sheet, rank| sheet.value("keeper", rank));
    });
    sheet.value("moves.rate", rate);
    sheet.list("moves.restarted", restarted, |sheet, chunk| sheet.value("chunk", chunk));
}

// Agreeing.

fn heartbeat_fields(heartbeat: &Heartbeat, sheet: &mut Sheet) {
    let Heartbeat { view, view_number, complete, computing } = heartbeat;
    sheet.array("view", &view.0);
    sheet.value("view_number", view_number);
    sheet.value("complete", complete);
    sheet.some("computing", computing.as_ref(), |sheet, step| sheet.value("step", step));
}

fn promise_fields(promise: &Promise, sheet: &mut Sheet) {
    let Promise { view, ballot, accepted, report } = promise;
    let MemberReport {
        is_vote_only,
        complete,
        states,
        states_before,
        is_entering,
        stats,
        next,
        lost,
        has_merge_snapshot,
        rejoin,
    } = report;
    sheet.array("view", &view.0);
    sheet.ballot("ballot", ballot);
    sheet.some("accepted", accepted.as_ref(), |sheet, (ballot, change)| {
        sheet.ballot("accepted.ballot", ballot);
        change_fields(change, sheet);
    });
    sheet.value("report.is_vote_only", is_vote_only);
    sheet.some("report.complete", complete.as_ref(), |sheet, steps| sheet.value("report.complete", steps));
    sheet.chunks("report.states", states);
    sheet.some("report.states_before", states_before.as_ref(), |sheet, states| {
        sheet.chunks("report.states_before", states);
    });
    sheet.value("report.is_entering", is_entering);
    sheet.some("report.stats", stats.as_ref(), |sheet, stats| sheet.stats("report.stats", stats));
    sheet.some("report.next", next.as_ref(), |sheet, PartialStep { values, states, stats }| {
        sheet.chunks("next.values", values);
        sheet.chunks("next.states", states);
        sheet.some("next.stats", stats.as_ref(), |sheet, stats| sheet.stats("next.stats", stats));
    });
    sheet.list("report.lost", lost, |sheet, rank| sheet.value("lost", rank));
    sheet.value("report.has_merge_snapshot", has_merge_snapshot);
    sheet.some("report.rejoin", rejoin.as_deref(), |sheet, RejoinCandidate { member, saved }| {
        member_fields(member, sheet);
        sheet.list("rejoin.saved", saved, |sheet, saved| saved_fields(saved, sheet));
    });
}

fn saved_fields(
    SavedCheckpoint { steps, branch, cursor, digest, states }: &SavedCheckpoint,
    sheet: &mut Sheet,
) {
    sheet.value("saved.steps", steps);
    branch_fields(branch, sheet);
    cursor_fields(cursor, sheet);
    sheet.array("saved.digest", &digest.0);
    sheet.chunks("saved.states", states);
}

pub(crate) fn change_fields(change: &ViewChange, sheet: &mut Sheet) {
    let ViewChange { parent, removed, added, capacities, resume, cursor, moves, expelled, ancestors } =
        change;
    sheet.array("change.parent", &parent.0);
    sheet.list("change.removed", removed, |sheet, rank| sheet.value("removed", rank));
    sheet.list("change.added", added, |sheet, member| member_fields(member, sheet));
    sheet.list("change.capacities", capacities, |sheet, (rank, capacity)| {
        sheet.value("rank", rank);
        sheet.value("capacity", capacity);
    });
    resume_fields(resume, sheet);
    cursor_fields(cursor, sheet);
    moves_fields(moves, sheet);
    sheet.list("change.expelled", expelled, |sheet, expulsion| expulsion_fields(expulsion, sheet));
    ancestors_fields(ancestors, sheet);
}

// Healing.

fn merge_probe_fields(probe: &MergeProbe, sheet: &mut Sheet) {
    let MergeProbe { run, view, steps, trained, ancestors, coordinator, yields, question, answers } = probe;
    sheet.array("run", &run.0);
    sheet.array("view", &view.0);
    sheet.value("steps", steps);
    sheet.value("trained", trained);
    ancestors_fields(ancestors, sheet);
    sheet.contact("coordinator", coordinator);
    sheet.some("yields", yields.as_ref(), |sheet, view| sheet.array("yields", &view.0));
    sheet.value("question", question);
    sheet.value("answers", answers);
}

fn merge_offer_fields(offer: &MergeOffer, sheet: &mut Sheet) {
    let MergeOffer { view, steps, cursor, trained, ancestors, donors, coordinator, question } = offer;
    sheet.array("view", &view.0);
    sheet.value("steps", steps);
    cursor_fields(cursor, sheet);
    sheet.value("trained", trained);
    ancestors_fields(ancestors, sheet);
    sheet.list("donors", donors, |sheet, SnapshotDonor { contact, states }| {
        sheet.contact("donor", contact);
        sheet.chunks("states", states);
    });
    sheet.array("coordinator", &coordinator.0);
    sheet.value("question", question);
}

// Training.

fn segment_fields(segment: &Segment, sheet: &mut Sheet) {
    let Segment { view, step, phase, owner, index, stats } = segment;
    sheet.array("view", &view.0);
    sheet.value("step", step);
    match phase {
        Phase::Reduce => sheet.raw(&[0], "phase = Reduce"),
        Phase::Gather => sheet.raw(&[1], "phase = Gather"),
        Phase::Mirror => sheet.raw(&[2], "phase = Mirror"),
    }
    sheet.value("owner", owner);
    sheet.value("index", index);
    sheet.stats("stats", stats);
}

fn content_field(content: ChunkContent, sheet: &mut Sheet) {
    match content {
        ChunkContent::Values => sheet.raw(&[0], "content = Values"),
        ChunkContent::State => sheet.raw(&[1], "content = State"),
    }
}

fn chunk_batch_fields(message: &ChunkBatch, sheet: &mut Sheet) {
    let ChunkBatch { view, steps, content, entries, digest } = message;
    sheet.array("view", &view.0);
    sheet.value("steps", steps);
    content_field(*content, sheet);
    sheet.list("entries", entries, |sheet, ChunkEntry { chunk, updates }| {
        sheet.value("chunk", chunk);
        sheet.value("updates", updates);
    });
    sheet.array("digest", &digest.0);
}
