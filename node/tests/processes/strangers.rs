//! Strangers: peers that can reach the port, but do not hold the secret.

use std::io::Write;
use std::net::TcpStream;

use rand::rand_core::Rng;
use rand::{SeedableRng, rngs::ChaCha8Rng};

use super::process::{Process, TestFolder, invite_of, listening};

#[test]
fn garbage_on_the_port_does_not_disturb_training() {
    let place = TestFolder::new();
    place.write("run.toml", "epochs = 20\n[data]\nfile = \"digits\"\n[sync]\ndigest_every = 1\n");
    let quiet: Vec<_> = place.swarm(2).into_iter().map(Process::end).collect();

    let mut founder = place.start("founder", 2, &[]);
    let (_, port) = listening(&mut founder);
    let joiner = place.join("joiner", &invite_of(&mut founder));
    founder.wait_for_step(1);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut open = Vec::new();
    for number in 0..300_usize {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut bytes = vec![0; number * 7];
        random.fill_bytes(&mut bytes);
        if number % 3 == 0 {
            // A stranger that begins with the right bytes.
            bytes.splice(0..0, *b"\x13/multistream/1.0.0\n\x07/noise\n");
        }
        // The peer may have closed the connection already.
        let _ = stream.write_all(&bytes);
        if number % 2 == 0 {
            open.push(stream);
        }
    }
    let (founder, joiner) = (founder.end(), joiner.end());
    assert_eq!(founder.digests(), joiner.digests());
    assert_eq!(founder.digests().len(), quiet[0].digests().len());
    assert_eq!(founder.all("violation").count(), 0);
    assert_eq!(founder.summary()["test_accuracy"], quiet[0].summary()["test_accuracy"]);
}
