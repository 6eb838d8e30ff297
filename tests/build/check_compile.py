#!/usr/bin/env python3
"""Each public header compiles alone; each misuse does not compile, for the reason it names, while the
same code put right does; what the documents show compiles without a warning. Prints TAP."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from test_report import Tap  # noqa: E402

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", f"-I{ROOT}/include"]
# Compiler -> suffix of its precompiled headers.
COMPILERS = {"g++": "gch", "clang++-14": "pch"}


def compile(compiler, *arguments, text=None):
    command = [compiler, *FLAGS, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def precompile(compiler, folder):
    """Every small case includes the public headers: they are parsed once per compiler."""
    header = folder / compiler / "all.h"
    header.parent.mkdir()
    header.write_text("#include <sluice/sluice.h>\n")
    compile(compiler, "-x", "c++-header", header, "-o", f"{header}.{COMPILERS[compiler]}")
    return header


def header_alone(compiler, header):
    name = f"{header.stem}.h_compiles_alone_with_{compiler}"
    # Twice: the guard is part of it.
    include = f"#include <sluice/{header.name}>\n"
    done = compile(compiler, "-fsyntax-only", "-x", "c++", "-", text=include + include)
    return name, done.returncode == 0, done.stderr


def idiom(compiler, headers, source):
    done = compile(compiler, "-fsyntax-only", "-include", headers, source)
    return f"{source.stem}_compiles_without_warnings_with_{compiler}", done.returncode == 0, done.stderr


def misuse(compiler, headers, source):
    """-DMISUSE selects the wrong form; the first line is `// expect: PATTERN` for what the compiler says."""
    name = f"{source.stem}_does_not_compile_with_{compiler}"
    pattern = re.match(r"// expect: (.*)", source.read_text()).group(1)
    right = compile(compiler, "-fsyntax-only", "-include", headers, source)
    if right.returncode != 0:
        return name, False, f"the right form must compile:\n{right.stderr}"
    wrong = compile(compiler, "-fsyntax-only", "-DMISUSE", "-include", headers, source)
    if wrong.returncode == 0:
        return name, False, "the misuse compiled"
    errors = "\n".join(line for line in wrong.stderr.splitlines() if "error:" in line)
    return name, re.search(pattern, errors) is not None, f"not for the reason '{pattern}':\n{wrong.stderr}"


def main():
    tap = Tap()
    jobs = []
    here = pathlib.Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="slt-") as work, \
            concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        for compiler in COMPILERS:
            if not shutil.which(compiler):
                tap.skip(f"public_headers_with_{compiler}", f"{compiler} is not installed")
                continue
            headers = precompile(compiler, pathlib.Path(work))
            jobs += [pool.submit(header_alone, compiler, path) for path in sorted(ROOT.glob("include/sluice/*.h"))]
            jobs += [pool.submit(idiom, compiler, headers, path) for path in sorted(here.glob("idioms/*.cpp"))]
            jobs += [pool.submit(misuse, compiler, headers, path) for path in sorted(here.glob("misuse/*.cpp"))]
        for job in jobs:
            tap.result(*job.result())
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
