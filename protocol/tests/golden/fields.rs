//! Messages, written out by hand field by field, in the order of the wire.
//!
//! Patterns name every field, so that a new one does not compile until it is shown.

use peergrad_protocol::cursor::{DataCursor, Span};
use peergrad_protocol::message::{
    Accepted, AdminMessage, AgreementMessage, Awaited, AwaitedAt, ChunkBatch, ChunkContent, ChunkEntry,
    Closed, Complete, DataPiece, Departure, Evaluated, Heartbeat, Join, JoinMessage, MemberReport,
    MergeAccept, MergeMessage, MergeOffer, MergeProbe, MergeReady, Message, Nack, ParametersDigest,
    PartialStep, Phase, Prepare, Promise, Propose, Refusal, RejoinCandidate, Rekey, SaveAt, SavedCheckpoint,
    Segment, SentFrames, ShardNorm, SnapshotChunks, SnapshotDonor, Stage, StepContributors, StepProgress,
    TrainingMessage, WantChunks, WantData, WantSnapshot, Welcome,
};
use peergrad_protocol::view::{
    Ancestor, BatchParts, Branch, Complaint, Donor, Expulsion, ExpulsionCause, Member, MemberFault,
    MemberLine, Merge, Move, Moves, Quarantine, Recovery, Resume, RollForward, View, ViewChange, ViewHistory,
};

use crate::sheet::Sheet;

/// The sheet of a sample's frame: the encoded bytes must be exactly these fields in order.
pub(crate) fn frame_sheet(message: &Message, payload: Option<&[u8]>) -> Sheet {
    let header = fields(message);
    let header_bytes = header.bytes().len();
    let payload_bytes = payload.map_or(0, <[u8]>::len);
    let (kind, kind_name) = match message {
        Message::InView { message: TrainingMessage::Segment(_) | TrainingMessage::Tables, .. } => {
            (1, "segment")
        }
        Message::Join(JoinMessage::Data(_)) => (2, "data"),
        Message::InView { message: TrainingMessage::ChunkBatch(_), .. }
        | Message::Merge(MergeMessage::SnapshotChunks(_)) => (3, "chunk_batch"),
        Message::Heartbeat(_) | Message::Agreement(_) | Message::Admin(_) | Message::Join(_) => (4, "urgent"),
        _ => (0, "control"),
    };
    let mut sheet = Sheet::default();
    sheet.raw(&[1], "prefix: version");
    sheet.raw(&[kind], format!("prefix: kind = {kind_name}"));
    sheet.raw(&(header_bytes as u32).to_le_bytes(), format!("prefix: header bytes = {header_bytes}"));
    sheet.raw(&(payload_bytes as u32).to_le_bytes(), format!("prefix: payload bytes = {payload_bytes}"));
    let checksum = crc_32(&[&sheet.bytes(), &header.bytes(), payload.unwrap_or_default()].concat());
    sheet.raw(&checksum.to_le_bytes(), "prefix: CRC-32 of all other bytes");
    sheet.lines.extend(header.lines);
    if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
        sheet.raw(payload, "payload");
    }
    sheet
}

/// The header of `message`, a line for each field.
///
/// A new message does not compile until it has an arm here; give it a sample in `samples.rs` and a file too.
fn fields(message: &Message) -> Sheet {
    let mut sheet = Sheet::default();
    match message {
        Message::Join(message) => {
            sheet.raw(&[0], "message = Join");
            join_message_fields(message, &mut sheet);
        }
        Message::Agreement(message) => {
            sheet.raw(&[1], "message = Agreement");
            agreement_message_fields(message, &mut sheet);
        }
        Message::InView { view, message } => {
            sheet.raw(&[2], "message = InView");
            sheet.array("view", &view.0);
            training_message_fields(message, &mut sheet);
        }
        Message::Merge(message) => {
            sheet.raw(&[3], "message = Merge");
            merge_message_fields(message, &mut sheet);
        }
        Message::Admin(message) => {
            sheet.raw(&[4], "message = Admin");
            admin_message_fields(message, &mut sheet);
        }
        Message::Heartbeat(heartbeat) => {
            sheet.raw(&[5], "message = Heartbeat");
            heartbeat_fields(heartbeat, &mut sheet);
        }
        Message::FrameCount { view, sent } => {
            sheet.raw(&[6], "message = FrameCount");
            sheet.array("view", &view.0);
            sheet.value("link", sent.link);
            sheet.value("count", sent.count);
        }
        Message::Leave(Departure { reason }) => {
            sheet.raw(&[7], "message = Leave");
            sheet.text("reason", reason);
        }
    }
    sheet
}

