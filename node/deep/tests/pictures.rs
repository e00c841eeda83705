//! A folder of pictures, from its files to predictions: packed, in memory or on disk, trained, evaluated, and asked about new pictures.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use image::{GrayImage, Luma};
use peergrad_config::specification::answers::{DataPart, Evaluated};
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::run_file::ModelKind;
use peergrad_config::specification::{DeepBackend, RunFile, Specification, resolve, write_run_file};
use peergrad_deep::Burn;
use peergrad_models::data::bytes::{DataBytes, DiskFile, ReadAt};
use peergrad_models::task::loss::largest;
use peergrad_pictures::{Shape, pack, read_picture};
use peergrad_protocol::id::ContentDigest;

/// Half of a picture is light: which half says its class.
fn picture(class: usize, number: u8) -> GrayImage {
    GrayImage::from_fn(12, 12, |column, row| {
        let is_light = [column < 6, row < 6, column >= 6][class];
        Luma([if is_light { 200 - number } else { 10 + 2 * number }])
    })
}

const CLASSES: [&str; 3] = ["left", "top", "right side"];

fn folder(place: &Path) {
    for (class, name) in CLASSES.iter().enumerate() {
        fs::create_dir_all(place.join(name)).unwrap();
        for number in 0..20 {
            picture(class, number).save(place.join(name).join(format!("{number:02}.png"))).unwrap();
        }
    }
    fs::write(place.join("left/broken.png"), "no picture").unwrap();
}

#[derive(Debug)]
struct Disk(File);

impl ReadAt for Disk {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }
}

fn on_disk(path: &Path) -> DataBytes {
    let bytes = fs::read(path).unwrap();
    let reader = Arc::new(Disk(File::open(path).unwrap()));
    DataBytes::Disk(DiskFile { reader, byte_count: bytes.len() as u64, digest: ContentDigest::of(&bytes) })
}

/// The parameters after some epochs of whole batches.
fn trained(specification: &Specification, data: &DataBytes, deep: &DeepBackend) -> Vec<f32> {
    let loaded = specification.load_within(data, MemoryLimit::default(), deep).unwrap();
    let count = loaded.manifest.parameter_count();
    let (mut parameters, mut gradient) = (vec![0.0; count], vec![0.0; count]);
    loaded.task.initial(specification.training.seed, &mut parameters);
    let all: Vec<u32> = (0..loaded.task.sample_count()).collect();
    for _ in 0..30 {
        loaded.task.gradient(&parameters, &all, &mut gradient);
        let rate = 0.05 / all.len() as f32;
        parameters.iter_mut().zip(&gradient).for_each(|(value, slope)| *value -= rate * slope);
    }
    parameters
}

#[test]
fn a_folder_of_pictures_trains_and_predicts() {
    let deep: DeepBackend = Some(Arc::new(Burn::cpu()));
    let place = tempfile::tempdir().unwrap();
    let (source, packed) = (place.path().join("photos"), place.path().join("photos.idx"));
    folder(&source);
    let shape = Shape::new(1, 8, 8).unwrap();
    let found = pack(&source, shape, 2, &mut File::create(&packed).unwrap(), &mut |_, _| {}).unwrap();
    assert_eq!((found.pictures, found.broken_count, found.classes.len()), (60, 1, 3));

    let written = write_run_file("photos.idx", on_disk(&packed), None).unwrap();
    assert!(written.text.contains("kind = \"cnn\""), "packed pictures are pictures: {}", written.text);
    let settings = "[data]\nfile = \"photos.idx\"\nheld_out = 0.2\n[model]\nkind = \"cnn\"\nlayers = [\"conv 4 3\", \"relu\", \"pool 2\"]";
    let run = RunFile::parse(settings).unwrap();
    let specification = resolve(&run, "photos.idx", on_disk(&packed)).unwrap();
    let in_memory = DataBytes::from(fs::read(&packed).unwrap());
    assert_eq!(specification, resolve(&run, "photos.idx", &in_memory).unwrap());
    assert_eq!(Specification::parse(&specification.to_bytes().unwrap()).unwrap(), specification);

    let parameters = trained(&specification, &on_disk(&packed), &deep);
    assert_eq!(parameters, trained(&specification, &in_memory, &deep), "bit for bit");

    let Evaluated { evaluation, part, confusion, .. } =
        specification.evaluate(&parameters, "photos.idx", on_disk(&packed), &deep).unwrap();
    assert_eq!((evaluation.samples, part), (12, DataPart::HeldOut));
    assert!(evaluation.accuracy.unwrap() > 0.9, "{evaluation:?}");
    assert_eq!(confusion.unwrap().counts.values().sum::<u64>(), 12);

    let new = place.path().join("new.png");
    for (class, name) in CLASSES.iter().enumerate() {
        picture(class, 33).save(&new).unwrap();
        let bytes = read_picture(&new, shape).unwrap();
        let predictions = specification.predict_pictures(&parameters, bytes, &deep).unwrap();
        assert_eq!(predictions.classes[largest(&predictions.values)], *name);
        assert!((predictions.values.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
    let all = specification.predict(&parameters, "photos.idx", on_disk(&packed), &deep).unwrap();
    assert_eq!(all.values.len(), 60 * 3);
}

#[test]
fn files_that_do_not_suit_are_refused_in_words() {
    let deep: DeepBackend = Some(Arc::new(Burn::cpu()));
    let place = tempfile::tempdir().unwrap();
    let (source, packed) = (place.path().join("photos"), place.path().join("photos.idx"));
    folder(&source);
    let packed_as = |shape: Shape| {
        pack(&source, shape, 1, &mut File::create(&packed).unwrap(), &mut |_, _| {}).unwrap();
        DataBytes::from(fs::read(&packed).unwrap())
    };
    let of_8 = packed_as(Shape::new(1, 8, 8).unwrap());
    let written = write_run_file("photos.idx", &of_8, Some(ModelKind::Cnn)).unwrap();
    let run = RunFile::parse(&written.text).unwrap();
    let specification = resolve(&run, "photos.idx", &of_8).unwrap();
    let parameters = vec![0.0; specification.manifest().parameter_count()];
    let of_9 = packed_as(Shape::new(1, 9, 9).unwrap());
    let error = |data: &DataBytes| {
        specification.evaluate(&parameters, "other.idx", data, &deep).unwrap_err().to_string()
    };
    assert!(
        error(&of_9).contains("other.idx: these are not pictures for this model (a picture has 81 values")
    );
    assert!(error(&b"1,2,3\n".into()).contains("other.idx"));
    let loaded = specification.load_within(&of_9, MemoryLimit::default(), &deep);
    assert!(loaded.err().unwrap().to_string().contains("not the data file of the run"));
}
