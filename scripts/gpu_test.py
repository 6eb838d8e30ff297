#!/usr/bin/env python3
"""Tests and measures the CUDA engine out of a kit, within 8 minutes. Ends with `N passed, N failed, N skipped`
and a table of the measurements.

Environment: SANITIZE=1 runs a smaller suite under compute-sanitizer instead, FULL=1 every number of ranks of
each test and not one, SHARDS=N so many processes of tests at once, PARTS=threads,bench only these parts,
SECONDS=N less time than the 470 s in all. Results go to results.jsonl in the kit, or
to $OUT where that is set: one JSON object a line, each with machine, driver, versions and command.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from test_report import FAILED, PASSED, SKIPPED, Outcome, Report, read_gtest_text, read_gtest_xml

# Seconds of each part; together under 8 minutes. What does not fit any more is a failure that says so.
LIMIT_S = {"threads": 90, "processes": 80, "queues": 20, "plain": 30, "engines": 60, "check": 60, "demo": 20, "bench": 25, "overlap": 60,
           "sanitizer": 460}
TOTAL_S = int(os.environ.get("SECONDS") or 470)
# One rank a process: what compute-sanitizer says of a process concerns one rank. Processes that share a GPU are
# slow there, so most of it is with one.
SANITIZED = ["V1.each_token*_R1", "V1.strided*_R1", "V4.quantised*definition/*_R1", "C4.padding*_R1", "C5.rows_past*_R1",
             "S1.nothing_to_send*_R1", "V3.combine_adds*_R1", "V5.*_R1", "V6.*_R1", "C1.*_R1", "V3.combine_adds*_bf16/*_R2"]

BY_PROCESSES = ["V1.each_token*", "V3.combine_adds*bf16*", "F1.a_rank_that_left*", "F3.one_dispatches*"]

# Hardware queues of a process, and ranks in it: lanes wait in streams or on the host, whichever fits.
QUEUES = ["1", "2", "8", "32"]

CACHED = "--cached --counts bounded"
BENCH = [  # flags beyond --engine cuda --json: one rank, then ranks that share the GPU
    *(f"--ranks 1 --tokens 8192 --num-sms {sms} {CACHED}" for sms in (4, 8, 16, 24)),
    *(f"--ranks 1 --tokens 8192 --num-sms {sms} {CACHED} --dtype e4m3 --op dispatch" for sms in (8, 24)),
    *(f"--ranks 1 --tokens 8192 --num-sms {sms} --dtype e4m3 --op dispatch" for sms in (8, 24)),
    *(f"--ranks 1 --tokens 8192 --num-sms {sms} --dtype e4m3 --op dispatch --counts bounded" for sms in (8, 24)),
    "--ranks 1 --tokens 8192 --num-sms 24 --layout grouped",
    "--ranks 1 --tokens 8192 --num-sms 24 --quantise --op dispatch",
    *(f"--launch threads --ranks 4 --tokens 2048 --num-sms {sms} {CACHED}" for sms in (2, 4, 8)),
    "--launch threads --ranks 2 --tokens 0,1,128 --num-sms 8 --counts bounded",
    *(f"--launch threads --ranks {ranks} --tokens 128 --num-sms 8 --counts bounded --graph" for ranks in (1, 2)),
    "--launch threads --ranks 2 --tokens 128 --num-sms 8 --counts bounded --dtype e4m3 --op dispatch --graph",
    "--launch threads --ranks 2 --tokens 128 --num-sms 8 --counts bounded --layout padded",
    "--launch threads --ranks 4 --tokens 2048 --num-sms 8 --routing zipf:1",
    "--ranks 2 --tokens 2048 --num-sms 8 --launch processes",
    "--ranks 8 --tokens 1024 --num-sms 4 --launch processes --iters 5 --warmup 2",
    f"--ranks 1 --tokens 8192 --num-sms 24 {CACHED} --overlap gemm",
    f"--launch threads --ranks 4 --tokens 2048 --num-sms 6 {CACHED} --overlap gemm",
]
NO_CUBLAS = "--overlap gemm needs cuBLAS"  # as the program says it


class Kit:
    def __init__(self, path, out):
        self.path = path
        self.end = time.monotonic() + TOTAL_S
        self.results = (out or path) / "results.jsonl"
        self.records = []
        self.machine = self.describe()

    def program(self, name):
        return str(self.path / "bin" / name)

    def run(self, command, limit_s, env=None):
        """(exit code or None when the time was over, stdout, stderr)"""
        limit_s = min(limit_s, self.end - time.monotonic())
        if limit_s < 1:
            return None, "", "no time was left"
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              env={**os.environ, **(env or {})}, start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=limit_s)
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                return None, out, err + f"\nended after its limit of {limit_s:.0f} s"

    def describe(self):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpus = []
        if shutil.which("nvidia-smi"):
            gpus = [line.split(", ") for line in self.run(query, 20)[1].splitlines() if ", " in line]
        info = self.json([self.program("sluice"), "info", "--json"], 30)[0]
        return {"gpu": gpus[0][0] if gpus else None, "gpus": len(gpus), "driver": gpus[0][1] if gpus else None,
                "versions": info[0].get("versions") if info else None, "engines": info[0].get("engines") if info else None,
                "host": info[0].get("machine") if info else None}

    def json(self, command, limit_s, env=None):
        """(records, sentence of what went wrong or "")"""
        code, out, err = self.run(command, limit_s, env)
        records = []
        for line in out.splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                return records, f"no JSON: {line[:200]}"
        if code != 0:
            return records, f"{'no end' if code is None else f'exit code {code}'}: {err.strip()[-2000:]}"
        return records, ""

    def keep(self, record, command, seconds):
        line = {**record, "on": self.machine, "ran": " ".join(command), "seconds": round(seconds, 2)}
        self.records.append(line)
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Shard:
    """One process of the conformance tests."""

    def __init__(self, kit, name, number, count, command, environment):
        self.name = f"{name}.shard_{number}"
        self.log = kit.results.parent / f"{name}-{number}.log"
        self.xml = self.log.with_suffix(".xml")
        self.xml.unlink(missing_ok=True)
        env = {**os.environ, **environment, "GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(number)}
        with self.log.open("w") as file:
            self.process = subprocess.Popen([*command, f"--gtest_output=xml:{self.xml}"], stdout=file, env=env,
                                            stderr=subprocess.STDOUT, start_new_session=True)

    def outcomes(self, end):
        """A test that had no end by then is a failure."""
        problem = ""
        try:
            code = self.process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
            problem = "the time was over before all tests had run"
        text = self.log.read_text(errors="replace")
        found = read_gtest_xml(self.xml, "") if self.xml.exists() else read_gtest_text(text, "")
        if code != 0 and not problem and not (code == 1 and any(o.status == FAILED for o in found)):
            problem = f"exit code {code}"
        if problem:
            found.append(Outcome(f"{self.name}_ends_well", FAILED, f"{text[-3000:]}\n{problem}"))
        return found


def conformance(kit, name, tests, environment=None, shards=1, wrapper=()):
    began = time.monotonic()
    end = min(began + LIMIT_S[name], kit.end)
    command = [*wrapper, kit.program("conformance_tests"), f"--gtest_filter={tests}"]
    environment = {"SLUICE_TEST_ENGINE": "cuda", **(environment or {})}
    running = [Shard(kit, name, number, shards, command, environment) for number in range(shards)]
    outcomes = [outcome for shard in running for outcome in shard.outcomes(end)]
    counts = {status: sum(o.status == status for o in outcomes) for status in (PASSED, FAILED, SKIPPED)}
    failures = [o.name for o in outcomes if o.status == FAILED]
    kit.keep({"record": "gpu_tests", "part": name, **counts, "failures": failures}, command, time.monotonic() - began)
    return outcomes


def reduced():
    return {} if os.environ.get("FULL") == "1" else {"SLUICE_REDUCED": "1"}


def threads(kit):
    """All ranks in the suite's process: a context takes most of a second, and tests make several."""
    tests = "*cuda_threads*-harness*:V4.cpu_and_cuda*"
    return conformance(kit, "threads", tests, {**reduced(), "SLUICE_TEST_FORK": "0"})


