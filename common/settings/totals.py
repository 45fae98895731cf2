"""--batch-size and --num-workers are totals over all processes: their share in each one."""

from common.errors import USAGE, SuiteError


def per_process(flag: str, total: int, world_size: int) -> int:
    """Return total ÷ world_size. Raise SuiteError (USAGE), with totals that divide, if there is a remainder."""
    if total % world_size:
        below, power = total - total % world_size, world_size << (total // world_size).bit_length()
        choices = [str(choice) for choice in dict.fromkeys((below, below + world_size, power)) if choice]
        what, found = f"{flag} is a total and must divide by the number of processes", f"found {total} for {world_size}"
        raise SuiteError(what, f"{found} processes", f"type e.g. {flag} {' or '.join(choices)}", USAGE)
    return total // world_size


def total_workers(num_workers: int | None, world_size: int) -> int:
    """Return --num-workers, or its default: 2, rounded up to a multiple of world_size."""
    return -(-2 // world_size) * world_size if num_workers is None else num_workers
