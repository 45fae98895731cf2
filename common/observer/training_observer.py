"""Records what a training script does in each step, through torch's own hooks.

A step ends when the optimizer that stepped first steps again. Whatever happens between model.eval() and model.train(),
or without gradients, is evaluation and belongs to no step. Samples are counted in the batches of a DataLoader, or in
the network's first argument if there is none, or if steps use a batch again.
"""

import atexit
import functools
import gc
import glob
import json
import os
import platform
import resource
import sys
import threading
import time
import weakref

TURNS = "PARALLEL_TRAINING_TURNS"  # environment variable: the directory with the FIFOs of common.machine.turns
PHASES = ("data", "forward", "backward", "exchange", "update", "rest")
RING = 500  # last steps of a slice that are kept individually
LOOKS = 3  # steps until the networks that the script calls, and the last gradient, are known
FORGOTTEN = 100  # updates by each of the others after which the first optimizer is not used any more, though it exists


def sample_count(batch, usual=0):
    """Return the number of samples in a batch: the length of its first tensor, or of lists of the usual length.

    usual: the batch size of a DataLoader, returned if there is no tensor either.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    first = next(iter(parts), None)
    if isinstance(first, (list, tuple, dict)) and usual in (len(parts), len(first)):
        return usual
    return next((count for count in map(sample_count, parts) if count), usual)


def samples_of(counts):
    """Return the samples of some steps, given those that each step fetched, and those that the network got."""
    if all(data == forward for data, forward in counts if data):
        return sum(forward for _, forward in counts)
    return sum(data for data, _ in counts)  # the network gets several samples for one, or parts of it


def opaque(function):
    """Keep torch.compile() from tracing this function when compiled code calls it."""
    function._torchdynamo_disable = True
    return function


def queue_seconds():
    """Return how long each thread has waited for a core: the second number in Linux's schedstat."""
    queued = {}
    for name in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(name) as file:
                queued[name] = int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # the thread has just ended, or the kernel lacks these numbers
            pass
    return queued


