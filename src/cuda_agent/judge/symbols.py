"""Scan of a built extension: which libraries and symbols it wants. Reads the ELF file, loads nothing.

Covers what the linker left to be resolved at load time: forbidden libraries, ATen kernels called past
the dispatcher (which the guard cannot see), process control, and names that switch the guard off.

Does not cover: symbols looked up at run time by other means than ``dlopen``/``dlsym`` (a hand-made
walk of the link map, raw system calls), and inlined code. Operators called through the dispatcher are
listed, not judged: whether forward runs them is what the guard says, and ``prepare()`` may.
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent.judge.finding import Finding, Severity
from cuda_agent.judge.guard import is_free, may_alias
from cuda_agent.result import ViolationKind

_COMMON_LIBRARIES = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp(-[0-9a-f]+)?|ld-linux[\w-]*"
    r"|libc10|libtorch|libtorch_cpu|libtorch_python|libpython3[\d.]*)\.so[\d.]*"
)
_CUDA_LIBRARIES = re.compile(
    r"(libc10_cuda|libtorch_cuda\w*|libcudart|libcublas|libcublasLt|libcudnn\w*|libcuda)\.so[\d.]*"
)

_PROCESS = re.compile(
    r"system|popen|v?fork|clone3?|f?exec(l|le|lp|v|ve|vp|vpe|veat)|posix_spawnp?|daemon|kill|killpg"
    r"|socket|socketpair|connect|bind|accept4?"
)
_INTRUSION = frozenset(["ptrace", "process_vm_readv", "process_vm_writev", "mprotect", "pkey_mprotect"])
_LOADING = frozenset(["dlopen", "dlmopen", "__libc_dlopen_mode"])
_OTHER_MATHS = re.compile(r"(_ZN4dnnl|dnnl_|mkldnn_|mkl_|MKL_|v[sdcz][A-Z]\w+$|nnp_|xnn_|cutlass)")
_OTHER_BLAS = re.compile(r"(cblas_)?[sdcz](?!gemm)(ge|gb|sy|he|tr|tb|tp|sp|hp)(mv|mm|sv|sm|r|rk|r2k)_?$")
_GUARD_OFF = ("TorchDispatchModeTLS", "_force_tls_local_dispatch_key_set", "tls_set_dispatch_key_excluded")
_PAST_DISPATCHER = frozenset(
    ["native", "cpu", "meta", "compositeexplicitautograd", "compositeimplicitautograd"]
)
_NATIVE_ALLOWED = frozenset(["getCudnnHandle"])
_CLOCKS = frozenset(["clock_gettime", "gettimeofday", "time", "nanosleep", "usleep"])
_CUDA_RUNTIME = re.compile(
    r"cuda(Event\w+|(Device|Stream)Synchronize|Launch(Kernel\w*|HostFunc)|Malloc\w*|Memcpy\w*)"
)


@dataclass(frozen=True)
class LibraryScan:
    """What a library wants.

    Attributes:
        undefined: names of its undefined dynamic symbols, mangled.
        needed: libraries it is linked against.
        compute_ops: operators that work on data, called through the dispatcher (``aten::mm``), and
            ``torch::nn`` or ``torch::jit`` names. Evidence only.
        forbidden_libraries: entries of ``needed`` off the allow-list of the backend.
        bypasses: ATen kernels called past the dispatcher.
        findings: what the above means for the verdict.
    """

    undefined: frozenset[str]
    needed: tuple[str, ...]
    compute_ops: tuple[str, ...]
    forbidden_libraries: tuple[str, ...]
    bypasses: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def scan_library(path: Path, *, backend: str = "cuda") -> LibraryScan:
    """Scan a shared library.

    Violations: a library off the allow-list, oneDNN or MKL names, and ``dlopen`` (forbidden_library);
    ATen kernels past the dispatcher (torch_compute); starting processes, sockets (process_escape);
    ptrace, reading other processes' memory, making code writable, switching dispatch keys off, and
    standing in for clock or CUDA functions (tampering). ``dlopen`` is a note where the CUDA runtime
    seems linked statically, since it needs it. Notes: operators through the dispatcher, threads,
    BLAS other than gemm.

    Args:
        path: the library.
        backend: ``cpu`` or ``cuda``: which libraries are allowed.

    Raises:
        ValueError: not a 64-bit little-endian ELF file.
    """
    undefined, defined, needed = _read_elf(path.read_bytes())
    compute, bypasses = set[str](), set[str]()
    for symbol in undefined:
        names = _nested_name(symbol)
        if bypass := _bypass(symbol, names):
            bypasses.add(bypass)
        elif operator := _operator(names):
            compute.add(operator)
    forbidden = tuple(name for name in needed if not _allowed_library(name, backend))
    static_runtime = backend == "cuda" and not any(name.startswith("libcudart") for name in needed)
    findings = [
        *(_violation(ViolationKind.FORBIDDEN_LIBRARY, f"linked against {name}") for name in forbidden),
        *(
            _violation(ViolationKind.TORCH_COMPUTE, f"calls {name} past the dispatcher")
            for name in sorted(bypasses)
        ),
        *_symbol_findings(sorted(undefined), static_runtime),
        *_defined_findings(sorted(defined), static_runtime),
    ]
    if compute:
        text = f"the extension refers to PyTorch operators: {', '.join(sorted(compute))}"
        findings.append(Finding(ViolationKind.TORCH_COMPUTE, Severity.NOTE, text))
    return LibraryScan(
        frozenset(undefined),
        needed,
        tuple(sorted(compute)),
        forbidden,
        tuple(sorted(bypasses)),
        tuple(findings),
    )


def defined_names(path: Path) -> frozenset[str]:
    """Every symbol that a library defines, local ones too, mangled: its kernels' host functions among them.

    Raises:
        ValueError: not a 64-bit little-endian ELF file.
    """
    return frozenset(_read_elf(path.read_bytes(), (_SHT_DYNSYM, _SHT_SYMTAB))[1])


def _violation(kind: ViolationKind, detail: str) -> Finding:
    return Finding(kind, Severity.VIOLATION, detail)


def _allowed_library(name: str, backend: str) -> bool:
    allowed = _COMMON_LIBRARIES.fullmatch(name)
    return bool(allowed or (backend == "cuda" and _CUDA_LIBRARIES.fullmatch(name)))


def _symbol_findings(undefined: list[str], static_runtime: bool) -> list[Finding]:
    findings = []
    for symbol in undefined:
        if _PROCESS.fullmatch(symbol):
            findings.append(_violation(ViolationKind.PROCESS_ESCAPE, f"calls {symbol}()"))
        elif symbol in _INTRUSION or any(name in symbol for name in _GUARD_OFF):
            findings.append(_violation(ViolationKind.TAMPERING, f"calls {symbol}"))
        elif symbol in _LOADING:
            severity = Severity.NOTE if static_runtime else Severity.VIOLATION
            findings.append(Finding(ViolationKind.FORBIDDEN_LIBRARY, severity, f"calls {symbol}()"))
        elif _OTHER_MATHS.match(symbol):
            findings.append(_violation(ViolationKind.FORBIDDEN_LIBRARY, f"calls {symbol}"))
        elif _OTHER_BLAS.match(symbol):
            text = f"calls {symbol}; of BLAS only gemm is allowed"
            findings.append(Finding(ViolationKind.FORBIDDEN_LIBRARY, Severity.NOTE, text))
        elif symbol == "pthread_create" or symbol.startswith("_ZNSt6thread15_M_start_thread"):
            findings.append(Finding(ViolationKind.LATE_WORK, Severity.NOTE, "starts threads of its own"))
    return list(dict.fromkeys(findings))


def _defined_findings(defined: list[str], static_runtime: bool) -> list[Finding]:
    """A library that defines the clock's or the CUDA runtime's functions stands in for them."""
    return [
        _violation(ViolationKind.TAMPERING, f"defines {symbol}, which belongs to the system")
        for symbol in defined
        if symbol in _CLOCKS or (_CUDA_RUNTIME.fullmatch(symbol) and not static_runtime)
    ]


# --- names


def _nested_name(symbol: str) -> tuple[str, ...]:
    """Leading names of an Itanium-mangled nested name: ``_ZN2at4_ops2mm4callE`` is at, _ops, mm, call."""
    match = re.match(r"_ZN[KVr]*", symbol)
    if match is None:
        return ()
    names, place = [], match.end()
    while number := re.match(r"\d+", symbol[place:]):
        start = place + number.end()
        place = start + int(number.group())
        names.append(symbol[start:place])
    return tuple(names)


def _bypass(symbol: str, names: tuple[str, ...]) -> str:
    """The ATen kernel that a symbol calls past the dispatcher, as ``at::native::mm``; or empty."""
    if re.match(r"aoti_torch_(cpu|cuda)_", symbol):
        return symbol
    if len(names) < 3 or names[0] != "at":
        return ""
    if names[1] == "_ops" and names[-1] == "redispatch":
        return "::".join(names) if _operator((*names[:-1], "call")) else ""
    if names[1] in _PAST_DISPATCHER and names[2] not in _NATIVE_ALLOWED and names[2] != "cpublas":
        return "::".join(names)
    if names[1] == "cuda" and len(names) == 3 and names[2] in _operator_names():
        return "::".join(names)
    return ""


def _operator(names: tuple[str, ...]) -> str:
    """The operator that works on data behind dispatched names, as ``aten::mm``; or empty."""
    if names[:3] == ("at", "native", "cpublas"):
        return "::".join(names)
    if names[:2] in (("torch", "nn"), ("torch", "jit")):
        return "::".join(names)
    if names[:3] == ("at", "Tensor", "item"):
        return "aten::item"
    if names[:2] != ("at", "_ops") or len(names) < 4:
        return ""
    schema = _schemas().get(names[2])
    if schema is None:
        return f"at::{names[2]}"
    return "" if is_free(schema) or may_alias(schema) else str(schema.name)


@functools.cache
def _schemas() -> dict[str, Any]:
    """Schemas of ATen by the name of their C++ struct in ``at::_ops``."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten":
            found[f"{name}_{schema.overload_name}" if schema.overload_name else name] = schema
    return found


