"""Scripts written to harm: each is stopped within its limits, and the next message of an honest transform is served."""

import re

import pytest

from penstock.errors import TransformFailed
from penstock.transforms import Sandbox, Transformed, compile_transform

pytestmark = pytest.mark.server  # runs engine processes

CPU = r"used more than 0.2 s of processor time"
WALL = r"took longer than 1 s"
MEMORY = r"used more than 48 MiB of memory"
STACK = r"threw RangeError: Maximum call stack size exceeded"

HOSTILE = {
    "endless loop": ("while (true);", CPU),
    "endless loop that catches": ("for (;;) try { for (;;); } catch {}", CPU),
    "endless loop in finally": ("try { for (;;); } finally { for (;;); }", CPU),
    "endless getter": ("return {get data() { for (;;); }}", CPU),
    "endless proxy": ("return new Proxy({}, {get() { for (;;); }, getPrototypeOf() { for (;;); }})", CPU),
    "endless toString of what is thrown": ("throw {toString() { for (;;); }}", CPU),
    "endless stack of what is thrown": (
        "const e = new Error; Object.defineProperty(e, 'stack', {get() { for (;;); }}); throw e",
        CPU,
    ),
    "endless generator": ("return {data: [...(function* () { for (;;) yield 1 })()].join()}", f"{CPU}|{MEMORY}"),
    "regular expression": ("return {data: `${/^(a+)+$/.test('a'.repeat(40) + 'b')}`}", CPU),
    "native loop with a look at the limit": ("return {data: `${new Array(2 ** 32 - 1).indexOf(5)}`}", CPU),
    "native loop without": ("return {data: new Array(2 ** 30).join('')}", WALL),
    "sparse sort": ("const a = []; a[2 ** 32 - 2] = 1; a.sort(); a.reverse(); return message", f"{WALL}|{CPU}"),
    "array bomb": ("const a = []; for (;;) a.push(new Array(100000).fill(1))", MEMORY),
    "array bomb that catches": ("const a = []; for (;;) try { a.push(new Array(100000).fill(1)) } catch {}", f"{CPU}|{WALL}"),
    "huge string": ("return {data: 'x'.repeat(2 ** 29)}", MEMORY),
    "doubling string": ("let s = 'x'; for (;;) s += s", "threw InternalError: string too long"),
    "huge buffer": ("return {data: `${new ArrayBuffer(2 ** 30).byteLength}`}", f"{MEMORY}|threw RangeError"),
    "huge number": ("return {data: `${7n ** (10n ** 7n)}`}", f"{CPU}|{WALL}|threw RangeError"),
    "recursion": ("return f(message)", STACK),
    "deep value": ("let o = {}; for (let i = 0; i < 1e5; i++) o = {o}; return {data: JSON.stringify(o)}", STACK),
    "deep JSON": ("return JSON.parse('['.repeat(1e6))", STACK),
    "deep code": ("return eval('('.repeat(1e5))", f"{STACK}|threw SyntaxError"),
    "blocking wait": ("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60000); return message", "threw TypeError"),
    "many names": ("for (let i = 0; ; i++) globalThis['x' + i] = i", f"{CPU}|{MEMORY}|{WALL}"),
    "closed global object": ("Object.preventExtensions(globalThis); throw 'closed'", "threw closed"),
    "fixed global": ("Object.defineProperty(globalThis, 'kept', {value: 1}); throw 'fixed'", "threw fixed"),
    "modules of the engine": ("return {data: std.getenv('PATH')}", "threw ReferenceError"),
    "a way out through the constructor": (
        "return {data: message.constructor.constructor('return process')().pid}",
        "threw ReferenceError",
    ),
    "require": ("return require('fs')", "threw ReferenceError"),
    "network": ("return fetch('http://localhost')", "threw ReferenceError"),
    "timers": ("setTimeout(() => {}, 0)", "threw ReferenceError"),
}


@pytest.mark.timeout(600)  # two dozen scripts that use all the time and memory that they get
def test_a_hostile_script_harms_only_its_own_message(sandbox: Sandbox, impatient: Sandbox, subtests: pytest.Subtests) -> None:
    for title, (body, problem) in HOSTILE.items():
        with subtests.test(title):
            chosen = impatient if WALL in problem else sandbox
            honest = compile_transform("function f(m) { m.data += '!'; return m }", "f", sandbox=chosen)
            hostile = compile_transform(f"function f(message) {{ {body} }}", "f", sandbox=chosen)

            with pytest.raises(TransformFailed) as caught:
                hostile.apply(b"x", {}, {})

            assert re.match(problem, caught.value.problem)
            assert honest.apply(b"x", {}, {}) == Transformed(b"x!", {})


