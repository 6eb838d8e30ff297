#!/usr/bin/env python3
"""What nvcc and ptxas make of the CUDA sources, without a GPU: registers, spills and local memory of each kernel,
and the instructions that must and must not be in it. Argument: the build folder. Prints TAP."""
import concurrent.futures
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from test_report import Tap  # noqa: E402

BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build")
# A block has 65 536 registers: a kernel that takes more than this per thread loses warps that it was measured with. Of 20
# warps, as move has at most, each thread may have 102; of the 16 of fan_out 128.
MOST_REGISTERS = {"move_kernel": 96, "fan_out_kernel": 112, "gather_copy_kernel": 72, "carry_kernel": 72, "quantise_kernel": 96,
                  "reduce_kernel": 96, "gather_sum_kernel": 96}
MOST_REGISTERS_OF_OTHERS = 128

BULK_COPY = [r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier", r"cp\.async\.bulk\.global\.shared::cta\.bulk_group",
             r"cp\.async\.bulk\.wait_group 0"]
# A1 of the design: rows that bulk copies have written are released with the flags; A2: and seen by bulk loads.
PROXY_FENCE = r"fence\.proxy\.async\.global"
# The release of a whole lane, and the status that travels with the flag.
SIGNAL = [r"(membar\.sys|fence\.(sc|acq_rel)\.sys)", r"st\.release\.sys\.u32", r"st\.relaxed\.sys\.u8"]
MUST = {
    r".*": [r"griddepcontrol\.wait", r"griddepcontrol\.launch_dependents", r"st\.release\.sys\.u64"],
    r"(?!place|count).*": SIGNAL,  # of plan and finish they are inner kernels
    r"(move|quantise|fan_out|gather_copy|carry)_kernel": [*BULK_COPY, PROXY_FENCE],
    r"(carry|quantise)_kernel": [r"fence\.proxy\.async\.shared::cta"],
    r"quantise_kernel": [r"cvt\.rn\.satfinite\.e4m3x2\.f32"],
    r"(reduce|gather_sum)_kernel": [r"cp\.async\.cg\.shared\.global", r"cp\.async\.wait_group"],
}
MUST_NOT = {
    r".*": [r"\btrap\b", r"\bbrkpt\b", r"vprintf", r"\.local\b", r"barrier\.cluster",
            r"ld\.global\.nc"],  # peers write what kernels read
    # V3: a product and a sum are rounded apart; the pairs of odd() look for NaN only.
    r"(reduce|gather_sum|quantise|finish|fan_out)_kernel": [r"(fma|mad)\.r[nzmp](\.ftz)?\.f(32|64)"],
}
EMPTY = {"nothing_kernel"}
# What a block may have, and the constants that say what a launch adds to the kernel's own.
MOST_SHARED_BYTES = 227 * 1024
LAUNCHED_WITH = {
    r"(move|quantise|fan_out|gather_copy|carry)_kernel": ("warp_ring.cuh", "ring_shared_bytes"),
    r"(reduce|gather_sum)_kernel": ("sum_rows.cuh", "sum_shared_bytes"),
    r"(opening|place|count)_kernel": ("count.cuh", "count_shared_bytes"),
}

# What each primitive of ptx.cuh must become, and no other memory instruction beside it.
PRIMITIVES = {
    "load_relaxed_system(a32)": "ld.relaxed.sys.u32",
    "load_relaxed_system(a64)": "ld.relaxed.sys.u64",
    "load_acquire_system(a32)": "ld.acquire.sys.u32",
    "store_relaxed_system(a64, 1ull)": "st.relaxed.sys.u64",
    "store_release_system(a32, 1u)": "st.release.sys.u32",
    "store_release_system(a64, 1ull)": "st.release.sys.u64",
    "store_relaxed_system(a8, std::uint8_t{1})": "st.relaxed.sys.u8",
    "now_ns()": "globaltimer",
    "wait_for_kernel_before()": "griddepcontrol.wait",
    "let_next_kernel_come()": "griddepcontrol.launch_dependents",
    "fence_barrier_init()": "fence.mbarrier_init.release.cluster",
    "fence_proxy_global()": "fence.proxy.async.global",
    "fence_proxy_shared()": "fence.proxy.async.shared::cta",
    "copy_async(shared, a32)": "cp.async.cg.shared.global",
    "copy_commit()": "cp.async.commit_group",
    "copy_wait<3>()": "cp.async.wait_group 3",
    "bulk_load(shared, a32, 16, *barrier)": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
    "bulk_store(a32, shared, 16)": "cp.async.bulk.global.shared::cta.bulk_group",
    "bulk_commit()": "cp.async.bulk.commit_group",
    "bulk_wait_read<1>()": "cp.async.bulk.wait_group.read 1",
    "bulk_wait()": "cp.async.bulk.wait_group 0",
    "barrier->initialise(1)": "mbarrier.init.shared::cta.b64",
    "barrier->arrive_expecting(16)": "mbarrier.arrive.expect_tx.shared::cta.b64",
    "barrier->wait(0)": "mbarrier.try_wait.parity.shared::cta.b64",
}