def processes(kit):
    """A few tests: processes that share a GPU take turns on it, and each takes seconds to start."""
    shards = int(os.environ.get("SHARDS") or 1)
    return conformance(kit, "processes", ":".join(f"{test}cuda_processes*" for test in BY_PROCESSES), reduced(), shards)


def queues(kit):
    """1 to 8 ranks in one process, by its number of hardware queues."""
    tests = ":".join(f"V1.each_token*cuda_threads_R{ranks}" for ranks in range(1, 9))
    outcomes = []
    for count in QUEUES:
        environment = {"SLUICE_TEST_FORK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": count}
        outcomes += [Outcome(f"{count}_queues/{o.name}", o.status, o.detail) for o in conformance(kit, "queues", tests, environment)]
    return outcomes


def plain(kit):
    """Windows of plain memory, by CUDA IPC."""
    tests = "V1.each_token*cuda_processes*:V3.combine_adds*bf16*cuda_processes*:V1.each_token*cuda_threads*"
    return conformance(kit, "plain", tests, {"SLUICE_REDUCED": "1", "SLUICE_CUDA_WINDOW": "plain"})


def engines(kit):
    return conformance(kit, "engines", "V4.cpu_and_cuda*", {"SLUICE_TEST_FORK": "0"})


def sanitizer(kit):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not pathlib.Path(tool).exists():
        return [Outcome("sanitizer", FAILED, "compute-sanitizer is not here: it comes with the CUDA toolkit")]
    environment = {"SLUICE_TEST_SLOWER": "10", "SLUICE_CUDA_AWAIT": "host"}
    tests = ":".join(test.replace("*_R", "*cuda_processes_R") for test in SANITIZED)
    return conformance(kit, "sanitizer", tests, environment, 1, [tool, "--target-processes", "all", "--error-exitcode", "9"])


