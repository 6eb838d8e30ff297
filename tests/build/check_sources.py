#!/usr/bin/env python3
"""Sizes of files and functions, what each folder includes, and, given a build tree, which names of
other folders its objects use. Prints TAP."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from test_report import Tap  # noqa: E402

FILE_LINES = 440      # the rule says about 400
FUNCTION_LINES = 60
FOLDERS = ["include", "src", "tests", "bench", "examples", "scripts", "cmake", "python"]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt"}

# Folder -> includes that it must not have. Core sees of an engine its interface, engine/engine.h, alone.
# A public header may include public ones and the standard library.
FORBIDDEN = {
    "src/core": r'"engine/(?!engine\.h")|"(boot|api|cli|net|trace|tune)/|<(thread|future|condition_variable|pthread\.h|sys/socket\.h|sys/un\.h|netinet/.*)>|cuda',
    "src/trace": r'"(boot|engine|api|cli|net|tune)/|cuda|<thread>',
    "src/boot": r'"(core|engine|api|cli|net|trace|tune)/|cuda|<hwy/',
    "src/engine": r'"(api|cli)/',
    "src/engine/cpu": r'"engine/cuda/',
    "src/engine/cuda": r'"engine/cpu/',
    "src/doctor": r'"(boot|core|engine|api|cli|net|trace|tune)/|cuda|<thread>',
    "src/api": r'"cli/',
    "include/sluice": r'"|<(?!sluice/)[^>]*[./]',
}
THIRD_PARTY_OF_PROGRAM = r"<(nlohmann/|CLI/|CLI11|hwloc|zlib)"

# The build precompiles these headers, so a source that forgets one compiles all the same.
PRECOMPILED = {
    r"\bCLI::(?!App&)": "<CLI/",
    r"\bfmt::": "<fmt/",
    r"\bnlohmann::": "<nlohmann/",
    r"\b(TEST|TEST_F|TEST_P|(EXPECT|ASSERT)_(EQ|NE|TRUE|FALSE|LT|LE|GT|GE))\(": "<g(test|mock)/",
    r"\b((EXPECT|ASSERT)_THAT\(|HasSubstr\()": "<gmock/",
}

# Object library -> those whose inner names it must not use.
STRANGERS = {
    "sluice_core": ["sluice_boot", "sluice_engine", "sluice_engine_cpu", "sluice_api"],
    "sluice_boot": ["sluice_core", "sluice_engine", "sluice_engine_cpu", "sluice_api"],
    "sluice_engine_cpu": ["sluice_api"],
    "sluice_engine_cuda": ["sluice_engine_cpu", "sluice_api"],
}
NOT_IN_CORE = r"^(pthread_create|socket|socketpair|connect|bind|listen|accept4?|sendmsg|recvmsg|std::thread::|cuda|cu[A-Z])"


def sources(suffixes=SUFFIXES):
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", *FOLDERS],
                             capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in sorted(tracked) if pathlib.Path(name).suffix in suffixes and (ROOT / name).is_file()]


def blank(text):
    """C++ without comments and literals; line numbers stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match.group()), text, flags=re.S)


def cpp_functions(text):
    """(name, first line, lines) of each function at namespace or class scope; a heuristic."""
    text = "\n".join("" if line.lstrip().startswith("#") else line for line in blank(text).split("\n"))
    stack, head = [], 0  # stack of (is_function, name, start)
    for match in re.finditer(r"[{};]", text):
        at = match.start()
        if match.group() == "{":
            header = text[head:at].strip()
            control = re.match(r"(if|for|while|switch|catch|do|else|try|namespace|class|struct|enum|union|extern)\b", header)
            named = re.search(r"([\w:~]+)\s*\(", header)
            is_function = named is not None and not control and not any(entry[0] for entry in stack)
            start = text.count("\n", 0, at - len(text[head:at].lstrip())) + 1
            stack.append((is_function, named.group(1) if named else "", start))
        elif match.group() == "}" and stack:
            is_function, name, start = stack.pop()
            if is_function:
                yield name, start, text.count("\n", 0, at) + 2 - start
        head = at + 1


