"""Last values of curves beside the best ones. Pure.

What is best, the least or the greatest value, follows from words in the curve's name. Of a name that has none of these
words both ends are told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.watch.record.series import Extreme, Series
from shoal.watch.report.charts import Reported, chart_names
from shoal.watch.report.markup import Markup, table, tag
from shoal.watch.wording import number

# Words in names, in lower case.
LESS_IS_BETTER = {
    *("loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "nll", "bpb", "bpc", "wer", "cer", "fid"),
    *("kl", "cost", "distance", "divergence", "regret"),
}
MORE_IS_BETTER = {
    *("accuracy", "acc", "f1", "auc", "auroc", "precision", "recall", "bleu", "rouge", "reward", "return", "score"),
    *("iou", "miou", "map", "psnr", "ssim", "r2", "top1", "top5"),
}


def best_of(name: str, series: Series) -> Extreme | None:
    """None: the name does not tell what is best, or no value was finite."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & LESS_IS_BETTER:
        return series.least
    return series.greatest if words & MORE_IS_BETTER else None


def best_words(name: str, series: Series | None) -> str:
    """What follows the last value: `, best 0.93 at step 400`; empty where no best value is known."""
    best = None if series is None else best_of(name, series)
    return "" if best is None else f", best {number(best.value)} at step {best.step:,}"


def best_result(run: Reported) -> str:
    """The best value of what sums up the run: a held-out score, else the loss."""
    scores = run.record.story.scores
    for curves, is_held_out in ((scores, True), (run.curves.values, False)):
        if curves:
            name = min(curves, key=lambda name: (name == "loss") == is_held_out)
            best = best_of(name, curves[name])
            return "" if best is None else f"{number(best.value)} at step {best.step:,}"
    return ""


def values(runs: Sequence[Reported]) -> Markup:
    """A row per curve: its last value, its best one, and both ends."""
    rows = []
    for name in chart_names(runs):
        for run in runs:
            for curves, kind in ((run.record.story.scores, "held out"), (run.curves.values, "training")):
                if name in curves:
                    whose = [tag("td", run.label)] if len(runs) > 1 else []
                    cells = [tag("td", cell, class_="n") for cell in _cells(name, curves[name])]
                    rows.append(tag("tr", tag("th", name, scope="row"), *whose, tag("td", kind), *cells))
    if not rows:
        return tag("p", "No values are logged.", class_="note")
    of_run = ("run",) if len(runs) > 1 else ()
    headings = ("value", *of_run, "from", "last", "best", "at step", "least", "at step", "greatest", "at step")
    return table(headings, rows, aria_label="last and best values", class_="values")


def _cells(name: str, series: Series) -> list[str]:
    last = series.last
    shown = "" if last is None else "not finite" if last.mean is None else number(last.mean)
    cells = [shown]
    for extreme in (best_of(name, series), series.least, series.greatest):
        cells += ["", ""] if extreme is None else [number(extreme.value), f"{extreme.step:,}"]
    return cells
