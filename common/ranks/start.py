"""Start a script's training: in one process, or in ranks, one process per device."""

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from common.data.fitting import default_loader, with_loader
from common.data.image_set import load_image_set
from common.data.loaders import check_enough_images
from common.engine.checkpoint import content_of, read_checkpoint, resumed_loader
from common.engine.place import Place
from common.engine.setup import check_memory_limit, check_precision, lacks_cores, prepare_process
from common.errors import FAILED, MACHINE, READER_GONE, USAGE, SuiteError, describe_exit
from common.machine.cores import available_cores
from common.machine.entry import AFTER_STEP, call_early, end_after_step, pending_signal, run_script
from common.machine.environment import ASK_NVML, available_devices, forks_can_use_gpus
from common.machine.lifetime import end_with_parent, temporary_directory
from common.machine.memory import free_memory, mapped_files, populate
from common.ranks.launchers import become_rank
from common.ranks.lost import GRACE_SECONDS, name_lost_ranks
from common.ranks.meet import find_ranks, rank_device
from common.settings.config import RunConfig
from common.settings.totals import per_process, total_workers
from common.words import count

SIGNAL_CODES = (READER_GONE, *(128 + number for number in (*AFTER_STEP, signal.SIGINT, signal.SIGQUIT)))


def _first_device(config, options):
    return available_devices(config.device)[:1]


def start_one(train: Callable, typed: tuple, choose_devices: Callable = _first_device) -> None:
    """Call train(config, options, place) in a single process.

    typed: the (config, options) of begin_one(). choose_devices(config, options): returns the devices to train on.
    """
    config, options = typed
    run_script(lambda: _train_alone(train, config, options, choose_devices))


def start_ranks(
    train: Callable, typed: tuple, refuse: Callable | None = None, share_batches: bool = True, alone: bool = False
) -> None:
    """Call train(config, options, place) as a rank, or in N new ranks with --spawn N.

    typed: the (config, options) of begin_ranks(). refuse(config, options): raises SuiteError for incompatible flags.
    share_batches: whether each rank gets a share of every batch. alone: whether the script may run without ranks.
    """
    config, options = typed

    def main():
        if options.spawn:
            os.environ[ASK_NVML] = "1"
            torch.set_num_threads(1)  # a fork lacks its parent's OpenMP threads and would wait for them forever
        if refuse:
            refuse(config, options)
        if options.spawn:
            spawn_ranks(options.spawn, train, config, options, options.spawn if share_batches else 1)
        elif "RANK" in os.environ:
            _train_as_rank(train, config, options)
        elif alone:
            _train_alone(train, config, options, _first_device)
        else:
            script = Path(sys.argv[0]).name
            what, found = f"{script} runs one process per device", "found neither torchrun, nor srun, nor --spawn"
            advice = f"type torchrun --standalone --nproc_per_node=2 {script}, or python {script} --spawn 2"
            raise SuiteError(what, found, advice, USAGE)

    if not options.spawn:
        call_early(become_rank, as_rank=True)  # before run_script() chooses what a signal does
    run_script(main, as_rank=True)


def _train_alone(train, config, options, choose_devices):
    place = Place(choose_devices(config, options))
    loader = config.loader or resumed_loader(config) or default_loader(config, 1, free_memory(place.device))
    prepare_process(config, place.device)
    train(with_loader(config, loader, lacks_cores(place.device, 1)), options, place)


def _train_as_rank(train, config, options, init_method="env://"):
    with name_lost_ranks(options.dist_timeout):
        place, sharing = find_ranks(config, options, init_method)
        prepare_process(place.config, place.device, *sharing)
        train(place.config, options, place)


