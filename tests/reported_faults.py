"""Programs that other trace compilers got wrong, rewritten as small inputs for this one.

Every case has a function `run(jit, printed)`:
  jit      jit(fn_or_module) -> callable (identity is eager, and passes every case)
  printed  None, or printed(jitted) -> list[str]: the printed text of every stage of the last call
A case returns quietly when the compiler is right, and raises otherwise. All run on a CPU.
The reference beside each case names the public report whose kind of fault it is.
"""
# ruff: noqa: B904, B905, E501, E731, F841, PT017, PT018, RUF059 -- small programs, kept in the shape they were reported in.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportOptionalMemberAccess=false

import ast
import collections
import contextvars
import dataclasses
import functools
import gc
import random
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, the public report it stems from, the fault seen there and the right outcome."""

    cid: str
    reference: str
    symptom: str
    right: str
    run: Callable[[Callable[..., Any], Callable[..., list[str]] | None], None]


CASES: list[Case] = []


def case(cid: str, reference: str, symptom: str, right: str) -> Callable[..., Any]:
    """Register the decorated function as a case."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        CASES.append(Case(cid, reference, symptom, right, run))
        return run

    return decorate


def eq(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def texts_parse(printed, jf):
    """every printed stage is Python that parses, with no object reprs leaking into it"""
    if printed is None:
        return []
    out = printed(jf)
    assert out, "no printed stages"
    for t in out:
        try:
            ast.parse(t)
        except SyntaxError as e:
            raise AssertionError(f"printed trace is not Python: {e}\n{t}")
        code = "\n".join(line.split("#")[0] for line in t.splitlines())
        assert not re.search(r"<[\w.]+ (object|of|at)|Proxy\(|IntegerProxy|\[\w*Proxy", code), (
            f"object repr in code:\n{code}"
        )
    return out


@dataclasses.dataclass
class Box:
    val: torch.Tensor
    n: int = 1


def _other_box():
    @dataclasses.dataclass
    class Box:  # same name, another class
        val: torch.Tensor
        n: int = 2

    return Box


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, k):
        ctx.save_for_backward(t)
        ctx.k = k
        return t * t * t * k

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * 5 * ctx.k * t * t, None  # 5 rather than 3: shows whose backward ran


SCALE = 1.0


CTX = contextvars.ContextVar("CTX", default=1)


class OutDict(collections.OrderedDict):
    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError:
            raise AttributeError(k)


NT = collections.namedtuple("NT", "left right")


class Mode:
    pass


def eager(f):
    return f


@case(
    "P01",
    "thunder#1182",
    "A slice whose bound is a symbolic/proxied number prints the proxy's repr inside `slice(...)`, so the trace is not Python.",
    "prints `slice(None, <name>, None)` (or the literal), text parses; value = a[..., :2]",
)
def p01(jit, printed):
    def front_half(t):
        return t[..., : t.shape[-1] // 2]

    t = torch.arange(8.0).reshape(2, 4)
    jf = jit(front_half)
    eq(jf(t), torch.tensor([[0.0, 1.0], [4.0, 5.0]]))
    texts_parse(printed, jf)


@case(
    "P02",
    "pytorch#198072",
    "Constant nan/inf is printed as bare name `nan`/`inf`; a parameter of that name captures it: silent wrong numbers.",
    "[nan, 2.0, nan]; clamp result [1., 2., inf]",
)
def p02(jit, printed):
    def blank(vals, nan):
        return torch.where(nan, float("nan"), vals)

    def cap(vals, inf):
        return torch.where(vals > 2.5, float("inf"), vals) + 0 * inf

    v, m = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])
    jf, jg = jit(blank), jit(cap)
    eq(jf(v, m), torch.tensor([float("nan"), 2.0, float("nan")]))
    eq(jg(v, torch.zeros(3)), torch.tensor([1.0, 2.0, float("inf")]))
    texts_parse(printed, jf)
    texts_parse(printed, jg)


@case(
    "P03",
    "pytorch#46894 (issue #46748)",
    "repr of inf/-inf/nan is not a Python literal, NameError when the generated code runs.",
    "[-inf, 5., nan]; text must evaluate standalone",
)
def p03(jit, printed):
    def f(x):
        y = torch.full_like(x, -float("inf"))
        z = torch.where(x > 0, x, y)
        return torch.where(x == 0, float("nan"), z)

    jf = jit(f)
    eq(jf(torch.tensor([-3.0, 5.0, 0.0])), torch.tensor([-float("inf"), 5.0, float("nan")]))
    texts_parse(printed, jf)


