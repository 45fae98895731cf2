"""Simulates GPUs with CPU tensors that claim to be on cuda:0 or cuda:1 and refuse to be mixed.

Tests run the project's unchanged scripts in `with pretended_gpus("first", "second") as gpus`. As on real GPUs, it is an
error to mix tensors of two devices, or to take the time between events of two devices or before synchronization, and
replicas get contiguous weights from broadcast_coalesced(). With costs, time is that of virtual_clock.py. Memory is the
size of the tensors. pretended_ranks.py simulates ranks.

Not simulated: races between streams, as each call computes its values at once; autocast; and the threads of
nn.DataParallel, whose work is launched one after the other. Uses private names of torch, which may change; tested with
torch 2.15 and written for 2.11 too.
"""

import contextlib
import functools
import os
import sys
import time
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch.nn.parallel import comm
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from common.engine.timing import Stopwatch
from tests.virtual_clock import Clock, Event

CPU = torch.device("cpu")
VARIABLE = "PRETENDED_GPUS"  # environment variable with the number of GPUs of a child process
# operations that make the host wait for a value or a size
WAITING = {"_local_scalar_dense", "bincount", "equal", "masked_select", "nonzero", "_unique2"}


@dataclass
class Gpus:
    """The GPUs of a machine and the observed calls.

    broken: indices of GPUs that cannot compute. copies: (source, target, bytes). waits: reasons why the host waited.
    calls: (name, details) of torch functions. held, peaks: current and peak bytes by device.
    segments: what memory_snapshot() returns.
    """

    names: list[str]
    costs: dict = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    copies: list[tuple[str, str, int]] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    calls: list[tuple] = field(default_factory=list)
    debug_mode: str | int = "default"
    current: int = 0
    held: dict[torch.device, int] = field(default_factory=lambda: defaultdict(int))
    peaks: dict[torch.device, int] = field(default_factory=lambda: defaultdict(int))
    segments: list[dict] = field(default_factory=list)

    def __post_init__(self):
        self.clock = Clock([torch.device("cuda", index) for index in range(len(self.names))], self.costs)

    def call(self, name: str, *about) -> None:
        self.calls.append((name, *about))

    def called(self, *names: str) -> list[tuple]:
        """Return the details of all calls with these names, in order."""
        return [about for name, *about in self.calls if name in names]

    def place(self, device) -> torch.device:
        """Return a torch.device with an index. Raises RuntimeError for a missing GPU."""
        if device is None or isinstance(device, int):
            device = torch.device("cuda", self.current if device is None else device)
        device = torch.device(device)
        if device.type == "cpu":
            return device
        index = self.current if device.index is None else device.index
        if index >= len(self.names):
            raise RuntimeError("CUDA error: invalid device ordinal")
        return torch.device("cuda", index)

    def wait(self, cause: str) -> None:
        if self.debug_mode in (2, "error"):
            raise RuntimeError(f"called a synchronizing CUDA operation: {cause}")
        self.waits.append(cause)

    def note_copy(self, tensor: torch.Tensor, target: torch.device, blocking: bool) -> None:
        """Record a copy. The host waits for a blocking one between a GPU and the CPU."""
        source = place_of(tensor)
        if source == target:
            if source != CPU:
                self.clock.compute(source, "copy_")
            return
        self.copies.append((str(source), str(target), tensor.nbytes))
        if blocking and CPU in (source, target):
            self.wait(f"copy from {source} to {target}")
        pageable = source == CPU and not getattr(
            tensor, "pinned", False
        )  # the driver copies it before the call returns
        self.clock.copy(source, target, blocking or pageable)

    def synchronize(self, device=None) -> None:
        self.clock.synchronize(self.place(device))
        self.call("synchronize", str(self.place(device)), self.clock.now())

    def hold(self, tensor: torch.Tensor, place: torch.device) -> None:
        """Count a tensor's memory on a device until the tensor is freed."""
        storage = tensor.untyped_storage()
        if not hasattr(storage, "place"):
            storage.place = place
            weakref.finalize(storage, self.free, place, storage.nbytes())
            self.free(place, -storage.nbytes())

    def free(self, place: torch.device, size: int) -> None:
        self.held[place] -= size
        self.peaks[place] = max(self.peaks[place], self.held[place])

    def reset_peak(self, device=None) -> None:
        place = self.place(device)
        self.peaks[place] = self.held[place]

    def set_device(self, device) -> None:
        self.current = self.place(device).index
        self.call("set_device", self.current)


