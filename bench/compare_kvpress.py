#!/usr/bin/env python3
"""Compares kvevict with kvpress 0.5.5 on the same tensors of one Llama-3.1-8B layer (32 query
heads, 8 KV heads, head_dim 128, hidden size 4096), float32, one CPU thread each.

Prints the best CPU times, their ratio, the ratio that is aimed at, and how far the two results are
apart, relative to the largest value. A row whose results differ by more than its tolerance (2e-5,
leverage 1e-4) is named, and the exit code is 1. A ratio below its target is no failure.

kvpress and torch come from PyPI (pip install kvpress==0.5.5 torch); without them nothing is
compared.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types

# Before torch and numpy start their threads.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

KVPRESS_VERSION = "0.5.5"
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN_SIZE = 32, 8, 128, 4096
SKETCH_DIM = 48
TOLERANCE = 2e-5  # of the largest value
KEPT = 0.1

# Row: the target ratio, and kvpress' time in ms when it was set, on another core.
TARGETS = {
    "snapkv": (7, 357),
    "tova": (25, 85),
    "keydiff": (25, 76),
    "lagkv": (40, 265),
    "projected_norms": (120, 5756),
    "projected_l1_norms": (None, None),
    "expected_attention": (8, 532),
    "cur": (8, 46),
    "leverage": (4, 68),
    "noncausal": (8, 1001),
    "top_k": (2, 0.8),
    "knorm": (1, 2),
    "gather": (1, 6),
}


class Layer:
    """The tensors of one layer, and what the presses ask of an attention module.

    kvpress makes queries and keys before RoPE from hidden states. Here they are given: hidden
    states are the queries (or keys) themselves, and the projections are the identity."""

    def __init__(self, torch, seq_len):
        self.torch = torch
        self.seq_len = seq_len
        generator = torch.Generator().manual_seed(1)

        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        # Around a centre for each head and channel, as a model's are.
        self.keys = normal(1, NUM_KV_HEADS, seq_len, HEAD_DIM)
        self.keys += normal(1, NUM_KV_HEADS, 1, HEAD_DIM)
        self.values = normal(1, NUM_KV_HEADS, seq_len, HEAD_DIM)
        self.keys_prerope = normal(seq_len, NUM_KV_HEADS, HEAD_DIM) + normal(NUM_KV_HEADS, HEAD_DIM)
        self.queries_prerope = 0.5 * (
            normal(seq_len, NUM_Q_HEADS, HEAD_DIM) + normal(NUM_Q_HEADS, HEAD_DIM)
        )
        self.w_o = normal(NUM_Q_HEADS * HEAD_DIM, HIDDEN_SIZE) / math.sqrt(HIDDEN_SIZE)
        self.scores = normal(1, NUM_KV_HEADS, seq_len)
        self.inv_freq = 500000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.kept = int(seq_len * (1 - (1 - KEPT)))
        self.kept_slots = self.scores.topk(self.kept, dim=-1).indices
        self.position_embeddings = self.cos_sin(torch.arange(seq_len)[None])
        self.module = types.SimpleNamespace(
            config=types.SimpleNamespace(
                num_attention_heads=NUM_Q_HEADS,
                num_key_value_heads=NUM_KV_HEADS,
                head_dim=HEAD_DIM,
                hidden_size=HIDDEN_SIZE,
            ),
            head_dim=HEAD_DIM,
            num_key_value_groups=NUM_Q_HEADS // NUM_KV_HEADS,
            q_proj=lambda hidden: hidden,
            k_proj=lambda hidden: hidden,
            o_proj=types.SimpleNamespace(weight=self.w_o.T.contiguous()),
            rotary_emb=lambda x, position_ids: self.cos_sin(position_ids),
        )

    def cos_sin(self, position_ids):
        """[1, positions, head_dim]; the angles are made in double."""
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = self.torch.cat((angles, angles), dim=-1)
        return angles.cos().float(), angles.sin().float()

    def score(self, press, hidden=None):
        """A function that does what `press` does at the end of a prompt."""
        hidden = self.queries_prerope if hidden is None else hidden
        hidden = hidden.view(1, self.seq_len, -1)
        kwargs = {"position_embeddings": self.position_embeddings}
        return lambda: press.score(self.module, hidden, self.keys, self.values, None, kwargs)

    def sketch(self):
        """What LeverageScorePress draws after seed()."""
        self.seed()
        shape = (1, NUM_KV_HEADS, HEAD_DIM, SKETCH_DIM)
        return self.torch.randn(*shape) * (1 / math.sqrt(SKETCH_DIM))

    def seed(self):
        self.torch.manual_seed(2)

    def write(self, directory):
        """What the kvevict side reads: the same, with queries as attention uses them."""
        cos, sin = (x.double()[0, :, None] for x in self.position_embeddings)
        queries = self.queries_prerope.double()
        half = HEAD_DIM // 2
        turned = self.torch.cat((-queries[..., half:], queries[..., :half]), dim=-1)
        files = {
            "keys": self.keys,
            "values": self.values,
            "keys_prerope": self.keys_prerope.transpose(0, 1),
            "queries": (queries * cos + turned * sin).float(),
            "w_o": self.w_o,
            "scores": self.scores,
            "inv_freq": self.inv_freq,
            "sketch": self.sketch(),
        }
        for name, tensor in files.items():
            tensor.contiguous().numpy().tofile(directory / f"{name}.f32")


def make_rows(layer):
    """Row: what kvpress does, and how its result and kvevict's are made comparable. Where the two
    do not do quite the same, the comment says who does more."""
    import torch
    import torch.nn.functional as F
    from kvpress import (
        CriticalKVPress,
        CURPress,
        ExpectedAttentionPress,
        KeyDiffPress,
        KnormPress,
        LagKVPress,
        LeverageScorePress,
        NonCausalAttnPress,
        SnapKVPress,
        TOVAPress,
    )

    n = layer.seq_len

    def slots(first, last, scale=1.0):
        """Both results at slots [first, last), kvevict's times `scale`."""
        return lambda theirs, ours: (
            theirs[0, :, first:last],
            scale * ours.view(-1, n)[:, first:last],
        )

    def z_scores(theirs, ours):
        return theirs[0], ((ours - ours.mean()) / ours.std()).view(NUM_KV_HEADS, n)

    def l2_norms():
        """kvpress has L1 norms only, so these are compared with a reference: mean over each group
        of the L2 norms of the products, which kvevict does not form."""
        norms = [
            (layer.values[0, h // 4] @ layer.w_o[h * HEAD_DIM : (h + 1) * HEAD_DIM]).norm(dim=-1)
            for h in range(NUM_Q_HEADS)
        ]
        return torch.stack(norms).view(NUM_KV_HEADS, -1, n).mean(dim=1)

    def top_k_mask(theirs, ours):
        return torch.zeros(NUM_KV_HEADS, n).scatter_(1, theirs[0], 1.0), ours.view(-1, n)

    def gather():
        indices = layer.kept_slots.unsqueeze(-1).expand(-1, -1, -1, HEAD_DIM)
        return torch.stack(
            [x.gather(2, indices).contiguous() for x in (layer.keys, layer.values)]
        )

    def gathered_rows(theirs, ours):
        """By slot: kvpress leaves the rows in the order of their scores."""
        order = layer.kept_slots[0].argsort(dim=-1)[None, :, :, None].expand(2, -1, -1, HEAD_DIM)
        return theirs[:, 0].gather(2, order), ours.view(2, NUM_KV_HEADS, layer.kept, HEAD_DIM)

    lag = LagKVPress(cross_scoring=True)
    lag_end = lag.n_sink + (n - lag.n_sink) // lag.lag_size * lag.lag_size - lag.lag_size

    def projected():
        return CriticalKVPress.vwl1norm(layer.values, layer.module)

    return {
        # Rows of the window are averaged by kvpress and summed by kvevict, which gets its queries
        # turned by RoPE; kvpress turns 64 rows.
        "snapkv": (layer.score(SnapKVPress()), slots(0, n - 64, 1 / 64)),
        # kvpress gives each KV head a copy of the one row.
        "tova": (layer.score(TOVAPress()), slots(0, n - 1)),
        "keydiff": (layer.score(KeyDiffPress()), slots(0, n)),
        # Scores, not ranks inside partitions, which rounding exchanges.
        "lagkv": (layer.score(lag), slots(lag.n_sink, lag_end)),
        # CriticalKV by its option l2_norm and LaProx take L2 norms, which need no product with W_O;
        # kvpress takes L1 norms. The values differ by definition, the use is the same.
        "projected_norms": (projected, lambda theirs, ours: (l2_norms(), ours.view(-1, n))),
        # The same norms as kvpress: every product is formed.
        "projected_l1_norms": (projected, slots(0, n)),
        # kvevict turns the queries back in double, then takes the same statistics; the press is
        # given them as they were.
        "expected_attention": (layer.score(ExpectedAttentionPress()), slots(4, n)),
        "cur": (layer.score(CURPress()), slots(4, n)),
        # kvpress draws its sketch (49,152 numbers) in each call and takes z-scores of the result.
        "leverage": (
            lambda: (layer.seed(), layer.score(LeverageScorePress(), layer.keys_prerope)())[1],
            z_scores,
        ),
        # kvpress turns all queries by RoPE, about a third of its time, and takes z-scores; kvevict
        # is given them turned.
        "noncausal": (layer.score(NonCausalAttnPress()), z_scores),
        # Indices by score in kvpress, a mask in kvevict.
        "top_k": (lambda: layer.scores.topk(layer.kept, dim=-1).indices, top_k_mask),
        "knorm": (layer.score(KnormPress()), slots(0, n)),
        # New tensors in kvpress, in place in kvevict; the tenth that top_k chose.
        "gather": (gather, gathered_rows),
    }


def best_cpu_ms(run, repeat):
    """Best time of `run` and its result."""
    best = math.inf
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return 1e3 * best, result


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--seq-len", type=int, default=8192, help="cached tokens (default: 8192)")
    parser.add_argument(
        "--repeat", type=int, default=5, help="runs, of which the best counts (default: 5)"
    )
    parser.add_argument("--rows", help=f"comma-separated, of: {','.join(TARGETS)} (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write the table as JSON too")
    parser.add_argument(
        "--program",
        type=pathlib.Path,
        default=root / "build/bench/compare_kvpress",
        help="the kvevict side (default: build/bench/compare_kvpress)",
    )
    arguments = parser.parse_args()
    arguments.rows = arguments.rows.split(",") if arguments.rows else list(TARGETS)
    for row in arguments.rows:
        if row not in TARGETS:
            parser.error(f"no row {row}")
    # The presses' own limits: LagKV's partitions, SnapKV's window.
    if arguments.seq_len < 512:
        parser.error("--seq-len must be at least 512")
    if arguments.repeat < 1:
        parser.error("--repeat must be at least 1")
    return arguments


def main():
    arguments = parse_arguments()
    try:
        import torch
        from importlib.metadata import version

        found = version("kvpress")
        import kvpress  # noqa: F401, what it needs may be missing
    except ImportError:
        install = f"pip install kvpress=={KVPRESS_VERSION} torch"
        print(f"kvpress is not installed: {install}; nothing compared")
        return 0
    if found != KVPRESS_VERSION:
        print(f"kvpress {found} here; targets and definitions are those of {KVPRESS_VERSION}")
    if not arguments.program.exists():
        message = f"{arguments.program} is missing: sh bench/run.sh --kvpress builds it"
        print(message, file=sys.stderr)
        return 2
    torch.set_num_threads(1)

    results, failed = [], []
    print(f"one Llama-3.1-8B layer, {arguments.seq_len} tokens, f32, one thread, CPU ms\n")
    print(
        f"{'row':20} {'kvpress':>10} {'kvevict':>10} {'ratio':>8} {'target':>8} {'difference':>11}"
    )
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        directory = pathlib.Path(name)
        layer = Layer(torch, arguments.seq_len)
        layer.write(directory)
        rows = make_rows(layer)
        measured = {}  # two rows do the same in kvpress
        for row in arguments.rows:
            run, comparable = rows[row]
            if run not in measured:
                measured[run] = best_cpu_ms(run, arguments.repeat)
            theirs_ms, theirs = measured[run]
            ours_ms = float(
                subprocess.run(
                    [arguments.program, directory, row, str(arguments.repeat)],
                    check=True,
                    stdout=subprocess.PIPE,
                ).stdout
            )
            path = directory / f"{row}.kvevict.f32"
            ours = torch.from_file(str(path), size=path.stat().st_size // 4)
            expected, actual = comparable(theirs, ours)
            difference = ((expected - actual).abs().max() / expected.abs().max()).item()
            # Leverage inverts an ill-conditioned matrix, which kvpress does in float.
            tolerance = 1e-4 if row == "leverage" else TOLERANCE
            # Written so that NaN fails.
            agrees = difference <= tolerance
            ratio = theirs_ms / ours_ms
            target, target_ms = TARGETS[row]
            print(
                f"{row:20} {theirs_ms:10.2f} {ours_ms:10.2f} {ratio:8.1f} "
                f"{f'{target:8}' if target else '       -'} {difference:11.1e}"
                f"{'' if not target or ratio >= target else '  below target'}"
                f"{'' if agrees else f'  DIFFERS by more than {tolerance}'}",
                flush=True,
            )
            if not agrees:
                failed.append(row)
            results.append(
                {
                    "row": row,
                    "kvpress_ms": theirs_ms,
                    "kvevict_ms": ours_ms,
                    "ratio": ratio,
                    "target_ratio": target,
                    "kvpress_ms_of_target": target_ms,
                    "difference": difference,
                    "tolerance": tolerance,
                }
            )
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"seq_len": arguments.seq_len, "rows": results}, indent=2) + "\n"
        )
    if failed:
        print(f"\nkvevict and kvpress differ: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
