"""--diff: two comparisons side by side on one screen."""

import re
from dataclasses import replace

import pytest

from comparison.results_file import read_results
from comparison.show.diff import describe_difference
from comparison.show.terminal import LINES
from tests.fixtures import PROJECT
from tests.reports import DDP, SINGLE, configuration, report_of, row_of, runs, script, swept

NO_CLAIM = "To claim a difference, measure both in turns: --against."


def test_equal_rows_are_compared_without_a_claim_and_other_rows_are_not():
    before = report_of(SINGLE, DDP, (configuration("mp"), runs("mp", simulated=True)))
    unequal = [replace(result, global_batch_size=200) for result in DDP[1]]
    after = report_of((configuration(), runs(seconds=(1.0, 1.01, 0.99))), (DDP[0], unequal), row_of("dp"), lr=0.1)
    text = describe_difference(before, replace(after, environment={**after.environment, "torch": "2.15.0"}), 200)
    assert not re.search(r"faster|slower|equal|\[", text) and NO_CLAIM in text
    for pattern in (
        r"DDP +1.00 +1.00 +–\n",
        *(r"SINGLE +2.00 +1.00 +2.00\n", "“DDP”: refused: global batch 200 instead of 100"),
        *(r"MP +2.00 +– +–\n", "“MP”, “DP”: not in both"),
        *("Different machine: torch 2.11.0 → 2.15.0.", "Different settings: lr None → 0.1."),
    ):
        assert re.search(pattern, text), pattern


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"config": {"lr_milestones": [3]}}, r"every row: refused: lr milestones \[3\] instead of None"),
        ({"config": {"cuda_graph": True}}, "every row: refused: cuda graph True instead of False"),
        ({"config": {"seed": 7}}, r"1.00\n[^~]*every row: seed 7 instead of 42"),
        (
            {"threads_per_process": 4, "devices": ("cuda:0 (NVIDIA H200)",)},
            r"1.00\n[^~]*every row: device cuda \(NVIDIA H200\) instead of cpu; threads per device 4 instead of 1",
        ),
    ],
)
def test_other_work_is_refused_and_another_machine_is_only_mentioned(changed, words):
    config = {**SINGLE[1][0].config, **changed.get("config", {})}
    other = [replace(result, **{**changed, "config": config}) for result in SINGLE[1]]
    text = describe_difference(report_of(SINGLE), report_of((configuration(), other)), 200)
    assert re.search(words, text), text


WHOLE, FAILED = report_of(SINGLE, DDP), report_of(SINGLE, (DDP[0], ["failed"]))
FOUR = replace(DDP[0], label="DDP ×4"), runs("ddp", count=4)
MINE, ALONE = script("mine", 20.0)
TOGETHER = [replace(run, devices=("cpu",) * 2, world_size=2) for run in ALONE]


@pytest.mark.parametrize(
    "before, after, said",
    [
        (WHOLE, report_of(SINGLE, FOUR), "- B, “DDP → DDP ×4”: refused: 4 devices instead of 2."),
        (WHOLE, FAILED, "- B, “DDP”: no run ended well in B."),
        (FAILED, WHOLE, "- B, “DDP”: no run ended well in A."),
        (FAILED, FAILED, "- B, “DDP”: no run ended well in A and B."),
        (WHOLE, replace(WHOLE, outcomes=WHOLE.outcomes[:4]), "- B: interrupted after 4 of 6 runs."),
        (
            report_of((MINE, ALONE)),
            report_of((MINE, TOGETHER), foreign_cores={MINE.name: 0.5}),
            "- B, every row: 2 devices instead of 1; B disturbed.",
        ),
    ],
)
def test_what_makes_a_row_doubtful_is_remarked(before, after, said):
    assert describe_difference(before, after, 200).splitlines()[-3] == said


def test_scripts_are_compared_by_samples():
    """Their slices have any number of steps."""
    own, before = script("mine", 20.0)
    after = [replace(run, epochs=run.epochs[:3], parameters=6) for run in script("mine", 40.0)[1]]
    text = describe_difference(report_of((own, before)), report_of((own, after)), 200)
    assert re.search(r"A \(s/1,000 samples\).*\nmine +0.200 +0.400 +0.50\n", text), text
    assert "every row: parameters 6 instead of 5." in text
    mixed = describe_difference(report_of(SINGLE, (own, before)), report_of(SINGLE, (own, after)), 200)
    assert re.search(r"mine +– +– +–\n", mixed), mixed


def test_what_does_not_fit_on_the_screen_is_counted():
    before, after = (
        report_of(*((configuration("ddp", f"ddp-{n}"), runs("ddp", global_batch_size=own + n)) for n in range(8)))
        for own in (100, 200)
    )
    lines = describe_difference(before, after, 200).splitlines()
    assert len(lines) == LINES and lines[-1].startswith("- 2 more, too long")


def test_the_difference_of_two_long_comparisons_fits_one_screen():
    before, after = (
        read_results(PROJECT / "figures" / name / "results.json") for name in ("cifar10-vgg", "ladder-mnist")
    )
    for one, other in ((before, after), (after, before), (after, after)):
        lines = describe_difference(one, other).splitlines()
        assert len(lines) <= LINES and max(map(len, lines)) <= 80
        assert NO_CLAIM in " ".join(lines)


def test_a_table_with_long_labels_fits_the_width():
    made = swept("pipeline", batch_size=(64,), num_workers=(0, 2))
    rows = [(replace(row, label="pipeline ×2, 4 micro-batches"), results) for row, results in made]
    lines = describe_difference(report_of(*rows), report_of(*rows)).splitlines()
    table = [line for line in lines if line.startswith("pipeline ×2")]
    assert [line.split("  ")[0][-2:] for line in table] == ["0)", "2)"] and max(map(len, lines)) <= 80
