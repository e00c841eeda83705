//! Metrics: serves a peer's numbers to Prometheus, on this machine only.
//!
//! ```text
//! Prometheus --- GET /metrics ---> 127.0.0.1 : PORT --- status? ---> service
//! ```
//! Each request gets a fresh page, assembled from the status. Names follow the conventions of Prometheus (`_total`, `_seconds`,
//! `_bytes`), and the format is OpenMetrics; `docs/status.md` lists all metrics.
//!
//! # Bounds
//! Only this machine can connect. A malicious page in a local browser cannot read the metrics, because a request's `Host` must be
//! `localhost` or `127.0.0.1`. At most `READERS_MAX` requests run at a time, each with a head of at most `HEAD_BYTES_MAX` and a time
//! limit.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use peergrad_net::Traffic;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::observer::EventCounts;
use super::{MemberState, Phase, Status, StatusService};

/// A local port that is open but not served yet.
#[derive(Debug)]
pub struct MetricsPort {
    listener: TcpListener,
    address: SocketAddr,
}

/// Serves the port until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    serving: JoinHandle<()>,
}

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Another process uses it.
    #[error(
        "port {port} for metrics is in use, perhaps by another peer on this machine: choose another with --metrics PORT, or 0 for any free port"
    )]
    Taken {
        /// The port.
        port: u16,
    },
    /// The operating system refused it.
    #[error(
        "cannot listen on port {port} for metrics: {cause}; choose another with --metrics PORT, or 0 for any free port"
    )]
    Refused {
        /// The port.
        port: u16,
        /// The error of the operating system.
        cause: io::Error,
    },
}

/// The data of one page.
struct MetricsSnapshot<'a> {
    status: &'a Status,
    counts: EventCounts,
    traffic: Traffic,
    computing: Duration,
}

impl MetricsPort {
    /// Opens a local port; 0 selects any free port.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub async fn bind(port: u16) -> Result<Self, MetricsError> {
        let refused = |cause: io::Error| match cause.kind() {
            io::ErrorKind::AddrInUse => MetricsError::Taken { port },
            _ => MetricsError::Refused { port, cause },
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address })
    }

    /// The address of the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to answer requests.
    #[must_use]
    pub fn serve(self, service: StatusService) -> MetricsServer {
        let serving = tokio::spawn(async move {
            let slots = Arc::new(Semaphore::new(READERS_MAX));
            loop {
                let Ok((stream, _)) = self.listener.accept().await else {
                    // Usually too many open files: try again later.
                    tokio::time::sleep(AGAIN).await;
                    continue;
                };
                let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { continue };
                let service = service.clone();
                tokio::spawn(async move {
                    // A client may disconnect at any time.
                    let _ = timeout(READER_MAX, answer(stream, &service)).await;
                    drop(slot);
                });
            }
        });
        MetricsServer { serving }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers one request.
async fn answer(mut stream: TcpStream, service: &StatusService) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut room = [0; 1024];
        let count = stream.read(&mut room).await?;
        if count == 0 || head.len() + count > HEAD_BYTES_MAX {
            return Ok(());
        }
        head.extend_from_slice(&room[..count]);
    }
    let (code, kind, body) = match check_request(&head) {
        Ok(()) => (200, TEXT, page(service).await),
        Err((code, words)) => (code, PLAIN, words.to_owned() + "\n"),
    };
    let is_head_only = head.starts_with(b"HEAD ");
    let phrase = match code {
        200 => "OK",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Bad Request",
    };
    let length = body.len();
    let mut text = format!(
        "HTTP/1.1 {code} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if !is_head_only {
        text.push_str(&body);
    }
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// Checks that a request is for the metrics.
///
/// # Errors
/// The HTTP status code and a message.
fn check_request(head: &[u8]) -> Result<(), (u16, &'static str)> {
    let head = std::str::from_utf8(head).map_err(|_| (400, "this is not a valid HTTP request"))?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(path), Some("HTTP/1.1" | "HTTP/1.0")) =
        (words.next(), words.next(), words.next())
    else {
        return Err((400, "this is not a valid HTTP request"));
    };
    let host = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let is_this_machine = |host: &str| {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        matches!(name, "127.0.0.1" | "localhost")
    };
    if host.is_some_and(|host| !is_this_machine(host)) {
        return Err((403, "ask for 127.0.0.1 or localhost"));
    }
    match (method, path.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => Ok(()),
        ("GET" | "HEAD", _) => Err((404, "the metrics are at /metrics")),
        _ => Err((405, "only GET")),
    }
}