gpus = Gpus([])
to_the_end = contextlib.ExitStack()


class Pretended(torch.Tensor):
    """A tensor on a pretended GPU. place: its device. held: its values, on the CPU."""

    @staticmethod
    def __new__(cls, held, place):
        same = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        same["requires_grad"] = held.requires_grad
        tensor = torch.Tensor._make_wrapper_subclass(cls, held.shape, device=CPU, **same)  # C++ has no CUDA
        tensor.held, tensor.place = held, place
        gpus.hold(held, place)
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl
    device, is_cuda, is_cpu = property(lambda self: self.place), property(lambda _: True), property(lambda _: False)

    def __tensor_flatten__(self):  # lets nn.Module.to() replace parameters
        return ["held"], self.place

    @staticmethod
    def __tensor_unflatten__(inner, place, *_):
        return Pretended(inner["held"], place)

    def __reduce_ex__(self, protocol):  # as loaded by torch.load(map_location="cpu")
        return self.held.__reduce_ex__(protocol)

    def get_device(self):
        return self.place.index

    def to(self, *arguments, **options):
        return moved(self, *arguments, **options)

    def cpu(self):
        return moved(self, CPU)

    def tolist(self):
        gpus.wait("tolist")
        gpus.clock.used[self.place].synchronize()
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, operator.overloadpacket.__name__
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if name == "copy_":
            target, source, blocking = args[0], args[1], not (len(args) > 2 and args[2])
            gpus.note_copy(source, place_of(target), blocking)
            plain(target).copy_(plain(source))
            return target
        places = {place_of(value) for value in tensors if isinstance(value, Pretended)}
        # scalars and indices may be on the CPU
        from_cpu = {CPU for value in tensors if not isinstance(value, Pretended) and value.dim()}
        if len(places) > 1 or (from_cpu and name != "index"):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(sorted(map(str, places | from_cpu)))}! ({operator})"
            )
        (place,) = places
        if place.index in gpus.broken:
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
        if not is_free(operator):
            gpus.clock.compute(place, name)
        if name in WAITING:
            gpus.wait(name)
            gpus.clock.used[place].synchronize()
        if name in ("index", "index_put_") and any(
            index is not None and (index.dtype == torch.bool or place_of(index) == CPU) for index in args[1]
        ):
            gpus.wait(f"{name} by a mask, or by what is on the CPU")
            gpus.clock.used[place].synchronize()
        # CPUs may emulate 16-bit products, which is 40 times slower
        if name == "mm" and args[0].dtype in (torch.bfloat16, torch.float16):
            outputs = operator(*(plain(matrix).float() for matrix in args)).to(args[0].dtype)
        else:
            outputs = operator(*tree_map(plain, args), **tree_map(plain, kwargs))
        outputs = tree_map(lambda value: Pretended(value, place) if isinstance(value, torch.Tensor) else value, outputs)
        return return_and_correct_aliasing(operator, args, kwargs, outputs)


@functools.cache
def is_free(operator) -> bool:
    """Return whether an operation launches no kernel, as it returns a view or uninitialized memory."""
    aliases = [result.alias_info for result in operator._schema.returns]
    return any(alias and not alias.is_write for alias in aliases) or "empty" in operator.overloadpacket.__name__


def plain(value):
    return value.held if isinstance(value, Pretended) else value


def place_of(tensor: torch.Tensor) -> torch.device:
    return tensor.place if isinstance(tensor, Pretended) else CPU


class Move(torch.autograd.Function):
    """A differentiable copy to another device."""

    @staticmethod
    def forward(ctx, value, target, blocking=False):
        ctx.source = place_of(value)
        gpus.note_copy(value, target, blocking)
        held = plain(value.detach()).clone()
        return held if target == CPU else Pretended(held, target)

    @staticmethod
    def backward(ctx, gradient):
        return Move.apply(gradient, ctx.source), None, None