/// The number of a message within its conversation, and its name.
fn tag(sheet: &mut Sheet, tag: u8, name: &str) {
    sheet.raw(&[tag], format!("message = {name}"));
}

fn join_message_fields(message: &JoinMessage, sheet: &mut Sheet) {
    match message {
        JoinMessage::Join(join) => {
            tag(sheet, 0, "Join");
            join_fields(join, sheet);
        }
        JoinMessage::Welcome(welcome) => {
            tag(sheet, 1, "Welcome");
            welcome_fields(welcome, sheet);
        }
        JoinMessage::Redirect(contact) => {
            tag(sheet, 2, "Redirect");
            sheet.contact("contact", contact);
        }
        JoinMessage::Refuse(refusal) => {
            tag(sheet, 3, "Refuse");
            refusal_fields(refusal, sheet);
        }
        JoinMessage::WantData(WantData { digest, offset }) => {
            tag(sheet, 4, "WantData");
            sheet.array("digest", &digest.0);
            sheet.value("offset", offset);
        }
        JoinMessage::Data(DataPiece { digest, offset }) => {
            tag(sheet, 5, "Data");
            sheet.array("digest", &digest.0);
            sheet.value("offset", offset);
        }
        JoinMessage::Ready(parameters) => {
            tag(sheet, 6, "Ready");
            sheet.array("parameters", &parameters.0);
        }
        JoinMessage::Candidate(member) => {
            tag(sheet, 7, "Candidate");
            member_fields(member, sheet);
        }
    }
}

fn agreement_message_fields(message: &AgreementMessage, sheet: &mut Sheet) {
    match message {
        AgreementMessage::Prepare(Prepare { view, ballot, before }) => {
            tag(sheet, 0, "Prepare");
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
            sheet.some("before", before.as_ref(), |sheet, before| sheet.value("before", before));
        }
        AgreementMessage::Promise(promise) => {
            tag(sheet, 1, "Promise");
            promise_fields(promise, sheet);
        }
        AgreementMessage::Nack(Nack { view, ballot, promised, step }) => {
            tag(sheet, 2, "Nack");
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
            sheet.some("promised", promised.as_ref(), |sheet, ballot| sheet.ballot("promised", ballot));
            sheet.value("step", step);
        }
        AgreementMessage::Propose(Propose { ballot, change }) => {
            tag(sheet, 3, "Propose");
            sheet.ballot("ballot", ballot);
            change_fields(change, sheet);
        }
        AgreementMessage::Accepted(Accepted { view, ballot }) => {
            tag(sheet, 4, "Accepted");
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
        }
        AgreementMessage::Learn(change) => {
            tag(sheet, 5, "Learn");
            change_fields(change, sheet);
        }
        AgreementMessage::Install(view) => {
            tag(sheet, 6, "Install");
            view_fields(view, sheet);
        }
        AgreementMessage::Complain { view, complaint } => {
            tag(sheet, 7, "Complain");
            sheet.array("view", &view.0);
            complaint_fields(complaint, sheet);
        }
        AgreementMessage::Withdraw { view, ballot } => {
            tag(sheet, 8, "Withdraw");
            sheet.array("view", &view.0);
            sheet.ballot("ballot", ballot);
        }
        AgreementMessage::Measured { view, samples_per_minute, line } => {
            tag(sheet, 9, "Measured");
            sheet.array("view", &view.0);
            sheet.value("samples_per_minute", samples_per_minute);
            line_fields(line, sheet);
        }
    }
}

