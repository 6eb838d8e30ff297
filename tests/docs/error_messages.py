"""Holds docs/errors.md against the string literals of the library, both ways.

A message of the document is the first cell of a row under the head `message`. It is cut at `; ` into clauses, and each
clause must be a piece of one literal of the library, whose `{}` stand for the values of the case; a clause that is made
of several literals is cut on at `: `, `, `, ` = ` and brackets, and each part must be a piece.
A sentence of the library is a literal with three words in a row that no `{}` interrupts: the longest such row must
stand in the document, or the literal in NOT_MESSAGES. What has fewer words is not looked for.
"""
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
FOLDERS = ["core", "boot", "api", "engine", "trace"]  # the library; the program's own errors have no table
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
SENTENCE_WORDS = 3
HOLE, MOST_WORDS_OF_A_VALUE = "{}", 12
WORD = r"[A-Za-z0-9_]+(?:[-./:'][A-Za-z0-9_]+)*"
VALUE = r"[-\d.]+|[A-Z][A-Z_]+"  # of the document: a number, or REASON

# Beginnings of literals, by the reason why no caller gets them as an error of their own.
NOT_MESSAGES = {
    "said by `sluice info` of engines and variables": [
        "spins briefly", "stream memory operations", "1 on the CPU engine", "the best of this machine",
        "by the number of hardware queues", "virtual where the GPUs can", "expert ids are checked (1)", "SIMD target of",
        "how lanes of the CUDA engine", "folder in which every communicator", "memory of windows of", "hardware queues of", "names the job", "nodes: more than one",
        "number of processes", "processes of this node", "sluice run, torchrun", "this process's rank"],
    "said by `sluice info --size`": [
        "arena as asked", "combine: inputs or local sums", "combine: weights and values", "dispatch results: rows",
        "dispatch results: scales", "dispatch results: ids", "operations in flight", "rounding to blocks", "rounding to pages"],
    "a value of FIELD, whose names stand in the column of meanings": [
        "running number of", "kind of routing", "scale bytes per row", "presence of weights", "presence of values", "a rank mask", "an even split",
        "that of dispatch number"],
    "a value in brackets behind the arena's message": ["all of it free"],
    "CALL of `CALL failed: REASON`": [
        "capturing an operation", "clearing the control page", "filling the control page", "loading the kernels",
        "the first launch into a stream"],
    "caught where it is thrown to: the block is given up": ["an event of work outside of a capture"],
    "for the library's engines, which ask neither of the other kind of rank": ["{}: the ranks are threads of one process", "{}: the ranks are processes"],
    "said to the log callback": ["communicator on rank {} of {}: engine {}"],
    "said to peers when all is well": ["name={:08x}{:08x}"],
}
EXCUSED = [beginning for beginnings in NOT_MESSAGES.values() for beginning in beginnings]


def literals_of(text):
    """The string literals of a C++ source; neighbours are joined, with `{}` for what is added between two."""
    kept = r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    text = re.sub(rf"//[^\n]*|/\*.*?\*/|{kept}", lambda m: " " if m.group().startswith("/") else m.group(), text, flags=re.S)
    text = re.sub(r"^\s*#.*$|'\"'", "", text, flags=re.M)
    one, added = r'"(?:\\.|[^"\\\n])*"', r"\+[^;\"?]{1,60}\+"
    for match in re.finditer(rf"{one}(?:\s*(?:{added})?\s*{one})*", text):
        parts = re.findall(rf"({one})|({added})", match.group())
        yield "".join(HOLE if plus else literal[1:-1].replace('\\"', '"') for literal, plus in parts)


def literals():
    """(file, literal); without instructions, whose operands are %0, %1."""
    return [(str(path.relative_to(ROOT)), literal) for folder in FOLDERS
            for path in sorted((ROOT / "src" / folder).rglob("*")) if path.suffix in SUFFIXES
            for literal in literals_of(path.read_text()) if not re.search(r"%[%\d]", literal)]