async fn page(service: &StatusService) -> String {
    let status = service.status().await;
    let observations = service.observations();
    let (traffic, computing) = (observations.counters.read(), observations.counters.computing());
    let counts = observations.recent().counts;
    MetricsSnapshot { status: &status, counts, traffic, computing }.text()
}

impl MetricsSnapshot<'_> {
    fn text(&self) -> String {
        let mut page = MetricsPage { registry: Registry::with_prefix("peergrad") };
        self.peer(&mut page);
        self.training(&mut page);
        self.membership(&mut page);
        self.links(&mut page);
        let mut text = String::new();
        encode(&mut text, &page.registry).expect("writing to a string succeeds");
        text
    }

    fn peer(&self, page: &mut MetricsPage) {
        let status = self.status;
        let labels = vec![
            ("version", status.version.clone()),
            ("peer", status.peer.clone()),
            ("run", status.run.clone().unwrap_or_default()),
        ];
        page.registry.register("peer", "The peer, its release and its run", Info::new(labels));
        page.seconds("uptime", "Age of the process", status.uptime_seconds);
        page.gauge(
            "well",
            "1 if all is well according to `peer status`, otherwise 0",
            f64::from(u8::from(status.is_well)),
        );
        let phases =
            PHASES.map(|phase| (vec![("phase", word(&phase))], f64::from(u8::from(phase == status.phase))));
        page.gauges("phase", "What the peer is doing: 1 for the current phase, 0 for the others", phases);
        page.counter_seconds(
            "computing",
            "Time spent on computing gradients and other jobs",
            self.computing.as_secs_f64(),
        );
    }

    fn training(&self, page: &mut MetricsPage) {
        let EventCounts { steps, samples, left_out, .. } = self.counts;
        page.counter("committed_steps", "Steps that this process has seen committed", steps);
        page.counter("trained_samples", "Samples trained by those steps, over all members", samples);
        page.counter(
            "left_out_samples",
            "Samples left out of those steps: too late, or with a gradient that is not finite",
            left_out,
        );
        let Some(training) = &self.status.training else { return };
        page.gauge("step", "Committed steps of the run", training.steps as f64);
        page.gauge(
            "expected_steps",
            "Expected number of steps of the whole run",
            training.steps_expected as f64,
        );
        page.gauge("epoch", "Current epoch, counted from 1", training.epoch as f64);
        page.gauge("epochs", "Number of epochs of the run", training.epochs as f64);
        if let Some(evaluation) = &training.evaluation {
            let loss = evaluation.loss.unwrap_or(f64::NAN);
            page.gauge("held_out_loss", "Mean loss of the newest evaluation during the run", loss);
        }
        page.gauge("parameters", "Elements of the parameter vector", training.parameters as f64);
        page.gauge(
            "chunks_to_move",
            "Chunks that have not yet moved to their new owners",
            training.chunks_to_move as f64,
        );
        if let Some(loss) = training.loss {
            page.gauge("loss", "Mean loss of the newest committed step, before its update", loss);
        }
        if let Some(rate) = training.rate {
            page.gauge("learning_rate", "Learning rate of the newest committed step", rate);
        }
    }

    fn membership(&self, page: &mut MetricsPage) {
        let EventCounts { views, interruptions, pauses, suspected, violations, .. } = self.counts;
        page.counter("views", "Views installed by this peer", views);
        page.counter("interruptions", "Views that interrupted a step", interruptions);
        page.counter("pauses", "Pauses because too few members were reachable", pauses);
        page.counter("suspected_members", "Times that a member became suspected", suspected);
        page.counter("violations", "Invalid messages from other peers, which were ignored", violations);
        let Some(view) = &self.status.view else { return };
        page.gauge("view_number", "Number of the current view", view.number as f64);
        page.seconds("view_age", "Age of the current view at this peer", view.age_seconds);
        let members = &self.status.members;
        let count = |state: MemberState| members.iter().filter(|member| member.state == state).count() as f64;
        let states = STATES.map(|state| (vec![("state", word(&state))], count(state)));
        page.gauges("members", "Number of members of the view in each state, as seen by this peer", states);
        let owned = members.iter().map(|member| (vec![("peer", member.peer.clone())], member.owned as f64));
        page.gauges("owned_parameters", "Elements of the parameter vector owned by a member", owned);
        let silent = members
            .iter()
            .filter_map(|member| Some((vec![("peer", member.peer.clone())], member.silent_seconds?)));
        page.gauges_in("silence", "Time since a member was last heard from", Unit::Seconds, silent);
    }

    fn links(&self, page: &mut MetricsPage) {
        let Traffic { sent_frames, received_frames, bad_streams, resumed_links, refused_strangers, .. } =
            self.traffic;
        page.counter_bytes("sent", "Bytes written to links", self.traffic.sent_bytes);
        page.counter_bytes("received", "Bytes read from links", self.traffic.received_bytes);
        page.counter_bytes(
            "directly_sent",
            "Bytes written over direct connections",
            self.traffic.direct_bytes,
        );
        page.counter("sent_frames", "Frames written to links", sent_frames);
        page.counter("received_frames", "Frames read from links", received_frames);
        page.counter("resumed_links", "Times that a link resumed after its connection broke", resumed_links);
        page.counter("bad_streams", "Streams closed because they carried invalid frames", bad_streams);
        page.counter(
            "refused_strangers",
            "Connections refused for lack of authentication",
            refused_strangers,
        );
        let others = self.status.members.iter().map(|member| (&member.peer, &member.link));
        let others = others.chain(self.status.others.iter().map(|other| (&other.peer, &other.link)));
        let links: Vec<_> = others.filter_map(|(peer, link)| Some((peer.clone(), link.as_ref()?))).collect();
        let lanes = links.iter().map(|(peer, link)| {
            let lane = link.lane.clone().unwrap_or_else(|| "none".to_owned());
            (vec![("peer", peer.clone()), ("lane", lane)], f64::from(u8::from(link.lane.is_some())))
        });
        page.gauges("link", "1 if the link to a peer is up, otherwise 0; by lane", lanes);
        let connections = links
            .iter()
            .filter_map(|(peer, link)| Some((vec![("peer", peer.clone())], link.connections? as f64)));
        page.gauges("link_connections", "TCP connections that carry frames to a peer directly", connections);
        let trips = links
            .iter()
            .filter_map(|(peer, link)| Some((vec![("peer", peer.clone())], link.round_trip_seconds?)));
        page.gauges_in("round_trip", "Round-trip time of the last ping to a peer", Unit::Seconds, trips);
        let rates = links
            .iter()
            .filter_map(|(peer, link)| Some((vec![("peer", peer.clone())], link.line_bytes_per_second?)));
        let help = "The most that a peer has recently acknowledged in a second";
        page.gauges_in("line_rate", help, Unit::Other("bytes_per_second".to_owned()), rates);
        let sent = links.iter().map(|(peer, link)| (peer.clone(), link.sent_bytes));
        page.counters_bytes("link_sent", "Bytes written to a peer", sent);
        let received = links.iter().map(|(peer, link)| (peer.clone(), link.received_bytes));
        page.counters_bytes("link_received", "Bytes read from a peer", received);
    }
}

