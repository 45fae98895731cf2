"""A training with phases of known length, in one of many styles: python train.py STYLE

Milliseconds per step: data 10, forward 20, backward 15, update 5, the script's own work 5.
"""

# ruff: noqa: E402

import importlib.util
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
import time

importlib.util.find_spec("torch")  # some libraries check for torch and import it later

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

DATA, FORWARD, BACKWARD, UPDATE, OWN, EVALUATED = 0.010, 0.020, 0.015, 0.005, 0.005, 0.2
BATCH, IMAGES = 4, 24
style = sys.argv[1]
torch.set_num_threads(1)


class Slow(Dataset):
    def __len__(self):
        return IMAGES * (100 if style == "two loaders" else 1)

    def __getitems__(self, places):
        time.sleep(DATA)
        return [(torch.ones(3), torch.ones(1)) for _ in places]


slow = Slow()


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(IMAGES // BATCH):
            time.sleep(DATA)
            yield {"images": torch.ones(BATCH, 3), "labels": torch.ones(BATCH, 1)}


class Sleep(torch.autograd.Function):
    """The identity, with a delay in both directions."""

    @staticmethod
    def forward(context, values):
        time.sleep(FORWARD)
        return values.clone()

    @staticmethod
    def backward(context, gradients):
        time.sleep(BACKWARD)
        return gradients


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, images):
        return Sleep.apply(self.layer(images))


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(UPDATE)
        return super().step(closure)