def words_of(text):
    """Words, numbers, `...`, and HOLE for each `{}` with what is glued to it."""
    found = re.findall(rf"[\w@/]*\{{[^{{}}]*\}}(?:\.?\w+)?|{WORD}|\.\.\.", text)
    return tuple(HOLE if "{" in word else word for word in found)


def messages():
    """(line, first cell) of each row of the tables of messages."""
    found, inside = [], False
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        cells = line.split("|")
        if len(cells) < 3:
            inside = False
        elif cells[1].strip() == "message":
            inside = True
        elif inside and set(cells[1]) - set("- "):
            found.append((number, cells[1].strip()))
    return found


def piece_of(words, literal):
    """How many of `words` a piece of `literal` spells out when its values are chosen so that it reads `words`; -1 when
    it cannot."""

    @functools.lru_cache(maxsize=None)
    def best(w, at, value):  # words from w on, literal from `at` on, of whose hole `value` words are taken
        if w == len(words):
            return 0
        if at == len(literal):
            return -1
        if literal[at] != HOLE:
            rest = best(w + 1, at + 1, 0) if literal[at] == words[w] else -1
            return rest + 1 if rest >= 0 else -1
        longer = best(w + 1, at, value + 1) if value < MOST_WORDS_OF_A_VALUE else -1
        return max(longer, best(w, at + 1, 0) if value else -1)

    return max((best(0, at, 0) for at in range(len(literal))), default=-1)


def is_known(clause, texts):
    words = words_of(clause)
    while words and words[0] == "...":
        words = words[1:]
    while words and words[-1] == "...":
        words = words[:-1]
    if len(words) < 2 or all(re.fullmatch(VALUE, word) for word in words):
        return True
    enough = max(1 if len(words) == 2 else 2, 2 * len(words) / 5)
    return any(piece_of(words, text) >= enough for text in texts if set(text) & set(words))


def unknown_clauses(found, known):
    texts = {words_of(literal) for _, literal in known}
    for line, message in found:
        for clause in message.split("; "):
            if not is_known(clause, texts) and not all(is_known(part, texts) for part in re.split(r": |, | = |[()\[\]]", clause)):
                yield f"{PAGE.name}:{line}: no message of the library says: {clause}"


def longest_run(literal):
    """Without the call and the rank that a message begins with."""
    literal = re.sub(r"^(\{\}|\w+)( on rank \{\}( of \{\})?(: |$)|: )", "", literal)
    runs = [[]]
    for word in words_of(literal):
        if word == HOLE:
            runs.append([])
        else:
            runs[-1].append(word)
    return max(runs, key=len)


def unlisted_sentences(found, known):
    cells = [f" {' '.join(words_of(message))} " for _, message in found]
    for file, literal in known:
        run = longest_run(literal)
        if len(run) < SENTENCE_WORDS or literal.startswith(tuple(EXCUSED)):
            continue
        if not any(f" {' '.join(run)} " in cell for cell in cells):
            yield f"{file}: {PAGE.name} has not: {literal}"


def idle_exceptions(known):
    return (beginning for beginning in EXCUSED if not any(literal.startswith(beginning) for _, literal in known))


def check_errors(tap):
    found, known = messages(), literals()
    sentences = [literal for _, literal in known if len(longest_run(literal)) >= SENTENCE_WORDS]
    tap.result("errors.md_and_the_sentences_of_the_library_are_found", len(found) > 80 and len(sentences) > 150,
               f"{len(found)} rows, {len(sentences)} sentences")
    for name, wrong in [("errors.md_quotes_only_messages_that_exist", unknown_clauses(found, known)),
                        ("errors.md_has_every_message_of_the_library", unlisted_sentences(found, known)),
                        ("no_exception_to_errors.md_is_idle", idle_exceptions(known))]:
        text = "\n".join(sorted(set(wrong)))
        tap.result(name, not text, text)
