"""The static scan: attacks are named, honest sources pass."""

from __future__ import annotations

import textwrap

import pytest

from cuda_agent.judge.static import Severity, scan_sources
from cuda_agent.judge.static_cpp import blank
from cuda_agent.result import ViolationKind as Kind


def scan(text, path="model_new.py"):
    return scan_sources({path: textwrap.dedent(text).encode()})


def broken(text, path="model_new.py"):
    return {finding.kind for finding in scan(text, path) if finding.severity is Severity.VIOLATION}


HONEST = '''
"""torch.compile, sys._getframe and gc.get_objects are only words here."""
from __future__ import annotations
import math
import os
import threading
from typing import Optional
import torch
import torch.nn as nn
import torch.nn.functional as F
import cuda_extension

torch.backends.cuda.matmul.allow_tf32 = False
_LOCK = threading.Lock()
_CACHE = {}


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return cuda_extension.swish(x)


class ModelNew(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("table", torch.arange(width).float())
        self.scale = 1 / math.sqrt(width)
        self.eps = eps
        self.ready = False
        for name in ("a", "b"):
            setattr(self, name, nn.Parameter(torch.randn(width)))

    def prepare(self):
        self.packed = self.linear.weight.detach().t().contiguous().half()
        self.ready = True
        _CACHE["x"] = torch.softmax(self.a, 0)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        if not self.ready:
            self.prepare()
        out = torch.empty_like(x, dtype=torch.float32)
        self.linear.weight.data_ptr()
        cuda_extension.fused(x.view(-1, x.shape[-1]), self.packed, out, self.scale)
        return out.view(x.shape[0], -1)
'''


def test_honest_module_has_no_violation():
    findings = scan(HONEST)
    assert [f for f in findings if f.severity is Severity.VIOLATION] == []
    assert [f.kind for f in findings] == [Kind.PRECISION]


def test_try_and_pass_are_at_most_notes():
    text = """
    import torch
    class ModelNew(torch.nn.Module):
        def forward(self, x):
            try:
                return self.kernel(x)
            except RuntimeError:
                pass
            return x
    """
    findings = scan(text)
    assert broken(text) == set()
    assert [f.detail for f in findings] == ["model_new.py:5: try in code that forward reaches"]


def test_operators_named_by_forward_are_one_note():
    text = """
    import torch
    import torch.nn.functional as F
    class ModelNew(torch.nn.Module):
        def helper(self, x):
            return F.relu(x)
        def unused(self, x):
            return torch.exp(x)
        def prepare(self):
            self.w = torch.softmax(self.v, 0)
        def forward(self, x):
            return self.helper(torch.matmul(x, x)) @ torch.empty(3)
    """
    (note,) = scan(text)
    assert note.severity is Severity.NOTE and note.kind is Kind.TORCH_COMPUTE
    for name in ("torch.matmul", "torch.nn.functional.relu", "@"):
        assert name in note.detail
    assert "exp" not in note.detail and "softmax" not in note.detail and "empty" not in note.detail


