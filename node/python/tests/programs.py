"""The programs of the tests' peers: `python programs.py NAME '{"directory": ...}'`. Each prints what happens as lines of JSON."""

import contextlib
import dataclasses
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

import peergrad

SAMPLES = 600
EPOCHS = 4
BATCH = 30
PARABOLA_SAMPLES = 10_000
PARABOLA_EPOCHS = 40


def tell(event: str, **fields) -> None:
    print(json.dumps({"event": event, **fields}, default=str), flush=True)


def local_network(options: dict) -> dict:
    return {"mdns": False, "listen": "127.0.0.1", "port": 0, **options}


def settings(options: dict, **more) -> dict:
    run = {"epochs": EPOCHS, "batch": BATCH, **more}
    run |= {key: options.pop(key) for key in ("epochs", "batch") if key in options} | options.pop("run", {})
    return {**local_network(options), "run": run}


def ended(swarm) -> None:
    tell("result", **dataclasses.asdict(swarm.result))


def points() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(SAMPLES, 3)).astype(np.float32)
    return x, x @ np.array([1, -2, 3], np.float32)


def line(options: dict) -> None:
    """Linear regression in NumPy. `pause` seconds in each step; at `at` something happens."""
    pause, at, what = options.pop("pause", 0), options.pop("at", None), options.pop("what", None)
    slow = options.pop("slow", {})
    x, y = points()
    sgd = {"rule": "sgd", "rate": 0.05}
    begun = 0
    with peergrad.Swarm("line", {"w": (3,)}, samples=SAMPLES, **settings(options, optimizer=sgd)) as swarm:
        tell("invite", invite=swarm.invite)
        for step in swarm:
            time.sleep(pause)
            if seconds := slow.get(str(begun)):
                with swarm.busy(60) if begun else contextlib.nullcontext():
                    time.sleep(seconds)
            if what is not None and begun == at:
                HAPPENINGS[what](swarm, step)
            begun += 1
            w = step.parameters()["w"]
            error = x[step.samples] @ w - y[step.samples]
            step.finish({"w": 2 * x[step.samples].T @ error}, float((error**2).sum()))
            tell("step", number=step.number, members=step.members, samples=len(step.samples))
            if swarm.result is None and what == "leave" and begun == at:
                swarm.leave()
    ended(swarm)


def momentum(options: dict) -> None:
    """Local steps in NumPy, with a momentum that only this peer has."""
    x, y = points()
    pause, kept = options.pop("pause", 0), options.pop("kept", True)
    sync = {"kind": "ds-sync"} if options.get("kind") == "ds-sync" else {"kind": "diloco", "local_steps": 1}
    run = settings(options, sync=sync, checkpoints={"seconds": 1})
    velocity = peergrad.Kept(np.zeros(3, np.float32))
    with peergrad.Swarm("momentum", {"w": (3,)}, samples=SAMPLES, **run) as swarm:
        if kept:
            swarm.keep(velocity=velocity)
        tell("invite", invite=swarm.invite)
        for step in swarm:
            tell("step", number=step.number, velocity=velocity.value.tolist())
            time.sleep(pause)
            w = step.parameters()["w"]
            error = x[step.samples] @ w - y[step.samples]
            velocity.value = np.float32(0.9) * velocity.value + 2 * x[step.samples].T @ error / np.float32(len(error))
            step.finish({"w": w - np.float32(0.002) * velocity.value}, float((error**2).sum()))
    ended(swarm)


def fail(swarm, step) -> None:
    raise ZeroDivisionError("the user's own code failed")


def linger(swarm, clock) -> None:
    while clock.is_wanted:
        time.sleep(0.02)


HAPPENINGS = {
    "fail": fail,
    "end": lambda swarm, step: swarm.end_run(),
    "leave": lambda swarm, step: None,
    "leave within": lambda swarm, step: swarm.leave(),
    "linger": linger,
    "skip": lambda swarm, clock: None,
}


