#!/usr/bin/env python3
"""Builds and runs every test that can run here. The last line is `N passed, N failed, N skipped`.

Environment: SLUICE_LONG=1 lengthens tests and fuzzing, FUZZ_SECONDS is the time of each fuzz target
(20, or 600 when long), JOBS the parallel compilers. Tests see SLUICE_LONG, SLUICE_REDUCED=1 (a run
beside the full one: under a sanitizer or for one SIMD target), SLUICE_TRACES (a folder of recorded
router decisions, when the caller sets it) and a TMPDIR of their own, which must be empty afterwards.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

from test_process import run_watched
from test_report import FAILED, PASSED, SKIPPED, Outcome, Report, read_gtest_text, read_gtest_xml, read_tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
LONG = os.environ.get("SLUICE_LONG") == "1"
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS") or (600 if LONG else 20))
JOBS = os.environ.get("JOBS") or str(os.cpu_count() or 2)
TIMEOUT_S = 4 * 3600 if LONG else 400
TREES = {"release": BUILD, "asan": BUILD / "asan", "tsan": BUILD / "tsan"}
# Folders that must have tests, and those of them that run under the sanitizers as well.
REQUIRED = ["core", "boot", "engine", "protocol", "conformance", "faults"]
SANITIZED = {"asan": ["core", "boot", "engine", "trace", "conformance", "faults"], "tsan": ["boot", "conformance", "faults"]}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}


def test_folders():
    return sorted({path.parent.name for path in ROOT.glob("tests/*/*_test.cpp")})


def build(tree, targets, *options):
    """Configures and builds; one outcome."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"build-{tree}.log"
    steps = [["cmake", "--preset", tree, *options], ["ninja", "-C", str(TREES[tree]), "-j", JOBS, *targets]]
    with log.open("w") as out:
        for step in steps:
            if subprocess.run(step, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT).returncode != 0:
                return [Outcome(f"build.{tree}", FAILED, log.read_text(errors="replace"))]
    return [Outcome(f"build.{tree}", PASSED)]


def gtest(tree, folder, prefix="", env=None):
    """Runs one test executable; its tests, its exit and what it leaves behind are the outcomes."""
    program = TREES[tree] / "bin" / f"{folder}_tests"
    prefix = f"{prefix}{folder}."
    if not program.exists():
        return [Outcome(prefix + "exists", FAILED, f"{program} was not built: it has no tests, or did not compile")]
    name = prefix.replace("/", "-").strip(".")
    xml = LOGS / f"{name}.xml"
    xml.unlink(missing_ok=True)
    command = [str(program), f"--gtest_output=xml:{xml}"]
    if tree == "tsan" and subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0:
        command = ["setarch", "-R", *command]  # its shadow memory does not fit every random layout
    done = run_watched(command, LOGS / f"{name}.log", TIMEOUT_S, {**test_environment(tree), **(env or {})}, ROOT)
    if xml.exists():
        outcomes = read_gtest_xml(xml, prefix)
    else:
        outcomes = read_gtest_text(done.output, prefix)
    told = any(outcome.status == FAILED for outcome in outcomes)
    if done.problem and not (told and done.code == 1):
        outcomes.append(Outcome(prefix + "ends_well", FAILED, done.problem if told else f"{done.output}\n{done.problem}"))
    outcomes.append(Outcome(prefix + "leaves_nothing_behind", FAILED if done.left else PASSED, "\n".join(done.left)))
    if len(outcomes) == 1:
        outcomes.append(Outcome(prefix + "has_tests", FAILED, "the executable ran no test"))
    return outcomes


def test_environment(tree):
    env = dict(SANITIZER_OPTIONS)
    env["SLUICE_PROGRAM"] = str(TREES["release"] / "bin" / "sluice")
    if tree != "release":
        env["SLUICE_REDUCED"] = "1"
    return env


def script(name, *command):
    """Runs a check that prints TAP."""
    done = run_watched(list(command), LOGS / f"{name}.log", TIMEOUT_S, test_environment("release"), ROOT)
    outcomes = read_tap(done.output, f"{name}.")
    if done.problem and not any(outcome.status == FAILED for outcome in outcomes):
        outcomes.append(Outcome(f"{name}.ends_well", FAILED, f"{done.output}\n{done.problem}"))
    if done.left:
        outcomes.append(Outcome(f"{name}.leaves_nothing_behind", FAILED, "\n".join(done.left)))
    return outcomes


def simd_targets():
    program = BUILD / "bin" / "list_simd_targets"
    if not program.exists():
        return []
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


