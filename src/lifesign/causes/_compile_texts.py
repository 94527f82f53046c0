"""What compilers, caches and loaders of compiled code say: the words of compile-jit."""

from __future__ import annotations

CACHE_TEXTS = (
    "corrupted compilation artifact",
    "failed to get the hash of the compiled graph",
    "Compile cache file corrupted",
    "copy_misaligned_inputs",
    "BundledAOTAutogradCache",
    "Failed to load AOT",
)
CACHE_FRAMES = (
    "compiler_interface.py:load",
    "backends.py:load",
    "caching.py:deserialize",
    "caching.py:load",
    "aot_compile.py:deserialize",
    "aot_compile.py:load",
    ":load_aot_compile",
    ":_load_aot",
    ":load_compiled_artifact",
    "standalone_compile.py:load",
)
"""Frames from the end of a traceback in which loading an artefact counts: stored code also *runs* below such files."""
CACHE_TYPES = (
    "EOFError",
    "UnpicklingError",
    "ModuleNotFoundError",
    "FileNotFoundError",
    "BadZipFile",
    "JSONDecodeError",
    "AttributeError",
    "AssertionError",
    "KeyError",
    "RuntimeError",
)
DEVICE_TEXTS = (
    "out of memory",
    "illegal memory access",
    "misaligned address",
    "CUDA error",
    "HIP error",
    "no kernel image",
    "Permission denied",
    "No space left",
    "Read-only file system",
    "Too many open files",
    "device-side assert triggered",
    "getpwuid",
    "Error Internal",
)
"""What wrappers of the compiler may carry inside that is no failure to compile."""
COMPILER_LINES = (
    ("fatal error:", "nvcc fatal", "ptxas fatal", "Unsupported gpu architecture"),
    (": not found", "undefined reference", "cannot find -l", "error: command", "No such file or directory"),
    (" error: ",),
)
"""What the compiler's own line says, the most telling words first."""
BUILD_TEXTS = (
    "Ninja build failed",
    "Error building extension",
    "ninja: build stopped",
    "Error compiling objects for extension",
)
HEADER_TEXTS = (
    "Python.h: No such file",
    "stddef.h: No such file",
    "limits.h: No such file",
    "stdio.h: No such file",
    "Failed to find C compiler",
    "No working C++ compiler found",
    "cannot execute 'cc1",
    "cannot execute 'cc1plus",
    "cannot find crt1.o",
    "cannot find Scrt1.o",
)
PTXAS_TEXTS = (
    "ptxas fatal",
    "Unsupported gpu architecture",
    "is not defined for option 'gpu-name'",
    "Unsupported .version",
    "nvcc fatal",
)
