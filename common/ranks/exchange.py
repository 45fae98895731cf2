"""What ddp_train.py's options do to the exchange of gradients and weights."""

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

from common.errors import USAGE, SuiteError

COMPRESS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}  # round, average, and round back


def refuse_contradictions(config, options) -> None:
    """Raise SuiteError (USAGE) for flags that do not go together."""
    rounded = options.compress != "none"
    for contradiction, what, found, advice in (
        (
            options.no_sync and config.checkpoint,
            "--no-sync trains a model in every rank, a checkpoint holds one",
            "found both",
            "leave out --checkpoint",
        ),
        (
            options.no_sync and (options.zero or rounded),
            "--no-sync exchanges nothing",
            "found --zero or --compress, which are about the exchange",
            "leave out --no-sync",
        ),
        (
            options.zero and (config.checkpoint or config.resume),
            "--zero leaves every rank a share of the optimizer's state, a checkpoint holds all of it",
            "found --zero and --checkpoint or --resume",
            "leave --zero out, or use fsdp_train.py",
        ),
    ):
        if contradiction:
            raise SuiteError(what, found, advice, USAGE)


def share_out(optimizer, model):
    """Return a ZeroRedundancyOptimizer that does to every weight what `optimizer` would do."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes most of a second

    return ZeroRedundancyOptimizer(model.parameters(), type(optimizer), **optimizer.defaults)


def describe_exchange(options) -> dict:
    """Return what the method is called, and what a reader must know of it."""
    if options.no_sync:
        return {"method": "ddp-no-sync", "note": "gradients are not exchanged, every rank trains a model of its own"}
    notes = {}
    if options.compress != "none":
        notes[options.compress] = f"gradients are exchanged in {options.compress}"
    if options.zero:
        notes["zero"] = "each rank updates its share of the weights and sends it to the others, as part of the update"
    return {"method": "-".join(["ddp", *notes]), "note": ", ".join(notes.values())}
