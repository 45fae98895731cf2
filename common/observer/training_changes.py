"""Changes to a training script that may make it faster: the rows of a comparison beside the unchanged script."""

import functools
import inspect
import os

BUCKET = 25 * 2**20  # bytes per all-reduce, as in DistributedDataParallel
OWN_RANK = "PARALLEL_TRAINING_RANK"  # environment variable: the rank, where torchrun's variables are hidden
RANK = int(os.environ.get(OWN_RANK, os.environ.get("RANK", 0)))


class Change:
    """The changes to make.

    workers: of each loader. ranks: number of processes that share each batch and average their gradients; they meet in
    a file in `directory`. bf16: run the networks under autocast. channels_last: memory format of networks.
    """

    def __init__(self, torch, directory, workers=None, ranks=0, bf16=False, channels_last=False):
        self.torch, self.directory = torch, directory
        self.workers, self.ranks, self.bf16, self.channels_last = workers, ranks, bf16, channels_last
        self.joined = False
        self.shares = False  # whether a loader gets a rank's share of each batch
        self.exchanged = None  # the optimizer of gradients that were exchanged before GradScaler checked them

    def loader(self, init):
        """Return DataLoader.__init__() with other workers, or with a rank's share of each batch."""
        signature, iterable = inspect.signature(init), self.torch.utils.data.IterableDataset

        @functools.wraps(init)
        def changed(*given, **named):
            bound = signature.bind(*given, **named)
            arguments = bound.arguments
            if self.workers is not None and not isinstance(arguments["dataset"], iterable):  # would repeat the data
                arguments["num_workers"] = self.workers
            batch = arguments.get("batch_size", 1)
            if self.ranks and arguments.get("batch_sampler") is None and (batch or 0) >= self.ranks:
                arguments["batch_size"] = batch // self.ranks
                self.shares = True
            return init(*bound.args, **bound.kwargs)

        return changed

    def network(self, network, optimizers):
        """Change a network that the script calls, after its optimizer's first steps."""
        if self.bf16:
            network.forward = self.autocast(network.forward)
        if not self.channels_last:
            return
        network.to(memory_format=self.torch.channels_last)
        for parameter, state in [item for optimizer in optimizers for item in optimizer.state.items()]:
            for name, value in state.items():
                if getattr(value, "shape", None) == parameter.shape and parameter.dim() == 4:
                    state[name] = value.contiguous(memory_format=self.torch.channels_last)

    def autocast(self, forward):
        """Return forward() in bfloat16, with float32 results, as Accelerate does."""
        from torch.utils import _pytree

        def as_float32(value):
            return value.float() if getattr(value, "dtype", None) is self.torch.bfloat16 else value

        @functools.wraps(forward)
        def call(*given, **named):
            tensors = [value for value in _pytree.tree_flatten((given, named))[0] if hasattr(value, "device")]
            kind = tensors[0].device.type if tensors else "cpu"
            with self.torch.autocast(kind, self.torch.bfloat16):
                result = forward(*given, **named)
            return _pytree.tree_map(as_float32, result)

        return call

    def exchange(self, optimizer):
        """Replace the gradients by their mean over all ranks; return whether there are several ranks."""
        if not self.ranks:
            return False
        if optimizer is self.exchanged:
            self.exchanged = None
            return True
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        distributed = self.torch.distributed
        if not self.joined:
            if not self.shares:
                raise RuntimeError("it has no DataLoader with a batch_size that ranks could share")
            if distributed.is_initialized():
                raise RuntimeError("the script has a process group of its own: start it with several ranks instead")
            if isinstance(optimizer, self.torch.optim.LBFGS):
                raise RuntimeError("LBFGS depends on the loss, which would differ between ranks")
            backend = "nccl" if gradients and gradients[0].is_cuda else "gloo"
            place = f"file://{os.path.join(self.directory, 'ranks')}"
            distributed.init_process_group(backend, place, rank=RANK, world_size=self.ranks)
            self.joined = True
        bucket = []
        for gradient in gradients:
            bucket.append(gradient)
            if gradient is gradients[-1] or sum(g.numel() * g.element_size() for g in bucket) >= BUCKET:
                flat = self.torch.cat([g.flatten() for g in bucket])
                distributed.all_reduce(flat)
                flat /= self.ranks
                for g, mean in zip(bucket, flat.split([g.numel() for g in bucket])):  # noqa: B905 - Python 3.9
                    g.copy_(mean.view_as(g))
                bucket = []
        return True