def spawn_ranks(world_size: int, train: Callable, config: RunConfig, options, data_ranks: int) -> None:
    """Call `train(config, options, place)` in `world_size` new processes, with torchrun's environment variables.

    data_ranks: the number of ranks that share each batch. Checks that all ranks would fail, and a download, are done
    here once. If a rank fails, stops the others and exits with its code.
    """
    os.environ.pop("RANK", None)  # a cluster may set it, but this process is not a rank
    device, how = rank_device(config.device, 0, world_size, all_visible=True), "spawn"
    if sys.platform == "linux":
        importlib.import_module("torch._dynamo")  # DDP, FSDP and pipelining would do it in every rank
        how = "fork" if device.type == "cpu" or forks_can_use_gpus() else how
    check_memory_limit(config, device)
    if device.type == "cpu":  # on a GPU, this process would keep some of its memory
        check_precision(config, device)
    per_process("--batch-size", config.batch_size, data_ranks)
    per_process("--num-workers", total_workers(config.num_workers, data_ranks), data_ranks)
    image_set = load_image_set(config)
    check_enough_images(image_set, data_ranks)
    if config.resume:
        read_checkpoint(config, options, content_of(config, image_set), world_size)
    _refuse_too_many_ranks(world_size)
    del image_set  # or it would count as memory of every fork
    if world_size > available_cores() and device.type == "cpu" and not config.quiet:
        print(f"warning: {world_size} ranks share {count(available_cores(), 'core')}", file=sys.stderr, flush=True)
    os.environ.update(WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size))
    if sys.platform == "linux":  # all ranks are local; gloo would listen on an external address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # the failing rank prints its own line
    with temporary_directory() as directory:  # the ranks meet through a file, as a port could be taken
        arguments = (train, config, options, directory, os.getpid(), _files_to_map(how))
        ranks = start_processes(_start_rank, arguments, world_size, join=False, start_method=how)

        def pass_on(number):
            for process in ranks.processes:
                if process.is_alive():
                    os.kill(process.pid, number)

        try:
            with end_after_step(pass_on, ctrl_c=config.checkpoint is not None):
                while not ranks.join():
                    pass
        except ProcessExitedException as error:
            reported = any(_error_file(directory, rank).exists() for rank in range(world_size))
            _exit_like(error.error_index, error.exit_code, reported)
        finally:
            for process in ranks.processes:
                process.terminate()
            for process in ranks.processes:
                process.join(GRACE_SECONDS)
                process.kill()  # no effect if it has ended
                process.join()


def _exit_like(rank, code, reported):
    """Exit like the first rank that failed; raise SuiteError if no rank reported an error."""
    if reported:  # a rank that reported its error may still crash at exit
        sys.exit(FAILED if code in SIGNAL_CODES else max(code, FAILED))
    if code in SIGNAL_CODES or pending_signal():  # before its training, a rank is killed by the signal itself
        sys.exit(code if code in SIGNAL_CODES else 128 + pending_signal())
    killed = code == -signal.SIGKILL
    advice = "try a smaller --batch-size, or fewer --num-workers" if killed else "see its last lines"
    raise SuiteError(f"rank {rank} exited without an error message", describe_exit(code), advice, FAILED) from None


def _files_to_map(how):
    """Return what a forked rank has to map, so that its memory is that of a rank which torchrun starts."""
    with contextlib.suppress(OSError):  # /proc does not tell
        return mapped_files() if how == "fork" else []
    return []


def _refuse_too_many_ranks(ranks):
    """Raise SuiteError (MACHINE) if the ranks do not fit into memory, each taking as much as this process has now."""
    needed, free = psutil.Process().memory_full_info().uss, free_memory(torch.device("cpu"))
    if ranks * needed > free:
        found = f"each takes at least {needed / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free"
        raise SuiteError(f"{ranks} ranks do not fit into memory", found, "start fewer ranks", MACHINE)


def _start_rank(rank, train, config, options, directory, parent, files):
    end_with_parent()
    if os.getppid() != parent:  # the parent was killed before end_with_parent()
        os._exit(FAILED)
    with contextlib.suppress(OSError):  # before Linux 5.14
        populate(files)
    os.environ.pop(ASK_NVML, None)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), TORCHELASTIC_ERROR_FILE=str(_error_file(directory, rank)))
    run_script(lambda: _train_as_rank(train, config, options, f"file://{directory}/rendezvous"), as_rank=True)


def _error_file(directory, rank):
    return Path(directory, f"rank-{rank}.json")
