"""Compiles kernels to PTX without a GPU, in a process of its own: the simulator, which tests otherwise use, has no compiler."""

import json
import os
import re
import runpy
import struct
import sys
import tempfile
import textwrap

import forks

_PROGRAM = """
import json, sys
import numba.cuda.dispatcher
from numba import cuda, types

class Device:
    compute_capability = tuple(json.loads(sys.argv[1]))

numba.cuda.dispatcher.get_current_device = Device  # asked for where a kernel calls another function
f32, f64, i32, i64, u32, boolean = types.float32, types.float64, types.int32, types.int64, types.uint32, types.boolean

def array(element, dimensions=1):
    return types.Array(element, dimensions, "C")

{source}
found = {{name: cuda.compile_ptx(kernel.py_func, signature, cc=Device.compute_capability)[0] for name, (kernel, signature) in KERNELS.items()}}
sys.stdout.write(json.dumps(found))
"""


def compile_ptx(source: str, capability: tuple[int, int] = (9, 0)) -> dict[str, str]:
    """PTX by name. `source` is Python that defines KERNELS = {name: (kernel, argument types)}; it may use f32, f64, i32, i64, u32,
    boolean and array(element type, dimensions).
    """
    program = _PROGRAM.format(source=textwrap.dedent(source))
    barriers = {name: os.environ[name] for name in ("RLTRAIN_WHOLE_BARRIERS",) if name in os.environ}
    result = forks.run(_execute, program, capability, environment=forks.user_environment(barriers), timeout=300)
    if result.returncode:
        raise AssertionError(f"PTX could not be compiled for {capability}:\n{result.stderr[-4000:]}")
    return json.loads(result.stdout)


def _execute(program, capability):
    sys.argv[1:] = [json.dumps(capability)]
    for name in [name for name in sys.modules if name.split(".")[0] == "numba_rl"]:
        del sys.modules[name]  # they read the environment when they are imported
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        runpy.run_path(file.name, run_name="__main__")


def linked(ptx: str, capability: tuple[int, int], *options: str) -> tuple[bytes, str]:
    """(machine code of a kernel as an ELF file, what the compiler said).

    By the linker of CUDA, whose library comes with numba-cuda; no GPU is asked. The architecture may be an older one than the PTX was made
    for, where that uses no instruction which the older one lacks.
    """
    from cuda.bindings import nvjitlink

    options = ["-arch=sm_{}{}".format(*capability), *options]
    text = re.sub(r"\.target sm_\d+", ".target sm_{}{}".format(*capability), ptx, count=1).encode()
    handle = nvjitlink.create(len(options), options)
    nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
    nvjitlink.complete(handle)
    code, said = bytearray(nvjitlink.get_linked_cubin_size(handle)), bytearray(nvjitlink.get_info_log_size(handle))
    nvjitlink.get_linked_cubin(handle, code)
    nvjitlink.get_info_log(handle, said)
    nvjitlink.destroy(handle)
    return bytes(code), said.decode()


def assembled(ptx: str, capability: tuple[int, int], most: int | None = None) -> tuple[int, int]:
    """(registers a thread, bytes that are spilled) of the kernel's machine code; most: registers that it may take."""
    said = linked(ptx, capability, "-verbose", "-Xptxas=-v", *([f"-maxrregcount={most}"] if most else []))[1]
    registers, spilled = (re.search(pattern, said) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
    return int(registers[1]), int(spilled[1])


def code_bytes(ptx: str) -> int:
    """Bytes of a kernel's machine code on compute capability 9.0, the functions that it calls included."""
    elf = linked(ptx, (9, 0))[0]
    table = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + k * size) for k in range(count)]
    texts = sections[names][4]
    return sum(section[5] for section in sections if elf.startswith(b".text", texts + section[0]))


def check_code(ptx: dict[str, str], most: dict[str, int]) -> None:
    """Kernels of short launches stay small: each of `most` has at most so many bytes of machine code (see numba_rl.kernels)."""
    found = {name: code_bytes(ptx[name]) for name in most}
    assert all(found[name] <= most[name] for name in most), found


def check_registers(ptx: dict[str, str], most: int) -> None:
    """Every kernel takes at most so many registers, on the oldest architecture of the tensor cores' bf16 and on a new one, and spills none."""
    for name, text in ptx.items():
        for capability in ((8, 0), (9, 0)):
            registers, spilled = assembled(text, capability)
            assert registers <= most and spilled == 0, (name, capability, registers, spilled)


def check_assembles(ptx: dict[str, str], capability: tuple[int, int]) -> None:
    """An older architecture takes the code of every kernel: it uses nothing that came later."""
    for name, text in ptx.items():
        registers, _ = assembled(text, capability)
        assert registers > 0, name


def arithmetic(ptx: str, kind: str) -> set[str]:
    """The instructions on `kind` (such as "f64") that compute, without loads, stores, moves, conversions, selections and comparisons."""
    words = {
        line.split()[0] if not line.startswith("@") else line.split()[1]
        for line in map(str.strip, ptx.splitlines())
        if line and line[0] not in "./$}{("
    }
    plain = ("ld.", "st.", "mov.", "cvt.", "selp.", "setp.", "shfl.")
    return {word for word in words if word.endswith(f".{kind}") and not word.startswith(plain)}


# instructions on float64 that the accounts' money needs
MONEY = frozenset({"add.f64", "sub.f64", "mul.f64", "fma.rn.f64", "div.rn.f64", "neg.f64", "abs.f64", "max.f64", "min.f64"})


def check_inlined(ptx: dict[str, str]) -> None:
    """Every kernel is one piece, without calls, whose variables stay in registers."""
    for name, text in ptx.items():
        assert ".entry" in text and ".local" not in text, name
        assert not re.search(r"\bcall\b", text), name


def check_float64(ptx: dict[str, str], allowed: frozenset[str]) -> None:
    """No kernel computes in float64 by instructions other than `allowed`."""
    for name, text in ptx.items():
        assert arithmetic(text, "f64") <= allowed, (name, arithmetic(text, "f64") - allowed)