@case(
    "P04",
    "pytorch#188538",
    "Child module names that are keywords (`class`), contain quotes or backslashes give a SyntaxError or read the wrong attribute.",
    "11*x for x=1..3 (weights 1,2,3,5 summed); each child's own weight used",
)
def p04(jit, printed):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.kids = nn.ModuleDict()
            for name, w in (("class", 1.0), ('a"b', 2.0), ("c\\td", 3.0), ("if", 5.0)):
                lin = nn.Linear(1, 1, bias=False)
                nn.init.constant_(lin.weight, w)
                self.kids[name] = lin

        def forward(self, x):
            return sum(k(x) for k in self.kids.values())

    jf = jit(Odd())
    eq(jf(torch.tensor([[1.0], [2.0], [3.0]])), torch.tensor([[11.0], [22.0], [33.0]]))
    texts_parse(printed, jf)


@case(
    "P05",
    "pytorch#44111",
    'Numeric child names ("0", "1") become variable names in the generated code: `0 = ...` SyntaxError.',
    "eager value; text parses",
)
def p05(jit, printed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    x = torch.randn(4, 3)
    jf = jit(net)
    eq(jf(x), net(x))
    texts_parse(printed, jf)


@case(
    "P07",
    "thunder#704",
    "dtype argument is printed `dtypes.thunder.dtypes.float16`: module path doubled, would fail if run.",
    "dtype prints as an expression that evaluates back to that dtype",
)
def p07(jit, printed):
    def f(x):
        return x.to(torch.float16), torch.zeros(2, dtype=torch.int64, device=torch.device("cpu"))

    jf = jit(f)
    a, b = jf(torch.ones(3))
    assert a.dtype == torch.float16 and b.dtype == torch.int64
    for t in texts_parse(printed, jf):
        assert "dtypes.thunder" not in t, t


@case(
    "P08",
    "thunder#1442",
    "A namedtuple argument (of strings) runs but cannot be printed.",
    "x - y = [-1., -1.]; printing works",
)
def p08(jit, printed):
    Cfg = collections.namedtuple("Cfg", ["mode", "tag"])

    def f(x, y, cfg):
        return x - y if cfg.mode and cfg.tag else x + y

    jf = jit(f)
    eq(
        jf(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]), Cfg("ab'c", 'q"\n')),
        torch.tensor([-1.0, -1.0]),
    )
    texts_parse(printed, jf)


@case(
    "P09",
    "thunder#623 / PR #632",
    "Dataclass results unsupported; when supported, two classes of one name from different places must not collide in the printed code.",
    "(Box(x+1, 1), other Box(x+2, 2)) with the two distinct classes",
)
def p09(jit, printed):
    B2 = _other_box()

    def f(x):
        return Box(x + 1), B2(x + 2)

    jf = jit(f)
    a, b = jf(torch.zeros(2))
    assert type(a) is Box and type(b) is B2 and (a.n, b.n) == (1, 2)
    eq(a.val, torch.ones(2))
    eq(b.val, torch.full((2,), 2.0))
    texts_parse(printed, jf)


@case(
    "P10",
    "thunder#1404, #1543",
    "print() of any stage that has a custom autograd.Function raises an assertion.",
    "y = [2., 16.]; x.grad = [10., 40.] (the custom backward, not the true derivative); all stages print",
)
def p10(jit, printed):
    def f(t):
        return Cube.apply(t, 2.0)

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    jf = jit(f)
    y = jf(x)
    eq(y.detach(), torch.tensor([2.0, 16.0]))
    y.sum().backward()
    eq(x.grad, torch.tensor([10.0, 40.0]))
    texts_parse(printed, jf)


@case(
    "P12",
    "thunder#1136 (issue #1013, #1093)",
    "Forward and backward traces allocate names independently; joining them (remat) mixes two values under one name.",
    "eager value and bf16 gradient of softmax(dtype=float32)",
)
def p12(jit, printed):
    def f(t):
        return t.softmax(dim=1, dtype=torch.float)

    torch.manual_seed(0)
    a = torch.randn(4, 8, dtype=torch.bfloat16).requires_grad_()
    b = a.detach().clone().requires_grad_()
    jf = jit(f)
    w = torch.arange(32.0).reshape(4, 8)
    ya, yb = f(a), jf(b)
    eq(yb, ya)
    (ya * w).sum().backward()
    (yb * w).sum().backward()
    assert b.grad.dtype == torch.bfloat16
    torch.testing.assert_close(b.grad, a.grad, rtol=2e-2, atol=2e-2)
    texts_parse(printed, jf)


@case(
    "P14",
    "thunder#2789",
    'After a second call with another number, the printed trace still says `x: "int 1"` of the first call.',
    "3 then 4 then 4.5; comment either the type alone or the value of the call being shown",
)
def p14(jit, printed):
    def plus(p, q):
        return p + q

    jf = jit(plus)
    assert jf(1, 2) == 3
    assert jf(1, 3) == 4
    texts_parse(printed, jf)
    assert jf(1, 3.5) == 4.5