def batches():
    """Yield the batches of one epoch."""
    if style == "list":  # unknown to the observer
        for _ in range(IMAGES // BATCH):
            time.sleep(DATA)
            yield torch.ones(BATCH, 3), torch.ones(BATCH, 1)
    elif style == "stream":
        yield from (tuple(batch.values()) for batch in DataLoader(Stream(), batch_size=None))
    else:
        yield from DataLoader(slow, BATCH, num_workers=2 if style == "workers" else 0)


def prefetched(batches):
    """Yield batches that another thread loads."""
    loaded = queue.Queue(maxsize=2)

    def load():
        for batch in batches:
            loaded.put(batch)
        loaded.put(None)

    threading.Thread(target=load, daemon=True).start()
    yield from iter(loaded.get, None)


def evaluate(network):
    if style == "eval() and train()":
        network.eval()
    if style == "gradients off in the loop":
        for images, _ in DataLoader(Slow(), BATCH):
            with torch.no_grad():
                network(images)
    else:
        with torch.no_grad():
            for images, _ in DataLoader(Slow(), BATCH):
                network(images)
    if style == "eval() and train()":
        time.sleep(EVALUATED)  # with gradients
        network.train()


def loss_of(network, images, labels):
    return (network(images) - labels).square().mean()


def step(network, optimizer, images, labels, update=True):
    loss = loss_of(network, images, labels)
    if style == "gradients by hand":
        parameters = list(network.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
    else:
        loss.backward()
    if update:
        optimizer.step()
        optimizer.zero_grad()


def closure_step(network, optimizer, images, labels):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(network, images, labels)
        loss.backward()
        return loss

    optimizer.step(closure)


def scaled_step(scaler, network, optimizer, images, labels, number):
    """A step with infinite gradients, which are skipped, at every even number."""
    optimizer.zero_grad()
    scaler.scale(loss_of(network, images, labels)).backward()
    if number % 2 == 0:
        network.layer.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()


def two_optimizers(networks, optimizers, images, labels):
    for network, optimizer in zip(networks, optimizers, strict=True):
        loss = loss_of(network, images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def with_lightning(network, optimizer):
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, number):
            return loss_of(self.network, *batch)

        def on_train_batch_end(self, *_):
            time.sleep(OWN)

        def configure_optimizers(self):
            return optimizer

        def validation_step(self, batch, number):
            return loss_of(self.network, *batch)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", max_epochs=-1, **quiet)
    trainer.fit(Module(), DataLoader(slow, BATCH), DataLoader(slow, BATCH))


def with_transformers(network, optimizer, directory):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, images, labels):
            values = self.network(images)
            return {"loss": (values - labels).square().mean(), "logits": values}

    class Named(Slow):
        def __getitems__(self, places):
            return [{"images": image, "labels": label} for image, label in super().__getitems__(places)]

    class OwnWork(TrainerCallback):
        def on_step_end(self, *_, **__):
            time.sleep(OWN)

    arguments = TrainingArguments(
        directory,
        per_device_train_batch_size=BATCH,
        max_steps=10**6,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
    )
    Trainer(Loss(), arguments, train_dataset=Named(), optimizers=(optimizer, None), callbacks=[OwnWork()]).train()


def with_deepspeed(network, optimizer):
    import deepspeed

    deepspeed.init_distributed("gloo")
    stage = {"zero_optimization": {"stage": 1}} if style == "deepspeed zero" else {}
    config = {"train_micro_batch_size_per_gpu": BATCH, "zero_allow_untested_optimizer": True, **stage}
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    while True:
        for images, labels in batches():
            engine.backward(loss_of(engine, images, labels))
            engine.step()
            time.sleep(OWN)


def spawned(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
    main()


def main():
    global step
    rank = int(os.environ.get("RANK", 0))
    network = Network()
    if style == "compiled":
        network = torch.compile(network, backend="eager")
    elif style == "compiled step":
        step = torch.compile(step, backend="eager")
    elif style == "compiled in place":
        network.compile(backend="eager")
    if "RANK" in os.environ and not style.startswith("deepspeed"):
        dist.init_process_group("gloo")
        network = nn.parallel.DistributedDataParallel(network)
    optimizer = SlowSGD(network.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    if style == "accelerate":
        from accelerate import Accelerator

        network, optimizer = Accelerator(cpu=True).prepare(network, optimizer)
    other = Network()
    second = SlowSGD(other.parameters(), 0.01)
    if style.startswith("deepspeed"):
        with_deepspeed(network, optimizer)
    if style == "lightning":
        with_lightning(network, optimizer)
    if style == "transformers":
        with_transformers(network, optimizer, sys.argv[2])
    if style == "changes directory":
        os.chdir("/")
    for epoch in itertools.count():
        if style == "looks at a batch":
            next(iter(DataLoader(slow, BATCH)))
        if style == "new optimizers":
            optimizer = SlowSGD(network.parameters(), 0.01)
        unlabelled = iter(DataLoader(slow, BATCH))  # the same images, for a long epoch
        for number, (images, labels) in enumerate(prefetched(batches()) if style == "prefetches" else batches()):
            if style == "two loaders":
                others, _ = next(unlabelled)
                with torch.no_grad():
                    network(others)
            if style == "closure":
                closure_step(network, optimizer, images, labels)
            elif style == "scaler":
                scaled_step(scaler, network, optimizer, images, labels, number)
            elif style == "two optimizers":
                two_optimizers((network, other), (optimizer, second), images, labels)
            else:
                step(network, optimizer, images, labels, style != "accumulation" or number % 2 == 1)
            time.sleep(OWN)
            if style == "slow rank" and rank == 1:
                time.sleep(0.050)
        evaluate(network)
        if style == "ends" and epoch == 1:
            break
        if style == "dies" and epoch == 1:
            raise ValueError("the loss is a banana")
        if style == "never steps":
            time.sleep(3600)


if __name__ == "__main__":
    if style == "starts another":  # which trains before this process does
        subprocess.run([sys.executable, __file__, "ends"], check=True)
    if style == "no step at all":
        sys.exit()
    elif style == "notebook launcher":
        from accelerate import notebook_launcher

        notebook_launcher(main, num_processes=2, use_port=str(free_port()))
    elif style == "spawn":
        os.environ["PORT"] = str(free_port())
        torch.multiprocessing.spawn(spawned, nprocs=2)
    else:
        main()