LEAKS = {
    "variable": ("let n = 0;", "n++; return {data: `${n}`}"),
    "closure": ("const next = (() => { let n = 0; return () => ++n })();", "return {data: `${next()}`}"),
    "property of the function": ("", "f.n = (f.n ?? 0) + 1; return {data: `${f.n}`}"),
    "forgotten let": ("", "n = (typeof n === 'undefined' ? 0 : n) + 1; return {data: `${n}`}"),
    "global object": ("", "globalThis.n = (globalThis.n ?? 0) + 1; return {data: `${globalThis.n}`}"),
    "global that cannot be deleted": (
        "",
        "const n = (globalThis.n ?? 0) + 1; Object.defineProperty(globalThis, 'n', {value: n}); return {data: `${n}`}",
    ),
    "symbol on the global object": (
        "const s = Symbol.for('s');",
        "globalThis[s] = (globalThis[s] ?? 0) + 1; return {data: `${globalThis[s]}`}",
    ),
    "regular expression": ("const r = /x/g;", "r.test('xxx'); return {data: `${r.lastIndex}`}"),
    "tagged template": (
        "const t = (s) => s;",
        "const s = t`x`; try { s.n = (s.n ?? 0) + 1 } catch {} return {data: `${s.n ?? 1}`}",
    ),
    "indirect eval of a var": ("", "(0, eval)('var n = (typeof n === \"undefined\" ? 0 : n) + 1'); return {data: `${n}`}"),
}


def test_nothing_passes_from_one_message_to_the_next(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for title, (top, body) in LEAKS.items():
        with subtests.test(title):
            transform = compile_transform(f"{top} function f(message) {{ {body} }}", "f", sandbox=sandbox)
            assert [transform.apply(b"x", {}, {}) for _ in range(3)] == [Transformed(b"1", {})] * 3


BUILTINS = """
Object.prototype Array.prototype String.prototype Function.prototype Error.prototype TypeError.prototype RegExp.prototype
Promise.prototype Map.prototype Date.prototype Symbol.prototype BigInt.prototype Iterator.prototype Uint8Array.prototype
JSON Math Reflect Object Array Date Object.prototype.toString Array.prototype.map Object.getPrototypeOf(Uint8Array)
Object.getPrototypeOf(function*(){}) Object.getPrototypeOf(async()=>{}) Object.getPrototypeOf([].values())
Object.getPrototypeOf(''[Symbol.iterator]()) Object.getPrototypeOf(new(Map)().keys()) Object.getPrototypeOf(''.matchAll(/x/g))
Object.getPrototypeOf(Iterator.from({next(){}})) Object.getPrototypeOf([].values().map(x=>x))
Object.getPrototypeOf(Iterator.concat([1])) Object.getPrototypeOf(Iterator.zip([[1]]))
Object.getPrototypeOf(/x/[Symbol.matchAll]('x'))
Object.getOwnPropertyDescriptor(Map.prototype,'size').get Object.getOwnPropertyDescriptor(Object.prototype,'toString').set
""".split()


def test_built_in_objects_cannot_carry_anything(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for builtin in BUILTINS:
        with subtests.test(builtin=builtin):
            code = f"""
    function f(m) {{
      const b = {builtin}, was = b.kept;
      for (const key of ["kept", "name", "toString", Symbol.iterator]) try {{ b[key] = 1 }} catch {{}}
      return {{data: `${{was}} ${{Object.isFrozen(b)}}`}};
    }}"""
            transform = compile_transform(code, "f", sandbox=sandbox)
            assert [transform.apply(b"x", {}, {}) for _ in range(2)] == [Transformed(b"undefined true", {})] * 2


def test_polluted_prototypes_do_not_reach_the_next_message(sandbox: Sandbox) -> None:
    code = """
    function f(m) {
      for (const path of ["__proto__", "constructor.prototype"]) {
        try { path.split(".").reduce((o, k) => o[k], {}).admin = "yes" } catch {}
      }
      JSON.stringify = () => "mine"; Array.prototype.join = () => "mine"; Promise = null; InternalError = null;
      return {data: `${{}.admin} ${[1, 2].join()} ${JSON.stringify(1)}`};
    }"""
    transform = compile_transform(code, "f", sandbox=sandbox)
    assert [transform.apply(b"x", {}, {}) for _ in range(2)] == [Transformed(b"undefined 1,2 1", {})] * 2


def test_jobs_left_behind_do_not_fill_the_memory_of_a_later_message(sandbox: Sandbox) -> None:
    code = "function f(m) { const a = new Array(5e5).fill(1); Promise.resolve().then(() => a); return m }"
    transform = compile_transform(code, "f", sandbox=sandbox)
    assert [transform.apply(b"x", {}, {}) for _ in range(15)] == [Transformed(b"x", {})] * 15