def program(kit, name, flags, limit_s):
    """One command of the program: an outcome, and its records kept."""
    began = time.monotonic()
    command = [kit.program("sluice"), name, "--engine", "cuda", "--json", *flags]
    records, problem = kit.json(command, limit_s)
    for record in records:
        kit.keep(record, command, time.monotonic() - began)
    return records, Outcome(f"{name} {' '.join(flags)}", FAILED if problem or not records else PASSED, problem or "no record")


def checks(kit):
    outcomes = []
    for launch in ("threads", "processes"):
        records, done = program(kit, "check", ["--ranks", "2", "--launch", launch], LIMIT_S["check"])
        words = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}
        outcomes += [Outcome(f"check {launch} {r['promise']}", words[r["status"]], r["reason"] or "") for r in records if "status" in r]
        if done.status == FAILED and not any(o.status == FAILED for o in outcomes):
            outcomes.append(done)
    return outcomes


def demos(kit):
    traces = sorted((kit.path / "data").glob("*.csv.gz"))
    flags = [["--ranks", "2"], ["--ranks", "4", "--launch", "processes"]]
    flags += [["--ranks", "2", "--routing", str(trace), "--tokens", "256"] for trace in traces[:1]]
    return [program(kit, "demo", each, LIMIT_S["demo"])[1] for each in flags]


def benchmarks(kit):
    outcomes = []
    for flags in BENCH:
        limit_s = LIMIT_S["overlap" if "--overlap" in flags else "bench"]  # cuBLAS takes long to load all its kernels
        done = program(kit, "bench", flags.split(), limit_s)[1]
        if NO_CUBLAS in done.detail:
            done = Outcome(done.name, SKIPPED, "there is no cuBLAS in LD_LIBRARY_PATH")
        outcomes.append(done)
    return outcomes