@case(
    "P15",
    "pytorch#113345",
    "Type annotations in generated code are not Python: two annotated targets on one line, `f32[]` with empty subscript.",
    "eager values; text parses even with annotations of multi-output and 0-d results",
)
def p15(jit, printed):
    def f(x):
        v, i = torch.max(x, dim=1)
        a, b, c = torch.split(x, 1, dim=1)
        return v.sum(), i, a * c - b

    x = torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]])
    jf = jit(f)
    s, i, d = jf(x)
    eq(s, torch.tensor(12.0))
    eq(i, torch.tensor([1, 0]))
    eq(d, torch.tensor([[-3.0], [21.0]]))
    texts_parse(printed, jf)


@case(
    "P17",
    "thunder#314",
    "print with several arguments inside the traced function raises.",
    "returns x + 1; the print happens (or is refused with a plain message), never a TypeError from the tracer",
)
def p17(jit, printed):
    def f(x):
        print("hello", "world", 3)
        return x + 1

    jf = jit(f)
    eq(jf(torch.zeros(2)), torch.ones(2))
    texts_parse(printed, jf)


@case(
    "P18",
    "thunder#845 / PR #848 (issue #541)",
    "A Python literal of the forward (2.0) is carried to the backward as an opaque saved proxy instead of being printed as a literal.",
    "x.grad = 2.0 everywhere; backward text contains `2.0`, and no saved-for-backward is needed",
)
def p18(jit, printed):
    def f(a):
        return a * 2.0

    x = torch.ones(3, requires_grad=True)
    jf = jit(f)
    jf(x).backward(torch.tensor([1.0, 2.0, 3.0]))
    eq(x.grad, torch.tensor([2.0, 4.0, 6.0]))
    texts_parse(printed, jf)


