"""The control groups of Linux that limit this process."""

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of the groups that contain this process, at any level, and whether they are of cgroup v1.

    From /proc/self/cgroup (cgroups(7)). A container sees its own group as the root.
    """
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = Path(f"/sys/fs/cgroup/{controller if controllers else ''}", path.lstrip("/"))
            for directory in (group, *group.parents):
                yield directory, bool(controllers)