TAMPERING = {
    "attribute": "import torch\ntorch.cuda.synchronize = lambda: None",
    "alias": "import torch.nn.functional as F\nF.relu = F.gelu",
    "bound_alias": "import torch\nt = torch.cuda\nt.Event = object",
    "from_import": "from torch import cuda\ncuda.synchronize = print",
    "method": "import torch\ntorch.Tensor.__matmul__ = None",
    "delete": "import torch\ndel torch.cuda.Event",
    "augmented": "import torch\ntorch.cuda.x += 1",
    "loop_target": "import torch\nfor torch.cuda.synchronize in [print]: pass",
    "setattr": "import torch\nsetattr(torch.cuda, 'synchronize', print)",
    "setattr_name": "import torch\nn = 'x'\nsetattr(torch, n, print)",
    "getattr_chain": "import torch\ngetattr(torch, 'cuda').synchronize = print",
    "dunder": "import torch\ntype.__setattr__(torch.Tensor, 'x', 1)",
    "dict": "import torch\ntorch.__dict__['compile'] = print",
    "dict_update": "import torch\ntorch.__dict__.update(compile=print)",
    "vars": "import torch\nvars(torch)['compile'] = print",
    "builtins": "import builtins\nbuiltins.print = None",
    "dunder_builtins": "__builtins__['print'] = None",
    "time": "import time\ntime.perf_counter = lambda: 0",
    "sys_modules": "import sys\nsys.modules['torch'] = None",
    "sys_modules_pop": "import sys\nsys.modules.pop('torch')",
    "sys_modules_attr": "import sys\nsys.modules['torch'].compile = print",
    "meta_path": "import sys\nsys.meta_path = []",
    "import_call": "__import__('torch').compile_x = print",
    "import_module": "import importlib\nimportlib.import_module('torch').x = 1",
    "frames": "import sys\nx = sys._getframe(1)",
    "f_back": "def f(g): return g.f_back.f_locals",
    "inspect": "import inspect\ninspect.stack()",
    "inspect_from": "from inspect import currentframe\ncurrentframe()",
    "gc": "import gc\ngc.get_objects()",
    "gc_from": "from gc import get_referrers as g\ng(1)",
    "traceback": "import traceback\ntraceback.walk_stack(None)",
    "settrace": "import sys\nsys.settrace(print)",
    "guard": "from torch.utils._python_dispatch import _disable_current_modes",
    "guard_attr": "import torch\ntorch.utils._python_dispatch._disable_current_modes()",
    "guard_c": "import torch\ntorch._C._DisableTorchDispatch()",
    "code": "def f(): pass\nf.__code__ = None",
    "globals": "def f(): pass\nf.__globals__['torch'] = None",
    "class_swap": "def f(x): x.__class__ = int",
    "subclass": "import torch\nclass Lazy(torch.Tensor): pass",
    "extension": "import cuda_extension\ncuda_extension.run = print",
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering(name):
    assert broken(TAMPERING[name]) == {Kind.TAMPERING}


IMPORTS = {
    "import torch._dynamo": Kind.FORBIDDEN_IMPORT,
    "import torch._inductor.config as c": Kind.FORBIDDEN_IMPORT,
    "import torch\nf = torch.compile(print)": Kind.FORBIDDEN_IMPORT,
    "from torch import compile": Kind.FORBIDDEN_IMPORT,
    "import torch\n@torch.jit.script\ndef f(x): return x": Kind.FORBIDDEN_IMPORT,
    "import triton": Kind.FORBIDDEN_IMPORT,
    "import triton.language as tl": Kind.FORBIDDEN_IMPORT,
    "def f():\n    from flash_attn import flash_attn_func": Kind.FORBIDDEN_IMPORT,
    "import subprocess": Kind.FORBIDDEN_IMPORT,
    "import ctypes": Kind.FORBIDDEN_IMPORT,
    "from model import Model": Kind.FORBIDDEN_IMPORT,
    "from .model import Model": Kind.FORBIDDEN_IMPORT,
    "from torch.utils.cpp_extension import load_inline": Kind.FORBIDDEN_IMPORT,
    "m = __import__('triton')": Kind.FORBIDDEN_IMPORT,
    "import importlib\nm = importlib.import_module('torch._inductor')": Kind.FORBIDDEN_IMPORT,
    "import sys\nm = sys.modules['torch._dynamo'].config": Kind.FORBIDDEN_IMPORT,
    "import os\nos.system('true')": Kind.PROCESS_ESCAPE,
    "from os import fork\nfork()": Kind.PROCESS_ESCAPE,
    "import os\nos.execv('/bin/sh', [])": Kind.PROCESS_ESCAPE,
    "import threading\nthreading.Thread(target=print).start()": Kind.LATE_WORK,
    "from concurrent.futures import ThreadPoolExecutor": Kind.LATE_WORK,
}


@pytest.mark.parametrize("text", IMPORTS)
def test_forbidden_imports_and_calls(text):
    assert broken(text) == {IMPORTS[text]}


@pytest.mark.parametrize(
    "text",
    [
        "import os\nx = os.path.join('a', 'b')\nos.environ.get('X')",
        "import sys\nx = sys.modules[__name__]\nsys.path.insert(0, '.')",
        "import inspect\ninspect.signature(print)",
        "import gc\ngc.collect()",
        "import traceback\ntraceback.print_exc()",
        "import torch\nx = torch.stack\ny = torch.empty(3)\ny.grad = None",
        "import torch\nclass P(torch.nn.Parameter): pass",
        "class A:\n    def eval(self): self.eval()\n    def system(self): self.fork()",
        "import modeling_utils",
        "import torch\nif torch.jit.is_scripting() or torch.distributed.is_available(): x = 1",
        "import torch.distributions",
        "model = 1\nmodel.x = 2",
        "import torch\ntorch.manual_seed(0)\nwith torch.no_grad(): pass",
        "def f(torch_like): torch_like.x = 1",
        "x = {}\nx.update(a=1)\nx['torch'] = 1",
        "syntax error here",
        "",
    ],
)
def test_no_false_alarm_in_python(text):
    assert broken(text) == set()


def test_data_handed_to_numpy_in_forward():
    text = """
    import numpy as np
    class ModelNew:
        def prepare(self):
            self.w = self.v.numpy()
        def forward(self, x):
            return work(x)
    def work(x):
        return np.exp(x.numpy())
    """
    details = [f.detail for f in scan(text) if f.severity is Severity.VIOLATION]
    assert details == ["model_new.py:9: forward reaches .numpy, which hands data to another library"]


def test_findings_name_file_and_line():
    (finding,) = scan("import sys\n\nsys.modules['x'] = 1\n")
    assert finding.detail == "model_new.py:3: writes into sys.modules"


HONEST_CU = r"""
// system("rm"); dlopen("x"); at::matmul(a, b)
/* #include <cutlass/cutlass.h>
   fork(); */
#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <cub/cub.cuh>
#include <thrust/sort.h>
#include <cooperative_groups.h>
#include "helpers.cuh"
#include "../binding_registry.h"
const char* note = "call system(\"x\") // not a comment";
const char* raw = R"x(dlopen(") and fork( )x";
const int big = 1'000'000; const char quote = '"'; const char slash = '\\';
struct filesystem { void connect(); void fork(int); };
namespace mine { inline int system(int x) { return x; } }
__global__ void kernel(float* x) { x[0] = mine::system(1); }
void use(filesystem* f, filesystem& g) { f->fork(1); g.connect(); }
"""


def test_honest_cuda_source():
    assert scan(HONEST_CU, "kernels/a.cu") == []


BINDING = """
#include <torch/types.h>
#include "../binding_registry.h"
static torch::Tensor run(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  auto out = torch::empty_like(x);
  auto zeros = at::zeros({3}, x.options().dtype(torch::kFloat));
  at::parallel_for(0, 3, 1, [&](int64_t a, int64_t b) {});
  auto stream = at::cuda::getCurrentCUDAStream();
  return out;
}
"""


def test_honest_binding():
    assert scan(BINDING, "kernels/a_binding.cpp") == []


CPP = {
    'int f() { return system("x"); }': Kind.PROCESS_ESCAPE,
    'int f() { return std::system("x"); }': Kind.PROCESS_ESCAPE,
    "int f() { return ::fork(); }": Kind.PROCESS_ESCAPE,
    'void* f() { return dlopen ("libx.so", 1); }': Kind.FORBIDDEN_LIBRARY,
    "int f() { return sys\\\ntem(\"x\"); }": Kind.PROCESS_ESCAPE,
    "#include <cutlass/gemm/device/gemm.h>": Kind.FORBIDDEN_LIBRARY,
    "#  include <oneapi/dnnl/dnnl.hpp>": Kind.FORBIDDEN_LIBRARY,
    '#include "/etc/passwd"': Kind.PROCESS_ESCAPE,
    '#include "../../secret.h"': Kind.PROCESS_ESCAPE,
    'asm(".incbin \\"/etc/passwd\\"");': Kind.PROCESS_ESCAPE,
    "c10::impl::ExcludeDispatchKeyGuard g(c10::DispatchKey::Python);": Kind.TAMPERING,
    "auto x = process_vm_readv(1, 0, 0, 0, 0, 0);": Kind.TAMPERING,
}  # fmt: skip


@pytest.mark.parametrize("text", CPP)
def test_cpp_violations(text):
    assert broken(text, "kernels/a_binding.cpp") == {CPP[text]}


def test_operators_in_cpp_are_one_note():
    text = "auto f(at::Tensor a) { return at::matmul(a, torch::relu(a)) + at::native::mm(a, a); }"
    (note,) = scan(text, "kernels/a_binding.cpp")
    assert note.severity is Severity.NOTE and note.kind is Kind.TORCH_COMPUTE
    assert note.detail.endswith("at::matmul, torch::relu, at::native::mm")


def test_blank_keeps_lines_and_code():
    text = 'a /* x\ny */ b "s\\"t" c // d\ne \'"\' 1\'000 R"(\n")" f'
    assert blank(text, strings=True).split("\n") == [
        "a     ",
        "     b        c     ",
        "e     1'000    ",
        "    f",
    ]
    assert '"s\\"t"' in blank(text, strings=False)
    assert len(blank(text, strings=True)) == len(text)


def test_other_files_are_skipped():
    assert scan_sources({"README.md": b"import triton", "kernels/x.bin": b"\xff\xfe"}) == []
    assert broken("import triton", "kernels/tool.py") == {Kind.FORBIDDEN_IMPORT}
