//! What defines a run: run files, specifications and scenarios.

use std::path::Path;
use std::sync::Arc;

use peergrad_config::specification::custom::CustomSpecification;
use peergrad_config::specification::memory::MemoryLimit;
use peergrad_config::specification::{
    BuiltinLoader, DeepBackend, RunFile, Specification, resolve_with_notices,
};
use peergrad_core::program::loader::Loader;
use peergrad_models::deep::{Architecture, Backend, Inputs, Piece};
use peergrad_models::task::KnownGradient;
use peergrad_simulations::scenario::file::{Size, parse};

use super::{repository_file, repository_files};
use crate::target::{Bound, Form, Target, Verdict};

const DATA: &[u8] = b"u,v,kind\n0,0,a\n1,0,b\n0.1,1,a\n0.9,1,b\n0,2,a\n1,2,b\n0.2,3,a\n1.1,3,b\n";

/// Run files that a user could write: each kind of training and each rule, and the examples in the documents.
fn run_files() -> Vec<String> {
    let mut texts: Vec<String> = [
        "epochs = 3\nbatch = 4\nseed = 7\n[data]\nfile = \"f.csv\"\nheld_out = 0.25\n[model]\nkind = \"mlp\"\nhidden = [3, 2]\nactivation = \"tanh\"\n",
        "epochs = 3\n[data]\nfile = \"f.csv\"\nlabel = \"kind\"\nheader = true\ndelimiter = \",\"\ncolumns = [\"v\"]\npredict = \"class\"\nclasses = [\"a\", \"b\"]\nstandardize = false\n",
        "epochs = 3\n[data]\nfile = \"f.csv\"\n[model]\nkind = \"logistic\"\n[sync]\nkind = \"ssp\"\nstaleness = 2\n",
        "epochs = 3\n[data]\nfile = \"f.csv\"\n[model]\nkind = \"svm\"\n[optimizer]\nbounds = [-1.0, inf]\n",
        "epochs = 3\n[data]\nfile = \"f.csv\"\ncolumns = [\"kind\", \"v\"]\nlabel = \"u\"\n[model]\nkind = \"factorization\"\nrank = 2\nregularization = 0.1\nbiases = false\nglobal_mean = false\n[sync]\nkind = \"async\"\n",
        "epochs = 3\nbatch = 2\n[data]\nfile = \"f.csv\"\n[sync]\nkind = \"local\"\nsteps = 2\n[checkpoints]\nseconds = 5\nkeep = 2\n",
        "[data]\nfile = \"f.csv\"\npicture = [1, 1, 2]\nchanges = [\"flip\"]\n[model]\nkind = \"cnn\"\nlayers = [\"conv 2 1\", \"relu\", \"norm 1\", \"block 2\", \"mean\", \"dropout 0.5\", \"dense 3\"]\n",
        "[data]\nfile = \"f.csv\"\npicture = [1, 1, 2]\n[model]\nkind = \"resnet\"\ndepth = 8\n",
        "[data]\nfile = \"f.csv\"\n[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 4\nheads = 2\ncontext = 8\ndropout = 0.1\n",
        "[data]\nfile = \"f.csv\"\n[model]\nkind = \"llama\"\nlayers = 1\nwidth = 8\nheads = 2\nkv_heads = 1\nhidden_width = 6\ncontext = 8\n",
    ]
    .map(String::from)
    .to_vec();
    for kind in ["sync", "local", "diloco", "backup-workers", "ds-sync", "ssp", "async", "downpour", "l-bfgs"]
    {
        texts.push(format!("epochs = 3\nbatch = 4\n[data]\nfile = \"f.csv\"\n[sync]\nkind = \"{kind}\"\n"));
    }
    for rule in ["sgd", "momentum", "adam", "adagrad"] {
        texts.push(format!("[data]\nfile = \"f.csv\"\n[optimizer]\nrule = \"{rule}\"\nrate = 0.02\n[shards]\nreplicas = 2\n[partition]\npolicy = \"merge\"\n"));
    }
    for name in ["bf16", "f16", "int8", "top-k"] {
        texts.push(format!(
            "[data]\nfile = \"f.csv\"\n[sync]\ncompression = \"{name}\"\ntopology = \"direct\"\n"
        ));
    }
    let documents = repository_files("docs", ".md").into_iter().map(|(_, text)| text);
    for text in documents.chain([repository_file("README.md")]) {
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        texts.extend(blocks.map(str::to_owned));
    }
    texts
}