class Observer:
    """The steps of this process. A mark is (phase, time of its end, samples); the phase "" belongs to no phase."""

    def __init__(self, torch, directory, change):
        self.torch, self.directory, self.change = torch, directory, change
        self.clock, self.device, self.devices = time.perf_counter, None, []
        self.rank, self.world, self.file = 0, 1, ""
        self.marks, self.ends = [], []  # ends: the number of marks at the end of each step in the slice
        self.recording = self.paused = self.gradients_done = False
        self.left_out, self.aside = False, None  # whether the slice contains evaluation; CPU time when it began
        self.outer_phase, self.backward_depth = "rest", 0  # outer_phase: of the time between the other hooks
        self.evaluation_start = self.fetch_start = None  # indices into marks
        self.dataset = 0
        self.iterator, self.evaluates = lambda: None, False  # of the latest batch, and its use
        self.recent = weakref.WeakSet()  # iterators used since the last backward pass
        self.training = weakref.WeakSet()  # all iterators that are used for training
        self.loaders = weakref.WeakKeyDictionary()  # by iterator
        self.thread = None  # that trains; others may prefetch, during its turns
        self.turn = threading.Event()
        self.turn.set()
        self.looked, self.looks = False, 0  # whether this step has a pass without gradients, and how many steps had one
        self.optimizers = weakref.WeakSet()
        self.step_optimizer, self.others = lambda: None, 0  # step_optimizer: its steps are counted
        self.network_hooks, self.gradient_hooks = [], []
        self.gradient_of, self.last_gradients = lambda: None, {}  # the latest; by id, the last ones of backward passes
        self.current_network, self.sample_network = None, lambda: None  # sample_network: its samples are counted
        self.called_networks, self.hooked = weakref.WeakSet(), weakref.WeakSet()
        self.about = {"parameters": 0, "dtype": "", "optimizer": "", "optimizers": 0}
        self.trained = self.to_skip = self.slice_steps = self.settle_after = 0  # numbers of steps
        self.loader_seconds = 0.0  # how long to time the loader alone after a slice

    # ---- marks

    def mark(self, phase, samples=0):
        if self.recording and not self.paused and not self.captures():
            self.marks.append((phase, self.clock(), samples))

    def captures(self):
        """Return whether a CUDA graph is being recorded, whose events have no times."""
        return self.device and self.torch.cuda.is_current_stream_capturing()

    def pause(self, start):
        """Drop the marks of this step from index `start`, where evaluation began, and record no more."""
        if self.recording and not self.paused:
            del self.marks[max(start, self.ends[-1] if self.ends else 1) :]
            self.paused = self.left_out = True
            self.aside = self.aside or time.process_time()

    def unpause(self):
        if self.paused:
            self.paused = False
            self.cpu += time.process_time() - self.aside
            self.aside = None
            self.mark("")

    # ---- hooks and wrappers

    @opaque
    def start_loader(self, start, loader):
        trains = not self.prefetches()
        if trains:
            self.mark(self.outer_phase)
        iterator = start(loader)
        self.loaders[iterator] = loader
        if trains:
            self.mark("data")
        return iterator

    def prefetches(self):
        """Return whether this thread is not the one that trains. What it does meanwhile is no part of a step."""
        return self.thread not in (None, threading.get_ident())

    def trains(self):
        """Return whether the latest batch is from a loader that is used for training."""
        return self.iterator() in self.training

    @opaque
    def fetch(self, fetch, iterator):
        if self.prefetches():
            self.turn.wait()
            return fetch(iterator)
        if iterator is not self.iterator():
            self.drop_unused_batch(iterator)
            self.iterator, self.evaluates = weakref.ref(iterator), False
        self.evaluates = not self.trains() and (self.evaluates or not self.torch.is_grad_enabled())
        self.mark(self.outer_phase)
        if self.evaluates:
            self.recent.discard(iterator)
            self.pause(len(self.marks))
            return fetch(iterator)
        self.unpause()
        start = len(self.marks)
        try:
            batch = fetch(iterator)
        except StopIteration:
            self.recent.discard(iterator)
            self.mark("data")
            raise
        self.recent.add(iterator)
        self.fetch_start = start if self.fetch_start is None else self.fetch_start
        sampler = getattr(self.loaders.get(iterator), "batch_sampler", None)
        self.mark("data", sample_count(batch, getattr(sampler, "batch_size", None) or 0))
        return batch

    def drop_unused_batch(self, iterator):
        """Do not count a batch that a script only inspects before it iterates over the same data again."""
        before, self.dataset = self.dataset, id(iterator._dataset)
        if self.fetch_start is not None and before == self.dataset and not self.trains():
            fetched = self.marks[self.fetch_start :]
            if all(phase != "forward" for phase, *_ in fetched):
                self.marks[self.fetch_start :] = [(phase, mark, 0) for phase, mark, _ in fetched]

    def before_forward(self, module, given, named):
        """Of nested networks, only the outermost counts. What a backward pass recomputes does not."""
        if self.backward_depth or self.current_network is not None or self.torch.compiler.is_compiling():
            return  # compiled code cannot be split: its forward pass counts as "rest"
        if not self.torch.is_grad_enabled():
            self.looked = self.looked or not self.trains()
            if not (self.trains() or (self.trained >= LOOKS and 2 * self.looks > self.trained)):  # rare in this script
                self.evaluates = True
                self.mark(self.outer_phase)
                self.pause(len(self.marks) if self.fetch_start is None else self.fetch_start)
            return
        self.current_network = module
        if self.network_hooks:
            self.called_networks.add(module)
            self.sample_network = self.sample_network if self.sample_network() is not None else weakref.ref(module)
        self.unpause()
        self.mark(self.outer_phase)

    def after_forward(self, module, given, named, result):
        if not self.torch.compiler.is_compiling() and module is self.current_network:
            self.current_network = None
            counts = module is self.sample_network()  # other networks may get the same samples
            self.mark("forward", sample_count([*given, *named.values()]) if counts else 0)

    @opaque
    def backward(self, call, *arguments, **named):
        if self.backward_depth == 0:
            self.thread = self.thread or threading.get_ident()  # torch may call an optimizer from a thread of its own
            self.unpause()
            self.evaluation_start = self.fetch_start = self.aside = None
            self.gradients_done = self.evaluates = False
            self.training.update(self.recent)
            self.recent.clear()
            self.mark(self.outer_phase)
        self.backward_depth += 1
        try:
            return call(*arguments, **named)
        finally:
            self.backward_depth -= 1
            if self.backward_depth == 0:
                self.mark("exchange" if self.gradients_done else "backward")
                self.last_gradients[id(self.gradient_of())] = self.gradient_of

    @opaque
    def collective(self, call, *arguments, **named):
        """Call a collective operation. It counts as exchange, unless it is part of a backward pass."""
        counts = not (self.backward_depth or self.prefetches())
        if counts:
            self.mark("forward" if self.current_network is not None else self.outer_phase)
        result = call(*arguments, **named)
        if counts:
            self.mark("exchange")
        return result

    @opaque
    def gradient(self, parameter):
        self.gradient_of, self.gradients_done = weakref.ref(parameter), True
        if self.backward_depth == 1:
            self.mark("backward")

    @opaque
    def switch(self, evaluates):
        """Handle model.eval() or model.train()."""
        if evaluates:
            if self.evaluation_start is None and not self.paused:
                self.mark(self.outer_phase)
                self.evaluation_start, self.aside = len(self.marks), time.process_time()
        elif self.evaluation_start is not None or self.paused:
            self.pause(self.evaluation_start or 0)
            self.evaluation_start = None
            self.unpause()

    @opaque
    def before_update(self, optimizer, arguments, named):
        self.unpause()
        self.mark(self.outer_phase)
        self.outer_phase = "exchange"
        closure = named.get("closure") or next(iter(arguments[1:]), None)  # arguments[0] is the optimizer
        if not closure and self.change.exchange(optimizer):
            self.mark("exchange")
        self.outer_phase = "update"
        if closure and self.change.ranks:
            return arguments[:1], {**named, "closure": functools.partial(self.exchange_after, closure, optimizer)}

    def exchange_after(self, closure, optimizer):
        """Call a closure, and exchange the gradients that it computes."""
        loss = closure()
        self.mark("update")
        self.change.exchange(optimizer)
        self.mark("exchange")
        return loss

    @opaque
    def after_update(self, optimizer, arguments, named):
        self.mark("update")
        self.outer_phase = "rest"
        gone = self.step_optimizer() is None
        forgotten = not gone and self.others >= FORGOTTEN * len(self.optimizers)
        if first := gone or forgotten:
            self.step_optimizer = weakref.ref(optimizer)
        steps = optimizer is self.step_optimizer()
        self.others = 0 if steps else self.others + 1
        if first and not self.file:
            self.thread = self.thread or threading.get_ident()
            self.find_rank(optimizer)
        if optimizer not in self.optimizers:
            self.optimizers.add(optimizer)
            self.watch(optimizer)
            self.mark("")  # the observer's own time
        if first and not self.file:
            self.begin()
        elif forgotten:
            self.begin_slice()  # the steps of the others would count as one
        elif steps:
            self.end_step()

    # ---- what is trained

    def find_rank(self, optimizer):
        """Find this process's rank, the number of ranks, and its GPU."""
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        else:
            self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        if first is not None and first.device.type == "cuda":
            self.clock, self.device = self.event, first.device

    def watch(self, optimizer):
        """Hook the networks that an optimizer trains, and the gradients of its parameters."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = {id(p) for p in parameters}
        modules = [some for some in gc.get_objects() if issubclass(type(some), self.torch.nn.Module)]
        modules = [some for some in modules if "_parameters" in vars(some)]  # else __init__() has not run yet
        owners = [some for some in modules if any(id(p) in trained for p in some.parameters())]
        if not owners:  # the optimizer has copies of the parameters, as DeepSpeed's ZeRO does
            owners = [some for some in modules if any(p.requires_grad for p in some.parameters())]
        compiled = [some for some in owners if some._compiled_call_impl or "_orig_mod" in some._modules]
        inside = {id(child) for some in compiled for child in some.modules() if child is not some}
        for network in owners:
            devices = getattr(network, "device_ids", None) or ()
            self.devices += [f"cuda:{n}" if isinstance(n, int) else str(n) for n in devices]
            if id(network) not in inside and network not in self.hooked and not network._compiled_call_impl:
                self.hooked.add(network)
                before = network.register_forward_pre_hook(self.before_forward, with_kwargs=True)
                after = network.register_forward_hook(self.after_forward, with_kwargs=True, always_call=True)
                self.network_hooks.append((network, before, after))
        devices = dict.fromkeys([*self.devices, *(str(p.device) for p in parameters)])
        self.devices = [name for name in devices if name != "cpu"] or [*devices]
        distinct = {id(p): p for some in self.optimizers for group in some.param_groups for p in group["params"]}
        self.about["parameters"] = sum(p.numel() for p in distinct.values())
        self.about["dtype"] = self.about["dtype"] or str(parameters[0].dtype).replace("torch.", "")
        self.about["optimizer"] = self.about["optimizer"] or type(optimizer).__name__
        self.about["optimizers"] = len(self.optimizers)
        self.settle_after = self.trained + LOOKS
        if self.world > 1:
            for p in parameters:
                if p.requires_grad and p.is_leaf:
                    self.gradient_hooks.append(p.register_post_accumulate_grad_hook(self.gradient))

    def settle(self):
        """Keep only the hooks of the networks that the script calls and of the last gradients of backward passes."""
        for network, *hooks in self.network_hooks:
            if network in self.called_networks:
                self.change.network(network, self.optimizers)
            else:
                self.hooked.discard(network)
                for hook in hooks:
                    hook.remove()
        self.network_hooks = []
        for hook in self.gradient_hooks:
            hook.remove()
        last = [parameter for known in self.last_gradients.values() if (parameter := known()) is not None]
        self.gradient_hooks = [each.register_post_accumulate_grad_hook(self.gradient) for each in last]

    # ---- steps and slices

    def begin(self):
        """After the first step, write the header and start the warm-up slice."""
        self.read_plan()
        file = os.path.join(self.directory, f"rank-{self.rank}.jsonl")
        if os.path.exists(file):  # of several trainings in a script, only the first is observed
            return
        self.file = file
        versions = {"torch": self.torch.__version__, "python": platform.python_version()}
        self.write({"first_step": time.time(), "world": self.world, **versions})
        atexit.register(self.end)
        self.begin_slice()

    def event(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def milliseconds(self, before, after):
        return before.elapsed_time(after) if self.device else 1000 * (after - before)

    def begin_slice(self):
        self.synchronize()
        self.paused, self.left_out, self.recording, self.ends = False, False, True, []
        self.evaluation_start = self.fetch_start = self.aside = None
        for device in self.devices:
            if device.startswith("cuda"):
                self.torch.cuda.reset_peak_memory_stats(device)
        self.start, self.cpu, self.queued = time.monotonic(), time.process_time(), queue_seconds()
        self.marks = [("", self.clock(), 0)]

    def end_step(self):
        if not self.file or self.captures():
            return
        self.trained += 1
        self.looks += self.looked
        self.looked = False
        if self.trained == self.settle_after:
            self.settle()
        if self.to_skip:
            self.to_skip -= 1
            if not self.to_skip:
                self.begin_slice()
            return
        self.ends.append(len(self.marks))
        self.cpu_at_end = time.process_time()
        if len(self.ends) == self.slice_steps:
            self.end_slice()
            self.wait()

    def end_slice(self):
        self.synchronize()
        self.recording = False
        queued = {thread: s - self.queued.get(thread, 0.0) for thread, s in queue_seconds().items()}
        series, evaluated, counts, start, before = [], [], [], 1, self.marks[0][1]
        for end in self.ends:
            step, samples = {**dict.fromkeys(PHASES, 0.0), "": 0.0}, {"data": 0, "forward": 0}
            for phase, mark, count in self.marks[start:end]:
                step[phase] += self.milliseconds(before, mark)
                if count:
                    samples[phase] += count
                before = mark
            start = end
            series.append([step[phase] for phase in PHASES])
            evaluated.append(step[""])
            counts.append((samples["data"], samples["forward"]))
        complete = len(self.ends) == self.slice_steps and not self.left_out
        sizes = [samples_of([count]) for count in counts]
        cuda, gpus = self.torch.cuda, [device for device in self.devices if device.startswith("cuda")]
        totals = {phase: sum(step[column] for step in series) for column, phase in enumerate(PHASES)}
        record = {
            "steps": len(series),
            "seconds": sum(totals.values()) / 1000,
            "samples": samples_of(counts),
            "phases": totals,
            "series": series[-RING:],
            "evaluated": evaluated[-RING:],
            "batch": max(sizes, key=sizes.count),
            "cpu_seconds": self.cpu_at_end - self.cpu,
            # these would contain evaluation, or what follows the last step
            "queue_seconds": sum(queued.values()) if queued and complete else None,
            "start": self.start if complete else None,
            **self.about,
            "threads": self.torch.get_num_threads(),
            "workers": self.workers()[0],
            "devices": self.devices,
            "gpu_uuids": [uuid_of(cuda.get_device_properties(gpu)) for gpu in gpus],
            "peaks": [cuda.max_memory_allocated(gpu) for gpu in gpus] or [peak_bytes()],
            "reserved": [cuda.max_memory_reserved(gpu) for gpu in gpus],
            "batches": sum(phase == "data" and count > 0 for phase, _, count in self.marks) / len(series),
            "loader": self.loader_milliseconds(),
        }
        self.write(record)
        self.marks, self.ends = [], []

    def wait(self):
        """Wait for the next turn and read its plan."""
        turns = os.environ[TURNS]
        self.turn.clear()
        if self.rank == 0 and self.device:  # the next row starts if there is room for it
            with open(os.path.join(turns, "free"), "w") as free:
                free.write(str(self.torch.cuda.mem_get_info(self.device)[0]))
        with open(os.path.join(turns, "idle"), "wb", buffering=0) as idle:
            idle.write(b"\0")
        with open(os.path.join(turns, "start"), "rb", buffering=0) as start:
            start.read(1)
        self.turn.set()
        self.read_plan()
        workers, each = self.workers()
        self.to_skip = workers * each + 1  # batches that workers loaded meanwhile, and a step with cold caches

    def read_plan(self):
        with open(os.path.join(self.directory, "plan.json")) as file:
            plan = json.load(file)
        self.slice_steps, self.loader_seconds = plan["steps"], plan["alone"]

    def loader_milliseconds(self):
        """Return the milliseconds per batch of the latest loader alone, if the plan asks for it."""
        iterator = self.iterator() if self.loader_seconds else None
        if iterator is None or iterator not in self.loaders:
            return None
        loader, (workers, each) = self.loaders[iterator], self.workers()
        start, fetched = time.perf_counter(), -1 - workers * each  # workers start, and fill their queues
        while True:
            before = fetched
            for _ in loader:
                fetched += 1
                seconds = time.perf_counter() - start
                if fetched == 0:
                    start = time.perf_counter()
                elif fetched > 0 and seconds >= self.loader_seconds:
                    return 1000 * seconds / fetched
            if fetched == before:  # the loader is exhausted
                return None

    def workers(self):
        """Return how many workers load for this rank, and how many batches each prefetches."""
        iterator = self.iterator()
        workers = getattr(iterator, "_num_workers", 0)
        return workers, workers and getattr(iterator, "_prefetch_factor", 0)

    def synchronize(self):
        for device in self.devices if self.device else ():
            if device.startswith("cuda"):
                self.torch.cuda.synchronize(device)

    def write(self, record):
        with open(self.file, "a") as file:
            file.write(json.dumps(record) + "\n")

    def end(self):
        """At the end of the script, write the steps of an incomplete slice."""
        if self.recording and self.ends:
            self.end_slice()


def uuid_of(gpu):
    """Return the UUID of a GPU, as nvidia-smi -L prints it."""
    kind = "MIG" if " MIG " in gpu.name else "GPU"
    return f"{kind}-{getattr(gpu, 'uuid', '')}"


def peak_bytes():
    """Return the peak memory of this process."""
    try:  # the maximum of getrusage() may be that of the process that started this one
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