def ptx_command(entry):
    """The build's own command, but to PTX."""
    words, taken = iter(shlex.split(entry["command"])), []
    for word in words:
        if word in ("-o", "-MF", "-MT"):
            next(words)
        elif word not in ("-c", "-MD") and not word.startswith("--generate-code") and not word.endswith("ccache"):
            taken.append(word)
    return taken


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def ptxas_of(nvcc):
    beside = pathlib.Path(nvcc).resolve().parent / "ptxas"
    return str(beside) if beside.exists() else "ptxas"


def compile_to_ptx(entry, folder, architecture):
    """(PTX, what ptxas says of it) or raises."""
    out = folder / f"{pathlib.Path(entry['file']).name}.{architecture}.ptx"
    command = ptx_command(entry)
    done = run([*command, f"-arch=compute_{architecture}", "-ptx", "-o", str(out)], cwd=entry["directory"])
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    said = run([ptxas_of(command[0]), "-v", f"-arch=sm_{architecture}", str(out), "-o", os.devnull])
    if said.returncode != 0:
        raise RuntimeError(said.stderr)
    return out.read_text(), said.stderr


def short_name(mangled):
    """The last nested name of an Itanium-mangled one: 11move_kernelE... -> move_kernel."""
    names, at = [], re.match(r"_ZN?", mangled).end() if mangled.startswith("_Z") else 0
    while at < len(mangled):
        length = re.match(r"\d+", mangled[at:])
        if not length:
            break
        at += length.end()
        names.append(mangled[at:at + int(length.group())])
        at += int(length.group())
    return names[-1] if names else mangled


def bodies(ptx, kind):
    """{mangled name: text} of all .entry or .func that have a body."""
    head = re.compile(r"^\s*(?:\.visible |\.weak |\.extern )*\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)", re.M)
    found, heads = {}, list(head.finditer(ptx))
    for match, end in zip(heads, [*(following.start() for following in heads[1:]), len(ptx)]):
        text = ptx[match.end():end]
        declared = 0 <= text.find(";") < text.find("{") or "{" not in text
        if match.group(1) == kind and not declared:
            found[match.group(2)] = text
    return found


def with_callees(text, functions):
    """A kernel's text and that of the functions that it calls."""
    called, ahead = set(), [text]
    while ahead:
        for name in re.findall(r"call(?:\.uni)?\s+(?:\([^)]*\),\s*)?([\w$]+)", ahead.pop()):
            if name in functions and name not in called:
                called.add(name)
                ahead.append(functions[name])
    return text + "".join(functions[name] for name in called)


def others_built(entry):
    """The architectures beside 9.0, on which everything is checked."""
    return sorted(set(re.findall(r"sm_(\d+)", entry["command"])) - {"90"})


def check_architecture(tap, name, architecture, said):
    """Functions that are called are named too."""
    spilled = [" ".join(found) for found in re.findall(r"(Function properties for \S+)\n\s*(.*bytes stack frame.*)", said)
               if not found[1].startswith("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")]
    tap.result(f"{name}_has_no_local_memory_on_sm_{architecture}", not spilled and "stack frame" in said, "\n".join(spilled) or said)


