"""Files of known content in random dialects, to ask whether they come in right or are asked about.

`draw_case` writes a small cohort as some hospital might: separator, decimal and thousands marks,
order of dates, encoding, clock changes, rounding, quotes, empty cells. It says what a reader can
know: the numbers as written, the times in UTC, and whether the file has two readings, by rules that
are written here anew. `try_case` runs the doctor and the import on it.
"""

import contextlib
import csv
import datetime
import io
import json
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from stepdown.__main__ import main
from stepdown.patients.pump import load_profile
from stepdown.records.files import read_cohort

UTC = datetime.UTC
STEP = datetime.timedelta(minutes=10)
SPEEDS = [int(speed) for speed in np.asarray(load_profile("cp").speed)]
# UTC moments of clock changes in 2024; stays are laid around them.
CHANGES = {
    "Europe/Berlin": ((3, 31, 1), (10, 27, 1)),
    "America/New_York": ((3, 10, 7), (11, 3, 6)),
}
COLUMNS = {  # name in the file, unit, middle, spread of ten minutes
    "map": ("MAP µ", "mmHg", 75.0, 4.0),
    "hr": ("HF", "/min", 85.0, 3.0),
    "pulsatility": ("Puls Ø", "mmHg", 30.0, 4.0),
    "flow": ("Fluß", "L/min", 2.8, 0.03),
    "speed": ("rpm", "rpm", 0.0, 0.0),
}
EMPTY = ("", "-", "--", "NaN", "n/a")
COUNTED = ("min", "s", "h")  # times that are no dates


@dataclass
class Case:
    """A file, its mapping and the truth about it."""

    text: str = ""
    encoding: str = "utf-8"
    mapping: dict = field(default_factory=dict)
    asked: tuple[str, ...] = ()  # why a reader has to ask
    patients: dict[str, dict] = field(default_factory=dict)  # name -> blocks, values, level


