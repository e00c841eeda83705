"""PyTorch modules: each kind of training, types, and what a user can get wrong."""

import signal

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from conftest import agree  # noqa: E402
from programs import BATCH, EPOCHS, SAMPLES, norm_model, points  # noqa: E402

import peergrad.torch as pg  # noqa: E402

ALL = EPOCHS * SAMPLES


def one_peer(directory, model, **options):
    run = {"epochs": 1, "batch": 4, "optimizer": {"rule": "sgd", "rate": 1.0}}
    quiet = {"mdns": False, "listen": "127.0.0.1", "port": 0, "progress": False, "peers": 1}
    return pg.Swarm(model, name="test", samples=8, directory=directory / "peer", run=run, **{**quiet, **options})


@pytest.mark.parametrize("model", [{}, {"conv": True}, {"type": "bfloat16"}])
def test_modules_train_together(swarm, model):
    processes = swarm("mlp", 2, **model)
    accuracies = [process.wait_for("accuracy")["accuracy"] for process in processes]
    agree(processes, ALL)
    assert min(accuracies) > 0.6


@pytest.mark.parametrize("kind", ["local", "diloco"])
@pytest.mark.parametrize("count", [2, 3])
def test_an_optimizer_of_the_user_takes_local_steps(swarm, kind, count):
    processes = swarm("mlp", count, kind=kind, own=True, run={"sync": {"kind": kind, "local_steps": 4}}, batch=15)
    accuracies = [process.wait_for("accuracy")["accuracy"] for process in processes]
    agree(processes, ALL)
    assert min(accuracies) > 0.8 and len(set(accuracies)) == 1


def test_other_initial_parameters_become_those_of_the_founder(start):
    # It joins between two of the founder's steps, so these take some time.
    founder = start("mlp", peers=2, seed=1, pause=0.05)
    other = start("mlp", seed=2, pause=0.05, invite=founder.wait_for("invite")["invite"])
    agree([founder, other], ALL)


def test_a_killed_peer_with_its_own_optimizer_costs_no_sample(swarm):
    kind = {"sync": {"kind": "diloco", "local_steps": 2}}
    processes = swarm("mlp", 3, own=True, run=kind, epochs=8)
    processes[2].wait_for_step(5)
    processes[2].send(signal.SIGKILL)
    agree(processes[:2], 8 * SAMPLES)


def test_workers_of_a_data_loader_are_forked_safely(swarm):
    agree(swarm("loader", 2), SAMPLES)


