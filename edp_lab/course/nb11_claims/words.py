"""What ``11_claims.ipynb`` says in words: tables of claims, one claim in full (HTML), commands."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from edp_lab.course.nb10_phases.words import html_table
from edp_lab.course.nb11_claims.compute import DRAWS, Turned, View
from edp_lab.reproduce.claims import ClaimsTable, Entry
from edp_lab.reproduce.evidence import Measured, Verdict
from edp_lab.reproduce.paper.claims_mechanism import DRAWS as LEDGER_DRAWS

LONGEST = 60  # letters of a claim in a list
MARKS = {Verdict.HOLDS: "✓", Verdict.CONDITIONAL: "◐", Verdict.FAILS: "✗", Verdict.UNTESTABLE: "?"}
SAYS = {
    Verdict.HOLDS: "True as it is said.",
    Verdict.CONDITIONAL: "True if something is added that the source does not say.",
    Verdict.FAILS: "Not true as it is said.",
    Verdict.UNTESTABLE: "What it would take to decide is not public.",
}
SCOPE = (
    "One utterance, its slot emptied (zero-out); disjoint batches; noise of a secret key. As printed, with α from "
    "private gradients, there is no guarantee at all."
)


# ---- Rows ------------------------------------------------------------------------------------------------------------


def table(entries: Sequence[Entry]) -> str:
    """Claims beside what was found, as an HTML table."""
    heads = ("", "claim", "verdict", "what was found")
    rows = [(f"<b>{one.id}</b>", escape(one.claim), f"<b>{one.verdict}</b>", escape(one.said)) for one in entries]
    return html_table([heads, *rows])


def provenance(ledger: ClaimsTable) -> str:
    """Where the committed numbers come from, in one line."""
    versions = ", ".join(f"{name} {ledger.versions[name]}" for name in ("edp-lab", "torch", "numpy"))
    return (
        f"{len(ledger.entries)} claims, computed on {ledger.date} on {ledger.machine} by `{ledger.command}`; {versions}"
    )


def counted(result: View) -> str:
    """How many claims of each document have which verdict, a line each."""
    return "\n".join(
        f"{document}: {', '.join(f'{counts[verdict]} {verdict}' for verdict in Verdict if counts[verdict])}"
        for document, counts in result.counts.items()
    )


def view_in_words(result: View) -> str:
    """The read-out beside the filter: the row that is selected, in full."""
    if result.selected is None:
        return "<p><b>No claim passes the filter.</b> Take a word out of the search, or choose <i>all</i>.</p>"
    entry = result.selected
    return (
        f"<p>{len(result.entries)} of {len(result.ledger.entries)} claims pass. Selected: <b>{entry.id}</b>, from the "
        f"{entry.document}.</p>{entry_in_words(entry)}"
    )


def entry_in_words(entry: Entry) -> str:
    """One claim: what is said and where, what was found, the verdict, and every number that it rests on."""
    return (
        f"<p>{escape(entry.claim)}<br><i>{escape(entry.source)}</i></p>"
        f"<p>{escape(entry.said)}</p>"
        f"<p>Verdict: <b>{entry.verdict}</b>. {SAYS[entry.verdict]}</p>"
        f"<details open><summary>the numbers</summary>{numbers(entry.measured)}</details>"
        f"<p>Function {_code(entry.function)},<br>cell {_code(entry.cell)},<br>test {_code(entry.test)}</p>"
    )


def _code(name: str) -> str:
    """A long name that may break anywhere."""
    return f'<code style="white-space:normal; overflow-wrap:anywhere">{name}</code>'


def numbers(measured: Measured) -> str:
    """Everything that was measured, by name, as an HTML table."""
    cells = "".join(
        f"<tr><td>{name.replace('_', ' ')}</td><td style='text-align:left; padding-left:1em'>"
        f"{escape(_short(value))}</td></tr>"
        for name, value in measured.items()
    )
    return f"<table>{cells}</table>"


def _short(value: float | str | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def view_command(result: View) -> str:
    """The call that prints the same: of the selected row, or of the rows that pass."""
    if result.selected is None:
        return "edp-lab claims"
    every = len(result.entries) == len(result.ledger.entries)
    passed = "" if every else f" --only {','.join(entry.id for entry in result.entries)}"
    return f"edp-lab claims --only {result.selected.id}\nedp-lab claims{passed} --json"


def again_command(claim: str) -> str:
    return f"edp-lab claims --run --only {claim}"


def changed_in_words(before: Entry, now: Entry) -> str:
    """A claim that was computed again beside the committed one."""
    moved = [name for name in now.measured if now.measured[name] != before.measured.get(name)]
    same = (
        "Every number is the committed one."
        if not moved
        else f"Of {len(now.measured)} values {len(moved)} differ from the committed ones: "
        + ", ".join(name.replace("_", " ") for name in moved)
        + "."
    )
    verdict = (
        "the verdict is the same"
        if now.verdict == before.verdict
        else f"<b>the verdict was {before.verdict} in the committed ledger</b>"
    )
    return f"<p>Computed now in {now.seconds:.1f} s; {verdict}. {same}</p>{entry_in_words(now)}"


# ---- Change the evidence ---------------------------------------------------------------------------------------------


def turned_in_words(result: Turned) -> str:
    """The verdicts of other settings, as HTML."""
    rows = [(f"<b>{name}</b>", f"<b>{one.verdict}</b>", escape(one.said)) for name, one in result.evidence.items()]
    epsilon = (
        f"One epoch: <b>ε = {result.epsilon:.4g}</b> (Gaussian DP, exact, were α public), claimed "
        f"{result.claimed:.4g} (zCDP), at δ = {result.delta:.2g}."
    )
    fewer = (
        f"Noise is estimated from {DRAWS:,} draws here and from {LEDGER_DRAWS:,} in the ledger, so that P2 and P22 may "
        "differ from it in the second digit after the point."
    )
    scope = f"<details><summary>what this ε covers</summary>{SCOPE}</details>"
    return f"<p>{epsilon}</p>{html_table([('', 'verdict', 'what was found'), *rows])}<p>{fewer}</p>{scope}"


def turned_command(result: Turned, **values: float) -> str:
    """The call that prints verdicts and evidence, and that of `edp-lab account`, which gives the two epsilons."""
    given = ", ".join(f"{name}={value!r}" for name, value in values.items())
    account = (
        f"edp-lab account --as-printed --alpha-source public --gpus {values['num_devices']} --z0 {values['z0']:g} "
        f"--micro-batch-size {values['micro_batch']} --delta {values['delta']:g}"
    )
    python = f"from edp_lab.course.nb11_claims.compute import turn; found = turn({given}).evidence.values(); "
    printed = "print(*(f'{one.id} {one.verdict}: {one.said}' for one in found), sep='\\n')"
    return f'python -c "{python}{printed}"\n{account}'


def label(entry: Entry) -> str:
    """A row of the list: ``P2 ✗ The returned gradient is ...``, cut to one line."""
    short = entry.claim if len(entry.claim) <= LONGEST else f"{entry.claim[:LONGEST]}…"
    return f"{entry.id} {MARKS[entry.verdict]} {short}"