def draw_case(seed: int) -> Case:
    """A file in a dialect that this seed decides."""
    draw = random.Random(seed)
    case, form, clock = Case(), _Form(draw), _Clock(draw)
    header = ["Patient", "Zeit", *(COLUMNS[name][0] for name in form.names), "Stufe", "Notiz"]
    rows = [header]
    for number in range(draw.choice([1, 2, 3])):
        rows += _stay(f"p{number + 1}", draw, case, clock, form)
    case.text = _write(rows, form.separator, form.quoted, draw.choice(["\n", "\r\n"]))
    case.encoding = draw.choice(["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "utf-16-be"])
    numbers = [cell for row in rows[1:] for cell in row[2:-1]]
    numbers += [row[1] for row in rows[1:]] if clock.unit in COUNTED else []
    settled, ask = draw.random() < 0.3, []
    case.mapping = {
        "kind": "values",
        "patient": {"column": "Patient"},
        "time": {"column": "Zeit", "unit": clock.unit} | clock.declared(settled, ask),
        "level": {"column": "Stufe"},
        "signals": {n: {"column": COLUMNS[n][0], "unit": COLUMNS[n][1]} for n in form.names},
    }
    if settled:
        case.mapping["csv"] = {"decimal_comma": form.mark == ","}
        case.mapping["csv"] |= {"separator": form.separator} if draw.random() < 0.5 else {}
    case.asked = (*ask, *form.questions(numbers, settled))
    return case


class _Form:
    """How the cells and the numbers of a file are written."""

    def __init__(self, draw: random.Random):
        self.separator = draw.choice([",", ";", "\t", "|"])
        self.mark = draw.choice([".", ","])
        same = self.mark == self.separator
        self.quoted = draw.random() < (0.8 if same else 0.2)
        more = draw.sample(["flow", "speed"], draw.randrange(3))
        self.names = ["map", "hr", "pulsatility", *more]
        self.digits = {name: draw.choice([0, 1, 1, 2, 3]) for name in self.names}
        if draw.random() < 0.25:
            self.digits = dict.fromkeys(self.names, draw.choice([0, 3]))
        other = {".": ",", ",": "."}[self.mark]
        self.thousands = draw.choice(["", "", other, " ", "'"])
        if self.thousands == self.separator and not self.quoted:
            self.thousands = ""

    def write(self, text: str) -> str:
        """A number in this form."""
        whole, _, rest = text.partition(".")
        if self.thousands and len(whole) > 3:
            whole = f"{whole[:-3]}{self.thousands}{whole[-3:]}"
        return f"{whole}{self.mark}{rest}" if rest else whole

    def questions(self, numbers: list[str], settled: bool) -> list[str]:
        """What about the numbers nobody can tell."""
        loose = self.mark == self.separator and not self.quoted
        if loose and any(self.mark in cell for cell in numbers):
            return ["cells that no quotes hold together"]
        return ["decimal mark"] if not settled and _either(numbers) else []


class _Clock:
    """How the times of a file are written."""

    def __init__(self, draw: random.Random):
        self.zone = draw.choice([*CHANGES, "UTC"])
        self.unit = draw.choice(["date", "date", "date", "ISO-8601", "min", "s", "h"])
        self.form = draw.choice(["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%d", "%Y/%m/%d"])
        if self.unit == "ISO-8601":
            self.form = "%Y-%m-%d"
        self.clock = draw.choice([" %H:%M", " %H:%M:%S", " %I:%M %p", "T%H:%M:%S"])
        self.offset = self.form[1] == "Y" and "p" not in self.clock and draw.random() < 0.3
        self.named = self.offset or draw.random() < 0.92
        self.moved = draw.choice(["changed", "changed", "changed", "kept", "once", "sorted"])
        self.near = draw.choice(["spring", "autumn", "autumn", "early", "late"])
        self.hours = 0  # offset of a clock that nobody changes
        self.shown: list[tuple[int, int]] = []  # day and month of the stamps
        self.wall: list[str] = []  # clocks of stays that nobody can tell from another

    def start(self, draw: random.Random) -> datetime.datetime:
        """A full ten minutes in UTC, some hours before a change of the clock or anywhere."""
        hours = draw.randrange(1, 4)
        if self.near in ("spring", "autumn") and self.zone in CHANGES:
            month, day, hour = CHANGES[self.zone][self.near == "autumn"]
            change = datetime.datetime(2024, month, day, hour, tzinfo=UTC)
            return change - datetime.timedelta(hours=hours)
        day = draw.randrange(2, 11) if self.near == "early" else draw.randrange(14, 27)
        month = draw.choice([1, 5, 7, 12])
        return datetime.datetime(2024, month, day, draw.randrange(3, 9), tzinfo=UTC)

    def write(self, moment: datetime.datetime, first: datetime.datetime) -> str:
        """One stamp, or the time since some moment."""
        if self.unit in COUNTED:
            seconds = (moment - first).total_seconds()
            return f"{seconds / {'s': 1, 'min': 60, 'h': 3600}[self.unit]:.6g}"
        local = self.local(moment, first)
        self.shown.append((local.day, local.month))
        text = local.strftime(self.form + self.clock)
        if not self.offset:
            return text
        return text + local.strftime("%z")

    def local(self, moment: datetime.datetime, first: datetime.datetime) -> datetime.datetime:
        """What the wall shows; a clock that nobody changes keeps the offset of its first stamp."""
        zone = ZoneInfo(self.zone)
        if self.moved == "kept" and not self.offset:
            offset = first.astimezone(zone).utcoffset() or datetime.timedelta()
            self.hours = round(offset / datetime.timedelta(hours=1))
            return moment.astimezone(datetime.timezone(offset))
        return moment.astimezone(zone)

    def meet(self, moments: list[datetime.datetime]) -> list[datetime.datetime]:
        """The rows that are recorded; notes whether the change of the clock can be told."""
        zone = ZoneInfo(self.zone)
        offsets = [moment.astimezone(zone).utcoffset() for moment in moments]
        crossed = len(set(offsets)) > 1 and not self.offset and self.unit not in COUNTED
        if not crossed or self.moved == "changed":
            return moments
        change = next(i for i in range(1, len(moments)) if offsets[i] != offsets[i - 1])
        autumn = (offsets[change] or datetime.timedelta()) < (
            offsets[change - 1] or datetime.timedelta()
        )
        # A clock that nobody changed shows the doubled hour once, and a skipped one after all. A
        # stay that begins in the doubled hour and goes on without a gap is in its second pass.
        told = autumn and change == 6 and self.moved != "sorted"
        if not told and (autumn or self.moved == "kept"):
            self.wall.append(self.moved)
        if autumn and self.moved == "once":
            return moments[: change - 6] + moments[change:]
        return moments

    def declared(self, settled: bool, ask: list[str]) -> dict[str, str]:
        """What the mapping says about dates, and what it leaves open."""
        if self.unit in COUNTED:
            return {}
        said = {"zone": self.zone} if self.named and not self.offset else {}
        if not self.named:
            ask.append("zone")
        order = {"%d": "day-month-year", "%m": "month-day-year"}.get(self.form[:2])
        slashes = order is not None and "." not in self.form
        if self.unit == "date" and settled and order:
            said["order"] = order
        elif slashes and all(day <= 12 and month <= 12 for day, month in self.shown):
            ask.append("order of dates")
        if not self.named or self.zone == "UTC":
            return said
        if settled and "once" in self.wall:
            return said | {"doubled": "later"}
        if settled and "kept" in self.wall:
            return said | {"zone": f"Etc/GMT{-self.hours:+d}"}
        ask += [f"clock {moved}" for moved in self.wall]
        return said


def _stay(
    patient: str, draw: random.Random, case: Case, clock: "_Clock", form: _Form
) -> list[list[str]]:
    """The rows of one stay, and the truth about it."""
    first, names = clock.start(draw), form.names
    moments = clock.meet([first + i * STEP for i in range(draw.randrange(30, 50))])
    level = 2 + draw.randrange(8)
    levels = [level if i < 20 else max(level - 1, 2) for i in range(len(moments))]
    values = np.full((len(moments), len(names)), np.nan)
    rows, lost = [], {name: draw.randrange(6 * 60) for name in names if name != "speed"}
    for i, moment in enumerate(moments):
        cells = []
        for k, name in enumerate(names):
            middle, spread = COLUMNS[name][2:]
            number = draw.gauss(middle, spread) if spread else SPEEDS[levels[i] - 2]
            text = f"{number:.{0 if name == 'speed' else form.digits[name]}f}"
            if lost.get(name) == i:
                cells.append(draw.choice(EMPTY))
                continue
            values[i, k] = float(text)
            cells.append(form.write(text))
        time = clock.write(moment, first)
        time = time.replace(".", form.mark) if clock.unit in COUNTED else time
        word = draw.choice(["P-{}", "P{}", "{}"]).format(levels[i])
        rows.append([patient, time, *cells, word, draw.choice(["", "ok", "müde"])])
    if clock.moved == "sorted" and clock.unit not in COUNTED and not clock.offset:
        order = sorted(range(len(rows)), key=lambda i: _naive(clock, moments[i], first))
        rows = [rows[i] for i in order]
    block = [round((moment - moments[0]) / STEP) for moment in moments]
    case.patients[patient] = {"block": block, "values": values, "level": levels, "names": names}
    return rows


def _naive(clock: _Clock, moment, first) -> datetime.datetime:
    return clock.local(moment, first).replace(tzinfo=None)


def _either(cells: list[str]) -> bool:
    """Whether some number has two readings and none has a single one."""
    marked = [cell for cell in cells if re.search(r"\d[.,]\d", cell)]
    sure = [cell for cell in marked if not re.fullmatch(r"-?[1-9]\d{0,2}[.,]\d{3}", cell)]
    return bool(marked) and not sure


def _write(rows: list[list[str]], separator: str, quoted: bool, ending: str) -> str:
    stream = io.StringIO()
    if quoted:
        csv.writer(
            stream, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator=ending
        ).writerows(rows)
    else:
        stream.writelines(separator.join(row) + ending for row in rows)
    return stream.getvalue()


@dataclass(frozen=True)
class Answer:
    """What the two commands said about a case."""

    outcome: str  # "right", "asked", or what went wrong
    doctor: int
    imported: int
    words: str


def try_case(case: Case, folder: Path) -> Answer:
    """Run both commands on a case and hold what they say against the truth."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file, out = folder / "table.csv", folder / "out"
    file.write_bytes(case.text.encode(case.encoding))
    mapping = folder / "mapping.toml"
    mapping.write_text(_toml(case.mapping), encoding="utf-8")
    through = [str(file), "--columns", str(mapping)]
    imported, printed, complaint = _run(["import", *through, "--out", str(out)])
    doctor, told, refused = _run(["doctor", *through])
    words = complaint or printed
    if (doctor == 0) != (imported == 0):
        return Answer("disagree", doctor, imported, f"{words}\n{told}\n{refused}")
    if imported:
        same = _told(complaint, told + refused)
        return Answer("asked" if same else "other words", doctor, imported, f"{words}\n{told}")
    wrong = _wrong(case, out)
    confirmed = "File read as: " in printed and "File read as: " in told
    if not wrong and not confirmed:
        wrong = "not confirmed"
    return Answer(wrong or "right", doctor, imported, words)


def _run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def _told(complaint: str, told: str) -> bool:
    """Whether the doctor says what the import complained about."""
    complaint = complaint.partition("stepdown: ")[2].strip()  # behind the progress
    findings = re.findall(r"^  D\d\d .*?: (?:[a-z]+: )?(.{40})", complaint, re.MULTILINE)
    return all(words in told for words in findings) if findings else complaint in told


def _wrong(case: Case, out: Path) -> str:
    """What of the imported cohort is not the truth; nothing if it is."""
    cohort = read_cohort(out)
    if set(cohort.patient) != set(case.patients):
        return f"patients {cohort.patient}"
    for row, name in enumerate(cohort.patient):
        truth = case.patients[name]
        block = np.flatnonzero(np.asarray(cohort.seen)[row])
        if list(block) != truth["block"]:
            return f"times of {name}: {list(block)}, not {truth['block']}"
        if list(np.asarray(cohort.level)[row, block]) != truth["level"]:
            return f"levels of {name}"
        for k, signal in enumerate(truth["names"]):
            found = np.asarray(cohort.signals)[row, block, cohort.columns.index(signal)]
            if not np.allclose(found, truth["values"][:, k], rtol=1e-6, equal_nan=True):
                return f"{signal} of {name}: {found[:4]}, not {truth['values'][:4, k]}"
    return ""


def _toml(mapping: dict) -> str:
    """The mapping as TOML: JSON's strings, numbers and truths are also TOML's."""
    lines = [f"kind = {json.dumps(mapping['kind'])}"]
    for name in [name for name in ("patient", "time", "level", "csv") if name in mapping]:
        lines += [f"[{name}]", *(f"{key} = {json.dumps(x)}" for key, x in mapping[name].items())]
    lines.append("[signals]")
    for name, entry in mapping["signals"].items():
        words = ", ".join(f"{key} = {json.dumps(x)}" for key, x in entry.items())
        lines.append(f"{name} = {{ {words} }}")
    return "\n".join(lines)
