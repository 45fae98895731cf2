"""Every figure of a comparison has all of its texts within its edges, however many panels, in both languages."""

import pytest

from comparison.judge.analysis import analyse
from comparison.show import figures
from comparison.words import LANGUAGES, speaking
from tests.reports import configuration, report_of, runs

METHODS = ("ddp", "fsdp", "pipeline", "dp")


def rows(panels, kind):
    """One device and so many other methods, each with two batches, and with two models if `kind` is a map."""
    values = [{"batch_size": batch} for batch in (64, 256)]
    if kind == "map":
        values = [{"model": model, **own} for model in ("lenet", "resnet8") for own in values]
    return [
        (
            configuration(method, values=own, **own),
            [*runs(method, (1.0 + number, 1.01, 1.02), count=1 + number % 2, global_batch_size=own["batch_size"])],
        )
        for number, method in enumerate(("single", *METHODS[:panels]))
        for own in values
    ]


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("panels", [1, 2, 4])
@pytest.mark.parametrize("kind", ["map", "sweep", "fit"])
def test_every_text_lies_inside_its_figure(kind, panels, language, monkeypatch, tmp_path):
    shown = {}
    monkeypatch.setattr(figures, "find_font", lambda language: None if language == "en" else "DejaVu Sans")
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: shown.setdefault(path.name, figure))
    long = {"dataset": "synthetic-mnist-with-a-long-name", "batch_size": [64, 256], "max_steps": 100}
    report = report_of(*rows(panels, kind), fit_batch=kind == "fit", **long)
    with speaking(language):
        figures.draw_all(analyse(report), tmp_path)
    assert {"map.png" if kind == "map" else "sweep-batch-size.png", "curves.png", "speed-up.png"} <= {*shown}
    for name, figure in shown.items():
        figure.set_dpi(150)  # as in the PNG
        width, height = figure.get_size_inches()
        box = figure.get_tightbbox()  # in inches, around all that is drawn
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.02, (name, box, (width, height))
