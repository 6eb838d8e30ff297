#!/usr/bin/env python3
"""Installs a build tree into a temporary prefix, moves it, and builds a stranger's project against it,
found by CMake and by pkg-config; looks at what the library exports and needs. Prints TAP."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "docs")]
from check_docs import dead_links  # noqa: E402
from test_report import Tap  # noqa: E402

NEEDED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libhwy.so.1", "ld-linux-x86-64.so.2",
          "ld-linux-aarch64.so.1"}
EXPORTED = re.compile(r"^(typeinfo for |typeinfo name for |vtable for )?sluice::(?!(core|boot|cpu|cuda)::)")


class Prefix:
    def __init__(self, tap, folder):
        self.tap = tap
        self.folder = folder
        self.lib = folder / "lib"

    def run(self, *command, cwd=None, **env):
        return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={**os.environ, **env})

    def step(self, name, *commands, cwd=None, **env):
        """One result for commands in a row."""
        for command in commands:
            done = self.run(*command, cwd=cwd, **env)
            if done.returncode != 0:
                self.tap.result(name, False, f"{command} gave {done.returncode}\n{done.stdout}{done.stderr}")
                return
        self.tap.result(name, True)


def dynamic(prefix, path, tag):
    out = prefix.run("readelf", "-d", path).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", out)


def check_library(prefix):
    library = prefix.lib / "libsluice.so"
    out = prefix.run("nm", "-DC", "--defined-only", library).stdout
    names = [match.group(1) for match in re.finditer(r"^[0-9a-f]+ [A-Za-z] (.*)$", out, re.M)]
    strangers = [name for name in names if not EXPORTED.match(name)]
    prefix.tap.result("library_exports_only_public_names", bool(names) and not strangers,
                      "\n".join(strangers) or "it exports nothing")
    extra = sorted(set(dynamic(prefix, library, "NEEDED")) - NEEDED)
    prefix.tap.result("library_needs_only_what_is_allowed", not extra, f"it also needs {extra}")
    paths = dynamic(prefix, library, "RUNPATH") + dynamic(prefix, library, "RPATH")
    prefix.tap.result("library_has_no_run_path", not paths, paths)


def check_program(prefix):
    program = prefix.folder / "bin" / "sluice"
    if not program.exists():
        prefix.tap.result("program_is_installed", False, f"there is no {program}")
        return
    paths = dynamic(prefix, program, "RUNPATH") + dynamic(prefix, program, "RPATH")
    prefix.tap.result("program_finds_its_library_beside_it", paths == ["$ORIGIN/../lib"], paths)
    prefix.step("program_runs_where_it_was_moved_to", [program, "info", "--json"], LD_LIBRARY_PATH="")


def check_documents(prefix):
    folder = prefix.folder / "share" / "doc" / "sluice"
    wanted = ["LICENSE", "README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
              *(f"examples/{example.name}" for example in (ROOT / "examples").iterdir())]
    missing = [name for name in wanted if not (folder / name).is_file()]
    prefix.tap.result("licence_documents_and_examples_are_installed", not missing, f"{folder} has not: {missing}")
    dead = [f"{page.relative_to(folder)}: {target}" for page in folder.rglob("*.md") for target in dead_links(page)]
    prefix.tap.result("links_of_installed_documents_lead_somewhere", not dead, "\n".join(dead))


def check_stranger(prefix, work):
    build = work / "stranger"
    prefix.step("find_package", ["cmake", "-S", HERE / "stranger", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix.folder}"],
                ["cmake", "--build", build], [build / "stranger"])
    flags = prefix.run("pkg-config", "--cflags", "--libs", "sluice", PKG_CONFIG_PATH=str(prefix.lib / "pkgconfig"))
    program = work / "by_pkg_config"
    prefix.step("pkg_config", ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", HERE / "stranger" / "main.cpp", "-o", program,
                               *flags.stdout.split(), "-pthread"],
                [program], LD_LIBRARY_PATH=str(prefix.lib))
    where = {name: prefix.run("pkg-config", f"--variable={name}", "sluice", PKG_CONFIG_PATH=str(prefix.lib / "pkgconfig")).stdout.strip()
             for name in ("libdir", "includedir")}
    right = {name: os.path.realpath(path) for name, path in where.items() if path} == {
        "libdir": os.path.realpath(prefix.lib), "includedir": os.path.realpath(prefix.folder / "include")}
    prefix.tap.result("pkg_config_says_where_library_and_headers_are", right, where)
    found = work / "by_run_path"
    prefix.step("a_run_path_from_pkg_config_finds_the_library",
                ["g++", "-std=c++20", HERE / "stranger" / "main.cpp", "-o", found, *flags.stdout.split(),
                 f"-Wl,-rpath,{where['libdir']}", "-pthread"],
                [found], LD_LIBRARY_PATH="")
    config = "".join(path.read_text() for path in prefix.lib.glob("cmake/sluice/*.cmake"))
    asked = re.findall(r"find_(?:dependency|package)\((\w+)", config) + re.findall(r"\b(?:fmt|hwy|PkgConfig|Threads)::\w+", config)
    prefix.tap.result("package_asks_users_for_nothing_else", bool(config) and not asked, asked)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="slt-") as temporary:
        work = pathlib.Path(temporary)
        first = work / "first"
        Prefix(tap, first).step("install", ["cmake", "--install", sys.argv[1], "--prefix", first])
        moved = work / "moved"
        if first.exists():
            first.rename(moved)
        prefix = Prefix(tap, moved)
        check_library(prefix)
        check_program(prefix)
        check_documents(prefix)
        check_stranger(prefix, work)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