@case(
    "P20",
    "thunder#168 (issue #156)",
    "Generated code refers to a module that was never put in its namespace.",
    "eager; running the printed text with only its own imports gives the same",
)
def p20(jit, printed):
    def f(x):
        ramp = torch.arange(0, x.shape[0], device=x.device, dtype=x.dtype)
        return (x + ramp).to(torch.device("cpu"), torch.float64)

    jf = jit(f)
    got = jf(torch.ones(3))
    assert got.dtype == torch.float64
    eq(got, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    texts_parse(printed, jf)


@case(
    "I01",
    "thunder#2756",
    "Two inputs, one a view of the other, both mutated: the writes are ordered independently, silently wrong.",
    "x = [2*(0+1), 2*(1+1), 3, 4, 5] = [2., 4., 3., 4., 5.]; y = x[:2]",
)
def i01(jit, printed):
    def f(x, y):
        x.add_(1)
        y.mul_(2)
        return x, y

    x = torch.arange(5.0)
    y = x[:2]
    a, b = jit(f)(x, y)
    want = torch.tensor([2.0, 4.0, 3.0, 4.0, 5.0])
    eq(x, want)
    eq(a, want)
    eq(b, want[:2])


@case(
    "I02",
    "thunder#1235",
    "Third argument is a reshaped view of the second; compile-time KeyError.",
    "eager",
)
def i02(jit, printed):
    def f(p, q, r):
        return p.exp().add_(q) + r.exp()

    torch.manual_seed(0)
    q = torch.randn(3, 3)
    want = f(q.clone(), q, q.view(1, 3, 3))
    got = jit(f)(q.clone(), q, q.view(1, 3, 3))
    assert got.shape == (1, 3, 3)
    eq(got, want)


@case(
    "I03",
    "thunder#1236",
    "An argument that is never used but aliases another one breaks the alias bookkeeping (IndexError).",
    "eager; also the same tensor object passed twice",
)
def i03(jit, printed):
    def f(p, q, unused):
        return p.exp().add_(q)

    q = torch.ones(2, 2)
    want = torch.exp(torch.ones(2, 2)) + 1
    jf = jit(f)
    eq(jf(q.clone(), q, q[0]), want)
    eq(jf(q.clone(), q, q), want)


@case(
    "I05",
    "thunder#2766",
    "Element view taken, base exp_'d, then the element tanh_'d, result read through the base: order lost.",
    "a = [[tanh(e), e],[e, e]] with input 1; result sin of it; a itself mutated too",
)
def i05(jit, printed):
    def f(a):
        b = a[0, 0]
        c = a.exp_()
        b.tanh_()
        return c.sin()

    a0 = torch.ones(2, 2)
    a1 = torch.ones(2, 2)
    want = f(a0)
    eq(jit(f)(a1), want)
    eq(a1, a0)


@case(
    "I07",
    "thunder#869",
    "Views taken before the base is written keep the stale value.",
    "x + 3 flattened: both views see the add",
)
def i07(jit, printed):
    def f(x):
        x = x.add(1)
        y = x.view(-1)
        z = x.view(-1)
        x.add_(1)
        return y + 1, z + 1

    a, b = jit(f)(torch.zeros(2, 2))
    eq(a, torch.full((4,), 3.0))
    eq(b, torch.full((4,), 3.0))


@case(
    "I08",
    "thunder#657",
    "Chained += on an input, add_ through a flattened view, div_ on an intermediate; optimizer step mutating lists of tensors.",
    "eager for all outputs and for the mutated inputs",
)
def i08(jit, printed):
    def mix(a, b):
        a += b
        c = torch.exp(a)
        d = torch.tanh(b)
        e = c.view(-1)
        e.add_(d.flatten())
        d.div_(a)
        return c, d, e / 2.0

    def step(ws, gs, ms, ts):
        for w, g, m, t in zip(ws, gs, ms, ts):
            t.add_(1)
            m.mul_(0.9).add_(g * 0.1)
            w.addcdiv_(m, (g * g).sqrt() + 1e-3, value=-0.5)

    torch.manual_seed(0)
    a, b = torch.rand(2, 2), torch.rand(2, 2)
    A, B = a.clone(), b.clone()
    want = mix(a, b)
    eq(jit(mix)(A, B), want)
    eq(A, a)
    mk = lambda: (
        [torch.ones(3)],
        [torch.tensor([1.0, 2.0, 3.0])],
        [torch.zeros(3)],
        [torch.tensor(0.0)],
    )
    r, s = mk(), mk()
    step(*r)
    assert jit(step)(*s) is None
    eq(s, r)


@case(
    "I09",
    "thunder#1284",
    "mul_ on a leaf that requires grad: eager raises, compiled runs and gives gradient 1 instead of 2.",
    "RuntimeError as in eager (or any refusal); never a wrong gradient",
)
def i09(jit, printed):
    def f(x):
        return x.mul_(2)

    x = torch.ones(3, requires_grad=True)
    try:
        y = jit(f)(x)
        y.backward(torch.ones(3))
    except Exception:
        return
    eq(x.grad, torch.full((3,), 2.0))


@case(
    "I10",
    "thunder#1209 (issue #1109)",
    "x.copy_(sin x) then x returned: the old or an uninitialised value comes back, or the write is dead-code-eliminated.",
    "cos(sin 1); x == sin(1)",
)
def i10(jit, printed):
    def f(x):
        s = torch.sin(x)
        x.copy_(s)
        return torch.cos(x)

    def only_write(x):
        x.copy_(torch.sin(x))

    x = torch.ones(2)
    eq(jit(f)(x), torch.cos(torch.sin(torch.ones(2))))
    eq(x, torch.sin(torch.ones(2)))
    z = torch.ones(2)
    assert jit(only_write)(z) is None
    eq(z, torch.sin(torch.ones(2)))


@case(
    "I11",
    "pytorch#198095",
    "Second input = base[1:]; base mutated; returning second[0] gives base[0].",
    "row 1 after +100: [103., 104., 105.]",
)
def i11(jit, printed):
    def f(whole, tail):
        whole.add_(100)
        return tail[0]

    m = torch.arange(9.0).reshape(3, 3)
    eq(jit(f)(m, m[1:]), torch.tensor([103.0, 104.0, 105.0]))


@case(
    "I15",
    "thunder#2790 / PR #2792",
    "x[idx] = val in a function that returns nothing: must reach the caller's tensor and not be removed as dead.",
    "row 1 of x becomes ones; x stays the same object/storage",
)
def i15(jit, printed):
    def f(x, idx, val):
        x[idx] = val

    x = torch.zeros(3, 2)
    p = x.data_ptr()
    jit(f)(x, torch.tensor([1]), torch.ones(1, 2))
    eq(x, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    assert x.data_ptr() == p


@case(
    "G01",
    "thunder#1211 (issue #1043)",
    "Only one part of a split is returned; backward meets None cotangents and raises.",
    "grad = 1 in the first two rows, 0 below",
)
def g01(jit, printed):
    def f(a):
        p, q, r = torch.split(a, 2)
        return p

    x = torch.zeros(5, 2, requires_grad=True)
    jit(f)(x).sum().backward()
    eq(x.grad, torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))


@case(
    "G02",
    "thunder#1423, #589 (issue #332)",
    "with torch.no_grad() inside the function was ignored: gradient flowed through the block.",
    "d(x + stop(x*3))/dx = 1, not 4",
)
def g02(jit, printed):
    def f(x):
        with torch.no_grad():
            y = x * 3
        return x + y

    x = torch.ones(3, requires_grad=True)
    jit(f)(x).sum().backward()
    eq(x.grad, torch.ones(3))


@case(
    "G03",
    "thunder#1486",
    "@torch.no_grad decorated function: is_grad_enabled() inside says True, result requires grad.",
    "inner flag False, out.requires_grad False; True/True without the decorator",
)
def g03(jit, printed):
    @torch.no_grad()
    def f(x):
        return x * (2 if torch.is_grad_enabled() else 5)

    x = torch.ones(2, requires_grad=True)
    y = jit(f)(x)
    eq(y, torch.full((2,), 5.0))
    assert not y.requires_grad


@case(
    "G04",
    "pytorch#114338",
    "Two equal expressions, one under no_grad: CSE merges them and both outputs get one requires_grad and one identity.",
    "requires_grad (True, False); two distinct tensors; x.grad = 1",
)
def g04(jit, printed):
    def f(x):
        a = x + 1
        with torch.no_grad():
            b = x + 1
        return a, b

    x = torch.ones(2, requires_grad=True)
    a, b = jit(f)(x)
    assert (a.requires_grad, b.requires_grad) == (True, False)
    assert a is not b
    (a.sum() + b.sum()).backward()
    eq(x.grad, torch.ones(2))


@case(
    "G08",
    "thunder#886, #1379",
    "A reference cycle (or the trace itself) keeps the tensors of the first call alive.",
    "with gc disabled, input and output tensors are dead as soon as the caller drops them",
)
def g08(jit, printed):
    jf = jit(lambda t: torch.relu(t) * 2)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            t = torch.ones(4).requires_grad_()
            o = jf(t)
            wt, wo = weakref.ref(t), weakref.ref(o)
            o.sum().backward()
            del t, o
            assert wt() is None and wo() is None, "tensor kept alive without gc"
    finally:
        gc.enable()


@case(
    "G09",
    "thunder#1368, #1374",
    "More bytes saved for backward than eager for exp/add/linear/residual chains.",
    "bytes saved (grad_fn.saved_tensors, unique storages) <= eager's; gradients equal",
)
def g09(jit, printed):
    def f(x, w, v):
        h = (x.exp() + x).exp()
        return F.linear(F.linear(h, w).exp(), v) + x

    torch.manual_seed(0)

    def run(fn):
        torch.manual_seed(0)
        a = [
            t.requires_grad_()
            for t in (torch.rand(4, 3) * 0.1, torch.rand(5, 3) * 0.1, torch.rand(3, 5) * 0.1)
        ]
        seen = {}

        def pack(t):
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = fn(*a)
        y.sum().backward()
        return sum(seen.values()), [t.grad for t in a]

    n0, g0 = run(f)
    n1, g1 = run(jit(f))
    eq(g1, g0)
    assert n1 <= n0, f"saved {n1} bytes, eager {n0}"


@case(
    "G10",
    "thunder#602, #473 (issue #257)",
    "A weight tied between two layers becomes two trace inputs; duplicated work and, in-place or grads, two results.",
    "one grad with both contributions = 2*x summed; trace has the weight once",
)
def g10(jit, printed):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.one(x) + 2 * self.two(x)

    m = Tied()
    jf = jit(m)
    x = torch.ones(1, 3)
    jf(x).sum().backward()
    eq(m.one.weight.grad, torch.full((3, 3), 3.0))
    assert len(list(m.parameters())) == 1


@case(
    "V01",
    "thunder#1464, #132",
    "Global / closure / ContextVar value read once, baked in, never checked again: stale answer.",
    "2,2 then 11 ; ContextVar 2 then 3; closure 1 then 5 (or refuse to trace such a read)",
)
def v01(jit, printed):
    global SCALE
    SCALE = 2.0
    jf = jit(lambda x: x * SCALE)
    eq(jf(torch.ones(1)), torch.tensor([2.0]))
    SCALE = 11.0
    eq(jf(torch.ones(1)), torch.tensor([11.0]))
    k = 1
    jg = jit(lambda x: x * k)
    eq(jg(torch.ones(1)), torch.tensor([1.0]))
    k = 5
    eq(jg(torch.ones(1)), torch.tensor([5.0]))
    tok = CTX.set(1)
    jh = jit(lambda x: x + CTX.get())
    eq(jh(torch.ones(1)), torch.tensor([2.0]))
    CTX.set(2)
    got = jh(torch.ones(1))
    CTX.reset(tok)
    eq(got, torch.tensor([3.0]))


@case(
    "V03",
    "thunder#1239",
    "f32 tensor that requires grad / 0-d f64 tensor gives f64.",
    "float32, grad float32 = 0.25",
)
def v03(jit, printed):
    x = torch.ones(3, requires_grad=True)
    s = torch.tensor(4.0, dtype=torch.float64)
    y = jit(lambda a, b: a / b)(x, s)
    assert y.dtype == torch.float32
    y.sum().backward()
    eq(x.grad, torch.full((3,), 0.25))


@case(
    "V04",
    "thunder#1970",
    "maximum/minimum/mul of bf16 with 0-d f32 returns f32; bool/int numbers and tensors likewise.",
    "bf16, bf16, int64, float32",
)
def v04(jit, printed):
    def f(a, b, i):
        return torch.maximum(a, b), a * b, i + True, i / 2

    a = torch.ones(2, dtype=torch.bfloat16)
    r = jit(f)(a, torch.tensor(0.5), torch.arange(2))
    assert [t.dtype for t in r] == [torch.bfloat16, torch.bfloat16, torch.int64, torch.float32]


@case(
    "V06",
    "thunder#1344, #603, #604",
    "builtins over an argument list (sum, tuple, reversed, max) are not traced.",
    "sum [6.], shapes (2,3), reversed list order",
)
def v06(jit, printed):
    eq(
        jit(lambda ts: sum(ts))([torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0])]),
        torch.tensor([6.0]),
    )

    def f(shape, ts):
        return torch.zeros(tuple(shape)), torch.ones(shape), list(reversed(ts)), max(len(ts), 1)

    z, o, r, n = jit(f)([2, 3], [torch.tensor(1.0), torch.tensor(2.0)])
    assert z.shape == (2, 3) and o.shape == (2, 3) and n == 2
    eq(r, [torch.tensor(2.0), torch.tensor(1.0)])