def beside_gemms(overlap):
    """What is lost, and what the GEMMs lose, in %."""
    if not overlap:
        return ""
    gemm_loss = overlap["gemm_overlapped_us"] / overlap["gemm_us"] - 1
    return (f"  {overlap['start'] + ' first':<11}{100 * overlap['op_loss']:>+8.1f}{100 * overlap['copy_loss']:>+8.1f}{100 * gemm_loss:>+8.1f}"
            f"{overlap['gemm_sms'] or 'all':>7}")


def table(kit):
    rows = [r for r in kit.records if r.get("record") == "bench"]
    if not rows:
        return
    print(f"\n{kit.machine['gpus']} x {kit.machine['gpu']}, driver {kit.machine['driver']}; times in us, all ranks' slowest, p50; on the GPU: alone, starts together")
    print(f"{'op':<9}{'launch':<11}{'ranks':>5}{'tokens':>7} {'dtype':<6}{'layout':<8}{'counts':<8}{'cached':<7}"
          f"{'graph':<6}{'SMs':>4}{'host':>7}{'p50':>10}{'p90':>10}{'copy':>10}{'ratio':>7}{'on GPU':>9}{'copy':>9}{'ratio':>7}  {'beside GEMM':<11}{'op %':>8}{'copy %':>8}{'GEMM %':>8}{'on SMs':>7}")
    for r in rows:
        ratio = "-" if r["copy_ratio"] is None else f"{r['copy_ratio']:.2f}"
        gpu, copy = r["gpu_us"], r["copy_gpu_us"]
        on_gpu = f"{'-':>9}{'-':>9}{'-':>7}" if gpu is None else f"{gpu:>9.1f}{copy:>9.1f}{copy / gpu:>7.2f}"
        print(f"{r['op']:<9}{r['launch']:<11}{r['ranks']:>5}{r['tokens']:>7} {r['dtype']:<6}{r['layout']:<8}{r['counts']:<8}"
              f"{'yes' if r['cached'] else 'no':<7}{'yes' if r['graph'] else 'no':<6}{r['num_sms']:>4}{r['host_us']:>7.1f}{r['p50_us']:>10.1f}{r['p90_us']:>10.1f}{r['copy_us']:>10.1f}"
              f"{ratio:>7}{on_gpu}{beside_gemms(r['overlap'])}")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    out = pathlib.Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    kit = Kit(arguments.kit.resolve(), out)
    usable = [e["name"] for e in kit.machine["engines"] or [] if e["usable"]]
    if "cuda" not in usable:
        reasons = [e["reason"] for e in kit.machine["engines"] or [] if e["name"] == "cuda"]
        print(f"gpu-test: the CUDA engine is not usable here: {reasons[0] if reasons else 'sluice info said nothing'}", file=sys.stderr)
        return 1
    report = Report()
    if os.environ.get("SANITIZE") == "1":
        report.part("a part of the suite under compute-sanitizer", lambda: sanitizer(kit))
        return report.print_all()
    parts = {"threads": ("conformance, ranks as threads", threads), "processes": ("conformance, ranks as processes", processes),
             "queues": ("1 to 8 ranks by hardware queues", queues), "plain": ("windows of plain memory", plain),
             "engines": ("CPU engine against CUDA engine", engines), "check": ("sluice check", checks),
             "demo": ("sluice demo", demos), "bench": ("sluice bench", benchmarks)}
    for part in (os.environ.get("PARTS") or ",".join(parts)).split(","):
        title, run = parts[part]
        report.part(title, lambda run=run: run(kit))
    code = report.print_all()
    table(kit)
    return code


if __name__ == "__main__":
    sys.exit(main())