fn training_message_fields(message: &TrainingMessage, sheet: &mut Sheet) {
    match message {
        TrainingMessage::Segment(segment) => {
            tag(sheet, 0, "Segment");
            segment_fields(segment, sheet);
        }
        TrainingMessage::WantChunks(WantChunks { steps, chunks }) => {
            tag(sheet, 1, "WantChunks");
            sheet.value("steps", steps);
            sheet.chunks("chunks", chunks);
        }
        TrainingMessage::ChunkBatch(chunk_batch) => {
            tag(sheet, 2, "ChunkBatch");
            chunk_batch_fields(chunk_batch, sheet);
        }
        TrainingMessage::Complete(Complete { steps, left_out }) => {
            tag(sheet, 3, "Complete");
            sheet.value("steps", steps);
            sheet.value("left_out", left_out);
        }
        TrainingMessage::Closed(Closed { left_out }) => {
            tag(sheet, 4, "Closed");
            sheet.value("left_out", left_out);
        }
        TrainingMessage::StepProgress(StepProgress { step, has_contribution, left_out }) => {
            tag(sheet, 5, "StepProgress");
            sheet.value("step", step);
            sheet.value("has_contribution", has_contribution);
            sheet.value("left_out", left_out);
        }
        TrainingMessage::StepContributors(contributors) => {
            tag(sheet, 6, "StepContributors");
            step_contributors_fields(contributors, sheet);
        }
        TrainingMessage::SaveCheckpoint(SaveAt { steps }) => {
            tag(sheet, 7, "SaveCheckpoint");
            sheet.value("steps", steps);
        }
        TrainingMessage::TakeSnapshot(SaveAt { steps }) => {
            tag(sheet, 8, "TakeSnapshot");
            sheet.value("steps", steps);
        }
        TrainingMessage::Tables => tag(sheet, 9, "Tables"),
        TrainingMessage::ParametersDigest(ParametersDigest { steps, digest, shards }) => {
            tag(sheet, 10, "ParametersDigest");
            sheet.value("steps", steps);
            sheet.array("digest", &digest.0);
            sheet.list("shards", shards, |sheet, shard| sheet.array("shard", &shard.0));
        }
        TrainingMessage::ShardNorm(ShardNorm { step, squares }) => {
            tag(sheet, 11, "ShardNorm");
            sheet.value("step", step);
            sheet.raw(&squares.to_le_bytes(), format!("squares = {squares}"));
        }
        TrainingMessage::Evaluating(begun) => {
            tag(sheet, 12, "Evaluating");
            sheet.value("steps", begun.steps);
        }
        TrainingMessage::Evaluated(Evaluated { steps, samples, loss, accuracy, best }) => {
            tag(sheet, 13, "Evaluated");
            sheet.value("steps", steps);
            sheet.value("samples", samples);
            sheet.raw(&loss.to_le_bytes(), format!("loss = {loss}"));
            sheet.some("accuracy", accuracy.as_ref(), |sheet, accuracy| {
                sheet.raw(&accuracy.to_le_bytes(), format!("accuracy = {accuracy}"));
            });
            sheet.value("best.steps", best.steps);
            sheet.raw(&best.loss.to_le_bytes(), format!("best.loss = {}", best.loss));
        }
    }
}

/// CRC-32 as in Ethernet and gzip, bit by bit.
fn crc_32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    let rest =
        bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
    !rest
}

fn merge_message_fields(message: &MergeMessage, sheet: &mut Sheet) {
    match message {
        MergeMessage::Probe(probe) => {
            tag(sheet, 0, "Probe");
            merge_probe_fields(probe, sheet);
        }
        MergeMessage::Offer(offer) => {
            tag(sheet, 1, "Offer");
            merge_offer_fields(offer, sheet);
        }
        MergeMessage::WantSnapshot(WantSnapshot { view, steps, content, chunks }) => {
            tag(sheet, 2, "WantSnapshot");
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            content_field(*content, sheet);
            sheet.chunks("chunks", chunks);
        }
        MergeMessage::SnapshotChunks(SnapshotChunks { view, batch }) => {
            tag(sheet, 3, "SnapshotChunks");
            sheet.array("view", &view.0);
            chunk_batch_fields(batch, sheet);
        }
        MergeMessage::Ready(MergeReady { recipients, view, steps, missing }) => {
            tag(sheet, 4, "Ready");
            sheet.array("recipients", &recipients.0);
            sheet.array("view", &view.0);
            sheet.value("steps", steps);
            sheet.value("missing", missing);
        }
        MergeMessage::Accept(MergeAccept { view, question, is_merged, contacts }) => {
            tag(sheet, 5, "Accept");
            sheet.array("view", &view.0);
            sheet.value("question", question);
            sheet.value("is_merged", is_merged);
            sheet.list("contacts", contacts, |sheet, contact| sheet.contact("contact", contact));
        }
    }
}

