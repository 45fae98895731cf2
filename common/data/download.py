"""One file from the network: an interrupted download is continued, a stalled or crawling one is given up."""

import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from common.data.archives import md5_of
from common.errors import DATA, SuiteError

STALL_SECONDS = 30  # without a single byte
SLOW_SECONDS, SLOWEST = 30, 10_000  # after so many seconds the mean rate must have reached so many bytes/s


def download(urls: list[str], path: Path, md5: str) -> None:
    """Fetch the first of `urls` that has the file with this md5. Until it is whole, it is called `path`.part.

    Raises SuiteError (DATA) with what was wrong with each of them.
    """
    part = path.with_name(path.name + ".part")
    problems = []
    for url in urls:
        for begun in dict.fromkeys((part.exists(), False)):  # what an earlier attempt left may be of something else
            try:
                kind = _fetch(url, part, begun)
            except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, ValueError) as error:
                problems.append(f"{url}: {error}")
                break
            digest = md5_of(part)
            if digest == md5:
                part.replace(path)
                return
            part.unlink()
            if not begun:
                page = ", it is a web page" if kind == "text/html" else ""
                problems.append(f"{url}: its md5 is {digest} instead of {md5}{page}")
    if part.exists():
        problems.append(f"{part.stat().st_size} bytes are kept in {part}, the next attempt goes on from there")
    raise SuiteError(
        f"cannot download {path.name}",
        "; ".join(problems),
        "connect to the network, name another place with --data-url, copy the files to --data-root, or "
        "train on a set that needs none: --dataset synthetic-mnist or synthetic-cifar10",
        DATA,
    )


def _fetch(url, part, begun):
    """Write to the file `part`, or append what is missing; return the content's type.

    Raises ConnectionError if it does not all come, or not fast enough.
    """
    have = part.stat().st_size if begun else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing beyond what is here: the checksum will tell
            return error.headers.get_content_type()
        raise
    goes_on = (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
    with response, open(part, "ab" if goes_on else "wb") as file:
        length, came, start = response.headers.get("Content-Length"), 0, time.monotonic()
        while chunk := response.read1(2**16):
            file.write(chunk)
            came += len(chunk)
            seconds = time.monotonic() - start
            if seconds > SLOW_SECONDS and came / seconds < SLOWEST:
                raise ConnectionError(f"only {came / seconds / 1000:.1f} kB/s, given up after {seconds:.0f} s")
        if length is not None and came < int(length):
            raise ConnectionError(f"the server closed the connection after {came} of {length} bytes")
        return response.headers.get_content_type()