@case(
    "V07",
    "thunder#409, #349",
    "x.size(0) returned the whole shape; asking twice crashed; the input returned unchanged was affected.",
    "(3, 4, same object x)",
)
def v07(jit, printed):
    def f(x):
        a = x.size()
        b = x.size()
        return x.size(0), b[1], x

    x = torch.ones(3, 4)
    p, q, r = jit(f)(x)
    assert (p, q) == (3, 4) and type(p) is int
    assert r is x, "an argument returned unchanged should be the same tensor"


@case(
    "V10",
    "thunder#137, #646",
    "self.count += 1 or self.buf = self.buf + 1 in forward: crash, or the second call is stale.",
    "x + 2 then x + 4: count 2, buf 2 (or a plain refusal)",
)
def v10(jit, printed):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.register_buffer("buf", torch.zeros(1))

        def forward(self, x):
            self.count = self.count + 1
            self.buf = self.buf + 1
            return x + self.buf + self.count

    m = Counter()
    jf = jit(m)
    eq(jf(torch.zeros(1)), torch.tensor([2.0]))
    eq(jf(torch.zeros(1)), torch.tensor([4.0]))
    assert m.count == 2
    eq(m.buf, torch.tensor([2.0]))


@case(
    "V11",
    "thunder#584",
    "Buffers updated inside the compiled training step must land in the module.",
    "num_batches_tracked 2, running_mean/var equal to eager after two steps; eval() afterwards uses them",
)
def v11(jit, printed):
    torch.manual_seed(0)
    a, b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    jb = jit(b)
    for _ in range(2):
        x = torch.randn(5, 3)
        eq(jb(x), a(x))
    eq(b.running_mean, a.running_mean)
    eq(b.running_var, a.running_var)
    assert int(b.num_batches_tracked) == 2
    a.eval()
    b.eval()
    x = torch.randn(5, 3)
    eq(jb(x), a(x))