def test_running_statistics_are_those_of_all_samples(swarm):
    """Two peers end with what a plain loop has that runs each part on the model of the step, and weighs the statistics by samples."""
    processes = swarm("norm", 2)
    states = [process.wait_for("model")["state"] for process in processes]
    agree(processes, ALL)
    parts = [{line["number"]: line["samples"] for line in process.seen if line["event"] == "step"} for process in processes]
    x, y = (torch.from_numpy(part) for part in points())
    model = norm_model()
    names = ["1.running_mean", "1.running_var"]
    for number in range(ALL // BATCH):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        sums = {name: 0 for name in names}
        model.zero_grad()
        for samples in (part[number] for part in parts if number in part):
            model.load_state_dict(before)
            loss = torch.nn.functional.cross_entropy(model(x[samples]), (y > 0).long()[samples], reduction="sum")
            loss.backward()
            for name in names:
                sums[name] += model.state_dict()[name] * len(samples)
        with torch.no_grad():
            for name in names:
                model.get_buffer(name).copy_(sums[name] / BATCH)
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad / BATCH
    for name, value in model.state_dict().items():
        if name != "1.num_batches_tracked":
            for state in states:
                assert torch.allclose(torch.tensor(state[name]), value, atol=5e-6), name


def test_statistics_of_kinds_that_cannot_average_them(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
    with pytest.raises(ValueError) as raised:
        one_peer(tmp_path, model, kind="ds-sync")
    assert "statistics=()" in raised.value.__notes__[0] and "1.running_mean" in raised.value.__notes__[0]
    with pytest.raises(ValueError, match="`mean` in `statistics` is no buffer"):
        one_peer(tmp_path, model, statistics=["mean"])
    with one_peer(tmp_path, model, kind="ds-sync", statistics=()) as swarm:
        assert list(swarm.shapes) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    model[1].eval().requires_grad_(False)
    with one_peer(tmp_path / "frozen", model) as swarm:
        assert list(swarm.shapes) == ["0.weight", "0.bias", "1.running_mean", "1.running_var"]


def test_random_generators_are_restored():
    state = pg.RandomState().state_dict()
    first = torch.rand(3)
    pg.RandomState().load_state_dict(state)
    assert torch.equal(torch.rand(3), first)


def test_gradients_of_micro_batches_add_up(tmp_path):
    """One peer does what a plain loop does, with the gradient in one piece and in two."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    finals = []
    for size in (4, 2):
        model = torch.nn.Linear(3, 1)
        torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
        with one_peer(tmp_path, model) as swarm:
            for step in swarm:
                model.zero_grad()
                losses = [(model(x[part]) ** 2).sum() for part in step.samples.split(size)]
                for loss in losses:
                    loss.backward()
                step.finish(sum(losses))
        finals.append(model.weight.detach().clone())
    assert torch.allclose(*finals, atol=1e-5)


def test_a_sampler_has_as_many_batches_as_it_says(tmp_path):
    with one_peer(tmp_path, torch.nn.Linear(3, 1)) as swarm:
        with pytest.raises(RuntimeError, match="no step is open"):
            len(swarm.sampler(3))
        step = next(swarm)
        assert [len(part) for part in swarm.sampler(3)] == [3, 1] and len(swarm.sampler(3)) == 2
        assert len(swarm.sampler()) == 1
        step.skip()


def test_a_mean_is_made_a_sum(tmp_path):
    finals = []
    for reduction in ("sum", "mean"):
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        with one_peer(tmp_path, model) as swarm:
            for step in swarm:
                model.zero_grad()
                loss = torch.nn.functional.mse_loss(model(torch.ones(len(step.samples), 3))[:, 0], torch.zeros(4), reduction=reduction)
                loss.backward()
                step.finish(loss, is_mean=reduction == "mean")
        finals.append((swarm.loss, model.weight.detach().clone()))
    assert finals[0][0] == pytest.approx(finals[1][0])
    assert torch.allclose(finals[0][1], finals[1][1])


def test_a_missing_gradient_names_the_parameter(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(3, 1))
    with one_peer(tmp_path, model) as swarm:
        step = next(swarm)
        model[0](torch.ones(4, 3)).sum().backward()
        with pytest.raises(ValueError, match="the parameter 1.weight has no gradient"):
            step.finish(0.0)
        assert step.finish(0.0, allow_unused=True)
        next(swarm).finish(0.0, allow_unused=True)


def test_a_gradient_that_is_not_finite_is_refused_and_can_be_skipped(tmp_path):
    model = torch.nn.Linear(3, 1)
    with one_peer(tmp_path, model) as swarm:
        step = next(swarm)
        (model(torch.ones(4, 3)).sum() * float("nan")).backward()
        with pytest.raises(ValueError, match="computed for `weight`"):
            step.finish(0.0)
        step.skip()
        model.zero_grad()
        next(swarm).finish(0.0, allow_unused=True)
    assert (swarm.result.samples, swarm.result.left_out) == (4, 4)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda model: model.requires_grad_(False), ValueError, "nothing to train"),
        (lambda model: model.to(torch.complex64), TypeError, "cannot train"),
        (lambda model: model.to("meta"), TypeError, "cannot train"),
    ],
)
def test_a_model_that_cannot_train_is_refused(tmp_path, change, kind, words):
    with pytest.raises(kind, match=words):
        one_peer(tmp_path, change(torch.nn.Linear(3, 1)))


def test_a_model_must_keep_its_shapes(tmp_path):
    model = torch.nn.Linear(3, 1)
    with one_peer(tmp_path, model) as swarm:
        step = next(swarm)
        model.weight.data = torch.zeros(1, 4)
        with pytest.raises(ValueError, match="do not change a model that trains"):
            step.finish(0.0)
        model.weight.data = torch.zeros(1, 3)
        step.skip()


def test_a_framework_may_move_the_model(tmp_path):
    model = torch.nn.Linear(3, 1, bias=False)
    with one_peer(tmp_path, model) as swarm:
        for step in swarm:
            model.bfloat16() if step.number == 0 else None
            model.zero_grad()
            loss = model(torch.ones(4, 3, dtype=model.weight.dtype)).sum()
            loss.backward()
            step.finish(loss)
    assert model.weight.dtype == torch.bfloat16 and swarm.result.left_out == 0


def test_a_nan_is_found_in_its_own_tensor(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(1, 1)).bfloat16()
    with one_peer(tmp_path, model) as swarm:
        step = next(swarm)
        model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
        model[1].bias.grad.fill_(float("nan"))
        with pytest.raises(ValueError, match="computed for `1.bias`"):
            step.finish(0.0)
        step.skip()
        model.zero_grad()
        next(swarm).finish(0.0, allow_unused=True)


def test_another_kind_than_the_founders_is_refused(start):
    # Three, since one of two would wait for the other.
    founder = start("mlp", peers=3, pause=0.05)
    invite = founder.wait_for("invite")["invite"]
    second, other = start("mlp", pause=0.05, invite=invite), start("mlp", kind="diloco", own=True, invite=invite)
    assert other.code() == 1
    assert "use the founder's kind" in other.say()
    agree([founder, second], ALL)


def test_frozen_parameters_do_not_travel(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    model[0].requires_grad_(False)
    with one_peer(tmp_path, model) as swarm:
        assert list(swarm.shapes) == ["1.weight", "1.bias"]


def test_an_optimizer_object_serves_a_framework(tmp_path):
    """A loop that knows only `loss.backward(); optimizer.step()`."""
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    with one_peer(tmp_path, model) as swarm:
        optimizer = pg.Optimizer(swarm)
        seen = []
        while not optimizer.is_over:
            seen += optimizer.samples.tolist()
            optimizer.zero_grad()
            (model(torch.ones(len(optimizer.samples), 3)) ** 2).mean().backward()
            assert optimizer.param_groups[0]["lr"] == 1.0
            optimizer.step()
    assert sorted(seen) == list(range(8))
    assert swarm.result.outcome == "done" and not torch.equal(model.weight, torch.ones(1, 3))