/// The run file with this text, and its specification. `None` if one of them is refused.
fn resolved(text: &str) -> Option<Specification> {
    let run_file = RunFile::parse(text).ok()?;
    resolve_with_notices(&run_file, "f.csv", DATA).ok().map(|(specification, _)| specification)
}

/// What settings may take: a table of a few numbers, and the layers of a model without its parameters.
fn settings_bound(input_bytes: usize) -> Bound {
    Bound { largest_bytes: (16 << 20) + 64 * input_bytes, total_bytes: (64 << 20) + 1024 * input_bytes }
}

/// Run files.
pub(super) struct RunFileTarget;

impl Target for RunFileTarget {
    fn name(&self) -> &'static str {
        "runfile"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        run_files().into_iter().filter(|text| resolved(text).is_some()).map(String::into_bytes).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let Some(specification) = resolved(&String::from_utf8_lossy(input)) else { return Verdict::Refused };
        let bytes = specification.to_bytes().expect("its size was checked");
        assert_eq!(Specification::parse(&bytes).as_ref(), Ok(&specification), "a specification reads back");
        specification
            .load_within(&DATA.into(), MemoryLimit::default(), &nothing())
            .expect("the data that it was made from");
        Verdict::Accepted
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        settings_bound(input_bytes)
    }
}

/// Specifications.
pub(super) struct SpecificationTarget;

impl Target for SpecificationTarget {
    fn name(&self) -> &'static str {
        "spec"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let resolved = run_files().into_iter().filter_map(|text| resolved(&text));
        resolved.map(|specification| specification.to_bytes().expect("its size was checked")).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let _ = CustomSpecification::parse(input);
        let _ = BuiltinLoader::default().data(input);
        let Ok(specification) = Specification::parse(input) else { return Verdict::Refused };
        assert!(specification.manifest().parameter_count() > 0);
        let loader = BuiltinLoader { deep: nothing(), ..BuiltinLoader::default() };
        let is_loaded = loader.load(input, Some(DATA.into())).is_ok();
        evaluate(&specification);
        Verdict::of(is_loaded)
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        settings_bound(input_bytes)
    }
}

/// Scenarios.
pub(super) struct ScenarioTarget;

impl Target for ScenarioTarget {
    fn name(&self) -> &'static str {
        "scenario"
    }

    fn form(&self) -> Form {
        Form::Text
    }

    fn examples(&self) -> Vec<Vec<u8>> {
        let files = repository_files("simulations/scenarios", ".toml").into_iter();
        files.map(|(_, text)| text.into_bytes()).filter(|text| self.run(text) == Verdict::Accepted).collect()
    }

    fn run(&self, input: &[u8]) -> Verdict {
        let text = String::from_utf8_lossy(input);
        // No file is there, so that the result depends only on the text.
        let folder = Path::new("/nonexistent");
        let parsed = [Size::Full, Size::Sweep].map(|size| parse("changed", &text, folder, size).is_ok());
        Verdict::of(parsed[0])
    }

    fn bound(&self, input_bytes: usize) -> Bound {
        settings_bound(input_bytes)
    }
}

/// Computes deep networks whose outputs are all zero.
fn nothing() -> DeepBackend {
    #[derive(Debug)]
    struct Zeros;

    impl Backend for Zeros {
        fn gradient(
            &self,
            _: &Architecture,
            _: &[f32],
            count: usize,
            pieces: &(dyn Fn(usize) -> Piece + Sync),
            gradient: &mut [f32],
            _: Option<&mut KnownGradient<'_>>,
        ) -> f64 {
            (0..count).for_each(|index| drop(pieces(index)));
            gradient.fill(0.0);
            0.0
        }

        fn outputs(&self, architecture: &Architecture, _: &[f32], inputs: &Inputs) -> Vec<f32> {
            let rows = match inputs {
                Inputs::Pictures { count, .. } => *count,
                Inputs::Tokens { tokens, .. } => tokens.len(),
            };
            vec![0.0; rows * architecture.outputs()]
        }
    }

    Some(Arc::new(Zeros))
}

/// Evaluates a model of moderate size on another file.
fn evaluate(specification: &Specification) {
    let count = specification.manifest().parameter_count();
    if count <= PARAMETERS_EVALUATED_MAX {
        let _ = specification.evaluate(&vec![0.5; count], "g.csv", b"v;u;kind\n0;1;a\n1;1;b\n", &nothing());
    }
}

/// Larger models are valid too, but evaluating one takes long.
const PARAMETERS_EVALUATED_MAX: usize = 10_000;
