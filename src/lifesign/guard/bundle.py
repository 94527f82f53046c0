"""One incident as a folder, then as one .tar.zst: bounded, durable, and honest about what is missing.

A full disk is met in three steps: the reserve of the state folder is given back, large things are written smaller, and
what still doesn't fit is named in `left_out`. When not even `incident.json` fits, the bundle goes to a temporary folder.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lifesign.guard.evidence.redact import redact_line
from lifesign.guard.logstore import read_segment, segments
from lifesign.guard.statedir import StateDir, read_json, sync_folder, write_atomically, write_json

HEAD_BYTES = 2 << 20
MIN_ROOM_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 10
SCHEMA = "lifesign.incident/1"


class Bundle:
    """A bundle that is being written. `left_out` collects what is not in it, with the reason."""

    def __init__(self, state: StateDir, incident_id: str) -> None:
        self.id = incident_id
        self.left_out: list[str] = []
        self._state = state
        self.folder = self._make_folder()

    def _make_folder(self) -> Path:
        wanted = self._state.incidents / self.id
        reason = ""
        for attempt in range(2):
            try:
                wanted.mkdir(parents=True, exist_ok=True)
                probe = wanted / ".room"
                probe.write_bytes(b"\0" * MIN_ROOM_BYTES)
                probe.unlink()
                return wanted
            except OSError as error:
                reason = error.strerror or str(error)
                with suppress(OSError):
                    (wanted / ".room").unlink()
                if attempt == 0:
                    self._state.release_reserve()
        folder = Path(tempfile.mkdtemp(prefix=f"lifesign-{self.id}-", dir=roomy_folder()))
        self.left_out.append(f"the state folder takes nothing ({reason}): this bundle is in {folder}")
        with suppress(OSError):
            wanted.rmdir()
        return folder

    def put(self, name: str, data: str | bytes) -> bool:
        """Write one file; False, and a line in `left_out`, when it can't be."""
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        path = self.folder / name
        for attempt in range(2):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, raw, durable=False)
                return True
            except OSError as error:
                if attempt == 0:
                    self._state.release_reserve()
                    continue
                self.left_out.append(f"{name} ({len(raw)} bytes): {error.strerror or error}")
        return False

    def make_room(self, size_bytes: int) -> None:
        """Give the reserve back where the disk has less room than this for what others write into the folder."""
        with suppress(OSError):
            if shutil.disk_usage(self.folder).free < size_bytes:
                self._state.release_reserve()

    def put_incident(self, value: dict[str, Any]) -> None:
        """Write `incident.json`, with `left_out` as it stands; where it doesn't fit, what helps least goes for it."""
        value = {**value, "left_out": self.left_out}
        reason = ""
        for sacrifice in (None, "events.jsonl", "versions.json", "kernel-context.log"):
            if sacrifice is not None and not self._sacrifice(sacrifice):
                continue
            try:
                write_json(self.folder / "incident.json", value)
                return
            except OSError as error:
                reason = error.strerror or str(error)
                self._state.release_reserve()
        with suppress(OSError):
            write_json(self.folder / "incident.json", value)
            return
        self.left_out.append(f"incident.json: {reason}")

    def _sacrifice(self, name: str) -> bool:
        path = self.folder / name
        with suppress(OSError):
            path.unlink()
            self.left_out.append(f"{name}: it had to make room for incident.json")
            return True
        return False

    def adopt(self, folder: Path, name: str) -> None:
        """Move a capture into the bundle."""
        target = self.folder / name
        if not folder.is_dir():
            return
        try:
            if target.exists():
                shutil.rmtree(target)
            shutil.move(str(folder), str(target))
        except OSError as error:
            self.left_out.append(f"{name}: {error.strerror or error}; it stays in {folder}")

    def put_log(self, log_folder: Path, limit_bytes: int, *, keep_prompts: bool, tail: bytes = b"") -> int:
        """Write `engine.log`: the start of the life and its end, redacted; gives the bytes left out in between.

        `tail` is the end of the log from the keeper's memory, for a disk that took nothing.
        """
        for limit in (limit_bytes, limit_bytes // 4, 1 << 20, 128 << 10):
            omitted, pieces = select_log(log_folder, limit)
            if tail:
                pieces = [*pieces, b"[lifesign: from memory, the disk took nothing more]\n", tail[-limit:]]
            if self._write_log(pieces, keep_prompts):
                if omitted:
                    self.left_out.append(
                        f"engine.log: {omitted} bytes in the middle of the life (they are in {log_folder})"
                    )
                return omitted
            self._state.release_reserve()
        self.left_out.append(f"engine.log: no room; the log itself is in {log_folder}")
        return 0

    def _write_log(self, pieces: list[Any], keep_prompts: bool) -> bool:
        path = self.folder / "engine.log"
        try:
            with path.open("wb") as file:
                for line in _lines(pieces):
                    text = redact_line(line.decode("utf-8", "replace"), keep_prompts=keep_prompts)
                    file.write(text.encode("utf-8", "replace"))
        except OSError:
            with suppress(OSError):
                path.unlink()
            return False
        return True

    def sync(self) -> None:
        """Make what was written durable; a file that the disk refuses now, after it took it, is named as well."""
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file():
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as error:
                name = path.relative_to(self.folder)
                self.left_out.append(f"{name}: may not be whole on the disk ({error.strerror or error})")
        sync_folder(self.folder)

    def finish(self) -> Path | None:
        """Pack the folder; gives the archive, or None when there was no room for it. Call `sync` before."""
        archive = self.folder.parent / f"{self.id}.tar.zst"
        for attempt in range(2):
            try:
                pack(self.folder, archive)
                break
            except OSError as error:
                with suppress(OSError):
                    archive.unlink()
                if attempt == 0:
                    self._state.release_reserve()
                    continue
                self.left_out.append(f"{archive.name}: {error.strerror or error}; the same is in {self.folder}")
                return None
        sync_folder(archive.parent)
        self._state.restore_reserve()
        return archive


def roomy_folder() -> str | None:
    """A temporary folder that takes a mebibyte; None leaves the choice to `tempfile`."""
    for folder in (tempfile.gettempdir(), "/var/tmp", "/dev/shm", "/run"):
        with suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * MIN_ROOM_BYTES)
            probe.flush()
            return folder
    return None


