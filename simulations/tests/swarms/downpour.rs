//! Workers that never wait: what many of them learn, and what reading and sending less often saves.

use std::path::Path;

use peergrad_simulations::compare::measure;
use peergrad_simulations::scenario::file::{Size, parse};

/// Accuracy on the held-out fifth of `mnist_5k` after ten epochs, which is 0 if the run diverges, and megabytes on the wire; `None` if the
/// file is not here.
fn trained(peers: usize, optimizer: &str, every: u64) -> Option<(f64, f64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    if !folder.join("mnist_5k.csv.gz").exists() {
        eprintln!("skipped: {} is not here", folder.display());
        return None;
    }
    let text = format!(
        "about = \"downpour\"\npeers = {peers}\n[links]\npreset = \"lan\"\n[task]\nkind = \"file\"\nsample_time = \"1ms\"\n\
         [run]\nepochs = 10\nbatch = 32\n[run.data]\nfile = \"mnist_5k.csv.gz\"\n[run.model]\nhidden = [64]\n\
         [run.optimizer]\n{optimizer}\n\
         [run.sync]\nkind = \"downpour\"\nn_push = {every}\nn_fetch = {every}\nlocal_rate = 0.2\n"
    );
    let scenario = parse("downpour", &text, &folder, Size::Full).expect("it is a scenario");
    let course = measure(&scenario, 7);
    let violations = &course.outcome.violations;
    if violations.iter().any(|violation| violation.message.contains("the loss has not been a finite number"))
    {
        println!("{peers} peers, {optimizer:?}, every {every}: diverges");
        return Some((0.0, 0.0));
    }
    assert_eq!(violations, &[]);
    let end = course.end.expect("it ends");
    let found = (end.evaluation.accuracy.expect("classes"), end.bytes as f64 / 1e6);
    println!("{peers} peers, {optimizer:?}, every {every}: accuracy {:.3}, {:.0} MB", found.0, found.1);
    Some(found)
}

/// A rate that is right for one worker is too high for sixteen: their gradients are of parameters that the others have changed meanwhile.
/// It works if rates fall with the sum of what all have added.
#[test]
fn adagrad_tolerates_many_workers_where_a_fixed_rate_does_not() {
    let [adagrad, fixed] = ["rule = \"adagrad\"\nrate = 0.02", "rule = \"sgd\"\nrate = 0.3"];
    let Some((alone, _)) = trained(1, adagrad, 1) else { return };
    let accuracy = |peers, optimizer| trained(peers, optimizer, 1).expect("it was here").0;
    assert!(accuracy(16, adagrad) > alone - 0.02);
    assert!(accuracy(1, fixed) > alone - 0.01 && accuracy(16, fixed) < 0.5);
}

#[test]
fn reading_and_sending_less_often_costs_little_and_saves_much() {
    let adagrad = "rule = \"adagrad\"\nrate = 0.02";
    let Some((accuracy, bytes)) = trained(16, adagrad, 1) else { return };
    for (every, loss, saved) in [(4, 0.02, 3.3), (16, 0.03, 11.5)] {
        let (found, fewer) = trained(16, adagrad, every).expect("it was here");
        // The bytes fall by less than this factor: an owner sends its replicas several additions in one message where many arrive, and
        // fewer where few arrive.
        assert!(bytes / fewer > saved && bytes / fewer < every as f64, "{bytes} and {fewer}");
        assert!(found > accuracy - loss, "{found}, not {accuracy}");
    }
}
