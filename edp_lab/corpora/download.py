"""`edp-lab data fetch`: bring the files of a published corpus, each checked against its pinned digest.

A file grows beside its target as ``<name>.part`` and takes the target's name, in one step, only once its
digest is right: whatever interrupts a fetch, a file under its own name is whole. The next fetch takes the
``.part`` up where it ended. Only https is used, but for http to this machine (a mirror, a test).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edp_lab.corpora.catalog import Source, data_folders, sources
from edp_lab.errors import UsageError

TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 16  # bytes read at a time


@dataclass(frozen=True)
class Progress:
    """How far a fetch is: `done` of `size` bytes (None: unknown) of file `number` (from 1) of `of` files."""

    path: str
    number: int
    of: int
    done: int
    size: int | None


def fetch(
    name: str,
    target: Path | None = None,
    base_url: str | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Fetch a corpus into a data folder and return that folder. Files already there and right are left alone.

    Args:
        name: a corpus of ``sources.tsv``.
        target: the data folder; by default the first of `data_folders` that can be written.
        base_url: a mirror, which serves a data folder: file p is ``<base_url>/<p>``.
        progress: called after every piece of a download, and once for a file that is already there.

    Raises:
        UsageError: unknown name; no connection, a server's refusal or a full disk (the part so far is kept,
            and the next fetch goes on from there); wrong content twice (nothing of that file is kept).
    """
    files = sources(name)
    folder = target or _writable_folder()
    for number, source in enumerate(files, start=1):
        url = f"{base_url.rstrip('/')}/{source.path}" if base_url else source.url

        def report(done: int, source: Source = source, number: int = number) -> None:
            progress(Progress(source.path, number, len(files), done, source.size))

        try:
            _fetch_file(source, url, folder / source.path, report)
        except urllib.error.HTTPError as error:
            error.close()
            raise UsageError(f"cannot fetch {url}: the server answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            cure = "once that is mended, the same command goes on from here"
            raise UsageError(f"cannot fetch {source.path}: {_reason(error, url)}; {cure}") from None
    return folder


def _reason(error: Exception, url: str) -> str:
    if isinstance(error, urllib.error.URLError):  # before a server answered
        cause = getattr(error.reason, "strerror", None) or error.reason
        return f"{urlsplit(url).hostname} cannot be reached ({cause})"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _fetch_file(source: Source, url: str, target: Path, report: Callable[[int], None]) -> None:
    if _is_right(target, source):
        report(target.stat().st_size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    for _ in range(2):  # a resumed part may have been wrong from its start: once more, from nothing
        if not _is_right(part, source):
            _download(url, part, source.size, report)
        if _is_right(part, source):
            os.replace(part, target)
            return
        part.unlink()
    raise UsageError(f"{url} does not have the pinned checksum of {source.path}: nothing of it was kept")


def _download(url: str, part: Path, size: int | None, report: Callable[[int], None]) -> None:
    """Complete `part`: from where it stands if the server serves ranges, else from the beginning."""
    start = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, start)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        error.close()
        response, start = _open(url, 0), 0  # the part is already as long as the file, but not the file
    with response:
        done = start if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        length = response.headers["Content-Length"]
        end = done + int(length) if length else size
        with part.open("ab" if done else "wb") as file:
            while piece := response.read(PIECE):
                file.write(piece)
                done += len(piece)
                report(done)
                if size is not None and done > size:
                    return  # not the pinned file; its checksum will say so
            file.flush()
            os.fsync(file.fileno())
    if end is not None and done < end:
        raise ConnectionError(f"the connection broke off after {done} of {end} bytes")


def _open(url: str, start: int) -> Any:
    _check_scheme(url)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    return urllib.request.build_opener(_CheckedRedirects).open(request, timeout=TIMEOUT)


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str) -> None:
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not local:
        raise UsageError(f"{url} is not an https address: corpora are fetched over https only")


def _is_right(path: Path, source: Source) -> bool:
    """Whether the file is there with the pinned digest."""
    if not path.is_file():
        return False
    digest = hashlib.sha256()
    if len(source.digest) == 40:  # git hashes a header with the content
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest() == source.digest


def _writable_folder() -> Path:
    for folder in data_folders():
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if os.access(existing, os.W_OK):
            return folder
    raise UsageError(f"none of {', '.join(map(str, data_folders()))} can be written: name a folder that can")