def select_log(log_folder: Path, limit_bytes: int) -> tuple[int, list[Any]]:
    """(bytes left out, pieces): all of a short log, else its first 2 MiB (or a quarter) and its end."""
    sizes: list[tuple[Path, int]] = []
    for _, path in segments(log_folder):
        with suppress(OSError):
            sizes.append((path, plain_size(path)))
    total = sum(size for _, size in sizes)
    if total <= limit_bytes:
        return 0, [read_segment(path) for path, _ in sizes]
    head = min(HEAD_BYTES, limit_bytes // 4, sizes[0][1])
    tail = limit_bytes - head
    pieces: list[Any] = [read_segment(sizes[0][0], 0, head), b"\n", None]
    later: list[Any] = []
    for index in range(len(sizes) - 1, -1, -1):
        path, size = sizes[index]
        take = min(tail, size if index else size - head)
        if take <= 0:
            break
        later.insert(0, read_segment(path, size - take))
        tail -= take
    omitted = total - limit_bytes + max(tail, 0)
    pieces[2] = f"[lifesign: {omitted} bytes left out here]\n".encode()
    return omitted, pieces + later


def plain_size(path: Path) -> int:
    """Bytes in a segment before compression. Raises OSError."""
    if path.suffix != ".zst":
        return path.stat().st_size
    return sum(len(chunk) for chunk in read_segment(path))


def _lines(pieces: list[Any]) -> Iterator[bytes]:
    """Lines with their ends; an endless line is cut into parts of `MAX_LINE_BYTES`."""
    rest = b""
    for piece in pieces:
        for chunk in [piece] if isinstance(piece, bytes) else piece:
            parts = (rest + chunk).split(b"\n")
            rest = parts.pop()
            for part in parts:
                yield part + b"\n"
            while len(rest) > MAX_LINE_BYTES:
                yield rest[:MAX_LINE_BYTES]
                rest = rest[MAX_LINE_BYTES:]
    if rest:
        yield rest


def pack(folder: Path, archive: Path) -> None:
    """Write `folder` as a .tar.zst, durable, whole or not at all. Raises OSError."""
    import zstandard

    partial = archive.with_name(f".{archive.name}.part")
    try:
        with partial.open("wb") as raw:
            with (
                zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False) as packed,
                tarfile.open(fileobj=packed, mode="w|") as tar,
            ):
                tar.add(folder, arcname=archive.name.removesuffix(".tar.zst"))
            raw.flush()
            os.fsync(raw.fileno())
        partial.rename(archive)
    except zstandard.ZstdError as error:
        with suppress(OSError):
            partial.unlink()
        raise OSError(f"it can't be compressed ({error})") from error
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def list_archive(archive: Path) -> list[str]:
    """Names in a packed bundle. Raises OSError when it is damaged."""
    import zstandard

    try:
        with archive.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            content = io.BytesIO(reader.read())
        with tarfile.open(fileobj=content) as tar:
            return tar.getnames()
    except (zstandard.ZstdError, tarfile.TarError) as error:
        raise OSError(f"{archive}: damaged ({error})") from error


def unfinished(state: StateDir) -> list[Path]:
    """Bundles that a guard began and could not complete."""
    found = []
    with suppress(OSError):
        for folder in sorted(state.incidents.iterdir()):
            if folder.is_dir():
                incident = read_json(folder / "incident.json")
                if incident is None or not incident.get("complete"):
                    found.append(folder)
    return found
