"""The engine's process: started late, replaced when it ends, shared by threads, stripped of rights."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.errors import TransformFailed, Unimplemented
from penstock.extras import how_to_install
from penstock.transforms import Limits, Sandbox, Transformed, compile_transform
from penstock.transforms import sandbox as sandbox_module

pytestmark = pytest.mark.server  # runs engine processes

ECHO = "function f(m) { return m }"


def pid_of(sandbox: Sandbox) -> int:
    return sandbox._idle[-1]._process.pid


def test_importing_starts_and_loads_nothing() -> None:
    program = "import sys, penstock.transforms; print([m for m in sys.modules if 'quickjs' in m])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_the_process_starts_with_the_first_transform_and_ends_with_close(sandbox: Sandbox) -> None:
    own = Sandbox()
    assert own._idle == []
    transform = compile_transform(ECHO, "f", sandbox=own)
    pid = pid_of(own)
    own.close()
    own.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert transform.apply(b"again", {}, {}) == Transformed(b"again", {})
    own.close()


def test_the_process_ends_with_its_sandbox(sandbox: Sandbox) -> None:
    own = Sandbox()
    compile_transform(ECHO, "f", sandbox=own)
    pid = pid_of(own)
    del own
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_was_killed_is_replaced(sandbox: Sandbox) -> None:
    transform = compile_transform(ECHO, "f", sandbox=sandbox)
    child = sandbox._idle[-1]
    os.kill(pid_of(sandbox), signal.SIGKILL)
    child._process.wait()
    assert transform.apply(b"x", {}, {}) == Transformed(b"x", {})


def test_a_process_that_hangs_is_ended(impatient: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = compile_transform(ECHO, "f", sandbox=impatient)
    os.kill(pid_of(impatient), signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(sandbox_module, "GRACE", 0)
        with pytest.raises(TransformFailed, match="took longer than 1 s"):
            transform.apply(b"x" * 5_000_000, {}, {})
    assert transform.apply(b"x", {}, {}) == Transformed(b"x", {})


def test_it_can_open_nothing_and_start_nothing(sandbox: Sandbox) -> None:
    compile_transform(ECHO, "f", sandbox=sandbox)
    process = Path(f"/proc/{pid_of(sandbox)}")
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (process / "limits").read_text().splitlines()[1:]}
    for name in ("Max open files", "Max processes", "Max file size", "Max core file size"):
        assert limits[name] == ["0", "0"]
    assert int(limits["Max address space"][1]) < 1 << 30
    assert (process / "environ").read_bytes() == b""
    assert {str(link.readlink()).partition(":")[0] for link in (process / "fd").iterdir()} <= {"socket", "/dev/null"}


def test_a_slow_script_does_not_hold_up_another(sandbox: Sandbox) -> None:
    """The slow one runs until the other is done, which therefore cannot have waited for it."""
    own = Sandbox(Limits(cpu=600, wall=600))
    slow = compile_transform("function f(m) { for (;;) {} }", "f", sandbox=own)
    quick = compile_transform(ECHO, "f", sandbox=own)
    pid = pid_of(own)  # of the one child so far, which the slow script will have for itself
    problems: list[str] = []

    def work() -> None:
        with pytest.raises(TransformFailed) as caught:
            slow.apply(b"", {}, {})
        problems.append(caught.value.problem)

    thread = threading.Thread(target=work)
    thread.start()
    while own._idle:  # until it has begun
        assert thread.is_alive()
    for turn in range(20):
        assert quick.apply(b"%d" % turn, {}, {}) == Transformed(b"%d" % turn, {})
    os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert problems == ["ended the engine's process (SIGKILL)"]
    own.close()


def test_threads_share_it(sandbox: Sandbox) -> None:
    transforms = [compile_transform(f"function f(m) {{ m.data += '{i}'; return m }}", "f", sandbox=sandbox) for i in range(4)]
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(50):
            result = transforms[number].apply(f"{turn}-".encode(), {}, {})
            if result != Transformed(f"{turn}-{number}".encode(), {}):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_more_transforms_than_it_holds_all_work(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "MAX_LOADED", 2)
    transforms = [
        compile_transform(f"function f(m) {{ m.data += '{i}'; return m }} // few", "f", sandbox=sandbox) for i in range(4)
    ]
    for _ in range(2):
        assert [t.apply(b"", {}, {}) for t in transforms] == [Transformed(str(i).encode(), {}) for i in range(4)]


def test_the_largest_message_fits_the_usual_limits(sandbox: Sandbox) -> None:
    own = Sandbox(Limits(cpu=10, wall=30))
    transform = compile_transform("function f(m) { m.data = m.data.toUpperCase(); return m }", "f", sandbox=own)
    size = 10 * 1024 * 1024
    for unit, upper in (("a", "A"), ("é", "É"), ('"', '"')):
        count = size // len(unit.encode())
        assert transform.apply((unit * count).encode(), {}, {}) == Transformed((upper * count).encode(), {})
    own.close()


def test_without_the_engine_transforms_are_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no site-packages, as if nothing were installed
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    own = Sandbox()
    with pytest.raises(Unimplemented, match="not installed") as caught:
        compile_transform(ECHO, "f", sandbox=own)
    assert caught.value.hint == how_to_install("transforms")
    own.close()