@functools.cache
def _operator_names() -> frozenset[str]:
    return frozenset(schema.name.partition("::")[2] for schema in _schemas().values())


# --- ELF (System V ABI, 64-bit little endian)

_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_DYNSYM, _DT_NEEDED = 2, 6, 11, 1


def _read_elf(
    data: bytes, tables: tuple[int, ...] = (_SHT_DYNSYM,)
) -> tuple[set[str], set[str], tuple[str, ...]]:
    """(undefined, defined) of the symbol tables of these types, and needed of the dynamic section."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        return _read_sections(data, tables)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ValueError(f"broken ELF file: {error}") from None


def _read_sections(data: bytes, tables: tuple[int, ...]) -> tuple[set[str], set[str], tuple[str, ...]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * index) for index in range(count)]
    undefined, defined, needed = set[str](), set[str](), list[str]()
    for _, kind, _, _, offset, length, link, *_ in headers:
        if kind in tables:
            for place in range(offset, offset + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", data, place)
                (defined if section else undefined).add(_text(data, headers[link][4] + name))
        elif kind == _SHT_DYNAMIC:
            for place in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<qQ", data, place)
                if tag == _DT_NEEDED:
                    needed.append(_text(data, headers[link][4] + value))
    return undefined - {""}, defined - {""}, tuple(needed)


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="replace")