/// A page under construction.
struct MetricsPage {
    registry: Registry,
}

type Labels = Vec<(&'static str, String)>;

impl MetricsPage {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.registry.register(name, help, ConstGauge::new(value));
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) {
        self.registry.register_with_unit(name, help, Unit::Seconds, ConstGauge::new(value));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.registry.register(name, help, ConstCounter::new(value));
    }

    fn counter_bytes(&mut self, name: &str, help: &str, value: u64) {
        self.registry.register_with_unit(name, help, Unit::Bytes, ConstCounter::new(value));
    }

    fn counter_seconds(&mut self, name: &str, help: &str, value: f64) {
        self.registry.register_with_unit(name, help, Unit::Seconds, ConstCounter::new(value));
    }

    fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        self.registry.register(name, help, family(values));
    }

    fn gauges_in(
        &mut self,
        name: &str,
        help: &str,
        unit: Unit,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        self.registry.register_with_unit(name, help, unit, family(values));
    }

    fn counters_bytes(&mut self, name: &str, help: &str, values: impl Iterator<Item = (String, u64)>) {
        let family = Family::<Labels, prometheus_client::metrics::counter::Counter>::default();
        for (peer, bytes) in values {
            family.get_or_create(&vec![("peer", peer)]).inc_by(bytes);
        }
        self.registry.register_with_unit(name, help, Unit::Bytes, family);
    }
}