def counting(options: dict) -> None:
    """Tables in which each sample adds 1 to its row, and its number beside that. Options as those of `line`; and at clock `hold_at` it
    waits until the file `hold_until` exists."""
    pause, at, what = options.pop("pause", 0), options.pop("at", None), options.pop("what", None)
    hold_at, hold_until = options.pop("hold_at", None), options.pop("hold_until", None)
    tables = {"counts": peergrad.Table(SAMPLES, 2), "total": peergrad.Table(1, 1, initial=0)}
    staleness = options.pop("staleness", None)
    begun = 0
    with peergrad.Tables("counting", tables, samples=SAMPLES, staleness=staleness, **settings(options)) as swarm:
        tell("invite", invite=swarm.invite)
        for clock in swarm:
            time.sleep(pause)
            if hold_at is not None and begun >= hold_at:
                with swarm.busy(600):
                    while not Path(hold_until).exists():
                        time.sleep(0.02)
            if what is not None and begun == at:
                HAPPENINGS[what](swarm, clock)
            begun += 1
            if what == "skip" and begun - 1 == at:
                clock.skip()
                continue
            rows = clock.samples
            seen = clock.get("counts", rows)
            assert (seen[:, 1] == seen[:, 0] * rows).all(), "a row is read as a whole"
            clock.add("counts", rows, np.stack([np.ones(len(rows)), rows], axis=1).astype(np.float32))
            clock.add("total", np.zeros(len(rows), np.int64), np.ones((len(rows), 1), np.float32))
            pushed = what == "linger" and begun - 1 == at and clock.push()
            is_wanted = clock.end(0.0)
            if what == "linger" and begun - 1 == at:
                tell("lingered", pushed=pushed, is_wanted=is_wanted)
                Path(hold_until).touch()
            tell("step", number=clock.number, members=clock.members, samples=len(rows))
            if swarm.result is None and what == "leave" and begun == at:
                swarm.leave()
    if swarm.result.outcome == "done":
        tell("sums", counts=swarm.last_table("counts").tolist(), total=swarm.last_table("total").item())
    ended(swarm)


def parabola(options: dict) -> None:
    """The task of `examples/src/bin/custom_task.rs`, with the same arithmetic in the same order."""
    one, two, three = np.float32(1), np.float32(2), np.float32(3)
    index = np.arange(PARABOLA_SAMPLES, dtype=np.uint32)
    x = (index % 201).astype(np.float32) / np.float32(100) - one
    noise = (index * np.uint32(2_654_435_761) >> np.uint32(16)).astype(np.float32) / np.float32(65536)
    y = one - two * x + three * x * x + (noise * np.float32(0.2) - np.float32(0.1))
    run = settings(options, epochs=PARABOLA_EPOCHS, batch=64, optimizer={"rule": "adam"})
    with peergrad.Swarm("parabola", {"coefficients": (3,)}, samples=PARABOLA_SAMPLES, **run) as swarm:
        tell("invite", invite=swarm.invite)
        for step in swarm:
            a, b, c = step.parameters()["coefficients"]
            at = x[step.samples]
            error = a + b * at + c * at * at - y[step.samples]
            slopes = [two * error * power for power in (one, at, at * at)]
            # A running sum adds in the order of the samples.
            gradient = np.array([np.cumsum(slope, dtype=np.float32)[-1] for slope in slopes])
            step.finish([gradient], float(np.sum(error.astype(np.float64) ** 2)))
    ended(swarm)


def mlp(options: dict) -> None:
    """A perceptron in PyTorch; `kind` says how, and `optimizer` is the peer's own."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    import peergrad.torch as pg

    torch.manual_seed(options.pop("seed", 1))
    pause = options.pop("pause", 0)
    own, type_ = options.pop("own", None), getattr(torch, options.pop("type", "float32"))
    x, y = (torch.from_numpy(part) for part in points())
    labels = (y > 0).long()
    if options.pop("conv", False):
        model = nn.Sequential(nn.Conv1d(1, 4, 2), nn.GELU(), nn.Flatten(), nn.Linear(8, 2))
        x = x[:, None]
    else:
        model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    model.to(type_)
    with pg.Swarm(model, name="mlp", samples=SAMPLES, **settings(options)) as swarm:
        tell("invite", invite=swarm.invite)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01) if own else None
        for step in swarm:
            time.sleep(pause)
            if inner is None:
                loss = F.cross_entropy(model(x[step.samples].to(type_)).float(), labels[step.samples], reduction="sum")
                model.zero_grad()
                loss.backward()
                step.finish(loss)
            else:
                total = 0.0
                for samples in step.samples.split(10):
                    loss = F.cross_entropy(model(x[samples]), labels[samples])
                    inner.zero_grad()
                    loss.backward()
                    inner.step()
                    total += loss.item() * len(samples)
                step.finish(total)
            tell("step", number=step.number, members=step.members)
    correct = (model(x.to(type_)).argmax(1) == labels).float().mean().item()
    tell("accuracy", accuracy=correct)
    ended(swarm)


def founders_settings(options: dict) -> None:
    """A loop that does what the founder's settings say."""
    with peergrad.Swarm("settings", {"w": (2,)}, samples=SAMPLES, **settings(options)) as swarm:
        tell("invite", invite=swarm.invite)
        tell("settings", settings=swarm.settings)
        for step in swarm:
            step.finish([np.zeros(2, np.float32)], 1.0)
    ended(swarm)