fn admin_message_fields(message: &AdminMessage, sheet: &mut Sheet) {
    match message {
        AdminMessage::Retire => tag(sheet, 0, "Retire"),
        AdminMessage::Expel(expulsion) => {
            tag(sheet, 1, "Expel");
            expulsion_fields(expulsion, sheet);
        }
        AdminMessage::Rekey(Rekey { at, by, secret }) => {
            tag(sheet, 2, "Rekey");
            sheet.value("at", at);
            sheet.array("by", &by.0);
            sheet.array("secret", &secret.0);
        }
        AdminMessage::Rekeyed(at) => {
            tag(sheet, 3, "Rekeyed");
            sheet.value("at", at);
        }
        AdminMessage::EndRun => tag(sheet, 4, "EndRun"),
    }
}

fn step_contributors_fields(contributors: &StepContributors, sheet: &mut Sheet) {
    let StepContributors { step, late, left_out } = contributors;
    sheet.value("step", step);
    sheet.length("late", late.len());
    late.iter().for_each(|rank| sheet.value("rank", rank));
    sheet.value("left_out", left_out);
}

// Joining.

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

fn line_fields(line: &MemberLine, sheet: &mut Sheet) {
    let MemberLine { kilobytes_per_second, round_trip_milliseconds } = line;
    sheet.value("kilobytes_per_second", kilobytes_per_second);
    sheet.value("round_trip_milliseconds", round_trip_milliseconds);
}

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
        speeds,
        lines,
        history,
        recovery,
        cursor,
        moves,
        expelled,
        quarantined,
    } = view;
    sheet.array("run", &run.0);
    sheet.value("number", view_number);
    sheet.list("parents", parents, |sheet, parent| sheet.array("parent", &parent.0));
    sheet.list("members", members, |sheet, member| member_fields(member, sheet));
    sheet.list("speeds", speeds, |sheet, speed| sheet.value("speed", speed));
    sheet.list("lines", lines, |sheet, line| line_fields(line, sheet));
    history_fields(history, sheet);
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
    sheet.list("quarantined", quarantined, |sheet, it| quarantine_fields(it, sheet));
}

fn history_fields(history: &ViewHistory, sheet: &mut Sheet) {
    let ViewHistory { branch, earlier_branches, ancestors, partitioned } = history;
    branch_fields(branch, sheet);
    sheet.list("earlier_branches", earlier_branches, |sheet, branch| branch_fields(branch, sheet));
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
        ExpulsionCause::Faults => sheet.raw(&[2], "expelled.cause = Faults"),
    }
}

fn quarantine_fields(Quarantine { peer, other, fault, is_certain }: &Quarantine, sheet: &mut Sheet) {
    sheet.array("quarantined.peer", &peer.0);
    sheet.array("quarantined.other", &other.0);
    fault_field(*fault, sheet);
    sheet.value("quarantined.is_certain", is_certain);
}

fn complaint_fields(Complaint { about, fault }: &Complaint, sheet: &mut Sheet) {
    sheet.value("complaint.about", about);
    fault_field(*fault, sheet);
}