def examples():
    outcomes = []
    for program in sorted((BUILD / "bin").glob("example_*")):
        if not (ROOT / "examples" / f"{program.name.removeprefix('example_')}.cpp").exists():
            continue
        done = run_watched([str(program)], LOGS / f"{program.name}.log", 60, test_environment("release"), ROOT)
        problem = "\n".join([*([done.problem] if done.problem else []), *done.left])
        outcomes.append(Outcome(f"examples.{program.name}", FAILED if problem else PASSED, f"{done.output}\n{problem}"))
    return outcomes or [Outcome("examples", SKIPPED, "examples/ has no program yet")]


def fuzz_one(target):
    program = TREES["asan"] / "bin" / target
    work = LOGS / "fuzz" / target
    shutil.rmtree(work, ignore_errors=True)
    (work / "corpus").mkdir(parents=True)
    seeds = ROOT / "tests" / "fuzz" / "corpus" / target
    command = [str(program), f"-max_total_time={FUZZ_SECONDS}", "-timeout=10", "-rss_limit_mb=2048",
               f"-artifact_prefix={work}/", str(work / "corpus")]
    if seeds.is_dir():
        command.append(str(seeds))
    done = run_watched(command, work / "log", FUZZ_SECONDS + 120, SANITIZER_OPTIONS, ROOT)
    problem = done.problem or ("" if re.search(r"Done [1-9]\d* runs", done.output) else "it ran no input")
    if problem:
        return Outcome(f"fuzz.{target}", FAILED, f"{done.output}\n{problem}; the input lies in {work}")
    return Outcome(f"fuzz.{target}", PASSED)


def fuzz():
    targets = [path.stem for path in sorted(ROOT.glob("tests/fuzz/fuzz_*.cpp"))]
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2))) as pool:
        return list(pool.map(fuzz_one, targets))


def run_release(report, wanted):
    report.part("build release", lambda: build("release", ["all", "sluice_tests"], "-DSLUICE_TESTS=ON"))
    if wanted("sources"):
        report.part("sizes, includes, symbols", lambda: script("sources", "tests/build/check_sources.py", str(BUILD)))
    if wanted("tests"):
        for folder in sorted({*REQUIRED, *test_folders()}):
            report.part(f"tests/{folder}", lambda folder=folder: gtest("release", folder))
    if wanted("simd"):
        for target in simd_targets()[1:]:
            env = {"SLUICE_CPU_TARGET": target, "SLUICE_REDUCED": "1", "GTEST_FILTER": "V*:S*:C1.*:C4.*:C5.*"}
            report.part(f"tests/conformance on {target}", lambda: gtest("release", "conformance", f"{target}/", env))
    if wanted("compile"):
        report.part("headers alone, misuse", lambda: script("compile", "tests/build/check_compile.py"))
        report.part("kernels as compiled", lambda: script("cuda", "tests/build/check_cuda.py", str(BUILD)))
    if wanted("install"):
        report.part("installed package", lambda: script("install", "tests/install/check_install.py", str(BUILD)))
    if wanted("docs"):
        report.part("examples", examples)
        report.part("page of the doctor", lambda: script("page", "tests/doctor/check_html.py", str(BUILD / "bin" / "sluice")))
        report.part("documents", lambda: script("docs", "tests/docs/check_docs.py", str(BUILD)))


def run_sanitizer(report, tree, wanted):
    folders = [folder for folder in SANITIZED[tree] if folder in test_folders()]
    targets = [f"{folder}_tests" for folder in folders] if wanted(tree) else []
    if tree == "asan" and wanted("fuzz"):
        targets.append("sluice_fuzz")
    report.part(f"build {tree}", lambda: build(tree, targets))
    if wanted(tree):
        for folder in folders:
            report.part(f"{tree}: tests/{folder}", lambda folder=folder: gtest(tree, folder, f"{tree}/"))
    if tree == "asan" and wanted("fuzz"):
        report.part(f"fuzzing, {FUZZ_SECONDS} s each", fuzz)


RELEASE_PARTS = ["sources", "tests", "simd", "compile", "install", "docs"]
PARTS = [*RELEASE_PARTS, "asan", "fuzz", "tsan"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of: {','.join(PARTS)}")
    only = parser.parse_args().only
    chosen = only.split(",") if only else PARTS
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    wanted = lambda part: part in chosen
    report = Report()
    if any(wanted(part) for part in RELEASE_PARTS):
        run_release(report, wanted)
    if wanted("asan") or wanted("fuzz"):
        run_sanitizer(report, "asan", wanted)
    if wanted("tsan"):
        run_sanitizer(report, "tsan", wanted)
    return report.print_all()


if __name__ == "__main__":
    sys.exit(main())