@case(
    "V12",
    "thunder#709",
    'autocast("cuda") changes CPU math; also autocast state must be part of the cache key.',
    "f32 under a cuda autocast, bf16 under a cpu autocast, f32 afterwards",
)
def v12(jit, printed):
    jf = jit(lambda x, w: F.linear(x, w))
    x, w = torch.ones(2, 2), torch.ones(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cuda", torch.bfloat16):
            assert jf(x, w).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert jf(x, w).dtype == torch.bfloat16
    assert jf(x, w).dtype == torch.float32


@case(
    "V13",
    "thunder#678, #838",
    "bf16 activations and f32 weights under autocast: eager works, tracing raises a dtype mismatch; matmul of batched shapes too.",
    "bf16 results, value 2.0",
)
def v13(jit, printed):
    def f(x, w):
        return F.linear(x, w), torch.matmul(w.expand(3, 2, 2), x)

    with torch.autocast("cpu", torch.bfloat16):
        a, b = jit(f)(torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2))
    assert a.dtype == torch.bfloat16 and b.dtype == torch.bfloat16
    eq(a.float(), torch.full((2, 2), 2.0))
    eq(b.float(), torch.full((3, 2, 2), 2.0))


@case(
    "V15",
    "thunder#735",
    "`if (x > 0).any()`, `not x`, `x or y`: unclear crash, or the branch of the first call is baked in.",
    "x*2 for positives, -x otherwise on alternating calls; or an error that names the line and says data-dependent",
)
def v15(jit, printed):
    def f(x):
        if (x > 0).any():
            return x * 2
        return -x

    jf = jit(f)
    try:
        got = jf(torch.tensor([1.0]))
        got2 = jf(torch.tensor([-1.0]))
    except Exception as e:
        s = f"{type(e).__name__}: {e}".lower()
        assert any(w in s for w in ("data-dependent", "data dependent", "bool", "control flow")), s
        return
    eq(got, torch.tensor([2.0]))
    eq(got2, torch.tensor([1.0]))


