"""Runs the PTX of a kernel on the CPU, the threads of a block side by side in NumPy: for instructions that the simulator lacks.

It knows what the kernels under test use, and stops with the name of what it does not: barriers, branches that part a warp,
global and shared memory, asynchronous copies (which arrive when they are waited for), `ldmatrix` and bf16 `mma.sync` by the
fragment layouts of the PTX manual. Times and races are not modelled.
"""

import operator
import re

import numpy as np

TYPES = {
    "s8": np.int8, "u8": np.uint8, "b8": np.uint8, "s16": np.int16, "u16": np.uint16, "b16": np.uint16, "s32": np.int32, "u32": np.uint32,
    "b32": np.uint32, "s64": np.int64, "u64": np.uint64, "b64": np.uint64, "f32": np.float32, "f64": np.float64, "pred": np.bool_,
}  # fmt: skip
REGISTERS = {"p": np.bool_, "rs": np.uint16, "r": np.uint32, "f": np.float32, "fd": np.float64, "rd": np.uint64}
COMPARISONS = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
GLOBAL = 1 << 20  # address of the first array


def bf16_pairs(words):
    """uint32 [...] -> float32 [..., 2]."""
    return np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], -1).view(np.float32)


def to_bf16(values):
    """float32 -> the bits of the nearest bf16, in uint32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded)


def truncated_division(a, b):
    """Integers divided and rounded towards zero, as the instruction does; NumPy rounds down."""
    down = a // b
    return down + ((down < 0) & (down * b != a))


class Program:
    """The instructions of the one kernel in a PTX text."""

    def __init__(self, text):
        self.shared, self.shared_bytes = {}, 0
        for align, name, size in re.findall(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]", text):
            self.shared_bytes = -(-self.shared_bytes // int(align)) * int(align)
            self.shared[name] = self.shared_bytes
            self.shared_bytes += int(size)
        head, body = re.search(r"\.entry \w+\((.*?)\)\s*(?:\.\w+[^{]*)?\{(.*)\}", text, re.DOTALL).groups()
        self.parameters = {name: TYPES[kind] for kind, name in re.findall(r"\.param \.(\w+) (\w+)", head)}
        self.code, self.labels = [], {}
        body = re.sub(r"//.*", "", body)
        for line in re.split(r";|(?<=:)\s", body):
            line = " ".join(line.split())
            label = re.fullmatch(r"(\$\w+):", line)
            if label:
                self.labels[label[1]] = len(self.code)
            elif line and not line.startswith("."):
                guard, op, rest = re.fullmatch(r"(?:@(!?%\w+) )?([\w.]+) ?(.*)", line).groups()
                operands = [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+", rest) if part.strip()]
                self.code.append((guard, op.split("."), operands))


class Machine:
    """One launch: arrays are read from, and written back to, the NumPy arrays given."""

    def __init__(self, text):
        self.program = Program(text)

    def launch(self, blocks, threads, arguments):
        """arguments: NumPy arrays, numbers and NamedTuples of numbers, as the kernel takes them."""
        values, places, size = [], [], GLOBAL
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                values += [0, 0, argument.size, argument.itemsize, size, *argument.shape, *argument.strides]
                places.append((size, argument))
                size += -(-argument.nbytes // 256) * 256 + 256
            else:
                values += list(argument) if isinstance(argument, tuple) else [argument]
        kinds = self.program.parameters
        assert len(values) == len(kinds), (len(values), len(kinds))
        self.arguments = {name: np.array(value).astype(kind) for (name, kind), value in zip(kinds.items(), values, strict=True)}
        self.memory = np.zeros(size, np.uint8)
        for place, array in places:
            self.memory[place : place + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        across, down = blocks if isinstance(blocks, tuple) else (blocks, 1)
        for block in np.ndindex(down, across):
            self._run(block[::-1], (across, down), threads)
        for place, array in places:
            array[...] = self.memory[place : place + array.nbytes].view(array.dtype).reshape(array.shape)

    def _run(self, block, blocks, threads):
        self.registers = {}
        self.threads = threads
        self.special = {"%tid.x": np.arange(threads), "%ntid.x": threads}
        self.special |= {f"%ctaid.{axis}": place for axis, place in zip("xy", block, strict=True)}
        self.special |= {f"%nctaid.{axis}": count for axis, count in zip("xy", blocks, strict=True)}
        self.local_shared = np.full(self.program.shared_bytes, 0xFF, np.uint8)  # NaN: what is read must have been written
        self.copies = [[[]] for _ in range(threads)]  # of each thread under way, by group: the last group is still open
        self.pc = np.zeros(threads, np.int64)
        self.waits = np.full(threads, -1, np.int64)  # barrier that a thread waits at
        while True:
            ready = (self.pc >= 0) & (self.waits < 0)
            if not ready.any():
                assert (self.pc < 0).all(), "threads wait at a barrier that the others never reach"
                return
            at = self.pc[ready].min()  # the furthest behind first, so that what branches parted comes together again
            self.active = np.flatnonzero(ready & (self.pc == at))
            later = self.pc[ready & (self.pc > at)]
            self._go_on(int(at), int(later.min()) if len(later) else len(self.program.code))

    def _go_on(self, at, until):
        """Run the active threads from instruction `at` on, until they part, wait or meet others."""
        while at < until:
            guard, op, operands = self.program.code[at]
            chosen = self.active
            if guard:
                holds = self._read(guard.lstrip("!"), np.bool_) != guard.startswith("!")
                chosen = self.active[holds]
            if op[0] in ("bra", "ret"):
                self.pc[self.active] = at + 1
                self.pc[chosen] = self.program.labels[operands[0]] if op[0] == "bra" else -1
                return
            if op[:2] == ["bar", "sync"]:
                self._wait(operands, at)
                return
            if len(chosen):
                everyone, self.active = self.active, chosen
                self._execute(op, operands)
                self.active = everyone
            at += 1
        self.pc[self.active] = at

    def _wait(self, operands, at):
        barrier = int(np.max(self._read(operands[0], np.uint32)))
        count = int(np.max(self._read(operands[1], np.uint32))) if len(operands) > 1 else self.threads
        self.pc[self.active] = at + 1
        self.waits[self.active] = barrier
        if (self.waits == barrier).sum() == count:
            self.waits[self.waits == barrier] = -1

    # ------------------------------------------------------------------------------------------------ operands

    def _register(self, name):
        if name not in self.registers:
            self.registers[name] = np.zeros(self.threads, REGISTERS[re.match(r"%([a-z]+)", name)[1]])
        return self.registers[name]

    def _read(self, operand, kind):
        """The operand's bits as `kind`, one for each active thread."""
        if operand in self.special:
            return np.broadcast_to(np.asarray(self.special[operand]).astype(kind), self.threads)[self.active]
        if operand.startswith("%"):
            value = self._register(operand)[self.active]
            return value if value.dtype == kind else value.view(kind)
        if operand in self.program.shared:
            number = kind(self.program.shared[operand])
        elif operand.startswith(("0f", "0d")):
            number = np.frombuffer(bytes.fromhex(operand[2:])[::-1], kind)[0]
        else:
            number = np.array(int(operand)).astype(kind)
        return np.broadcast_to(number, len(self.active))

    def _write(self, operand, value):
        register = self._register(operand)
        register[self.active] = value if value.dtype == register.dtype else value.view(register.dtype)

    def _address(self, operand):
        base, offset = re.fullmatch(r"\[([%\w$]+)\+?(-?\d*)\]", operand).groups()
        found = self._register(base)[self.active] if base.startswith("%") else self._read(base, np.uint64)  # 32 bits reach shared memory
        return found.astype(np.int64) + int(offset or 0)

    # ------------------------------------------------------------------------------------------------ instructions

    def _execute(self, op, operands):
        name, kind = op[0], TYPES.get(op[-1])
        method = getattr(self, f"_do_{name}", None)
        assert method is not None, f"the machine does not know {'.'.join(op)}"
        with np.errstate(all="ignore"):
            method(op, operands, kind)

    def _vector(self, op, operand):
        count = next((int(part[1:]) for part in op if re.fullmatch(r"v[24]", part)), 1)
        names = [part.strip() for part in operand.strip("{}").split(",")]
        assert len(names) == count
        return names

    def _do_ld(self, op, operands, kind):
        if op[1] == "param":
            held = self.arguments[operands[1].strip("[]")].tobytes()  # of which a narrow load takes the low part
            self._write(operands[0], np.broadcast_to(np.frombuffer(held, kind, 1), len(self.active)))
            return
        assert op[1] in ("global", "shared"), op
        memory = self.memory if op[1] == "global" else self.local_shared
        address, size = self._address(operands[1]), np.dtype(kind).itemsize
        for index, target in enumerate(self._vector(op, operands[0])):
            found = memory[(address + index * size)[:, None] + np.arange(size)].copy().view(kind)[:, 0]
            register = self._register(target)
            self._write(target, found.astype(register.dtype) if found.dtype.itemsize < register.dtype.itemsize else found)

    def _do_st(self, op, operands, kind):
        memory = self.memory if op[1] == "global" else self.local_shared
        address, size = self._address(operands[0]), np.dtype(kind).itemsize
        for index, source in enumerate(self._vector(op, operands[1])):
            register = self._register(source) if source.startswith("%") else None
            wide = self._read(source, register.dtype if register is not None else kind)
            value = np.ascontiguousarray(wide.astype(kind) if wide.dtype.itemsize > size else wide).view(np.uint8)
            memory[(address + index * size)[:, None] + np.arange(size)] = value.reshape(-1, size)

    def _do_mov(self, op, operands, kind):
        self._write(operands[0], self._read(operands[1], self._register(operands[0]).dtype.type))

    _do_cvta = _do_mov

    def _two(self, operands, kind, function):
        self._write(operands[0], np.asarray(function(self._read(operands[1], kind), self._read(operands[2], kind))).astype(kind))

    def _do_add(self, op, operands, kind):
        self._two(operands, kind, np.add)

    def _do_sub(self, op, operands, kind):
        self._two(operands, kind, np.subtract)

    def _do_div(self, op, operands, kind):
        self._two(operands, kind, np.divide if op[-1].startswith("f") else truncated_division)

    def _do_rem(self, op, operands, kind):
        self._two(operands, kind, lambda a, b: a - truncated_division(a, b) * b)

    def _do_mul(self, op, operands, kind):
        if op[1] == "wide":
            wide = {np.uint16: np.uint32, np.uint32: np.uint64, np.int32: np.int64}[kind]
            self._write(operands[0], self._read(operands[1], kind).astype(wide) * self._read(operands[2], kind).astype(wide))
        elif op[1] == "hi":
            whole = self._read(operands[1], kind).astype(object) * self._read(operands[2], kind).astype(object)
            self._write(operands[0], (whole >> 8 * np.dtype(kind).itemsize).astype(kind))
        else:
            assert op[1] in ("lo", "rn", op[-1]), op
            self._two(operands, kind, np.multiply)

    def _do_mad(self, op, operands, kind):
        assert op[1] == "lo"
        self._write(operands[0], self._read(operands[1], kind) * self._read(operands[2], kind) + self._read(operands[3], kind))

    def _do_fma(self, op, operands, kind):
        wide = np.float64 if kind is np.float32 else np.longdouble
        a, b, c = (self._read(operand, kind).astype(wide) for operand in operands[1:])
        exact = a * b + c
        found = exact.astype(kind)
        if op[1] == "rm":
            found = np.where(found > exact, np.nextafter(found, kind(-np.inf)), found)
        self._write(operands[0], found)

    def _do_max(self, op, operands, kind):
        self._two(operands, kind, np.fmax)

    def _do_min(self, op, operands, kind):
        self._two(operands, kind, np.fmin)

    def _do_and(self, op, operands, kind):
        self._two(operands, kind, operator.and_)

    def _do_or(self, op, operands, kind):
        self._two(operands, kind, operator.or_)

    def _do_xor(self, op, operands, kind):
        self._two(operands, kind, operator.xor)

    def _do_not(self, op, operands, kind):
        self._write(operands[0], ~self._read(operands[1], kind))

    def _do_shl(self, op, operands, kind):
        self._write(operands[0], self._read(operands[1], kind) << self._read(operands[2], np.uint32).astype(kind))

    def _do_shr(self, op, operands, kind):
        self._write(operands[0], self._read(operands[1], kind) >> self._read(operands[2], np.uint32).astype(kind))

    def _do_bfi(self, op, operands, kind):
        source, target = self._read(operands[1], kind), self._read(operands[2], kind)
        place, length = int(operands[3]), int(operands[4])
        mask = kind(((1 << length) - 1) << place)
        self._write(operands[0], target & ~mask | source << kind(place) & mask)

    def _do_prmt(self, op, operands, kind):
        assert op == ["prmt", "b32"], op  # the general mode: a nibble chooses a byte of both words, or fills one with its sign
        low, high = (self._read(operand, np.uint32).astype(np.uint64) for operand in operands[1:3])
        both, chosen, found = low | high << np.uint64(32), int(operands[3], 0), np.zeros(len(low), np.uint64)
        for place in range(4):
            nibble = chosen >> 4 * place & 15
            byte = both >> np.uint64(8 * (nibble & 7)) & np.uint64(0xFF)
            if nibble & 8:
                byte = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            found |= byte << np.uint64(8 * place)
        self._write(operands[0], found.astype(np.uint32))

    def _do_abs(self, op, operands, kind):
        self._write(operands[0], np.abs(self._read(operands[1], kind)))

    def _do_neg(self, op, operands, kind):
        self._write(operands[0], -self._read(operands[1], kind))

    def _do_sqrt(self, op, operands, kind):
        self._write(operands[0], np.sqrt(self._read(operands[1], kind)))

    def _do_rcp(self, op, operands, kind):
        self._write(operands[0], kind(1) / self._read(operands[1], kind))

    def _do_ex2(self, op, operands, kind):
        self._write(operands[0], np.exp2(self._read(operands[1], kind)))

    def _do_lg2(self, op, operands, kind):
        self._write(operands[0], np.log2(self._read(operands[1], kind)))

    def _do_setp(self, op, operands, kind):
        a, b = (self._read(operand, kind) for operand in operands[1:])
        unordered = len(op[1]) == 3  # true as well where either is NaN
        found = COMPARISONS[op[1][:2]](a, b)
        if kind in (np.float32, np.float64):
            nan = np.isnan(a) | np.isnan(b)
            found = found | nan if unordered else found & ~nan
        self._write(operands[0], found)

    def _do_selp(self, op, operands, kind):
        self._write(operands[0], np.where(self._read(operands[3], np.bool_), self._read(operands[1], kind), self._read(operands[2], kind)))

    def _do_cvt(self, op, operands, kind):
        if "bf16x2" in op:
            high, low = (self._read(operand, np.float32) for operand in operands[1:])
            if "relu" in op:
                high, low = (np.where(value < 0, np.float32(0), value) for value in (high, low))
            self._write(operands[0], to_bf16(high) << np.uint32(16) | to_bf16(low))
            return
        target = TYPES[op[-2]]
        held = self._register(operands[1]).dtype
        value = self._read(operands[1], kind if held.itemsize == np.dtype(kind).itemsize else held.type)
        value = value.astype(kind)  # the low part of a wider register
        assert np.issubdtype(target, np.floating) or not np.issubdtype(kind, np.floating), f"the machine does not know {'.'.join(op)}"
        if "sat" in op:
            value = np.clip(np.nan_to_num(value), 0, 1)
        found = value.astype(target)
        wanted = self._register(operands[0]).dtype
        self._write(operands[0], found if found.dtype.itemsize == wanted.itemsize else found.astype(wanted))

    def _do_bar(self, op, operands, kind):
        assert op[:2] == ["bar", "warp"], op  # whole warps run together here

    def _do_cp(self, op, operands, kind):
        assert op[:2] == ["cp", "async"], op
        if op[2] == "cg":
            target, source, size = self._address(operands[0]), self._address(operands[1]), self._read(operands[3], np.uint32)
            for thread, *copied in zip(self.active, target, source, size, strict=True):
                self.copies[thread][-1].append(copied)
        elif op[2] == "commit_group":
            for thread in self.active:
                self.copies[thread].append([])
        else:
            assert op[2] == "wait_group", op
            for thread in self.active:
                groups = self.copies[thread]
                while len(groups) - 1 > int(operands[0]):
                    for target, source, size in groups.pop(0):
                        self.local_shared[target : target + 16] = 0
                        self.local_shared[target : target + size] = self.memory[source : source + size]

    def _do_ldmatrix(self, op, operands, kind):
        turned = "trans" in op
        assert op == ["ldmatrix", "sync", "aligned", "m8n8", "x4", *["trans"] * turned, "shared", "b16"], op
        rows = self._address(operands[1]).reshape(-1, 4, 8)
        assert (self.active.reshape(-1, 32) % 32 == np.arange(32)).all(), "ldmatrix by part of a warp"
        assert (rows % 16 == 0).all(), "a row of ldmatrix is not aligned"
        tiles = self.local_shared[rows[..., None] + np.arange(16)].view(np.uint16).astype(np.uint32)  # [warp, tile, row, column]
        g, q = np.arange(32) // 4, np.arange(32) % 4
        for tile, target in enumerate(name.strip() for name in operands[0].strip("{}").split(",")):
            low, high = (tiles[:, tile, 2 * q + k, g] if turned else tiles[:, tile, g, 2 * q + k] for k in range(2))
            self._write(target, (low | high << np.uint32(16)).ravel())

    def _do_mma(self, op, operands, kind):
        assert op == ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"], op
        warps = self.active.reshape(-1, 32)
        assert (warps == warps[:, :1] + np.arange(32)).all() and (warps[:, 0] % 32 == 0).all(), "mma.sync by part of a warp"
        lane = np.arange(32)
        g, q = lane // 4, lane % 4

        def words(operand):
            return [self._read(name.strip(), np.uint32).reshape(warps.shape) for name in operand.strip("{}").split(",")]

        a, b = np.zeros((len(warps), 16, 16), np.float32), np.zeros((len(warps), 16, 8), np.float32)
        for index, word in enumerate(words(operands[1])):
            for half in range(2):
                a[:, g + 8 * (index % 2), 2 * q + half + 8 * (index // 2)] = bf16_pairs(word)[..., half]
        for index, word in enumerate(words(operands[2])):
            for half in range(2):
                b[:, 2 * q + half + 8 * index, g] = bf16_pairs(word)[..., half]
        found = a @ b
        sums = words(operands[3])
        for index, target in enumerate(name.strip() for name in operands[0].strip("{}").split(",")):
            place = found[:, g + 8 * (index // 2), 2 * q + index % 2]
            self._write(target, (place + sums[index].view(np.float32)).astype(np.float32).ravel())


class Played:
    """A kernel that is launched as on a GPU, and run on the CPU."""

    def __init__(self, text):
        self.machine = Machine(text)

    def __getitem__(self, configuration):
        blocks, threads, _ = configuration
        return lambda *arguments: self.machine.launch(blocks, threads, arguments)