def resources(said):
    """{mangled kernel: (registers, [lines of spills or stack], bytes of shared memory)}"""
    found = {}
    for part in re.split(r"Compiling entry function '", said)[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        bad = [line.strip() for line in re.findall(r".*bytes stack frame.*", part)
               if not re.match(r"\s*0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", line)]
        shared = re.search(r"(\d+) bytes smem", part)
        found[part[:part.index("'")]] = (int(registers.group(1)), bad, int(shared.group(1)) if shared else 0)
    return found


def launched_with(kernel):
    """Bytes of shared memory that its launches add."""
    for names, (file, constant) in LAUNCHED_WITH.items():
        if re.fullmatch(names, kernel):
            factors = re.search(constant + r" = ([\d *]+);", (ROOT / "src/engine/cuda" / file).read_text()).group(1)
            return math.prod(int(factor) for factor in factors.split("*"))
    return 0


def check_resources(tap, name, registers, bad, shared):
    tap.result(f"{name}_has_no_local_memory", not bad, "\n".join(bad))
    most = MOST_REGISTERS.get(name.split("<")[0].split(".")[-1], MOST_REGISTERS_OF_OTHERS)
    tap.result(f"{name}_has_{most}_registers_at_most", registers <= most, f"{registers} registers")
    shared += launched_with(name.split(".")[0])
    tap.result(f"{name}_has_room_for_its_shared_memory", shared <= MOST_SHARED_BYTES, f"{shared} bytes")


def check_instructions(tap, name, kernel, text):
    lacks = [p for names, patterns in MUST.items() if re.fullmatch(names, kernel) for p in patterns if not re.search(p, text)]
    has = [p for names, patterns in MUST_NOT.items() if re.fullmatch(names, kernel) for p in patterns if re.search(p, text)]
    # Rows that bulk copies have written come before the release of the flags.
    written, fenced = text.rfind("cp.async.bulk.wait_group 0"), text.rfind("fence.proxy.async.global")
    if 0 <= fenced < written:
        lacks.append("a proxy fence behind the last wait")
    tap.result(f"{name}_has_the_instructions_that_matter", not lacks, f"it lacks {lacks}")
    tap.result(f"{name}_has_none_that_must_not_be", not has, f"it has {has}")


def check_file(tap, entry, ptx, said):
    functions, used = bodies(ptx, "func"), resources(said)
    seen = {}
    for mangled, text in bodies(ptx, "entry").items():
        kernel = short_name(mangled)
        seen[kernel] = seen.get(kernel, 0) + 1
        name = f"{kernel}.{seen[kernel]}" if seen[kernel] > 1 else kernel
        check_resources(tap, name, *used[mangled])
        if kernel not in EMPTY and "engine/cuda" in entry["file"]:
            check_instructions(tap, name, kernel, with_callees(text, functions))
    return seen


def primitives_source():
    lines = ['#include "engine/cuda/ptx.cuh"', "using namespace sluice::cuda;"]
    for i, call in enumerate(PRIMITIVES):
        lines += [f'extern "C" __global__ void primitive_{i}(std::uint8_t* a8, std::uint32_t* a32, std::uint64_t* a64,'
                  " std::uint64_t* sink) {",
                  "  extern __shared__ __align__(16) unsigned char shared[];",
                  "  auto* const barrier = reinterpret_cast<Barrier*>(shared + 64); (void)barrier; (void)a8; (void)a32; (void)a64;"]
        lines += [f"  *sink = static_cast<std::uint64_t>({call});" if call.startswith(("load", "now")) else f"  {call};", "}"]
    return "\n".join(lines) + "\n"


def check_primitives(tap, entry, folder):
    source, out = folder / "primitives.cu", folder / "primitives.ptx"
    source.write_text(primitives_source())
    command = [word for word in ptx_command(entry) if not word.endswith(".cu")]
    done = run([*command, "-arch=compute_90", "-ptx", str(source), "-o", str(out)], cwd=entry["directory"])
    if done.returncode != 0:
        tap.result("the_primitives_compile", False, done.stderr)
        return
    entries = bodies(out.read_text(), "entry")
    memory = re.compile(r"^\s*(?:@%p\d+ )?((?:ld|st|cp|fence|mbarrier|membar|griddepcontrol|red|atom)\.[\w.:]+(?: \d+)?)", re.M)
    for i, (call, instruction) in enumerate(PRIMITIVES.items()):
        text = entries[f"primitive_{i}"]
        others = [found for found in memory.findall(text)
                  if not found.startswith((instruction, "ld.param", "st.global"))]
        name = re.sub(r"\W+", "_", call).strip("_")
        tap.result(f"{name}_is_{instruction.split('.')[0]}", instruction in text and not others,
                  f"{instruction} is wanted; beside it: {others}\n{text}")


def main():
    tap = Tap()
    commands = BUILD / "compile_commands.json"
    entries = [e for e in json.loads(commands.read_text()) if e["file"].endswith(".cu")] if commands.exists() else []
    if not entries:
        tap.skip("cuda", "this build has no CUDA (no nvcc)")
        return tap.end()
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        folder = pathlib.Path(name)
        kernels = {}
        for entry, (ptx, said) in zip(entries, pool.map(lambda e: compile_to_ptx(e, folder, "90"), entries)):
            kernels.update(check_file(tap, entry, ptx, said))
            check_architecture(tap, pathlib.Path(entry["file"]).name, "90", said)
        more = [(entry, architecture) for entry in entries for architecture in others_built(entry)]
        for (entry, architecture), (_, said) in zip(more, pool.map(lambda e: compile_to_ptx(e[0], folder, e[1]), more)):
            check_architecture(tap, pathlib.Path(entry["file"]).name, architecture, said)
        unknown = sorted(set(MOST_REGISTERS) - set(kernels))
        tap.result("every_kernel_of_the_tables_exists", not unknown, f"not found: {unknown}")
        check_primitives(tap, entries[0], folder)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
