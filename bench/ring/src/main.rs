//! A plain ring all-reduce without anything else, as a reference for the cost of the network, the cipher and the cores.
//!
//!     cargo run --release -- PEERS MEBIBYTES none|aes128|chacha20
//!
//! Processes on loopback, one TCP connection to each neighbour, and two blocking threads in each process: one sends, the other receives and
//! adds. No process joins, fails, checks or commits. Prints one JSON object: the median time of the slowest process, and CPU seconds per
//! GiB and process. Sums are checked.

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;

use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Elements of a segment: the next hop begins when all of them have arrived. As many as a peer's default.
const SEGMENT: usize = 32 << 10;
/// Bytes that are encrypted together.
const RECORD: usize = 64 << 10;
const TAG: usize = 16;
const CALLS: usize = 12;
const WARM_UP: usize = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [peers, mebibytes, cipher] => lead(peers, mebibytes, cipher),
        [peers, mebibytes, cipher, rank] => {
            let number = |text: &String| text.parse().expect("a number");
            follow(number(peers), number(mebibytes), cipher, number(rank));
        }
        _ => panic!("bare-ring PEERS MEBIBYTES none|aes128|chacha20"),
    }
}

/// Starts the processes, closes the ring, and combines their results.
fn lead(peers: &str, mebibytes: &str, cipher: &str) {
    let count: usize = peers.parse().expect("how many peers");
    assert!(count >= 2, "a ring has two peers at least");
    let program = std::env::current_exe().expect("this program");
    let start = |rank: usize| -> (Child, BufReader<std::process::ChildStdout>) {
        let mut command = Command::new(&program);
        command.args([peers, mebibytes, cipher, &rank.to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("another of this program");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        (child, output)
    };
    let mut processes: Vec<_> = (0..count).map(start).collect();
    let addresses: Vec<String> = processes.iter_mut().map(|(_, output)| line(output)).collect();
    for (rank, (child, _)) in processes.iter_mut().enumerate() {
        let next = &addresses[(rank + 1) % count];
        writeln!(child.stdin.as_mut().expect("piped"), "{next}").expect("a process that listens");
    }
    let mut slowest = vec![0.0_f64; CALLS];
    let mut cpu_seconds = 0.0;
    for (child, output) in &mut processes {
        let numbers: Vec<f64> =
            line(output).split(' ').map(|number| number.parse().expect("a number")).collect();
        let (used, times) = numbers.split_first().expect("CPU seconds first");
        cpu_seconds += used;
        slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = slowest.max(*time));
        assert!(child.wait().expect("it was started").success());
    }
    slowest.sort_by(f64::total_cmp);
    let gib = mebibytes.parse::<f64>().expect("how many MiB") / 1024.0;
    let median = f64::midpoint(slowest[CALLS / 2 - 1], slowest[CALLS / 2]);
    let cpu = (cpu_seconds / CALLS as f64) / count as f64 / gib;
    println!("{{\"reduce_seconds\": {median}, \"cpu_seconds_per_gib_and_peer\": {cpu}}}");
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// One process of the ring.
fn follow(peers: usize, mebibytes: usize, cipher: &str, rank: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("bound"));
    let next = TcpStream::connect(line(&mut stdin().lock())).expect("the next process");
    next.set_nodelay(true).expect("a TCP stream");
    let (previous, _) = listener.accept().expect("the process before");
    let mut sender = Sender { stream: next, seal: Cipher::new(cipher), room: Vec::new() };
    let mut receiver = Receiver { stream: previous, open: Cipher::new(cipher), room: Vec::new() };
    let (mut vector, mut barrier) = (vec![0.0_f32; mebibytes << 18], vec![0.0_f32; peers]);
    let (mut used, mut times) = (0.0, String::new());
    for call in 0..WARM_UP + CALLS {
        vector.iter_mut().enumerate().for_each(|(index, element)| *element = (rank + index % 7) as f32);
        all_reduce(&mut sender, &mut receiver, &mut barrier, rank, peers);
        let (cpu, start) = (cpu_seconds(), Instant::now());
        all_reduce(&mut sender, &mut receiver, &mut vector, rank, peers);
        if call >= WARM_UP {
            times += &format!(" {}", start.elapsed().as_secs_f64());
            used += cpu_seconds() - cpu;
        }
        for index in [0, vector.len() / 2, vector.len() - 1] {
            assert_eq!(vector[index], (peers * (peers - 1) / 2 + peers * (index % 7)) as f32);
        }
    }
    println!("{used}{times}");
}

/// Replaces every process's `vector` by the sum of all: one reduce-scatter around the ring, and one all-gather.
fn all_reduce(sender: &mut Sender, receiver: &mut Receiver, vector: &mut [f32], rank: usize, peers: usize) {
    let (len, part) = (vector.len(), vector.len().div_ceil(peers));
    let segments = move |part_of: usize| {
        let (start, end) = ((part_of * part).min(len), ((part_of + 1) * part).min(len));
        (start..end).step_by(SEGMENT).map(move |start| start..(start + SEGMENT).min(end))
    };
    let shared = SharedVector(vector.as_mut_ptr());
    let (due, dues) = channel::<Range<usize>>();
    segments(rank).for_each(|segment| due.send(segment).expect("the sending thread lives"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            dues.iter().for_each(|segment| {
                // SAFETY: the segment was written, and is written again only after its bytes have been around the ring.
                sender.send(unsafe { shared.segment(segment) });
            })
        });
        let hops = 2 * (peers - 1);
        for hop in 0..hops {
            for segment in segments((rank + 2 * peers - 1 - hop) % peers) {
                // SAFETY: all bytes of the segment that had to be sent from here have been sent.
                receiver.receive(unsafe { shared.segment_mut(segment.clone()) }, hop < peers - 1);
                if hop + 1 < hops {
                    due.send(segment).expect("the sending thread lives");
                }
            }
        }
        drop(due);
    });
}

