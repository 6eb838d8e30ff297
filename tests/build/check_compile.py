#!/usr/bin/env python3
"""Each public header compiles alone; each misuse does not compile, for the reason it names, while the
same code put right does. Prints TAP."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from test_report import Tap  # noqa: E402

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-fsyntax-only", f"-I{ROOT}/include"]
COMPILERS = ["g++", "clang++-14"]


def compile(compiler, *arguments, text=None):
    command = [compiler, *FLAGS, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def header_alone(compiler, header):
    name = f"{header.stem}.h_compiles_alone_with_{compiler}"
    # Twice: the guard is part of it.
    include = f"#include <sluice/{header.name}>\n"
    done = compile(compiler, "-x", "c++", "-", text=include + include)
    return name, done.returncode == 0, done.stderr


def misuse(compiler, source):
    """-DMISUSE selects the wrong form; the first line is `// expect: PATTERN` for what the compiler says."""
    name = f"{source.stem}_does_not_compile_with_{compiler}"
    pattern = re.match(r"// expect: (.*)", source.read_text()).group(1)
    right = compile(compiler, source)
    if right.returncode != 0:
        return name, False, f"the right form must compile:\n{right.stderr}"
    wrong = compile(compiler, "-DMISUSE", source)
    if wrong.returncode == 0:
        return name, False, "the misuse compiled"
    return name, re.search(pattern, wrong.stderr) is not None, f"not for the reason '{pattern}':\n{wrong.stderr}"


def main():
    tap = Tap()
    jobs = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        for compiler in COMPILERS:
            if not shutil.which(compiler):
                tap.skip(f"public_headers_with_{compiler}", f"{compiler} is not installed")
                continue
            jobs += [pool.submit(header_alone, compiler, path) for path in sorted(ROOT.glob("include/sluice/*.h"))]
            jobs += [pool.submit(misuse, compiler, path) for path in sorted(ROOT.glob("tests/build/misuse/*.cpp"))]
        for job in jobs:
            tap.result(*job.result())
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
