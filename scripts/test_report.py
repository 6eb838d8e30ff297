"""What tests said: outcomes, how they are read from GoogleTest and from TAP, and how they are told."""
import collections
import dataclasses
import re
import time
import xml.etree.ElementTree as ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclasses.dataclass
class Outcome:
    name: str
    status: str
    detail: str = ""


class Report:
    """Outcomes of all parts, and the time that each part took."""

    def __init__(self):
        self.outcomes = []
        self.parts = []  # (name, seconds, outcomes)

    def part(self, name, action):
        """Runs `action`, which returns outcomes; none at all is a failure of the part."""
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            outcomes = action()
        except Exception as error:  # a part that breaks must not take the others' results with it
            outcomes = [Outcome(name, FAILED, f"{type(error).__name__}: {error}")]
        if not outcomes:
            outcomes = [Outcome(name, FAILED, "this part ran no test")]
        seconds = time.monotonic() - start
        self.outcomes += outcomes
        self.parts.append((name, seconds, outcomes))
        print(f"   {summary(outcomes)} in {seconds:.0f} s", flush=True)
        for outcome in outcomes:
            if outcome.status == FAILED:
                print(f"   FAILED {outcome.name}", flush=True)

    def print_all(self):
        """Skips with reasons, failures with output, times; the last line is the sum."""
        reasons = collections.defaultdict(list)
        for outcome in self.outcomes:
            if outcome.status == SKIPPED:
                reasons[outcome.detail or "no reason given"].append(outcome.name)
        if reasons:
            print("\nSkipped:")
        for reason, names in reasons.items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            print(f"  {reason}: {shown}")
        failed = [outcome for outcome in self.outcomes if outcome.status == FAILED]
        for outcome in failed:
            print(f"\nFAILED {outcome.name}")
            print("\n".join("    " + line for line in outcome.detail.splitlines()[-60:]))
        print("\nTime per part:")
        for name, seconds, outcomes in self.parts:
            print(f"  {seconds:7.1f} s  {name:<42} {summary(outcomes)}")
        print(f"  {sum(part[1] for part in self.parts):7.1f} s  in all\n")
        print(summary(self.outcomes), flush=True)
        return 1 if failed or not self.outcomes else 0


def summary(outcomes):
    counts = collections.Counter(outcome.status for outcome in outcomes)
    return f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped"


def read_gtest_xml(path, prefix):
    outcomes = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") != "run":
            continue
        name = f"{prefix}{case.get('classname')}.{case.get('name')}"
        failures = [failure.get("message", "") for failure in case.findall("failure")]
        skip = case.find("skipped")
        if failures:
            outcomes.append(Outcome(name, FAILED, "\n".join(failures)))
        elif skip is not None or case.get("result") == "skipped":
            reason = skip.get("message", "") if skip is not None else ""
            outcomes.append(Outcome(name, SKIPPED, re.sub(r"^\S+:\d+\n", "", reason).strip()))
        else:
            outcomes.append(Outcome(name, PASSED))
    return outcomes


def read_gtest_text(text, prefix):
    """For an executable that did not live to write its XML: what it had finished, and what it died in."""
    outcomes = []
    running = None
    for line in text.splitlines():
        match = re.match(r"\[\s+(RUN|OK|FAILED|SKIPPED)\s+\] (\S+?)(?:, where .*)?(?: \(\d+ ms\))?$", line)
        if not match:
            continue
        word, name = match.groups()
        if word == "RUN":
            running = name
            continue
        status = {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}[word]
        if name == running:
            outcomes.append(Outcome(prefix + name, status))
            running = None
    if running:
        outcomes.append(Outcome(prefix + running, FAILED, text))
    return outcomes


def read_tap(text, prefix):
    """`ok N - name`, `ok N - name # SKIP reason`, `not ok N - name`; other lines after a result belong to it."""
    outcomes = []
    for line in text.splitlines():
        match = re.match(r"(not )?ok \d+ - (.*?)(?: # SKIP (.*))?$", line)
        if match:
            status = FAILED if match.group(1) else SKIPPED if match.group(3) else PASSED
            outcomes.append(Outcome(prefix + match.group(2), status, match.group(3) or ""))
        elif outcomes and not re.match(r"\d+\.\.\d+$", line):
            outcomes[-1].detail += ("\n" if outcomes[-1].detail else "") + line
    return outcomes


class Tap:
    """Prints results in the form that read_tap reads."""

    def __init__(self):
        self.count = 0
        self.failed = 0

    def result(self, name, ok, detail=""):
        self.count += 1
        self.failed += not ok
        print(f"{'ok' if ok else 'not ok'} {self.count} - {name}")
        if not ok and detail:
            print("\n".join("  " + line for line in str(detail).splitlines()))
        print(end="", flush=True)

    def skip(self, name, reason):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {reason}", flush=True)

    def end(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0
