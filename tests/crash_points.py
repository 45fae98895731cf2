"""The states in which a crash may leave a directory, computed from the system calls of a program that ran to its end.

The model follows Pillai et al. 2014, "All File Systems Are Not Created Equal" (OSDI). A killed program leaves what it
has done so far. A power failure may undo what was not synced: the bytes of a file since its last fsync, and the latest
changes of a directory's entries since the last fsync of that directory. New directories themselves are not undone.
"""

import math
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

KNOWN = "open,openat,creat,lseek,write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"
UNKNOWN = "pwrite64,writev,pwritev,truncate,ftruncate,fallocate,copy_file_range,sendfile,link,linkat"
CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (\d+)")  # one that did not fail
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"|<((?:\\x[0-9a-f]{2})+)>')  # a string, or the path of a descriptor
Contents = dict[str, bytes]  # by path relative to the directory


@dataclass(frozen=True)
class Call:
    """A system call that changes a directory. kind: create, write, sync, rename or unlink."""

    kind: str
    path: str
    renamed: str = ""
    content: bytes = b""
    position: int = 0


class _File:
    content = synced = b""


def whole_states(command: Sequence[str], directory: Path, **options) -> tuple[int, list[Contents]]:
    """Return how many calls of a command change directory/place, and the states in which a crash may leave that.

    Asserts that in each of them every file that the command writes is whole: its last version that was durable, a later
    one, or missing if none was. Partial copies (.part), locks and logs are whatever they are.
    """
    place, log = directory / "place", directory / "strace"
    place.mkdir()
    calls = _record(command, place, log, capture_output=True, **options)
    files, states = _versions(calls), []
    assert all(durable < math.inf for history in files.values() for durable, _ in history), "a file was never synced"
    for number, state in _crash_states(calls):
        whole = {path: content for path, content in state.items() if not path.endswith((".part", ".lock", ".log"))}
        assert set(whole) <= set(files), "a file was not written atomically"
        for path, history in files.items():
            durable = sum(durable <= number for durable, _ in history)  # so many versions, at least
            allowed = [content for _, content in history[max(0, durable - 1) :]]
            assert whole[path] in allowed if path in whole else not durable, f"{path} after {calls[number - 1].kind}"
        if state not in states:
            states.append(state)
    return len(calls), states


def _record(command: Sequence[str], directory: Path, log: Path, **options) -> list[Call]:
    """Run a command to its end under strace. Return the calls by which it changed `directory`, in order."""
    strace = ["strace", "-f", "-y", "-qq", "-xx", "-s", str(10**9), "--seccomp-bpf", "-o", str(log)]
    subprocess.run([*strace, "-e", f"trace={KNOWN},{UNKNOWN}", *command], check=True, **options)
    return list(_calls(_lines(log), os.fsencode(directory)))


def _lines(log):
    """Join the two halves of a call during which another thread made one."""
    begun = {}
    with open(log) as file:
        for line in file:
            process = line.split(maxsplit=1)[0]
            if line.endswith(" <unfinished ...>\n"):
                begun[process] = line.removesuffix(" <unfinished ...>\n")
            elif resumed := re.match(r"\d+ +<\.\.\. \w+ resumed>(.*)", line):
                yield begun.pop(process) + resumed[1]
            else:
                yield line


def _calls(lines, directory):
    positions: dict[str, int] = {}
    for line in lines:
        if not (found := CALL.match(line)):
            continue
        kind, values, result = found[1], found[2], int(found[3])
        texts = [bytes.fromhex((text or path).replace("\\x", "")) for text, path in TEXT.findall(values)]
        inside = [text for text in texts if text == directory or text.startswith(directory + b"/")]
        if not inside:
            continue
        path, *renamed = [os.fsdecode(os.path.relpath(text, directory)) for text in inside]
        if kind in ("open", "openat", "creat"):
            if "O_CREAT" in values:
                positions[path] = 0
                yield Call("create", path)
        elif kind == "lseek":
            positions[path] = result
        elif kind == "write":
            yield Call("write", path, content=texts[1][:result], position=positions[path])
            positions[path] += result
        elif kind.endswith("sync"):
            yield Call("sync", path)
        elif kind.startswith("rename"):
            yield Call("rename", path, *renamed)
        elif kind.startswith("unlink"):
            yield Call("unlink", path)
        else:
            raise ValueError(f"the model does not know this call: {line[:300]}")


def _crash_states(calls: Sequence[Call]) -> Iterator[tuple[int, Contents]]:
    """Yield how many calls were made, and a state in which a crash may then leave a directory that was empty."""
    files: dict[str, _File] = {}
    durable: dict[str, _File] = {}  # what the directory would contain after a power failure
    pending: list[tuple[Call, _File | None]] = []  # changes of entries that a power failure may undo
    for number, call in enumerate(calls, 1):
        if call.kind == "write":
            file, half = files[call.path], replace(call, content=call.content[: len(call.content) // 2])
            for part in (half, call):  # a long write may be cut off
                file.content = _written(file.content, part)
                yield number, {path: file.content for path, file in files.items()}
        elif call.kind == "sync" and call.path in files:
            files[call.path].synced = files[call.path].content
        elif call.kind == "sync":  # a directory
            for change in [change for change in pending if (os.path.dirname(change[0].path) or ".") == call.path]:
                _change(durable, *change)
                pending.remove(change)
        else:
            change = call, _File() if call.kind == "create" else None
            _change(files, *change)
            pending.append(change)
        yield number, {path: file.content for path, file in files.items()}
        for kept in range(len(pending) + 1):
            survived = dict(durable)
            for change in pending[:kept]:
                _change(survived, *change)
            yield number, {path: file.content for path, file in survived.items()}
            yield number, {path: file.synced for path, file in survived.items()}


def _written(content, call):
    """Return a file's content after a write."""
    return (
        content[: call.position].ljust(call.position, b"\0")
        + call.content
        + content[call.position + len(call.content) :]
    )


def _change(files, call, new):
    if call.kind == "create":
        files.setdefault(call.path, new)
    elif (file := files.pop(call.path, None)) and call.kind == "rename":
        files[call.renamed] = file


def _versions(calls: Sequence[Call]) -> dict[str, list[tuple[float, bytes]]]:
    """Return for each path that a file was renamed to: its contents, and after how many calls each was durable."""
    found: dict[str, list[tuple[float, bytes]]] = {}
    contents: dict[str, bytes] = {}
    for number, call in enumerate(calls, 1):
        if call.kind == "create":
            contents[call.path] = b""
        elif call.kind == "write":
            contents[call.path] = _written(contents[call.path], call)
        elif call.kind == "rename":
            contents[call.renamed] = contents.pop(call.path)
            directory = Call("sync", os.path.dirname(call.renamed) or ".")
            synced = (later for later, other in enumerate(calls[number:], number + 1) if other == directory)
            found.setdefault(call.renamed, []).append((next(synced, math.inf), contents[call.renamed]))
    return found
