"""The summary as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Prints what ``Summary.as_json`` gives."""
    title = f"{summary['samples']} samples of {summary['tasks']} tasks"
    verdicts = Table("exit code", "samples", "share", title=title, title_justify="left")
    verdicts.columns[1].justify = verdicts.columns[2].justify = "right"
    for code, count in summary["exit_codes"].items():
        share = f"{count / summary['samples']:.1%}" if summary["samples"] else "-"
        verdicts.add_row(code, str(count), share)
    for reason, count in summary["reasons"].items():
        verdicts.add_row(f"  reason: {reason}", str(count), "")
    console.print(verdicts)
    scores = Table("metric", "value", "95 % interval")
    scores.add_row("mean score", f"{summary['mean_score']:.4f}", "")
    for k, value in summary["pass_at_k"].items():
        low, high = summary["pass_at_k_interval"][k]
        scores.add_row(f"pass@{k}", f"{value:.4f}", f"{low:.4f} … {high:.4f}")
    for k, why in summary["pass_at_k_undefined"].items():
        scores.add_row(f"pass@{k}", "undefined", why)
    console.print(scores)
    if summary["slowest"]:
        slowest = Table("slowest", "sample", "exit code", "seconds")
        for row in summary["slowest"]:
            slowest.add_row(
                row["task_id"], str(row["sample"]), row["exit_code"], f"{row['wall_s']:.3f}"
            )
        console.print(slowest)
    if summary["merged"]:
        console.print(f"{summary['merged']} samples are like another of their task: not run again")
    if (retried := summary["timeouts_retried"])["retried"]:
        console.print(
            f"{retried['retried']} timeouts ran once more, alone: {retried['changed']} changed"
        )
    for fault in summary["infrastructure_faults"]:
        console.print(
            f"not graded, our fault: {fault['task_id']} sample {fault['sample']}: {fault['fault']}",
            markup=False,
        )