/// A vector from which one thread sends segments while another thread writes other segments.
#[derive(Clone, Copy)]
struct SharedVector(*mut f32);

// SAFETY: it is only a pointer; the code that makes a segment of it ensures that accesses do not overlap.
unsafe impl Send for SharedVector {}

impl SharedVector {
    /// # Safety
    /// The segment must be inside the vector, which must live, and no thread may write there meanwhile.
    unsafe fn segment<'a>(self, elements: Range<usize>) -> &'a [f32] {
        unsafe { std::slice::from_raw_parts(self.0.add(elements.start), elements.len()) }
    }

    /// # Safety
    /// The segment must be inside the vector, which must live, and no other thread may read or write there meanwhile.
    unsafe fn segment_mut<'a>(self, elements: Range<usize>) -> &'a mut [f32] {
        unsafe { std::slice::from_raw_parts_mut(self.0.add(elements.start), elements.len()) }
    }
}

/// Encrypts or decrypts one record after the other. It costs what a cipher costs, and protects nothing: all processes have the same key.
struct Cipher {
    key: Option<LessSafeKey>,
    records: u64,
}

impl Cipher {
    fn new(name: &str) -> Self {
        let key = match name {
            "none" => None,
            "aes128" => Some(UnboundKey::new(&AES_128_GCM, &[7; 16])),
            "chacha20" => Some(UnboundKey::new(&CHACHA20_POLY1305, &[7; 32])),
            other => panic!("no cipher is called {other}"),
        };
        Self { key: key.map(|key| LessSafeKey::new(key.expect("of the right length"))), records: 0 }
    }

    fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(bytes)
    }

    fn tag_len(&self) -> usize {
        if self.key.is_some() { TAG } else { 0 }
    }
}

struct Sender {
    stream: TcpStream,
    seal: Cipher,
    room: Vec<u8>,
}

impl Sender {
    fn send(&mut self, segment: &[f32]) {
        let bytes = bytes_of(segment);
        if self.seal.key.is_none() {
            return self.stream.write_all(bytes).expect("the next process");
        }
        self.room.clear();
        for record in bytes.chunks(RECORD) {
            let (start, nonce) = (self.room.len(), self.seal.nonce());
            self.room.extend_from_slice(record);
            let key = self.seal.key.as_ref().expect("seen above");
            let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut self.room[start..]);
            self.room.extend_from_slice(tag.expect("short enough").as_ref());
        }
        self.stream.write_all(&self.room).expect("the next process");
    }
}

struct Receiver {
    stream: TcpStream,
    open: Cipher,
    room: Vec<u8>,
}

impl Receiver {
    fn receive(&mut self, segment: &mut [f32], adds: bool) {
        let bytes = size_of_val(segment);
        if self.open.key.is_none() && !adds {
            return self.stream.read_exact(bytes_of_mut(segment)).expect("the process before");
        }
        let tag_len = self.open.tag_len();
        let total = bytes + bytes.div_ceil(RECORD) * tag_len;
        self.room.resize(total.max(self.room.len()), 0);
        self.stream.read_exact(&mut self.room[..total]).expect("the process before");
        let records = self.room[..total].chunks_mut(RECORD + tag_len);
        for (record, elements) in records.zip(segment.chunks_mut(RECORD / 4)) {
            let plain = if tag_len > 0 {
                let nonce = self.open.nonce();
                let key = self.open.key.as_ref().expect("its tags have a length");
                key.open_in_place(nonce, Aad::empty(), record).expect("sealed with this key")
            } else {
                record
            };
            if adds {
                let others =
                    plain.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("4 bytes")));
                elements.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
            } else {
                bytes_of_mut(elements).copy_from_slice(plain);
            }
        }
    }
}

fn bytes_of(elements: &[f32]) -> &[u8] {
    // SAFETY: any bits are valid bytes, which have no alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

fn bytes_of_mut(elements: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above, and any bits are a valid element.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

fn cpu_seconds() -> f64 {
    // SAFETY: zeros are a valid `rusage`, which the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