@case(
    "V17",
    "pytorch#186281, #186379, #187580",
    "Algebraic simplification: x*0 -> 0, x-x -> 0, x+0 -> x (loses -0.0 and dtype), x/x -> 1.",
    "[nan, nan, 0., -0.]; x-x keeps nan; int + 0.0 is float",
)
def v17(jit, printed):
    def f(x, i):
        return x * 0, x - x, i + 0.0, i * 1.0, (x + 0.0)

    x = torch.tensor([float("inf"), float("nan"), 1.0, -0.0])
    a, b, c, d, e = jit(f)(x, torch.arange(2))
    n = float("nan")
    eq(a, torch.tensor([n, n, 0.0, 0.0]))
    eq(b, torch.tensor([n, n, 0.0, 0.0]))
    assert c.dtype == torch.float32 and d.dtype == torch.float32
    assert torch.signbit(a[3]) and not torch.signbit(e[3])


@case(
    "V18",
    "pytorch#191013",
    "CSE keys by ==: NaN constants never merge, while 1, True and 1.0 or 0.0 and -0.0 merge wrongly.",
    "(1 -> int64, True -> bool, 1.0 -> float32); 1/0.0=inf, 1/-0.0=-inf",
)
def v18(jit, printed):
    def f(x):
        a = torch.full((1,), 1)
        b = torch.full((1,), True)
        c = torch.full((1,), 1.0)
        p = torch.full_like(x, 0.0)
        q = torch.full_like(x, -0.0)
        return (
            a,
            b,
            c,
            1 / p,
            1 / q,
            torch.full_like(x, float("nan")),
            torch.full_like(x, float("nan")),
        )

    r = jit(f)(torch.ones(1))
    assert [t.dtype for t in r[:3]] == [torch.int64, torch.bool, torch.float32]
    assert r[3].item() == float("inf") and r[4].item() == -float("inf")
    assert torch.isnan(r[5]).all() and torch.isnan(r[6]).all()


@case(
    "V19",
    "XPU-Forces/xpu_graph#472 (issue #471)",
    "A third-party CSE pass merges two random calls with equal arguments (and two in-place writes).",
    "two different draws, same stream as eager under one seed; two adds applied",
)
def v19(jit, printed):
    def f(x):
        a = torch.rand(3)
        b = torch.rand(3)
        x.add_(1)
        x.add_(1)
        return a, b

    torch.manual_seed(3)
    wa, wb = f(torch.zeros(1))
    x = torch.zeros(1)
    jf = jit(f)
    torch.manual_seed(3)
    a, b = jf(x)
    assert not torch.equal(a, b)
    eq(x, torch.tensor([2.0]))
    eq(a, wa)
    eq(b, wb)


@case(
    "V20",
    "thunder#114, #1660; NVIDIA/Fuser#4709",
    'Mask redrawn in backward, or saved-for-backward of the RNG state lost ("not enough values to unpack").',
    "grad is 2 exactly where the output is kept, 0 where dropped; fresh mask each call; same seed -> same result",
)
def v20(jit, printed):
    jf = jit(lambda x: F.dropout(x, 0.5) * 1.0)
    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(1)
    y = jf(x)
    y.sum().backward()
    eq(x.grad, y.detach())
    assert 0 < int((y == 0).sum()) < 64
    torch.manual_seed(1)
    eq(jf(x).detach(), y.detach())
    assert not torch.equal(jf(x), y)


@case(
    "V22",
    "pytorch#14875",
    "(x,) comes back as x; [] {} None nested outputs flattened.",
    "exact structure kept, dict order kept",
)
def v22(jit, printed):
    x = torch.ones(1)
    r = jit(lambda t: (t + 1,))(x)
    assert type(r) is tuple and len(r) == 1
    r = jit(lambda t: [t + 1])(x)
    assert type(r) is list
    r = jit(lambda t: {"z": t, "a": [None, (t + 1,), {}], "n": 3, "s": "str", "b": True})(x)
    assert (
        list(r) == ["z", "a", "n", "s", "b"] and r["n"] == 3 and r["s"] == "str" and r["b"] is True
    )
    assert r["a"][0] is None and type(r["a"][1]) is tuple and r["a"][2] == {}
    assert jit(lambda t: None)(x) is None
    assert jit(lambda t: ())(x) == ()


@case(
    "V23",
    "thunder#757, #147, #47",
    "namedtuple result becomes a tuple; an OrderedDict subclass result raises in the tracer.",
    "NT(left=x+1, right=2), type kept; OutDict with attribute access",
)
def v23(jit, printed):
    x = torch.zeros(1)
    r = jit(lambda t: NT(t + 1, 2))(x)
    assert type(r) is NT
    eq(r.left, torch.ones(1))
    q = jit(lambda a: a.left - a.right)(NT(torch.ones(1), torch.zeros(1)))
    eq(q, torch.ones(1))
    o = jit(lambda t: OutDict(h=t + 2))(x)
    assert type(o) is OutDict
    eq(o.h, torch.full((1,), 2.0))


