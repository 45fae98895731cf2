"""What a training script does, step by step, as torch's own hooks tell it.

A step ends where the first optimizer that stepped does so again. What a script does between model.eval() and
model.train(), or with gradients off, is evaluation, and in no step. Samples are counted from the batches of a
DataLoader, or, where none is used, from the first argument of the network.
"""

import atexit
import gc
import json
import os
import platform
import sys
import time
import weakref

TURNS = "PARALLEL_TRAINING_TURNS"  # environment variable: the directory with the FIFOs of common.machine.turns
PHASES = ("data", "forward", "backward", "exchange", "update", "rest")
RING = 500  # steps of a slice that are kept one by one, the last ones
LOOKS = 3  # steps after which it is known which networks a script calls, and which gradient comes last


def number_of(batch):
    """Return how many samples a batch has: the length of the first tensor in it."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, str):
        return 0
    parts = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return next((number for number in map(number_of, parts) if number), 0)


def opaque(function):
    """Keep torch.compile() from tracing a function that a compiled one calls; read by torch._dynamo."""
    function._torchdynamo_disable = True
    return function


def queue_seconds():
    """By thread, how long it was ready to run and had no core: the second number of Linux's schedstat."""
    waited = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                waited[thread] = int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # a thread that has just ended; a kernel without these numbers
        pass
    return waited


