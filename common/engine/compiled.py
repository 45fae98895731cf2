"""torch.compile and CUDA graphs."""

import os
import shutil
import sys

import torch

from common.engine.place import ParallelContext
from common.errors import FAILED, MACHINE, USAGE, SuiteError, is_out_of_memory
from common.models.build import Network
from common.settings.config import RunConfig

# Of torch.compile, by kind of device: the variable that names it, and what is looked for without one. For GPUs, Triton
# needs a compiler of C (triton/runtime/build.py), for CPUs torch one of C++.
COMPILERS = {"cuda": ("CC", "gcc", "clang"), "cpu": ("CXX", "clang++" if sys.platform == "darwin" else "g++")}


def replace_network(context: ParallelContext, batch_shape: tuple[int, int, int, int], config: RunConfig) -> None:
    """Apply --compile or --cuda-graph to the network in `context.model`; do nothing without them.

    batch_shape: (B, C, H, W) of the batches for which --cuda-graph records a step.
    Raises SuiteError (USAGE) if the method does not allow it, (MACHINE) if there is no compiler or no GPU.
    """
    if config.compile:
        _compile(context)
    if config.cuda_graph:
        context.model.train(not config.eval_mode)  # a graph only replays the mode in which it was recorded
        _capture(context, torch.zeros(batch_shape, device=context.place.device))


def _compile(context):
    if context.uncompilable:
        what = f"--compile does not go with {context.method}"
        raise SuiteError(what, context.uncompilable, "leave out --compile", USAGE)
    if not has_compiler(kind := context.place.device.type):
        (variable, usual, *_), advice = COMPILERS[kind], "install one, e.g. apt-get install g++, or leave out --compile"
        found = f"{os.environ.get(variable, usual)} was not found"
        raise SuiteError("--compile needs a compiler", found, advice, MACHINE)
    for part in context.model.modules():
        if isinstance(part, Network):
            compile_network(part)


def compile_network(network: Network) -> None:
    """Compile a network for each size of its batches. By default, torch compiles the second, such as that of the last
    batch, for any size, and then uses that code alone: slower on GPUs (torch/_inductor/graph.py, decide_layout_opt)."""
    torch._dynamo.config.recompile_limit = 64  # sizes
    network.compile(dynamic=False)


def has_compiler(kind: str) -> bool:
    variable, *usual = COMPILERS[kind]
    names = [os.environ[variable]] if variable in os.environ else usual
    return any(shutil.which(name.partition(" ")[0]) for name in names)


def _capture(context, images):
    """Record the network's forward and backward pass as CUDA graphs, which saves the host a launch per kernel.

    Batches of another shape, such as a smaller last one, and evaluation run without the graphs.
    """
    network = context.model
    if type(network) is not Network:  # fully_shard() makes a subclass
        what = f"--cuda-graph does not go with {context.method}"
        raise SuiteError(what, "it wraps the network into its own steps", "leave it out, or train on one device", USAGE)
    if images.device.type != "cuda":
        raise SuiteError("--cuda-graph needs a GPU", f"the run is on {images.device}", "leave it out", MACHINE)
    images = images.to(memory_format=torch.channels_last)
    usual, buffers = network.forward, [buffer.clone() for buffer in network.buffers()]
    try:
        torch.cuda.make_graphed_callables(network, (images,))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        cause = str(error).partition("\n")[0]
        raise SuiteError("--cuda-graph cannot record this network", cause, "leave it out", FAILED) from error
    graphed = network.forward
    network.forward = lambda batch: (graphed if batch.shape == images.shape else usual)(batch)
    for buffer, before in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(before)  # the warm-up steps changed BatchNorm's statistics