@case(
    "V25",
    "tinygrad/tinygrad#3730",
    "Second call with keywords in another order pairs the values wrongly.",
    "4/2 = 2 in each spelling; kw-only, defaults, *args, **kwargs work",
)
def v25(jit, printed):
    jf = jit(lambda first, second: first / second)
    a, b = torch.tensor(4.0), torch.tensor(2.0)
    for r in (jf(first=a, second=b), jf(second=b, first=a), jf(a, second=b), jf(a, b)):
        eq(r, torch.tensor(2.0))

    def g(x, /, y=3, *rest, k, m=2, **more):
        t = x * y + k - m
        for r in rest:
            t = t * r
        return t + sum(v for v in more.values())

    jg = jit(g)
    one = torch.ones(1)
    eq(jg(one, k=one), g(one, k=one))
    eq(
        jg(one, 4, one * 2, 3, k=one, m=5, z=one, q=one * 7),
        g(one, 4, one * 2, 3, k=one, m=5, z=one, q=one * 7),
    )


@case(
    "V27",
    "pytorch#198187",
    "A Python RNG read inside the function: garbage, or the first draw baked in as a constant.",
    "fresh draws each call, same as eager with the same seed (or refused)",
)
def v27(jit, printed):
    rng = random.Random(0)
    jf = jit(lambda x: x * rng.random())
    a, b = jf(torch.ones(1)).item(), jf(torch.ones(1)).item()
    ref = random.Random(0)
    assert abs(a - ref.random()) < 1e-6 and abs(b - ref.random()) < 1e-6, (a, b)


@case(
    "V28",
    "thunder#1223, #1460",
    "User exception wrapped in the tracer's own, dozens of internal frames, the user's frame missing.",
    "ValueError('boom') itself, and a traceback frame of `inner_helper`",
)
def v28(jit, printed):
    import traceback

    def inner_helper(x):
        raise ValueError("boom")

    def f(x):
        try:
            return inner_helper(x)
        finally:
            pass

    try:
        jit(f)(torch.ones(1))
    except ValueError as e:
        names = [fr.name for fr in traceback.extract_tb(e.__traceback__)]
        assert str(e) == "boom" and "inner_helper" in names, names
    else:
        raise AssertionError("no exception")


@case(
    "V30",
    "thunder#729",
    "A property that builds a new object on each access is assumed to return one object.",
    "7.0 (3 + 4), property run each time",
)
def v30(jit, printed):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(3.0))

        @property
        def pair(self):
            return [self.w, self.w + 1]

        def forward(self, x):
            return x * self.pair[0] + self.pair[1]

    eq(jit(M())(torch.tensor(1.0)).detach(), torch.tensor(7.0))


@case(
    "V32",
    "pytorch#141258, #186069",
    "np.float64 / np.int64 / 0-d array arguments: not accepted, or change dtype (float32 tensor * np.float64).",
    "float32 results 3.0; round(np.floor(3.7)) = 3",
)
def v32(jit, printed):
    import numpy as np

    jf = jit(lambda x, s: x * s)
    for s in (np.float64(3.0), np.float32(3.0), np.int64(3)):
        want = torch.ones(2) * s
        got = jf(torch.ones(2), s)
        assert got.dtype == want.dtype == torch.float32
        eq(got, want)
    r = jit(lambda x, s: x * round(np.floor(s)))(torch.ones(1), 3.7)
    eq(r, torch.tensor([3.0]))


@case(
    "V34",
    "thunder#1909 (imag) and complex support",
    "Complex tensors and complex literals (1j, -0j, nan+1j) in the trace.",
    "(1+2j)*2j = -4+2j; real -4, imag 2; text parses",
)
def v34(jit, printed):
    def f(z):
        w = z * 2j
        return w, w.real, w.imag, z.conj() + complex(0.0, -1.0)

    z = torch.tensor([1 + 2j])
    jf = jit(f)
    w, re_, im, c = jf(z)
    eq(w, torch.tensor([-4 + 2j]))
    eq(re_, torch.tensor([-4.0]))
    eq(im, torch.tensor([2.0]))
    eq(c, torch.tensor([1 - 3j]))
    texts_parse(printed, jf)


@case(
    "V35",
    "thunder#171",
    "functools.partial, bound methods, callables with __call__, nested jit.",
    "3, 3, 3, 6",
)
def v35(jit, printed):
    class K:
        def __init__(self, k):
            self.k = k

        def meth(self, x):
            return x * self.k

        def __call__(self, x):
            return x * self.k

    x = torch.ones(1)
    eq(jit(functools.partial(lambda k, x: x * k, 3))(x), torch.tensor([3.0]))
    eq(jit(K(3).meth)(x), torch.tensor([3.0]))
    eq(jit(K(3))(x), torch.tensor([3.0]))
    inner = jit(lambda t: t * 3)
    eq(jit(lambda t: inner(t) * 2)(x), torch.tensor([6.0]))