def norm_model():
    """A module with running statistics."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def norm(options: dict) -> None:
    """Batch normalization, whose running statistics are averaged."""
    import torch
    from torch.nn import functional as F

    import peergrad.torch as pg

    x, y = (torch.from_numpy(part) for part in points())
    model = norm_model()
    sgd = {"rule": "sgd", "rate": 0.1}
    with pg.Swarm(model, name="norm", samples=SAMPLES, **settings(options, optimizer=sgd)) as swarm:
        tell("invite", invite=swarm.invite)
        for step in swarm:
            model.zero_grad()
            loss = F.cross_entropy(model(x[step.samples]), (y > 0).long()[step.samples], reduction="sum")
            loss.backward()
            if step.finish(loss):
                tell("step", number=step.number, samples=step.samples.tolist())
    tell("model", state={key: value.tolist() for key, value in model.state_dict().items()})
    ended(swarm)


def loader(options: dict) -> None:
    """Samples come through a DataLoader whose workers are forked, and whose children may not use the swarm."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    import peergrad.torch as pg

    x, y = (torch.from_numpy(part) for part in points())

    class Points(Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int):
            if torch.utils.data.get_worker_info() is not None:
                try:
                    swarm.status()
                except RuntimeError as error:
                    assert "forked" in str(error)
                else:
                    raise AssertionError("a forked child has used the swarm")
            return x[index], y[index]

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1, bias=False)
    with pg.Swarm(model, name="loader", samples=SAMPLES, **settings(options, epochs=1)) as swarm:
        tell("invite", invite=swarm.invite)
        batches = DataLoader(
            Points(), batch_sampler=swarm.sampler(8), num_workers=2, persistent_workers=True, multiprocessing_context="fork"
        )
        for step in swarm:
            model.zero_grad()
            total, count = 0.0, 0
            for inputs, wanted in batches:
                loss = ((model(inputs)[:, 0] - wanted) ** 2).sum()
                loss.backward()
                total += loss.item()
                count += len(inputs)
            assert count == len(step.samples)
            step.finish(total)
    ended(swarm)


def tree(options: dict) -> None:
    """Linear regression in JAX."""
    import jax
    import jax.numpy as jnp

    import peergrad.jax as pg

    x, y = points()
    loss_of = jax.jit(jax.value_and_grad(lambda params, x, y: jnp.sum((x @ params["w"] + params["b"][0] - y) ** 2)))
    params = {"w": jnp.zeros(3), "b": [jnp.zeros(())]}
    sgd = {"rule": "sgd", "rate": 0.05}
    with pg.Swarm(params, name="tree", samples=SAMPLES, **settings(options, optimizer=sgd)) as swarm:
        tell("invite", invite=swarm.invite)
        for step in swarm:
            assert (step.params["w"].shape, step.params["b"][0].shape) == ((3,), ())
            loss, gradients = loss_of(step.params, x[step.samples], y[step.samples])
            step.finish(gradients, loss)
    tell("learned", w=np.asarray(swarm.params["w"]).tolist())
    ended(swarm)


def trainer(options: dict) -> None:
    """A Trainer of Hugging Face with LoRA: only the adapters travel."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    import peergrad.torch as pg
    from peergrad.transformers import Rounds

    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    model = get_peft_model(BertForSequenceClassification(config), LoraConfig(task_type="SEQ_CLS", r=2))
    tokens = torch.randint(32, (SAMPLES, 8))
    data = [{"input_ids": row, "labels": int(row[0] > 15)} for row in tokens]
    swarm = pg.Swarm(model, name="lora", samples=SAMPLES, kind="diloco", **settings(options))
    tell("invite", invite=swarm.invite)
    travels = sum(torch.Size(shape).numel() for shape in swarm.shapes.values())
    tell("sizes", travels=travels, all=sum(p.numel() for p in model.parameters()))
    arguments = TrainingArguments(
        output_dir=str(swarm.directory / "trainer"), report_to=[], per_device_train_batch_size=8, num_train_epochs=100,
        save_strategy="no", logging_steps=5, use_cpu=True, disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=data, callbacks=[Rounds(swarm, every=4)]).train()
    ended(swarm)


def module(options: dict) -> None:
    """A Trainer of Lightning."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    import peergrad.torch as pg
    from peergrad.lightning import Rounds

    x, y = (torch.from_numpy(part) for part in points())

    class Line(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            return ((self.layer(batch[0])[:, 0] - batch[1]) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    torch.manual_seed(1)
    line = Line()
    swarm = pg.Swarm(line, name="lightning", samples=SAMPLES, kind="local", **settings(options))
    tell("invite", invite=swarm.invite)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(max_epochs=-1, accelerator="cpu", callbacks=[Rounds(swarm, every=4)], **quiet).fit(line, data)
    tell("learned", w=line.layer.weight[0].tolist())
    ended(swarm)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    globals()[sys.argv[1]](json.loads(sys.argv[2]))