fn family(values: impl IntoIterator<Item = (Labels, f64)>) -> Family<Labels, Gauge<f64, AtomicU64>> {
    let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    family
}

/// The name of a unit variant in JSON.
fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).expect("a unit variant can be written as JSON");
    value.as_str().expect("a unit variant is a string in JSON").to_owned()
}

/// The default port; no common program uses it.
pub const DEFAULT_METRICS_PORT: u16 = 9747;
pub(super) const PHASES: [Phase; 11] = [
    Phase::Bootstrapping,
    Phase::Joining,
    Phase::Recovering,
    Phase::CatchingUp,
    Phase::Training,
    Phase::Agreeing,
    Phase::Paused,
    Phase::Closing,
    Phase::Evaluating,
    Phase::Ended,
    Phase::Busy,
];
pub(super) const STATES: [MemberState; 11] = [
    MemberState::Working,
    MemberState::CatchingUp,
    MemberState::HandingOver,
    MemberState::Connecting,
    MemberState::Paused,
    MemberState::Busy,
    MemberState::Hanging,
    MemberState::Suspected,
    MemberState::Unreachable,
    MemberState::Stopped,
    MemberState::Unwatched,
];
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const HEAD_BYTES_MAX: usize = 8 << 10;
const READERS_MAX: usize = 8;
const READER_MAX: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_to_this_machine_are_answered() {
        let ask = |line: &str, host: &str| {
            check_request(format!("{line}\r\nHost: {host}\r\n\r\n").as_bytes()).map_err(|(code, _)| code)
        };
        assert_eq!(ask("GET /metrics HTTP/1.1", "127.0.0.1:9747"), Ok(()));
        assert_eq!(ask("GET /metrics?x=1 HTTP/1.1", "localhost"), Ok(()));
        assert_eq!(check_request(b"GET /metrics HTTP/1.0\r\n\r\n"), Ok(()));
        assert_eq!(
            ask("GET /metrics HTTP/1.1", "evil.example:9747"),
            Err(403),
            "a request from a malicious page"
        );
        assert_eq!(ask("GET / HTTP/1.1", "127.0.0.1:9747"), Err(404));
        assert_eq!(ask("POST /metrics HTTP/1.1", "127.0.0.1:9747"), Err(405));
        for garbage in
            [&b"\x16\x03\x01\r\n\r\n"[..], b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"\xff\xfe\r\n\r\n"]
        {
            assert_eq!(check_request(garbage).map_err(|(code, _)| code), Err(400));
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_error_with_advice() {
        let first = MetricsPort::bind(0).await.unwrap();
        let port = first.address().port();
        let error = MetricsPort::bind(port).await.unwrap_err().to_string();
        assert!(error.contains(&port.to_string()) && error.contains("--metrics PORT"), "{error}");
    }
}
