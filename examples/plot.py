#!/usr/bin/env python3
"""Plots what `kvevict_lm compare --json FILE` measured: quality against budget, a line per policy,
its random control as a dotted line of the same colour, the full cache as a horizontal line. Needs
matplotlib.

    build/examples/kvevict_lm compare --model M.gguf --budgets 5%,10%,25%,50% --json compare.json
    python3 examples/plot.py compare.json compare.svg
"""

import argparse
import json
import re
import sys

# The tables of the file: title, label of the y axis, a row's quality.
TASKS = {
    "recall": ("Prompt compression", "facts recalled",
               lambda row: row["num_right"] / row["num_questions"]),
    "decode": ("Long decode", "NLL, nats per token (less is better)", lambda row: row["nll"]),
}


def read_rows(path, policies):
    """{task: rows} of the tasks that have any."""
    with open(path, encoding="utf-8") as file:
        try:
            result = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: is no JSON: {error}") from error
    tasks = {task: result.get(task) or [] for task in TASKS} if isinstance(result, dict) else {}
    known = list(dict.fromkeys(row["policy"] for rows in tasks.values() for row in rows))
    if not known:
        raise ValueError(f"{path}: has no rows; it has to be written by kvevict_lm compare --json")
    for name in policies:
        if name not in known:
            raise ValueError(f"{path}: has no policy '{name}'; it has: {', '.join(known)}")
    wanted = {task: [row for row in rows
                     if not policies or row["policy"] in policies or row["budget"] == "all"]
              for task, rows in tasks.items()}
    return {task: rows for task, rows in wanted.items() if rows}


def plot_task(axes, task, rows, policies):
    title, y_label, quality = TASKS[task]
    lines = {}
    for row in rows:
        lines.setdefault(row["policy"], []).append(row)
    styles = ["-", "--", "-.", (0, (5, 1, 1, 1, 1, 1))]
    has_controls = False
    for policy, line in lines.items():
        if line[0]["budget"] == "all":
            axes.axhline(quality(line[0]), color="black", linewidth=1, label=policy)
            continue
        line.sort(key=lambda row: row["budget_tokens"])
        # Ten colours; then they come again in another style. The same for a policy in all tasks.
        i = policies.index(policy)
        axes.plot([row["budget_tokens"] for row in line], [quality(row) for row in line],
                  color=f"C{i % 10}", linestyle=styles[i // 10 % len(styles)], marker="o",
                  markersize=3, label=policy)
        controls = [row for row in line if "random" in row]
        if controls:
            axes.plot([row["budget_tokens"] for row in controls],
                      [quality(row["random"]) for row in controls],
                      color=f"C{i % 10}", linestyle=":", linewidth=0.8)
            has_controls = True
    if has_controls:
        axes.plot([], [], color="gray", linestyle=":", linewidth=0.8,
                  label="random, same protection")
    axes.set(title=title, xlabel="budget, tokens per KV head", ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1),
                ncol=1 + (len(lines) - 1) // 24)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="what compare --json wrote")
    parser.add_argument("out", help="the picture; its ending says which kind: svg, png, pdf")
    parser.add_argument("--policies", default="", metavar="A,B",
                        help="labels of the policies to plot; all of the file by default")
    args = parser.parse_args()
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        sys.exit("plot.py: matplotlib is missing: apt-get install python3-matplotlib, or "
                 "pip install matplotlib")
    try:
        # Commas inside parentheses belong to a composition.
        names = [name.strip() for name in re.split(r",(?![^(]*\))", args.policies)]
        tasks = read_rows(args.file, [name for name in names if name])
        figure, all_axes = plt.subplots(1, len(tasks), figsize=(9 * len(tasks), 4.5),
                                        squeeze=False, layout="constrained")
        policies = list(dict.fromkeys(row["policy"] for rows in tasks.values() for row in rows))
        for axes, (task, rows) in zip(all_axes[0], tasks.items()):
            plot_task(axes, task, rows, policies)
        figure.savefig(args.out, bbox_inches="tight")
    except KeyError as error:
        sys.exit(f"plot.py: {args.file}: a row has no {error}")
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {error}")


if __name__ == "__main__":
    main()
