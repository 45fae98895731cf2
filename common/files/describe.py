"""The text that a training script prints about its run."""

import re

from common.files.results import EpochRecord, RunResult
from common.files.writing import short_name
from common.words import count


def result_name(result: RunResult) -> str:
    """Return a file name without suffix: data set, model, method and, if more than one, the number of devices."""
    simulated = "-simulated" if result.simulated else ""
    devices = f"-{len(result.devices)}" if len(result.devices) > 1 else ""
    names = re.sub(r"[^\w.-]+", "-", f"{result.config['dataset']}-{result.config['model']}")
    return f"{short_name(names)}-{result.method}{simulated}{devices}"


def describe_start(result: RunResult) -> str:
    """Return a block of text about devices, data and model."""
    config, environment = result.config, result.environment
    place = "per process" if result.data_ranks == result.world_size else "in rank 0"
    loader = "resident" if config["loader"] == "resident" else count(result.workers_per_process, "loader worker")
    note = f"\nNote:          {result.note}" if result.reason else ""
    return (
        f"Method:        {result.method}\n"
        f"Devices:       {', '.join(result.devices)}; {count(result.world_size, 'process', 'es')} x "
        f"{count(result.threads_per_process, 'thread')}; torch {environment['torch']}{note}\n"
        f"Data set:      {config['dataset']}, {loader} {place}\n"
        f"Batch:         {result.global_batch_size} global, {result.per_device_batch_size} per device\n"
        f"Model:         {config['model']}, {result.parameters:,} parameters, {config['optimizer']}, lr {config['lr']}"
    )


def describe_epoch(record: EpochRecord, epochs: int) -> str:
    """Return one line about an epoch."""
    phases = ", ".join(f"{name} {value:.2f}" for name, value in record.phases.known.items())
    return (
        f"Epoch [{record.epoch}/{epochs}], Loss: {record.train_loss:.4f}, Dur: {record.train_seconds:.2f} s, "
        f"test accuracy: {record.test_accuracy:.2%}, {record.samples / record.train_seconds:,.0f} images/s, "
        f"ms/step: {phases}"
    )


def training_seconds(result: RunResult) -> float:
    """Return the seconds of training over all epochs, without evaluation: the time to accuracy if there is a target."""
    return sum(record.train_seconds for record in result.epochs)


def describe_end(result: RunResult) -> str:
    """Return a block of text with total time, final accuracies and memory."""
    classes = ", ".join(f"{name} {value:.1%}" for name, value in (result.class_accuracy or {}).items())
    parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in result.memory_parts.items())
    own = "".join(f"\nPer batch, {name}: {value:.3f} ms" for name, value in (result.method_milliseconds or {}).items())
    target = result.config.get("target_accuracy")
    reached = "without reaching" if result.status == "not reached" else "to"
    goal = "" if target is None else f" {reached} a test accuracy of {target:.2%}"
    return (
        f"Training took {training_seconds(result):.2f} s{goal}; "
        f"{result.total_seconds:.2f} s from start to end\n"
        f"Test accuracy: {result.epochs[-1].test_accuracy:.2%}\nPer class:     {classes}\n"
        f"Memory (MiB):  {max(result.peak_memory_bytes) / 2**20:.0f} at its peak on a device; {parts}{own}"
    )
