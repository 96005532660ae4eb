"""The library scan on real shared objects."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from cuda_agent.judge.finding import Severity
from cuda_agent.judge.symbols import _nested_name, scan_library
from cuda_agent.result import ViolationKind


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("symbols")

    def compile_source(name: str, source: str, *flags: str) -> Path:
        (folder / f"{name}.cpp").write_text(source)
        library = folder / f"{name}.so"
        argv = ["g++", "-O1", "-shared", "-fPIC", str(folder / f"{name}.cpp"), "-o", str(library), *flags]
        subprocess.run(argv, check=True, capture_output=True)
        return library

    return compile_source


def violations(scan):
    return {(f.kind, f.detail) for f in scan.findings if f.severity is Severity.VIOLATION}


# Declarations as the torch headers make them, without the cost of parsing them.
ATEN = """
#include <cstdint>
namespace c10 {
class Scalar; template <class T> class ArrayRef; class SymInt; enum class MemoryFormat : int8_t;
}
namespace at {
class Tensor;
class TensorBase { public: void* __dispatch_contiguous(c10::MemoryFormat) const; };
namespace _ops {
struct matmul {
  static void* call(const Tensor&, const Tensor&);
  static void* redispatch(uint64_t, const Tensor&);
};
struct add_Scalar { static void* call(const Tensor&, const c10::Scalar&, const c10::Scalar&); };
struct view { static void* call(const Tensor&, c10::ArrayRef<c10::SymInt>&); };
struct transpose_int { static void* call(const Tensor&, int64_t, int64_t); };
struct empty_memory_format { static void* call(int64_t); };
struct zeros_like { static void* call(const Tensor&); };
struct zeros_out { static void* call(Tensor&); };
struct view_copy { static void* call(const Tensor&); };
struct to_dtype { static void* call(const Tensor&, int); };
}
namespace native { void* mm_mat1_sparse(const Tensor&); void* getCudnnHandle(); }
namespace cpu { void* addmm(const Tensor&); }
namespace cuda { void* mm(const Tensor&); void* getCurrentCUDABlasHandle(); }
int get_num_threads();
}
"""


def test_honest_names_pass(build):
    body = """
    extern "C" void sgemm_(const char*);
    void f(const at::Tensor& t, c10::ArrayRef<c10::SymInt>& s, const at::TensorBase& b) {
      at::_ops::view::call(t, s); at::_ops::transpose_int::call(t, 0, 1); at::_ops::zeros_like::call(t);
      at::_ops::empty_memory_format::call(1); at::_ops::to_dtype::call(t, 1); at::native::getCudnnHandle();
      at::cuda::getCurrentCUDABlasHandle(); at::get_num_threads(); sgemm_("n"); b.__dispatch_contiguous({});
    }"""
    scan = scan_library(build("honest", ATEN + body))
    assert scan.findings == ()
    assert scan.compute_ops == () and scan.bypasses == ()
    assert "sgemm_" in scan.undefined


def test_dispatched_operators_are_listed(build):
    body = """
    void f(at::Tensor& t, const c10::Scalar& s) {
      at::_ops::matmul::call(t, t); at::_ops::add_Scalar::call(t, s, s);
      at::_ops::zeros_out::call(t); at::_ops::view_copy::call(t);
    }"""
    scan = scan_library(build("dispatched", ATEN + body))
    assert scan.compute_ops == ("aten::add", "aten::matmul", "aten::view_copy", "aten::zeros")
    assert [f.severity for f in scan.findings] == [Severity.NOTE]


def test_kernels_past_the_dispatcher_are_violations(build):
    body = """
    void f(const at::Tensor& t) {
      at::native::mm_mat1_sparse(t); at::cpu::addmm(t); at::cuda::mm(t); at::_ops::matmul::redispatch(0, t);
    }"""
    scan = scan_library(build("bypass", ATEN + body))
    assert scan.bypasses == (
        "at::_ops::matmul::redispatch", "at::cpu::addmm", "at::cuda::mm", "at::native::mm_mat1_sparse",
    )  # fmt: skip
    assert {kind for kind, _ in violations(scan)} == {ViolationKind.TORCH_COMPUTE}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("#include <cstdlib>\nint f() { return system(\"true\"); }", ViolationKind.PROCESS_ESCAPE),
        ("#include <unistd.h>\nint f() { return fork(); }", ViolationKind.PROCESS_ESCAPE),
        ("#include <unistd.h>\nint f(char** a) { return execve(a[0], a, a); }", ViolationKind.PROCESS_ESCAPE),
        ("#include <sys/socket.h>\nint f() { return socket(1, 2, 3); }", ViolationKind.PROCESS_ESCAPE),
        ("#include <sys/ptrace.h>\nlong f() { return ptrace(PTRACE_TRACEME); }", ViolationKind.TAMPERING),
        ("#include <sys/mman.h>\nint f(void* p) { return mprotect(p, 1, 7); }", ViolationKind.TAMPERING),
        ("#include <dlfcn.h>\nvoid* f() { return dlopen(\"libx.so\", 1); }", ViolationKind.FORBIDDEN_LIBRARY),
        ("extern \"C\" int dnnl_sgemm(); int f() { return dnnl_sgemm(); }", ViolationKind.FORBIDDEN_LIBRARY),
        ("extern \"C\" void vsExp(int); void f() { vsExp(1); }", ViolationKind.FORBIDDEN_LIBRARY),
        ("extern \"C\" int clock_gettime(int, void*) { return 0; }", ViolationKind.TAMPERING),
        (
            "namespace c10::impl { struct TorchDispatchModeTLS { static void pop_stack(); }; }\n"
            "void f() { c10::impl::TorchDispatchModeTLS::pop_stack(); }",
            ViolationKind.TAMPERING,
        ),
    ],
)  # fmt: skip
def test_forbidden_calls(build, code, kind):
    scan = scan_library(build("forbidden", code), backend="cpu")
    assert {k for k, _ in violations(scan)} == {kind}


def test_dlopen_is_a_note_beside_a_static_cuda_runtime(build):
    library = build("static_runtime", '#include <dlfcn.h>\nvoid* f() { return dlopen("libcuda.so.1", 1); }')
    assert violations(scan_library(library, backend="cuda")) == set()
    assert violations(scan_library(library, backend="cpu"))


def test_launchers_with_cuda_names_are_honest(build):
    code = 'extern "C" void cudaSoftmaxForward() {} extern "C" void cudaLaunchMyKernel() {}'
    assert scan_library(build("launcher", code), backend="cpu").findings == ()
    fake = 'extern "C" int cudaEventElapsedTime(float* t, void*, void*) { *t = 0; return 0; }'
    assert violations(scan_library(build("fake_clock", fake), backend="cpu"))


def test_threads_and_other_blas_are_notes(build):
    code = (
        '#include <thread>\nextern "C" void sgemv_(int);\nvoid f() { std::thread([]{}).join(); sgemv_(1); }'
    )
    scan = scan_library(build("threads", code, "-pthread"), backend="cpu")
    assert violations(scan) == set()
    kinds = {f.kind for f in scan.findings}
    assert kinds == {ViolationKind.LATE_WORK, ViolationKind.FORBIDDEN_LIBRARY}


def test_needed_libraries(build):
    plain = scan_library(build("plain", '#include <cstdio>\nint f() { return puts("x"); }'), backend="cpu")
    assert plain.forbidden_libraries == ()
    assert any(name.startswith("libc.so") for name in plain.needed)
    fake = build("libvendor", "int g() { return 1; }", "-Wl,-soname,libvendor.so.1")
    linked = build("linked", "int g(); int f() { return g(); }", str(fake), "-Wl,--no-as-needed")
    scan = scan_library(linked, backend="cpu")
    assert scan.forbidden_libraries == ("libvendor.so.1",)
    assert (ViolationKind.FORBIDDEN_LIBRARY, "linked against libvendor.so.1") in violations(scan)
    blas = build("libcublas", "int h() { return 1; }", "-Wl,-soname,libcublas.so.13")
    linked = build("with_cublas", "int h(); int f() { return h(); }", str(blas))
    assert scan_library(linked, backend="cuda").forbidden_libraries == ()
    assert scan_library(linked, backend="cpu").forbidden_libraries == ("libcublas.so.13",)


def test_torch_library_itself_can_be_read():
    library = Path(torch.__file__).parent / "lib/libtorch_python.so"
    scan = scan_library(library)
    assert "libtorch_cpu.so" in scan.needed
    assert "aten::matmul" in scan.compute_ops or "aten::mm" in scan.compute_ops


def test_not_an_elf_file(tmp_path):
    for content in (b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\xff" * 60):
        (tmp_path / "x.so").write_bytes(content)
        with pytest.raises(ValueError, match="ELF"):
            scan_library(tmp_path / "x.so")


def test_nested_names():
    assert _nested_name("_ZN2at4_ops6matmul4callERKNS_6TensorES4_") == ("at", "_ops", "matmul", "call")
    assert _nested_name("_ZNK2at6Tensor4itemIfEET_v") == ("at", "Tensor", "item")
    assert _nested_name("sgemm_") == ()