def moved(value, *arguments, copy=False, **options):
    if arguments and isinstance(arguments[0], torch.Tensor):
        arguments = (arguments[0].device, arguments[0].dtype, *arguments[1:])
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*arguments, **options)
    if dtype is not None or layout is not None or copy:
        layout = {} if layout is None else {"memory_format": layout}
        with torch._C.DisableTorchFunction():  # avoids recursion through PretendedFunctions
            value = torch.Tensor.to(value, dtype or value.dtype, copy=copy, **layout)
    target = place_of(value) if device is None else gpus.place(device)
    return value if target == place_of(value) else Move.apply(value, target, not non_blocking)


class PretendedFunctions(TorchFunctionMode):
    """Redirects Tensor.to() and functions with a device argument to pretended GPUs."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.to:
            return moved(*args, **kwargs)
        if kwargs.get("device") is None:
            return function(*args, **kwargs)
        target = gpus.place(kwargs["device"])
        made = function(*tree_map(plain, args), **{**kwargs, "device": CPU})
        if target == CPU or not isinstance(made, torch.Tensor):
            return made
        if function in (torch.tensor, torch.as_tensor):  # copies the host's values
            gpus.note_copy(made, target, blocking=True)
        return Pretended(made, target)


def scatter(tensor, devices, chunk_sizes=None, dim=0, streams=None, *, out=None):
    parts = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    places = map(gpus.place, devices)
    return tuple(
        part if place == place_of(part) else Move.apply(part.detach(), place)
        for part, place in zip(parts, places, strict=False)
    )


def gather(tensors, dim=0, destination=None, *, out=None):
    place = gpus.place(destination)
    return torch.cat(
        [value if place_of(value) == place else Move.apply(value.detach(), place) for value in tensors], dim
    )


def broadcast_coalesced(tensors, devices, buffer_size=0):
    """Return the first device's own tensors, and contiguous copies for the others, as from a flat buffer."""
    first, *others = map(gpus.place, devices)
    if any(place_of(tensor) != first for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {first}")
    tensors = [tensor.detach() for tensor in tensors]
    return [tensors, *([Move.apply(tensor.contiguous(), place) for tensor in tensors] for place in others)]


def parallel_apply(replicas, inputs, kwargs_tup=None, devices=None):
    return [replica(*args, **kwargs) for replica, args, kwargs in zip(replicas, inputs, kwargs_tup, strict=True)]


def group_by_device(lists, with_indices=False):
    groups = {}
    for index, value in enumerate(lists[0]):
        groups.setdefault((value.device, value.dtype), []).append(index)
    return {
        key: ([[values[index] for index in chosen] if values else [] for values in lists], chosen)
        for key, chosen in groups.items()
    }


def pin_memory(data, device=None):
    """Mark the tensors of a batch as pinned, so that the host does not wait for their copies."""
    for part in data:
        part.pinned = True
    gpus.call("pin_memory", *(tuple(part.shape) for part in data))
    return data


def make_graphed_callables(module, sample):
    """Simulate a recording, which is valid for one shape and mode. Like the real function, warm up with three steps."""
    (images,), original, mode = sample, module.forward, module.training
    gpus.call("make_graphed_callables", tuple(images.shape), mode)
    for _ in range(3):
        logits = original(images)
        torch.autograd.grad(logits, [*module.parameters()], torch.zeros_like(logits))

    def forward(batch):
        if module.training != mode:
            return original(batch)
        if batch.shape != images.shape:
            raise RuntimeError(f"a graph of {tuple(images.shape)} cannot take {tuple(batch.shape)}")
        gpus.call("replay")
        return original(batch)

    module.forward = forward
    return module


def properties(device):
    index = gpus.place(device).index
    about = {"major": 9, "minor": 0, "total_memory": 1 << 33, "multi_processor_count": 100}
    return SimpleNamespace(name=gpus.names[index], uuid=f"{index:08}-0000", **about)


@contextlib.contextmanager
def current(device):
    previous, gpus.current = gpus.current, gpus.place(device).index
    try:
        yield
    finally:
        gpus.current = previous


@contextlib.contextmanager
def pretended_gpus(*names: str, costs=None):
    """Give torch.cuda a pretended GPU for each name. Yields the Gpus. costs: see virtual_clock.py."""
    global gpus
    gpus, previous = Gpus(list(names), costs or {}), gpus
    clock, place = gpus.clock, gpus.place

    def set_debug_mode(mode):
        gpus.debug_mode = mode

    changes = {
        torch.cuda: {
            "is_available": lambda: bool(names),
            "device_count": lambda: len(names),
            "current_device": lambda: gpus.current,
            "set_device": gpus.set_device,
            "device": current,
            # distinct functions, as torch._dynamo compares them by identity
            **{name: lambda *_: None for name in ("empty_cache", "_lazy_init")},
            "reset_peak_memory_stats": gpus.reset_peak,
            "max_memory_allocated": lambda device=None: gpus.peaks[place(device)],
            "max_memory_reserved": lambda device=None: -(-gpus.peaks[place(device)] >> 21) << 21,  # by 2 MiB
            "memory_snapshot": lambda: gpus.segments,
            "synchronize": gpus.synchronize,
            "set_sync_debug_mode": set_debug_mode,
            "Event": Event,
            "Stream": lambda device=None, priority=0: clock.new_stream(place(device)),
            "stream": clock.using,
            "current_stream": lambda device=None: clock.used[place(device)],
            "make_graphed_callables": make_graphed_callables,
            "is_current_stream_capturing": lambda: False,
            "get_device_name": lambda device=None: properties(device).name,
            "get_device_properties": properties,
            "mem_get_info": lambda device=None: (1 << 33, 1 << 33),
            # random numbers come from the CPU's generator; the state of each device is its index
            "get_rng_state": lambda device=None: torch.tensor([place(device).index]),
            "set_rng_state": lambda state, device=None: gpus.call("set_rng_state", place(device).index, state.item()),
        },
        torch.cuda.nccl: {"version": lambda: (0, 0), "is_available": lambda tensors: False},
        torch.distributed: {"is_nccl_available": lambda: False},
        torch.accelerator: {
            "is_available": lambda: bool(names),
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: gpus.current,
            "set_device_index": gpus.set_device,
            "current_stream": lambda device=None: clock.used[place(device)],
        },
        torch.utils.data._utils.pin_memory: {"pin_memory": pin_memory},
        torch.Tensor: {"pin_memory": lambda tensor: pin_memory([tensor])[0]},
        time: {"perf_counter": clock.seconds if costs else time.perf_counter},
        torch.version: {"cuda": torch.version.cuda or "0.0"},  # torchvision compares it with its own
        comm: {"scatter": scatter, "gather": gather, "broadcast_coalesced": broadcast_coalesced},
        sys.modules["torch.nn.parallel.data_parallel"]: {"parallel_apply": parallel_apply},
        optimizer: {"_group_tensors_by_device_and_dtype": group_by_device},
    }
    with contextlib.ExitStack() as stack:
        for module, values in changes.items():
            stack.enter_context(mock.patch.multiple(module, **values))
        stack.enter_context(PretendedFunctions())
        try:
            yield gpus
        finally:
            gpus = previous


class PatientStopwatch(Stopwatch):
    """A Stopwatch that fails if the host waits for a pretended GPU while it runs."""

    def __enter__(self):
        super().__enter__()
        torch.cuda.set_sync_debug_mode("error")
        return self

    def __exit__(self, *_):
        torch.cuda.set_sync_debug_mode("default")
        super().__exit__(*_)


def environment_with(count: int, directory: Path) -> dict[str, str]:
    """Return variables that give a process and its children `count` GPUs. directory: receives a sitecustomize.py."""
    project = str(Path(__file__).parent.parent)
    every_process = f"import sys; sys.path.append({project!r}); from tests.pretended_gpus import stay; stay()"
    (directory / "sitecustomize.py").write_text(every_process)
    return {"PYTHONPATH": str(directory), VARIABLE: str(count)}


def stay() -> None:
    """Give this process the GPUs of its environment until it ends."""
    names = [f"Pretended {index}" for index in range(int(os.environ[VARIABLE]))]
    to_the_end.enter_context(pretended_gpus(*names))