class Observer:
    """The steps of this process. A mark is (phase, when it ended, samples of its batch); "" is in no phase."""

    def __init__(self, torch, directory, change):
        self.torch, self.directory, self.change = torch, directory, change
        self.clock, self.device, self.devices = time.perf_counter, None, []
        self.rank, self.world, self.file = 0, 1, ""
        self.marks, self.ends = [], []  # and by how many marks each step of the slice ended
        self.recording = self.paused = self.ended_gradients = False
        self.outer, self.depth = "rest", 0
        self.evaluated_from = self.fetched_from = None  # places in marks
        self.dataset = 0
        self.iterator, self.evaluates, self.trains = lambda: None, False, False  # of the latest batch; what it is for
        self.loaders = weakref.WeakKeyDictionary()  # by iterator
        self.counted, self.optimizers, self.last_gradient, self.handles = lambda: None, [], None, []
        self.network, self.first = None, lambda: None  # inside which one it is; that whose samples count
        self.called, self.hooks = weakref.WeakSet(), []  # what was seen in the first steps; a network with its handles
        self.about = {"parameters": 0, "dtype": "", "optimizer": "", "optimizers": 0}
        self.trained = self.steps = self.skipped = self.wanted = self.settled = 0
        self.alone = 0.0  # seconds for which the loader is timed alone after a slice

    # ---- marks

    def mark(self, phase, samples=0):
        if self.recording and not self.paused:
            self.marks.append((phase, self.clock(), samples))

    def pause(self, place):
        """Evaluation began at that place of the marks."""
        if self.recording and not self.paused:
            del self.marks[max(place, self.ends[-1] if self.ends else 1) :]
            self.paused = True

    def go_on(self):
        """Training goes on."""
        if self.paused:
            self.paused = False
            self.mark("")

    # ---- what a script does

    @opaque
    def start_loader(self, start, loader):
        self.mark(self.outer)
        iterator = start(loader)
        self.loaders[iterator] = loader
        self.mark("data")
        return iterator

    @opaque
    def fetch(self, fetch, iterator):
        if iterator is not self.iterator():
            self.drop_unused_batch(iterator)
            self.iterator, self.evaluates, self.trains = weakref.ref(iterator), False, False
        self.evaluates = not self.trains and (self.evaluates or not self.torch.is_grad_enabled())
        self.mark(self.outer)
        if self.evaluates:
            self.pause(len(self.marks))
            return fetch(iterator)
        self.go_on()
        place = len(self.marks)
        try:
            batch = fetch(iterator)
        except StopIteration:
            self.mark("data")
            raise
        self.fetched_from = place if self.fetched_from is None else self.fetched_from
        self.mark("data", number_of(batch))
        return batch

    def drop_unused_batch(self, iterator):
        """Do not count the samples of a batch at which a script only looked, before it began the same data anew."""
        before, self.dataset = self.dataset, id(iterator._dataset)
        if self.fetched_from is not None and before == self.dataset:
            fetched = self.marks[self.fetched_from :]
            if all(phase != "forward" for phase, *_ in fetched):
                self.marks[self.fetched_from :] = [(phase, mark, 0) for phase, mark, _ in fetched]

    def before_forward(self, module, given, named):
        """Of networks in one another only the outermost that is called counts, and nothing that backward recomputes."""
        if self.depth or self.network is not None or self.torch.compiler.is_compiling():
            return  # a compiled function is not cut in pieces: the forward pass in it is in the rest
        if not self.torch.is_grad_enabled():
            if not self.trains:
                self.evaluates = True
                self.mark(self.outer)
                self.pause(len(self.marks) if self.fetched_from is None else self.fetched_from)
            return
        self.network = module
        if self.hooks:
            self.called.add(module)
            self.first = self.first if self.first() is not None else weakref.ref(module)
        self.go_on()
        self.mark(self.outer)

    def after_forward(self, module, given, named, result):
        if not self.torch.compiler.is_compiling() and module is self.network:
            self.network = None
            own = module is self.first()  # samples that one network hands to the next are the same
            self.mark("forward", number_of([*given, *named.values()]) if own else 0)

    @opaque
    def backward(self, call, *arguments, **named):
        if self.depth == 0:
            self.go_on()
            self.evaluated_from = self.fetched_from = None
            self.ended_gradients = self.evaluates = False
            self.trains = self.iterator() is not None
            self.mark(self.outer)
        self.depth += 1
        try:
            return call(*arguments, **named)
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.mark("exchange" if self.ended_gradients else "backward")

    @opaque
    def gradient(self, parameter):
        self.last_gradient = weakref.ref(parameter)
        self.ended_gradients = True
        if self.depth == 1:
            self.mark("backward")

    @opaque
    def switch(self, evaluates):
        """model.eval() or model.train()."""
        if evaluates:
            if self.evaluated_from is None and not self.paused:
                self.mark(self.outer)
                self.evaluated_from = len(self.marks)
        elif self.evaluated_from is not None or self.paused:
            self.pause(self.evaluated_from or 0)
            self.evaluated_from = None
            self.go_on()

    @opaque
    def before_update(self, optimizer, arguments, named):
        self.go_on()
        self.mark(self.outer)
        if self.change.exchange(optimizer):
            self.mark("exchange")
        self.outer = "update"

    @opaque
    def after_update(self, optimizer, arguments, named):
        self.mark("update")
        self.outer = "rest"
        if first := self.counted() is None:
            self.counted = weakref.ref(optimizer)
            self.find_place(optimizer)
        if not any(optimizer is known() for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
            self.look_into(optimizer)
        if first:
            self.begin()
        elif optimizer is self.counted():
            self.end_step()

    # ---- steps and slices

    def find_place(self, optimizer):
        """Find out which rank this is, of how many, and whether on a GPU."""
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        else:
            self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        if first is not None and first.device.type == "cuda":
            self.clock, self.device = self.event, first.device

    def begin(self):
        """The first step is over: say what this rank is, and warm up."""
        self.read_plan()
        if not self.file:
            file = os.path.join(self.directory, f"rank-{self.rank}.jsonl")
            if os.path.exists(file):  # a script that starts several trainings is observed in the first
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

    def look_into(self, optimizer):
        """Find the networks that an optimizer trains, and the gradients that may come last."""
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        modules = [some for some in gc.get_objects() if issubclass(type(some), self.torch.nn.Module)]
        modules = [some for some in modules if "_parameters" in vars(some)]  # else it is not made yet
        owners = [some for some in modules if any(id(p) in trained for p in some.parameters())]
        if not owners:  # it has copies of its own, as DeepSpeed's ZeRO
            owners = [some for some in modules if any(p.requires_grad for p in some.parameters())]
        compiled = [some for some in owners if some._compiled_call_impl or "_orig_mod" in some._modules]
        inside = {id(child) for some in compiled for child in some.modules() if child is not some}
        for network in owners:
            devices = getattr(network, "device_ids", None) or ()
            self.devices += [f"cuda:{n}" if isinstance(n, int) else str(n) for n in devices]
            if id(network) not in inside and not network._compiled_call_impl:
                before = network.register_forward_pre_hook(self.before_forward, with_kwargs=True)
                after = network.register_forward_hook(self.after_forward, with_kwargs=True, always_call=True)
                self.hooks.append((network, before, after))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.about = {
            "parameters": self.about["parameters"] + sum(p.numel() for p in parameters),
            "dtype": self.about["dtype"] or str(parameters[0].dtype).replace("torch.", ""),
            "optimizer": self.about["optimizer"] or type(optimizer).__name__,
            "optimizers": self.about["optimizers"] + 1,
        }
        self.devices = list(dict.fromkeys([*self.devices, *(str(p.device) for p in parameters)]))
        self.settled = self.trained + LOOKS
        if self.world > 1:
            for p in parameters:
                if p.requires_grad and p.is_leaf:
                    self.handles.append(p.register_post_accumulate_grad_hook(self.gradient))

    def settle(self):
        """From now on look at the networks alone that the script calls, and at the gradient that comes last."""
        optimizers = [some for known in self.optimizers if (some := known()) is not None]
        for network, *handles in self.hooks:
            if network in self.called:
                self.change.network(network, optimizers)
            else:
                for handle in handles:
                    handle.remove()
        self.hooks = []
        last = self.last_gradient() if self.last_gradient else None
        for handle in self.handles:
            handle.remove()
        self.handles = [last.register_post_accumulate_grad_hook(self.gradient)] if last is not None else []

    def begin_slice(self):
        self.synchronize()
        self.paused, self.recording, self.steps, self.ends = False, True, 0, []
        self.evaluated_from = self.fetched_from = None
        self.started, self.computed, self.waited = time.monotonic(), time.process_time(), queue_seconds()
        self.marks = [("", self.clock(), 0)]

    def end_step(self):
        if not self.file:
            return
        self.trained += 1
        if self.trained == self.settled:
            self.settle()
        if self.skipped:
            self.skipped -= 1
            if not self.skipped:
                self.begin_slice()
            return
        self.steps += 1
        self.ends.append(len(self.marks))
        if self.steps == self.wanted:
            self.end_slice()
            self.wait()

    def end_slice(self):
        """Write down what the steps of a slice took."""
        self.synchronize()
        self.recording = False
        cpu, waited = time.process_time() - self.computed, queue_seconds()
        series, samples, place, before = [], {"data": 0, "forward": 0}, 1, self.marks[0][1]
        for end in self.ends:
            step = dict.fromkeys(PHASES, 0.0)
            for phase, mark, number in self.marks[place:end]:
                if phase:
                    step[phase] += self.milliseconds(before, mark)
                if number:
                    samples[phase] += number
                before = mark
            place = end
            series.append([step[phase] for phase in PHASES])
        totals = {phase: sum(step[place] for step in series) for place, phase in enumerate(PHASES)}
        record = {
            "steps": len(series),
            "seconds": sum(totals.values()) / 1000,
            "samples": samples["data"] or samples["forward"],
            "phases": totals,
            "series": series[-RING:],
            "cpu_seconds": cpu,
            "queue_seconds": sum(s - self.waited.get(thread, 0.0) for thread, s in waited.items()) if waited else None,
            "start": self.started,
            **self.describe(),
            "loader": self.loader_milliseconds(),
        }
        self.write(record)
        self.marks, self.ends = [], []

    def describe(self):
        """What this rank trains, with what."""
        cuda = [device for device in self.devices if device.startswith("cuda")]
        peaks, reserved, gpus = [], [], []
        for device in cuda:
            peaks.append(self.torch.cuda.max_memory_allocated(device))
            reserved.append(self.torch.cuda.max_memory_reserved(device))
            about = self.torch.cuda.get_device_properties(device)
            kind = "MIG" if " MIG " in about.name else "GPU"
            gpus.append(f"{kind}-{getattr(about, 'uuid', '')}")  # as nvidia-smi -L prints it
        return {
            **self.about,
            "threads": self.torch.get_num_threads(),
            "workers": self.workers()[0],
            "devices": self.devices,
            "gpu_uuids": gpus,
            "peaks": peaks or [peak_bytes()],
            "reserved": reserved,
        }

    def wait(self):
        """Wait for the next turn; it says how many steps the next slice has."""
        turns = os.environ[TURNS]
        with open(os.path.join(turns, "idle"), "wb", buffering=0) as told:
            told.write(b"\0")
        with open(os.path.join(turns, "start"), "rb", buffering=0) as given:
            given.read(1)
        self.read_plan()
        workers, each = self.workers()
        self.skipped = workers * each + 1  # the batches that workers loaded meanwhile; caches that others have used

    def read_plan(self):
        with open(os.path.join(self.directory, "plan.json")) as file:
            plan = json.load(file)
        self.wanted, self.alone = plan["steps"], plan["alone"]

    def loader_milliseconds(self):
        """Per batch, if the plan asks for it, of the loader that the script used last, with nothing beside it."""
        iterator = self.iterator() if self.alone else None
        if iterator is None or iterator not in self.loaders:
            return None
        loader, (workers, each), more = self.loaders[iterator], self.workers(), True
        started, fetched = time.perf_counter(), -1 - workers * each  # workers start, and fill their queues
        while more:
            more = False
            for _ in loader:
                fetched, more = fetched + 1, True
                seconds = time.perf_counter() - started
                if fetched == 0:
                    started = time.perf_counter()
                elif fetched > 0 and seconds >= self.alone:
                    return 1000 * seconds / fetched
        return None

    def workers(self):
        """How many workers load for this rank, and how many batches each may have ready."""
        iterator = self.iterator()
        workers = getattr(iterator, "_num_workers", 0)
        return workers, workers and getattr(iterator, "_prefetch_factor", 0)

    def synchronize(self):
        for device in self.devices if self.device else ():
            self.torch.cuda.synchronize(device)

    def write(self, record):
        with open(self.file, "a") as file:
            file.write(json.dumps(record) + "\n")

    def end(self):
        """The script ends: keep the steps of a slice that is not whole."""
        if self.recording and self.ends and not self.skipped:
            self.end_slice()


def peak_bytes():
    """Return the most that this process had in memory; only Unix tells."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    except ImportError:
        return 0