def python_functions(text):
    import ast
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def check_sizes(tap):
    long_files, long_functions = [], []
    for path in sources():
        text = path.read_text(errors="replace")
        name = path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_LINES:
            long_files.append(f"{name}: {lines} lines")
        functions = python_functions if path.suffix == ".py" else cpp_functions if path.suffix in {".h", ".cpp", ".cu", ".cuh"} else None
        for function, start, length in functions(text) if functions else ():
            if length > FUNCTION_LINES:
                long_functions.append(f"{name}:{start}: {function} has {length} lines")
    tap.result(f"no_file_over_{FILE_LINES}_lines", not long_files, "\n".join(long_files))
    tap.result(f"no_function_over_{FUNCTION_LINES}_lines", not long_functions, "\n".join(long_functions))


def check_includes(tap):
    for folder, pattern in FORBIDDEN.items():
        offences = []
        for path in sources({".h", ".cpp", ".cu", ".cuh"}):
            name = str(path.relative_to(ROOT))
            if not name.startswith(folder + "/"):
                continue
            for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
                include = re.match(r"\s*#\s*include\s*(\S+)", line)
                library = folder != "src/cli" and include and re.match(THIRD_PARTY_OF_PROGRAM, include.group(1))
                if include and (library or re.search(pattern, include.group(1))):
                    offences.append(f"{name}:{number}: {include.group(1)}")
        tap.result(f"{folder}_includes_only_what_it_may", not offences, "\n".join(offences))


def all_includes(path, seen):
    """What a source includes, through headers of the project too."""
    for name in re.findall(r'^\s*#\s*include\s*(\S+)', path.read_text(errors="replace"), re.M):
        if name in seen:
            continue
        seen.add(name)
        if name.startswith('"'):
            for base in (path.parent, ROOT / "src", ROOT / "tests"):
                if (base / name.strip('"')).is_file():
                    all_includes(base / name.strip('"'), seen)
                    break
    return seen


def check_precompiled(tap):
    missing = []
    for path in sources({".h", ".cpp"}):
        name = str(path.relative_to(ROOT))
        if not name.startswith(("src/cli/", "tests/")):
            continue
        text = blank(path.read_text(errors="replace"))
        included = all_includes(path, set())
        missing += [f"{name}: {header} for {use}" for use, header in PRECOMPILED.items()
                    if re.search(use, text) and not any(re.match(header, include) for include in included)]
    tap.result("what_is_precompiled_is_included_too", not missing, "\n".join(missing))


def symbols(tree, folder, flag):
    objects = sorted((tree / "src" / "CMakeFiles" / f"{folder}.dir").rglob("*.o"))
    if not objects:
        return set()
    out = subprocess.run(["nm", "-C", flag, *objects], capture_output=True, text=True, check=True).stdout
    return {match.group(1) for match in re.finditer(r"^[0-9a-f ]{16,} [A-Za-z] (.*)$", out, re.M)}


def check_symbols(tap, tree):
    """What a folder uses of another is found even where no include gives it away."""
    inner = re.compile(r"^(vtable for |typeinfo for )?sluice::(core|boot|engine|cpu|api)::")
    for folder, strangers in STRANGERS.items():
        used = symbols(tree, folder, "--undefined-only")
        offences = []
        for stranger in strangers:
            offences += [f"{folder} uses {name} of {stranger}"
                         for name in sorted(used & symbols(tree, stranger, "--defined-only")) if inner.match(name)]
        tap.result(f"{folder}_uses_no_inner_name_of_a_stranger", not offences, "\n".join(offences))
    outside = sorted(name for name in symbols(tree, "sluice_core", "--undefined-only") if re.match(NOT_IN_CORE, name))
    tap.result("core_calls_no_threads_sockets_or_cuda", not outside, "\n".join(outside))


def main():
    tap = Tap()
    check_sizes(tap)
    check_includes(tap)
    check_precompiled(tap)
    if len(sys.argv) > 1:
        check_symbols(tap, pathlib.Path(sys.argv[1]))
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