fn fault_field(fault: MemberFault, sheet: &mut Sheet) {
    match fault {
        MemberFault::Frames => sheet.raw(&[0], "fault = Frames"),
        MemberFault::Refused => sheet.raw(&[1], "fault = Refused"),
        MemberFault::Withheld => sheet.raw(&[2], "fault = Withheld"),
        MemberFault::Parameters => sheet.raw(&[3], "fault = Parameters"),
        MemberFault::Values => sheet.raw(&[4], "fault = Values"),
        MemberFault::Late => sheet.raw(&[5], "fault = Late"),
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
    let DataCursor { epoch, position, returned, deferred, ending } = cursor;
    sheet.value("cursor.epoch", epoch);
    sheet.value("cursor.position", position);
    sheet.list("cursor.returned", returned, |sheet, span| span_fields(span, sheet));
    sheet.list("cursor.deferred", deferred, |sheet, span| span_fields(span, sheet));
    sheet.value("cursor.ending", ending);
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

// Agreement.

fn heartbeat_fields(heartbeat: &Heartbeat, sheet: &mut Sheet) {
    let Heartbeat {
        view,
        view_number,
        complete,
        computing,
        sent,
        heard,
        is_uplink_busy,
        window_bytes,
        disk_fails,
        busy_milliseconds,
    } = heartbeat;
    sheet.array("view", &view.0);
    sheet.value("view_number", view_number);
    sheet.value("complete", complete);
    sheet.some("computing", computing.as_ref(), |sheet, step| sheet.value("step", step));
    for (name, SentFrames { link, count }) in [("sent", sent), ("heard", heard)] {
        sheet.value(&format!("{name}.link"), link);
        sheet.value(&format!("{name}.count"), count);
    }
    sheet.value("is_uplink_busy", is_uplink_busy);
    sheet.value("window_bytes", window_bytes);
    sheet.value("disk_fails", disk_fails);
    sheet.value("busy_milliseconds", busy_milliseconds);
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
        complaints,
        awaited,
        is_still,
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
    sheet.list("report.complaints", complaints, |sheet, complaint| complaint_fields(complaint, sheet));
    sheet.some("report.awaited", awaited.as_ref(), |sheet, awaited| awaited_fields(awaited, sheet));
    sheet.value("report.is_still", is_still);
    sheet.value("report.has_merge_snapshot", has_merge_snapshot);
    sheet.some("report.rejoin", rejoin.as_deref(), |sheet, RejoinCandidate { member, saved }| {
        member_fields(member, sheet);
        sheet.list("rejoin.saved", saved, |sheet, saved| saved_fields(saved, sheet));
    });
}

fn awaited_fields(Awaited { at: AwaitedAt { step, stage, hop }, from }: &Awaited, sheet: &mut Sheet) {
    sheet.value("awaited.step", step);
    let stages = [
        Stage::Chunks,
        Stage::Progress,
        Stage::Contributors,
        Stage::Reduce,
        Stage::Mirror,
        Stage::Gather,
        Stage::Clocks,
        Stage::Rows,
        Stage::Norms,
        Stage::Journal,
    ];
    let tag = stages.iter().position(|other| other == stage).expect("all stages are listed") as u8;
    sheet.raw(&[tag], format!("awaited.stage = {stage:?}"));
    sheet.value("awaited.hop", hop);
    sheet.list("awaited.from", from, |sheet, rank| sheet.value("from", rank));
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
    let ViewChange {
        parent,
        removed,
        added,
        capacities,
        speeds,
        lines,
        resume,
        cursor,
        moves,
        expelled,
        quarantined,
        ancestors,
    } = change;
    sheet.array("change.parent", &parent.0);
    sheet.list("change.removed", removed, |sheet, rank| sheet.value("removed", rank));
    sheet.list("change.added", added, |sheet, member| member_fields(member, sheet));
    sheet.list("change.capacities", capacities, |sheet, (rank, capacity)| {
        sheet.value("rank", rank);
        sheet.value("capacity", capacity);
    });
    sheet.list("change.speeds", speeds, |sheet, speed| sheet.value("speed", speed));
    sheet.list("change.lines", lines, |sheet, line| line_fields(line, sheet));
    resume_fields(resume, sheet);
    cursor_fields(cursor, sheet);
    moves_fields(moves, sheet);
    sheet.list("change.expelled", expelled, |sheet, expulsion| expulsion_fields(expulsion, sheet));
    sheet.list("change.quarantined", quarantined, |sheet, it| quarantine_fields(it, sheet));
    ancestors_fields(ancestors, sheet);
}

// Merging.

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
    let Segment { step, phase, owner, index, stats } = segment;
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
    let ChunkBatch { steps, content, entries, digest } = message;
    sheet.value("steps", steps);
    content_field(*content, sheet);
    sheet.list("entries", entries, |sheet, ChunkEntry { chunk, updates }| {
        sheet.value("chunk", chunk);
        sheet.value("updates", updates);
    });
    sheet.array("digest", &digest.0);
}
