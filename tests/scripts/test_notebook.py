"""The notebook runs unchanged on this machine."""

import shutil

import pytest

from tests.fixtures import PROJECT


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    place = tmp_path / "project"
    left_out = {".git", ".venv", "data", "figures"}
    shutil.copytree(PROJECT, place, ignore=lambda where, names: left_out & {*names} if where == str(PROJECT) else ())
    notebook = nbformat.read(place / "docs" / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(place / "docs")}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Recommendation: " in printed and "was predicted to be 1.8 times as fast as the baseline" in printed
    assert sum("image/png" in output.data for output in outputs if output.output_type == "display_data") >= 2
    assert (place / "figures" / "notebook" / "report.html").stat().st_size > 1e4
