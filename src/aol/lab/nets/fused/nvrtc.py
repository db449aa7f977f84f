"""Compiles CUDA source with NVRTC, which is part of every PyTorch for CUDA; needs no headers and no compiler.

Assumes that PyTorch has made the device's context; launches go to its current stream, so that graphs capture them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MOST_SHARED_BYTES = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


class CannotCompile(RuntimeError):  # noqa: N818 (a sentence, not a noun)
    """NVRTC or the driver failed; the message says why."""


@cache
def _compiler() -> ctypes.CDLL:
    beside = Path(torch.__file__).parent
    places = [*beside.glob("lib/libnvrtc.so*"), *beside.parent.glob("nvidia/*/lib/libnvrtc.so*")]
    major = (torch.version.cuda or "12").split(".")[0]
    for name in [f"libnvrtc.so.{major}", *sorted(map(str, places)), "libnvrtc.so"]:
        if "builtins" not in name:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    raise CannotCompile("NVRTC, which PyTorch for CUDA brings along, is not to be found")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CannotCompile(f"the CUDA driver cannot be loaded: {error}") from error


def available() -> bool:
    """Whether there are a GPU of the right kind (bf16 products: 8.0 and newer), its driver, and NVRTC.

    >>> available() or not torch.cuda.is_available()
    True
    """
    if not torch.cuda.is_available() or torch.version.hip or torch.cuda.get_device_capability() < (8, 0):
        return False
    try:
        return bool(_compiler()) and bool(_driver())
    except CannotCompile:
        return False


@cache
def most_shared_bytes(device: int) -> int:
    """How much shared memory a block may have on a device."""
    place, found = ctypes.c_int(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(place), device), "cuDeviceGet")
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(found), _MOST_SHARED_BYTES, place), "cuDeviceGetAttribute")
    return found.value


def compile_cubin(source: str, definitions: Sequence[str], architecture: str) -> bytes:
    """Compile; what was compiled before is read from the cache folder ($XDG_CACHE_HOME/aol, or ~/.cache/aol)."""
    key = hashlib.sha256("\0".join((source, *definitions, architecture)).encode()).hexdigest()[:32]
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aol" / "kernels" / f"{key}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        pass
    made = _compile(source, definitions, architecture)
    try:  # a folder that cannot be written to costs time, nothing else
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(made)
        os.replace(file.name, kept)
    except OSError:
        pass
    return made


def _compile(source: str, definitions: Sequence[str], architecture: str) -> bytes:
    nvrtc, program = _compiler(), ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"aol.cu", 0, None, None):
        raise CannotCompile("NVRTC takes no program")
    options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{word}" for word in definitions)]
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CannotCompile(log.value.decode(errors="replace").strip() or f"NVRTC fails with {failed}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, made)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return made.raw


Argument: TypeAlias = Tensor | int | float | tuple[Tensor | None, ...] | None


def _value(argument: Argument) -> Any:
    """Return a kernel's argument as C has it."""
    if isinstance(argument, int):
        return ctypes.c_int(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, tuple):
        return (ctypes.c_void_p * len(argument))(*(None if part is None else part.data_ptr() for part in argument))
    return ctypes.c_void_p(None if argument is None else argument.data_ptr())


class Kernel:
    """A kernel on one device; call it with tensors, None and numbers; a tuple of tensors is an array of pointers."""

    def __init__(self, cubin: bytes, name: str, *, threads: int, shared_bytes: int) -> None:
        self._threads, self._shared = threads, shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        driver = _driver()
        _check(driver.cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")
        found = driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(found, "cuModuleGetFunction")
        _check(driver.cuFuncSetAttribute(self._function, _SHARED_BYTES, shared_bytes), "cuFuncSetAttribute")

    def __call__(self, grid: tuple[int, int], *arguments: Argument) -> None:
        """Launch on PyTorch's current stream."""
        values = [_value(argument) for argument in arguments]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        done = _driver().cuLaunchKernel(
            self._function, *grid, 1, self._threads, 1, 1, self._shared, stream, places, None
        )  # fmt: skip
        _check(done, "cuLaunchKernel")


def _check(status: int, what: str) -> None:
    if status:
        raise CannotCompile(f"{what} fails with {status}")
