#!/usr/bin/env python3
"""Measures the table of docs/performance.md on this machine and prints it as Markdown.

    make && python3 bench/performance.py --output bench/results/cpu.jsonl

Runs `sluice bench` and, when mpicxx and mpirun are there, bench/peers/mpi_moe.cpp, in turn, REPEAT
times; a cell is the median over the repetitions of each run's p50. The JSON lines of all runs are kept
in the output file.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "bin" / "sluice"
MPI = ROOT / "build" / "bin" / "mpi_moe"
SHAPE = ["--hidden", "7168", "--topk", "8", "--experts", "256"]


def run(command, lines):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for record in records:
        record["ran"] = " ".join(str(part) for part in command).replace(f"{ROOT}/", "")
        lines.append(record)
    return {record["op"]: record for record in records if record.get("record") == "bench"}


def sluice(ranks, tokens, iters, lines, *flags):
    return run([PROGRAM, "bench", "--json", "--launch", "processes", "--ranks", ranks, "--tokens", tokens, *SHAPE,
                "--iters", iters, *flags], lines)


def mpi(ranks, tokens, iters, lines):
    if not MPI.exists():
        return {}
    command = ["mpirun", "--oversubscribe", "-n", ranks, MPI, "--tokens", tokens, *SHAPE, "--iters", iters]
    return run(command, lines)


def build_mpi():
    if shutil.which("mpicxx") and shutil.which("mpirun"):
        source = ROOT / "bench" / "peers" / "mpi_moe.cpp"
        subprocess.run(["mpicxx", "-O3", "-march=native", "-std=c++20", source, "-o", MPI], check=True)


def median(runs, op, field):
    values = [run[op][field] for run in runs if op in run and run[op].get(field) is not None]
    return statistics.median(values) if values else None


def cell(value, form):
    return "" if value is None else format(value, form)


def row(name, op, ours, theirs):
    p50, copy = median(ours, op, "p50_us"), median(ours, op, "copy_ratio")
    spread = f"{cell(median(ours, op, 'p10_us'), '.0f')} to {cell(median(ours, op, 'p90_us'), '.0f')}"
    peer = median(theirs, op, "p50_us")
    ratio = "" if peer is None else f"{peer / p50:.2f}"
    return f"| {name} | {op} | {p50:.0f} | {spread} | {cell(copy, '.2f')} | {cell(peer, '.0f')} | {ratio} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="JSON lines of all runs")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    build_mpi()
    cases = [("T=4096, 2 ranks", 2, 4096, 15, []), ("T=4096, 2 ranks, cached", 2, 4096, 15, ["--cached"]),
             ("T=4096, 4 ranks", 4, 4096, 10, []), ("T=4096, 4 ranks, cached", 4, 4096, 10, ["--cached"]),
             ("T=128, 2 ranks", 2, 128, 200, []), ("T=128, 4 ranks", 4, 128, 200, []),
             ("T=1, 2 ranks", 2, 1, 3000, []), ("T=0, 2 ranks", 2, 0, 3000, []),
             ("T=4096, 2 ranks, quantised", 2, 4096, 15, ["--quantise"])]
    lines, rows = [], []
    for name, ranks, tokens, iters, flags in cases:
        ours, theirs = [], []
        for _ in range(args.repeat):
            ours.append(sluice(ranks, tokens, iters, lines, *flags))
            if tokens >= 128 and not flags:
                theirs.append(mpi(ranks, tokens, iters, lines))
        operations = ["dispatch"] if flags else ["dispatch", "combine"]  # a flag concerns dispatch alone
        rows += [row(name, op, ours, theirs) for op in operations]
    pathlib.Path(args.output).write_text("".join(json.dumps(line) + "\n" for line in lines))
    print("| case | op | p50, us | p10 to p90, us | copy_ratio | MPI p50, us | MPI / Sluice |")
    print("|---|---|--:|--:|--:|--:|--:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
