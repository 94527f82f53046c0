"""Opens what the user gave: files, directories, globs, stdin, compressed or not. Gives lines of bytes, bounded.

Nothing is decoded here. Errors name the file and what to do; a stream that breaks in the middle (a truncated .gz) is
reported in part, with a note.
"""

from __future__ import annotations

import codecs
import glob
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from lifesign.errors import SourceError, UsageError
from lifesign.text import is_whole

LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".json", ".jsonl", ".md")
COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
MAX_FILES = 500
MAX_DECOMPRESSED_BYTES = 64 << 30
"""A guard against compression bombs; far above any log that people keep."""

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
)


class Source(msgspec.Struct):
    """One input: its name as given, what was read of it, and what had to be left out (`notes`)."""

    name: str
    bytes_read: int = 0
    lines: int = 0
    notes: list[str] = msgspec.field(default_factory=list)
    complete: bool = True
    """Whether every line was read; false when routine was passed over."""
    seekable_path: str | None = None
    """The path of a plain, uncompressed regular file; such a file can be scanned in any order."""
    stream: BinaryIO | None = None


def _is_log_name(name: str) -> bool:
    lower = name.lower()
    for suffix in COMPRESSED_SUFFIXES:
        lower = lower.removesuffix(suffix)
    # Rotated logs end in a number: vllm.log.1
    stem, _, tail = lower.rpartition(".")
    if is_whole(tail) and stem:
        lower = stem
    return lower.endswith(LOG_SUFFIXES)


def expand(paths: list[str]) -> list[str]:
    """The files that `paths` (files, directories, globs, `-`) stand for, in the order given, without repeats.

    Raises SourceError for a path that doesn't exist and for a directory without logs.
    """
    found: list[str] = []
    for path in paths:
        if path == "-":
            found.append(path)
        elif os.path.isdir(path):
            inside = sorted(str(item) for item in Path(path).rglob("*") if item.is_file() and _is_log_name(item.name))
            if not inside:
                raise SourceError(
                    path, "this folder holds no log files (*.log, *.txt, *.out, also compressed). Name the file itself."
                )
            found.extend(inside)
        elif os.path.exists(path):
            found.append(path)
        elif glob.has_magic(path) and (matches := sorted(glob.glob(path, recursive=True))):
            found.extend(match for match in matches if os.path.isfile(match))
        else:
            raise SourceError(path, "no such file. Check the path, or pipe the log in: `... | lifesign diagnose -`.")
    unique = list(dict.fromkeys(found))
    if len(unique) > MAX_FILES:
        raise UsageError(f"{len(unique)} files were named, the limit is {MAX_FILES}. Name the files of one incident.")
    return unique


def open_source(name: str) -> Source:
    """Opens one file or stdin for reading. Raises SourceError when it can't be read at all."""
    if name == "-":
        raw: BinaryIO = sys.stdin.buffer
        return _detect(Source("<stdin>"), io.BufferedReader(raw) if not hasattr(raw, "peek") else raw, None)  # type: ignore[type-var]
    try:
        info = os.stat(name)
        if stat.S_ISDIR(info.st_mode):
            raise SourceError(name, "this is a folder; name the log file in it.")
        handle = open(name, "rb")  # noqa: SIM115 - closed by the reader
    except PermissionError as error:
        raise SourceError(
            name,
            "no permission to read it. Run as its owner, or copy it first (`sudo cat FILE | lifesign diagnose -`).",
        ) from error
    except OSError as error:
        raise SourceError(name, f"can't be opened ({error.strerror or error}). Check the path.") from error
    if stat.S_ISREG(info.st_mode) and info.st_size == 0:
        handle.close()
        raise SourceError(name, "the file is empty. Capture the log again: `vllm serve ... 2>&1 | tee vllm_full.log`.")
    return _detect(Source(name), handle, name if stat.S_ISREG(info.st_mode) else None)


def _detect(source: Source, handle: BinaryIO, path: str | None) -> Source:
    """Looks at the first bytes: picks the decompressor, refuses binary files."""
    peek = getattr(handle, "peek", None)
    head: bytes = peek(4096)[:4096] if peek is not None else b""
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if kind is None:
        _misnamed(source, head)
        if _looks_binary(head):
            raise SourceError(
                source.name, "this is a binary file, not a log. Give the text log (or a .gz/.xz/.zst/.bz2 of it)."
            )
        source.stream = handle
        source.seekable_path = path
        return source
    source.stream = _decompressor(kind, handle, source.name)
    return source


_PACKED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2"}


def _misnamed(source: Source, head: bytes) -> None:
    """A file with the name of a compressed one that isn't: text is read with a note (downloads get unpacked unasked)."""
    suffix = os.path.splitext(source.name)[1].lower()
    if suffix not in _PACKED or not head:
        return
    if _looks_binary(head) or not _is_text(head):
        raise SourceError(
            source.name,
            f"this is no {_PACKED[suffix]} file, though its name ends in {suffix}. Copy it again, or give the text log.",
        )
    source.notes.append(f"{source.name}: the name ends in {suffix}, but it is plain text; it was read as it stands")


def _is_text(head: bytes) -> bool:
    """Whether the bytes are UTF-8 (a character may be cut at their end) or have a mark of UTF-16."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _decompressor(kind: str, handle: BinaryIO, name: str) -> BinaryIO:
    # Imported when needed: most logs are plain, and each costs some milliseconds.
    if kind == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=handle)  # type: ignore[return-value]
    if kind == "xz":
        import lzma

        return lzma.LZMAFile(handle)  # type: ignore[return-value]
    if kind == "bzip2":
        import bz2

        return bz2.BZ2File(handle)  # type: ignore[return-value]
    try:
        import zstandard
    except ImportError as error:  # pragma: no cover - a declared dependency
        raise SourceError(
            name, "reading .zst needs the package zstandard: `pip install zstandard`, or unpack it first."
        ) from error
    return zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True)


def _looks_binary(head: bytes) -> bool:
    """NUL bytes, or mostly control characters. UTF-16 text (PowerShell's `>`) is not binary: it has a byte-order mark."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    if head.startswith((b"\x7fELF", b"PK\x03\x04", b"%PDF", b"\x89PNG")):
        return True
    sample = head[:2048]
    if not sample:
        return False
    control = sum(1 for byte in sample if byte < 9 or 13 < byte < 27 or 27 < byte < 32)
    return control > len(sample) * 0.10


def read_blocks(source: Source, block_bytes: int) -> Iterator[bytes]:
    """The decompressed bytes of a source in blocks; a broken stream ends with a note instead of an error."""
    stream = source.stream
    if stream is None:
        return
    first = True
    # Decompressors give what they have with `read1`; `read` would throw away the part before a break.
    read = getattr(stream, "read1", stream.read)
    try:
        while True:
            try:
                block = read(block_bytes)
            except Exception as error:
                # zlib, lzma, bz2 and zstandard each raise their own class; a truncated download is the usual reason.
                if source.bytes_read == 0 and first:
                    raise SourceError(
                        source.name, f"can't be decompressed ({error}). The file is damaged; copy it again."
                    ) from error
                source.notes.append(
                    f"{source.name}: the compressed stream breaks off after {source.bytes_read:,} bytes ({error}); what came before was read"
                )
                return
            if not block:
                return
            if first and block[:2] in (b"\xff\xfe", b"\xfe\xff"):
                block = (block + stream.read()).decode("utf-16", "replace").encode()
                source.seekable_path = None
            first = False
            source.bytes_read += len(block)
            if source.bytes_read > MAX_DECOMPRESSED_BYTES:
                source.notes.append(f"{source.name}: stopped after {source.bytes_read:,} bytes")
                return
            yield block
    finally:
        if stream is not getattr(sys.stdin, "buffer", None):
            stream.close()
