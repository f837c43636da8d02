#!/usr/bin/env python3
"""Golden cases of policies that no other implementation gives us numbers for.

Every score and mask is computed here from the definitions of the papers in double precision, with
the standard library alone. Nothing of the library is read or run.

    reference.py FOLDER           writes the cases to the folder
    reference.py --check FOLDER   compares them with what is there: inputs and masks exactly, reals
                                  to 1e-9, since mathematical libraries differ in the last digit

A case is drawn again until no choice of it hangs on scores that lie close together.
"""

import cmath
import functools
import math
import operator
import os
import random
import sys

LEAST_GAP = 2e-4  # between the last kept score and the first dropped one, of the largest


# ---- Files ------------------------------------------------------------------------------------


class Case:
    def __init__(self, policy, note):
        self.records = []  # (kind, name, ..)
        self.text("policy", policy)
        self.text("source", "reference.py, float64, from the definitions in the papers")
        self.text("note", note)

    def text(self, name, value):
        self.records.append(("text", name, value))

    def int(self, name, value):
        self.records.append(("int", name, int(value)))

    def real(self, name, value):
        self.records.append(("real", name, float(value)))

    def tensor(self, name, kind, values):
        """`values` is a nested list, which gives the shape."""
        shape = []
        inner = values
        while isinstance(inner, list):
            shape.append(len(inner))
            inner = inner[0] if inner else 0
        self.records.append(("tensor", name, kind, shape, flat(values)))

    def shape(self, num_q_heads, num_kv_heads, head_dim, **others):
        self.int("num_q_heads", num_q_heads)
        self.int("num_kv_heads", num_kv_heads)
        self.int("head_dim", head_dim)
        for name, value in others.items():
            self.int(name, value)

    def options(self, prefix, options):
        for name, value in options.items():
            if isinstance(value, str):
                self.text(prefix + name, value)
            elif isinstance(value, (bool, int)):
                self.int(prefix + name, value)
            elif isinstance(value, float):
                self.real(prefix + name, value)
            else:
                self.tensor(prefix + name, "f64", value)

    def runs(self, runs):
        self.text("runs", " ".join(runs))
        for name, options in runs.items():
            self.options(name + ".", options)

    def lines(self):
        yield "kvevict-golden 1"
        for record in self.records:
            if record[0] in ("text", "int"):
                yield "%s %s %s" % record
            elif record[0] == "real":
                yield "real %s %.17g" % record[1:]
            else:
                _, name, kind, shape, values = record
                yield " ".join(["tensor", name, kind, str(len(shape))] + [str(s) for s in shape])
                width = shape[-1] if shape and 0 < shape[-1] <= 32 else 16
                form = {"f32": "%.9g", "f64": "%.12g"}.get(kind, "%d")
                for first in range(0, len(values), width):
                    yield " ".join(form % v for v in values[first : first + width])


def flat(values):
    return [x for v in values for x in flat(v)] if isinstance(values, list) else [values]


# ---- Draws and choices ------------------------------------------------------------------------


class Draw:
    """Inputs, multiples of 1/16, and how far apart the scores of all choices were."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.gap = 1.0
        self.ties = 0

    def number(self, size):
        """About normal, of deviation `size`."""
        total = sum(self.random.random() for _ in range(12)) - 6.0
        return round(total * size * 16) / 16

    def numbers(self, *shape, size=1.5):
        if not shape:
            return self.number(size)
        return [self.numbers(*shape[1:], size=size) for _ in range(shape[0])]

    def far(self, a, b, largest):
        """Asks that a and b lie apart, unless they are equal."""
        if a == b:
            self.ties += 1
        elif largest > 0:
            self.gap = min(self.gap, abs(a - b) / largest)

    def best(self, scores, count, among=None, exact=False):
        """The `count` best of `among` by score; the lower index of equal ones.

        Scores that are `exact` in floats need not lie apart; NaN is below all numbers.
        """
        order = sorted(range(len(scores)) if among is None else among,
                       key=lambda i: (math.isnan(scores[i]), -scores[i]))
        if 0 < count < len(order):
            last, first = scores[order[count - 1]], scores[order[count]]
            if not exact:
                self.far(last, first, max(abs(scores[i]) for i in order))
            elif last == first:
                self.ties += 1
        return set(order[: max(count, 0)])


CASES = {}


def case(build):
    """The function makes the case of its name from a draw."""
    CASES[build.__name__] = build
    return build


@functools.lru_cache(maxsize=None)
def made(name):
    for attempt in range(500):
        draw = Draw("%s %d" % (name, attempt))
        result = CASES[name](draw)
        if draw.gap >= LEAST_GAP:
            if draw.ties:
                result.int("plateau_ties", draw.ties)
            result.real("min_gap", draw.gap)
            return result
    raise RuntimeError("no draw of %s is free of near ties" % name)


# ---- Shared mathematics -----------------------------------------------------------------------


def dot(a, b):
    return sum(map(operator.mul, a, b))


def norm(a, p=2):
    return math.fsum(map(abs, a)) if p == 1 else math.sqrt(dot(a, a))


def mean(values):
    return math.fsum(values) / len(values)


def softmax(logits):
    largest = max(logits)
    parts = [math.exp(x - largest) for x in logits]
    total = math.fsum(parts)
    return [x / total for x in parts]


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def mean_rows(rows):
    return [mean(column) for column in zip(*rows)]


def floor_share(text, n):
    """Tokens that "30%" of n are: rounded down, but one at least."""
    if not isinstance(text, str):
        return text
    return max(1, n * int(text[:-1]) // 100)


def pool(row, kind, kernel, edge="zero_counted"):
    """Over `kernel` neighbours; what lies outside counts as 0 in an average, unless it shrinks."""
    result = []
    for i in range(len(row)):
        near = row[max(0, i - kernel // 2) : i + kernel // 2 + 1]
        if kind == "max":
            result.append(max(near))
        else:
            result.append(math.fsum(near) / (len(near) if edge == "shrink" else kernel))
    return result


def reduce_group(rows, how):
    if how == "max":
        return [max(column) for column in zip(*rows)]
    total = [math.fsum(column) for column in zip(*rows)]
    return total if how == "sum" else [x / len(rows) for x in total]


def apportion(ideal, total, cap):
    """Whole numbers in proportion to `ideal` that add up to `total`, none above `cap`: what a cap
    cuts off goes to the others in proportion, what rounding leaves to the largest fractions."""
    numbers = [0] * len(ideal)
    total = min(total, cap * len(ideal))
    open_ = [i for i in range(len(ideal))]
    left = total
    while True:
        weight = math.fsum(max(ideal[i], 0.0) for i in open_)
        share = {i: left * max(ideal[i], 0.0) / weight for i in open_} if weight else {}
        over = [i for i in open_ if share.get(i, 0.0) > cap]
        if not over:
            break
        for i in over:
            numbers[i] = cap
            left -= cap
        open_ = [i for i in open_ if i not in over]
    for i in open_:
        numbers[i] = math.floor(share[i] + 1e-9)
    rest = total - sum(numbers)
    for i in sorted(open_, key=lambda i: (-round(share[i] - numbers[i], 6), i))[:rest]:
        numbers[i] += 1
    return numbers


WORD = 2**64
COUNTER_STEP = 0xD1342543DE82EF95


def mixed(x):
    """What SplitMix64 (Steele, Lea, Flood 2014) gives from state x."""
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def counter_of(options, lane):
    """Where the counters of a set of tokens, or of a query head, begin."""
    seed, sequence = int(options.get("seed", 0)), options.get("sequence_id", 0)
    return mixed((seed + mixed(lane) + COUNTER_STEP * sequence) % WORD)


def random_bits(options, lane, position, firing=0):
    """64 of them for a token; `firing` counts the cuts before, where each has a draw of its own."""
    return mixed((counter_of(options, lane) + position + COUNTER_STEP * firing) % WORD)


def gumbel(bits, count):
    """Of the `count` highest of 64 bits."""
    return -math.log(-math.log(((bits >> (64 - count)) + 0.5) / 2**count))


def with_equal_keys(keys, pairs):
    """Gives tokens the keys of others, in all heads."""
    for layer in keys:
        for head in layer:
            for a, b in pairs:
                head[b] = list(head[a])
    return keys


# ---- Prompts that are cut once by a window's attention ----------------------------------------


class Prompt:
    """A prompt's cache and its last queries, of several layers."""

    def __init__(self, draw, layers, q_heads, kv_heads, dim, n, window, hidden=0, value_size=1.0):
        self.layers, self.q_heads, self.kv_heads = layers, q_heads, kv_heads
        self.dim, self.n, self.window, self.hidden = dim, n, window, hidden
        self.group = q_heads // kv_heads
        self.queries = draw.numbers(layers, q_heads, window, dim) if window else None
        self.keys = draw.numbers(layers, kv_heads, n, dim)
        self.values = draw.numbers(layers, kv_heads, n, dim, size=value_size)
        self.weight = (
            draw.numbers(layers, q_heads * dim, hidden, size=0.5) if hidden else None
        )

    def write(self, case, values=False, attention=False):
        case.shape(self.q_heads, self.kv_heads, self.dim, n=self.n, num_layers=self.layers)
        if self.window:
            case.int("window", self.window)
        if self.hidden:
            case.int("hidden_size", self.hidden)
        for l in range(self.layers):
            name = "L%d." % l
            if self.window:
                case.tensor(name + "queries", "f32", self.queries[l])
            case.tensor(name + "keys", "f32", self.keys[l])
            if values:
                case.tensor(name + "values", "f32", self.values[l])
            if self.hidden:
                case.tensor(name + "W_O", "f32", self.weight[l])
            if attention:
                case.tensor(name + "attention", "f32", self.attention(l))

    @property
    def prefix(self):
        return self.n - self.window

    @functools.lru_cache(maxsize=None)
    def attention(self, layer, past_only=False):
        """[q_heads, window, n]; what a row does not see is 0."""
        rows = []
        for h in range(self.q_heads):
            keys = self.keys[layer][h // self.group]
            rows.append([])
            for t, query in enumerate(self.queries[layer][h]):
                seen = self.prefix if past_only else self.prefix + t + 1
                logits = [dot(query, key) / math.sqrt(self.dim) for key in keys[:seen]]
                rows[h].append(softmax(logits) + [0.0] * (self.n - seen))
        return rows

    def of_group(self, per_q_head, kv_head):
        return per_q_head[kv_head * self.group : (kv_head + 1) * self.group]

    def vote(self, layer, pooling, kernel, reduce="mean", pool_first=False, past_only=False,
             edge="zero_counted"):
        """SnapKV's scores of the prefix: sum over rows, pooling, reduction of the group."""
        sums = [
            [math.fsum(column) for column in zip(*rows)][: self.prefix]
            for rows in self.attention(layer, past_only)
        ]
        result = []
        for kv in range(self.kv_heads):
            rows = self.of_group(sums, kv)
            if pool_first:
                rows = [pool(row, pooling, kernel, edge) for row in rows]
                result.append(reduce_group(rows, reduce))
            else:
                result.append(pool(reduce_group(rows, reduce), pooling, kernel, edge))
        return result

    def mask(self, chosen):
        """[layers, kv_heads, n] of the slots chosen of each [layer][head], and the window."""
        return [
            [[int(i in head or i >= self.prefix) for i in range(self.n)] for head in layer]
            for layer in chosen
        ]

    def lanes(self):
        return [(l, h) for l in range(self.layers) for h in range(self.kv_heads)]

    def write_run(self, case, run, scores, chosen, with_scores=True):
        for l in range(self.layers):
            if with_scores:
                case.tensor("L%d.%s.scores" % (l, run), "f64", scores[l])
        case.tensor("keep." + run, "u8", self.mask(chosen))

    def best_per_head(self, draw, scores, budgets):
        """`budgets` [layers][heads] with the window; the best of the prefix beside it."""
        return [
            [draw.best(scores[l][h], budgets[l][h] - self.window) for h in range(self.kv_heads)]
            for l in range(self.layers)
        ]


def by_layer(numbers, heads):
    return [numbers[i : i + heads] for i in range(0, len(numbers), heads)]


# RocketKV

ROCKET_NOTE = (
    "Stage 1. Rows: the last `window` queries, softmax over all keys with the causal corner (all) "
    "or over the keys before the window (past); sum over rows, then over the group (group_reduce), "
    "then maximum pooling; the window and the best of the prefix stay, the lower slot of equal "
    "ones. With split: S = n + max_new_tokens, T = budget, c = S / T, alpha = min(.2 + .06 log2 c, "
    ".8), cap = int(S / c^alpha), X.budgets [num_layers, num_kv_heads] = min(S, cap) - "
    "max_new_tokens, everything if S <= T, never less than the window; without: the budget itself. "
    "Ll.X.scores [num_kv_heads, n - window]."
)


def rocket_budget(n, budget, new):
    total = n + new
    if total <= budget:
        return n
    ratio = total / budget
    cap = total / ratio ** min(0.2 + 0.06 * math.log2(ratio), 0.8)
    assert abs(cap - round(cap)) > 1e-6
    return min(total, int(cap)) - new


def rocketkv(draw, prompt, runs):
    case = Case("rocketkv", ROCKET_NOTE)
    prompt.write(case)
    case.runs(runs)
    for run, options in runs.items():
        kept = options["budget"]
        if options.get("split", True):
            kept = rocket_budget(prompt.n, kept, options.get("max_new_tokens", 0))
        kept = min(max(kept, prompt.window), prompt.n)
        scores = [
            prompt.vote(
                l, options.get("pooling", "max"), options.get("pool_kernel_size", 63),
                options.get("group_reduce", "sum"), options.get("pool_first", False),
                options.get("softmax_support", "all") == "past",
                options.get("pool_edge", "zero_counted"),
            )
            for l in range(prompt.layers)
        ]
        chosen = prompt.best_per_head(draw, scores, [[kept] * prompt.kv_heads] * prompt.layers)
        case.tensor(run + ".budgets", "i32", [[kept] * prompt.kv_heads] * prompt.layers)
        prompt.write_run(case, run, scores, chosen)
    return case


@case
def rocketkv_1_gqa2(draw):
    return rocketkv(draw, Prompt(draw, 2, 4, 2, 8, 96, 6), {
        "split": {"budget": 16, "max_new_tokens": 10, "pool_kernel_size": 7},
        "past": {"budget": 30, "split": False, "pool_kernel_size": 7, "softmax_support": "past"},
        "max": {"budget": 20, "pooling": "average", "pool_kernel_size": 5, "group_reduce": "max",
                "pool_first": True},
        "average": {"budget": 24, "split": False, "pooling": "average", "pool_kernel_size": 3,
                    "group_reduce": "mean"},
    })


@case
def rocketkv_2_wide(draw):
    # The default kernel, 63, on a prompt that is barely longer: plateaus and their ties.
    return rocketkv(draw, Prompt(draw, 1, 3, 1, 8, 120, 8), {
        "defaults": {"budget": 20},
        "fits": {"budget": 120},
        "no_room": {"budget": 16, "max_new_tokens": 400},
    })


# HeadKV and EvolKV

HEADKV_NOTE = (
    "Scores: last `window` rows, softmax over all keys with the causal corner, sum over rows, "
    "group mean, maximum pooling. b = budget - window, share = floor(b / beta), s = "
    "head_scores^power, summed over each group where they are given per query head, made to sum to "
    "1 (the power after the groups); a KV head gets beside the window s share L H + b - share: by "
    "largest remainder, the sum conserved, what exceeds n - window going to the others in "
    "proportion; official_rounding: each rounded half to even and cut at n - window. X.budgets "
    "[num_layers, num_kv_heads] with the window."
)


def headkv_budgets(prompt, options):
    lanes = prompt.layers * prompt.kv_heads
    b = options["budget"] - prompt.window
    share = math.floor(b / options.get("beta", 1.5))
    given = options["head_scores"]
    per_lane = len(given) // lanes
    scores = [math.fsum(given[i * per_lane : (i + 1) * per_lane]) for i in range(lanes)]
    scores = [s ** options.get("power", 1.0) for s in scores]
    total = math.fsum(scores)
    ideal = [s / total * share * lanes + b - share for s in scores]
    if options.get("official_rounding", False):
        return [min(round(x), prompt.prefix) for x in ideal]
    return apportion(ideal, b * lanes, prompt.prefix)


def window_tables(draw, policy, note, prompt, runs, budgets_of, kernel, pooling):
    """Policies that vote as SnapKV does and have budgets of heads."""
    case = Case(policy, note)
    prompt.write(case)
    case.runs(runs)
    for run, options in runs.items():
        if options["budget"] >= prompt.n:
            budgets = [prompt.n] * (prompt.layers * prompt.kv_heads)
        else:
            budgets = [c + prompt.window for c in budgets_of(prompt, options)]
        budgets = by_layer(budgets, prompt.kv_heads)
        scores = [
            prompt.vote(
                l, options.get("pooling", pooling), options.get("pool_kernel_size", kernel),
                options.get("group_reduce", "mean"), options.get("pool_first", False),
                options.get("softmax_support", "all") == "past",
                options.get("pool_edge", "zero_counted"),
            )
            for l in range(prompt.layers)
        ]
        case.tensor(run + ".budgets", "i32", budgets)
        prompt.write_run(case, run, scores, prompt.best_per_head(draw, scores, budgets))
    return case


@case
def headkv_1_gqa2(draw):
    per_query = [0.5, 0.25, 0.125, 1.0, 2.0, 0.375, 0.75, 0.0]
    per_kv = [0.9, 0.35, 0.2, 0.05]
    prompt = Prompt(draw, 2, 4, 2, 8, 60, 6)
    return window_tables(draw, "headkv", HEADKV_NOTE, prompt, {
        "per_query_head": {"budget": 20, "head_scores": per_query},
        "per_kv_head": {"budget": 17, "head_scores": per_kv, "beta": 2.0},
        "power": {"budget": 24, "head_scores": per_kv, "beta": 1.0, "power": 2.0},
        "official": {"budget": 14, "head_scores": per_kv, "beta": 2.0, "official_rounding": True},
        "capped": {"budget": 40, "head_scores": [8.0, 1.0, 1.0, 0.5], "beta": 1.005},
        "fits": {"budget": 60, "head_scores": per_kv},
    }, headkv_budgets, 7, "max")


@case
def headkv_2_gqa3_average(draw):
    prompt = Prompt(draw, 1, 9, 3, 6, 48, 4)
    return window_tables(draw, "headkv", HEADKV_NOTE, prompt, {
        "a": {"budget": 15, "head_scores": [1.0, 3.0, 2.0], "pooling": "average",
              "pool_kernel_size": 5, "group_reduce": "max", "pool_first": True},
        "b": {"budget": 15, "head_scores": [1.0, 3.0, 2.0], "beta": 4.0,
              "softmax_support": "past"},
    }, headkv_budgets, 7, "max")


EVOLKV_NOTE = (
    "Scores: SnapKV, last `window` rows, softmax over all keys with the causal corner, sum over "
    "rows, group mean, average pooling with zeros counted. Layer budgets from a table, the window "
    "included: as it is where its mean is `budget`, else max(table_l B / sum - window, 0), B = "
    "num_layers budget, scaled so that it adds up to num_layers (budget - window), over KV heads "
    "by largest remainder (equal fractions: the first ones). X.budgets [num_layers, num_kv_heads] "
    "with the window."
)


def evolkv_budgets(prompt, options):
    table = options["layer_budgets"]
    whole = options["budget"] * prompt.layers
    ideal = [
        max(t * whole / math.fsum(table) - prompt.window, 0.0)
        for t in table
        for _ in range(prompt.kv_heads)
    ]
    entries = (options["budget"] - prompt.window) * len(ideal)
    return apportion(ideal, entries, prompt.prefix)


@case
def evolkv_1_gqa2(draw):
    prompt = Prompt(draw, 3, 4, 2, 6, 50, 5)
    return window_tables(draw, "evolkv", EVOLKV_NOTE, prompt, {
        "as_it_is": {"budget": 20, "layer_budgets": [30.0, 18.0, 12.0]},
        "completed": {"budget": 16, "layer_budgets": [30.0, 18.0, 12.0]},
        "below_window": {"budget": 20, "layer_budgets": [40.0, 2.0, 17.0], "pooling": "max",
                         "pool_kernel_size": 7},
        "capped": {"budget": 30, "layer_budgets": [70.0, 12.0, 8.0], "pool_edge": "shrink"},
        "fits": {"budget": 50, "layer_budgets": [3.0, 2.0, 1.0]},
    }, evolkv_budgets, 5, "average")


# SnapKV, PyramidKV, AdaKV

VOTE_NOTE = (
    "Scores: last `window` rows, softmax over all keys with the causal corner (softmax_support "
    "past: over the keys before the window), sum over rows, then reduction of the group (mean) and "
    "pooling (average of 5 with zeros counted; AdaKV: maximum of 7), pool_first the other way "
    "round. Ll.X.scores [num_kv_heads, n - window]; the window and the best of the prefix stay, "
    "X.budgets [num_layers, num_kv_heads] with the window. "
)
PYRAMID_NOTE = (
    "Layer budgets beside the window, b = budget - window: lo = floor(b / beta), hi = 2 b - lo; if "
    "hi >= n - window: hi = n - window, lo = 2 b - hi; the straight line from hi to lo by largest "
    "remainder (ties: lower layer), official_rounding hi - l floor((hi - lo) / (L - 1)); all equal "
    "where n < 2 b or L = 1. "
)


def pyramid_budgets(prompt, b, beta, official):
    """[layers], beside the window."""
    lo = math.floor(b / beta)
    hi = 2 * b - lo
    if hi >= prompt.prefix:
        hi = prompt.prefix
        lo = 2 * b - hi
    if prompt.n < 2 * b or prompt.layers == 1:
        return [b] * prompt.layers
    if official:
        step = (hi - lo) // (prompt.layers - 1)
        return [hi - l * step for l in range(prompt.layers)]
    line = [hi - l * (hi - lo) / (prompt.layers - 1) for l in range(prompt.layers)]
    return apportion(line, b * prompt.layers, prompt.prefix)


@case
def snapkv_1_runs(draw):
    prompt = Prompt(draw, 2, 6, 2, 6, 44, 5)
    return window_tables(draw, "snapkv", VOTE_NOTE, prompt, {
        "past": {"budget": 16, "softmax_support": "past"},
        "sum": {"budget": 21, "group_reduce": "sum", "pool_kernel_size": 3},
        "max": {"budget": 13, "group_reduce": "max", "pool_first": True},
        "pool_max": {"budget": 13, "pooling": "max", "pool_kernel_size": 7},
        "shrink": {"budget": 10, "pool_kernel_size": 9, "pool_edge": "shrink"},
        "window_alone": {"budget": 5},
        "all_but_one": {"budget": 43, "pool_kernel_size": 1},
    }, lambda prompt, options: [options["budget"] - prompt.window] * 4, 5, "average")


@case
def pyramidkv_1_runs(draw):
    prompt = Prompt(draw, 4, 4, 2, 5, 52, 4)

    def budgets(prompt, options):
        layers = pyramid_budgets(prompt, options["budget"] - prompt.window,
                                 options.get("beta", 20.0), options.get("official_rounding", False))
        return [b for b in layers for _ in range(prompt.kv_heads)]

    return window_tables(draw, "pyramidkv", VOTE_NOTE + PYRAMID_NOTE, prompt, {
        "defaults": {"budget": 17},
        "capped": {"budget": 30, "beta": 10.0},
        "official": {"budget": 18, "beta": 4.0, "official_rounding": True},
        "past": {"budget": 15, "beta": 3.0, "softmax_support": "past"},
        "flat": {"budget": 40, "beta": 2.0},
        "fits": {"budget": 52},
    }, budgets, 5, "average")


ADA_NOTE = VOTE_NOTE + PYRAMID_NOTE + (
    "Heads of a layer compete with b each (pyramid_beta above 1: the layer's of that pyramid). "
    "rule interpolate: c_h of the H b best fall on head h, which keeps its best c_h (1 - floor) + "
    "b floor, by largest remainder, official_rounding: half to even of c_h (1 - floor) + trunc(b "
    "floor). guarantee: each head its best max(1, floor(b floor)), 0 for floor 0, the rest the "
    "best of all. "
)


def ada_counts(draw, prompt, scores, b, options):
    """What each head of a layer keeps beside the window, and which where that is not its best."""
    floor = options.get("floor", 0.2)
    if options.get("floor_rule", "interpolate") == "guarantee":
        safe = max(1, math.floor(b * floor + 1e-9)) if floor > 0 else 0
        return [len(head) for head in guaranteed(draw, scores, b, safe)]
    entries = [(h, i) for h, head in enumerate(scores) for i in range(len(head))]
    won = draw.best([scores[h][i] for h, i in entries], b * len(scores))
    counts = [sum(entries[e][0] == h for e in won) for h in range(len(scores))]
    if options.get("official_rounding", False):
        share = math.floor(b * floor + 1e-9)
        return [round(c * (1 - floor) + share) for c in counts]
    ideal = [c * (1 - floor) + b * floor for c in counts]
    return apportion(ideal, b * len(scores), prompt.prefix)


def ada_budgets(draw, prompt, scores, options):
    """[layers][heads] beside the window."""
    b = options["budget"] - prompt.window
    layers = [b] * prompt.layers
    if options.get("pyramid_beta", 1.0) > 1:
        layers = pyramid_budgets(prompt, b, options["pyramid_beta"],
                                 options.get("official_rounding", False))
    return [ada_counts(draw, prompt, scores[l], layers[l], options) for l in range(prompt.layers)]


def ada_scores(prompt, options):
    return [
        prompt.vote(
            l, options.get("pooling", "max"), options.get("pool_kernel_size", 7),
            options.get("group_reduce", "mean"), options.get("pool_first", False),
            options.get("softmax_support", "all") == "past",
        )
        for l in range(prompt.layers)
    ]


@case
def adakv_1_runs(draw):
    case = Case("adakv", ADA_NOTE)
    prompt = Prompt(draw, 3, 6, 3, 6, 46, 4)
    for layer in prompt.keys:  # heads that attend more sharply than others
        layer[1] = [[4 * x for x in key] for key in layer[1]]
        layer[2] = [[x / 4 for x in key] for key in layer[2]]
    prompt.write(case)
    runs = {
        "defaults": {"budget": 15, "pooling": "average", "pool_kernel_size": 3},
        "half": {"budget": 13, "floor": 0.5, "group_reduce": "max"},
        "official": {"budget": 15, "floor": 0.3, "official_rounding": True, "pool_kernel_size": 1},
        "guarantee": {"budget": 16, "floor": 0.9, "floor_rule": "guarantee",
                      "pool_kernel_size": 1},
        "pyramid": {"budget": 15, "pyramid_beta": 5.0, "pool_kernel_size": 1},
        "past": {"budget": 12, "floor": 0.0, "softmax_support": "past", "pool_kernel_size": 3},
    }
    case.runs(runs)
    for run, options in runs.items():
        scores = ada_scores(prompt, options)
        budgets = [
            [c + prompt.window for c in layer]
            for layer in ada_budgets(draw, prompt, scores, options)
        ]
        case.tensor(run + ".budgets", "i32", budgets)
        prompt.write_run(case, run, scores, prompt.best_per_head(draw, scores, budgets))
    return case


# AdaKV over scores of keys

ADA_KEYS_NOTE = (
    "base knorm: -|k|, keydiff: -cos(k, mean of unit keys), over all n slots. Of each KV head the "
    "first num_sink_tokens and the newest recent_window stay; b = budget without them. Heads of a "
    "layer compete with b each. floor_rule guarantee: each head its best max(1, floor(budget "
    "floor)), the ones that stay anyway among them (floor_of_whole 0: max(1, floor(b floor)) "
    "beside those), none for floor 0, the rest the best of all; interpolate: c_h of the H b best "
    "fall on head h, which keeps its best c_h (1 - floor) + b floor, by largest remainder. A head "
    "of which nothing stays anyway keeps one. X.budgets [num_layers, num_kv_heads]."
)


def key_scores(base, keys):
    """[n] of a KV head."""
    if base == "knorm":
        return [-norm(key) for key in keys]
    units = [unit(key) for key in keys]
    centre = mean_rows(units)
    return [-dot(u, centre) / norm(centre) for u in units]


def adakv_of_keys(draw, base, prompt, runs, pairs=()):
    case = Case("adakv", ADA_KEYS_NOTE)
    case.text("base", base)
    for layer in prompt.keys:
        layer[-1] = [[x / 2 for x in key] for key in layer[-1]]  # a head that wins much by norms
    with_equal_keys(prompt.keys, pairs)
    prompt.write(case)
    case.runs(runs)
    n, heads = prompt.n, prompt.kv_heads
    for run, options in runs.items():
        scores = [[key_scores(base, head) for head in layer] for layer in prompt.keys]
        sinks, end = options.get("num_sink_tokens", 0), n - options.get("recent_window", 0)
        share = options["budget"] - sinks - (n - end)
        floor, chosen = options.get("floor", 0.2), []
        for layer in scores:
            free = [head[sinks:end] for head in layer]
            if options.get("floor_rule", "guarantee") == "guarantee":
                whole = options.get("floor_of_whole", True)
                least = (options["budget"] if whole else share) * floor
                safe = max(1, math.floor(least + 1e-9)) if floor > 0 else 0
                safe = max(safe - (options["budget"] - share), 0) if whole else safe
                safe = max(safe, 1) if share == options["budget"] else safe
                best = guaranteed(draw, free, share, safe)
            else:
                entries = [(h, i) for h in range(heads) for i in range(len(free[h]))]
                won = draw.best([free[h][i] for h, i in entries], share * heads)
                ideal = [
                    sum(entries[e][0] == h for e in won) * (1 - floor) + share * floor
                    for h in range(heads)
                ]
                counts = apportion(ideal, share * heads, end - sinks)
                best = [draw.best(head, count) for head, count in zip(free, counts)]
            chosen.append([
                {sinks + i for i in head} | set(range(sinks)) | set(range(end, n)) for head in best
            ])
        case.tensor(run + ".budgets", "i32", [[len(head) for head in layer] for layer in chosen])
        prompt.write_run(case, run, scores, chosen)
    return case


@case
def adakv_2_keydiff(draw):
    return adakv_of_keys(draw, "keydiff", Prompt(draw, 2, 4, 2, 4, 28, 0), {
        "defaults": {"budget": 11},
        "windows": {"budget": 13, "floor": 0.6, "num_sink_tokens": 2, "recent_window": 3},
        "beside": {"budget": 12, "floor": 0.5, "floor_of_whole": False, "recent_window": 4},
        "no_floor": {"budget": 7, "floor": 0.0},
        "interpolate": {"budget": 10, "floor_rule": "interpolate", "floor": 0.3,
                        "num_sink_tokens": 1},
    })


@case
def adakv_3_knorm(draw):
    prompt = Prompt(draw, 1, 6, 3, 3, 32, 0)
    prompt.keys[0][0] = [[4 * x for x in key] for key in prompt.keys[0][0]]  # wins nothing
    return adakv_of_keys(draw, "knorm", prompt, {
        "defaults": {"budget": 10},
        "no_floor": {"budget": 6, "floor": 0.0},
        "windows": {"budget": 12, "floor": 0.75, "num_sink_tokens": 1, "recent_window": 2},
        "interpolate": {"budget": 11, "floor_rule": "interpolate", "floor": 0.5},
    })


@case
def adakv_4_ties(draw):
    # Equal keys of a head; the first two heads have the same.
    prompt = Prompt(draw, 1, 3, 3, 3, 24, 0)
    prompt.keys[0][1] = [list(key) for key in prompt.keys[0][0]]
    pairs = [(0, 4), (1, 8), (1, 9), (3, 12), (3, 20), (5, 6), (0, 16)]
    return adakv_of_keys(draw, "knorm", prompt, {
        "defaults": {"budget": 9},
        "no_floor": {"budget": 7, "floor": 0.0, "recent_window": 2},
        "floor": {"budget": 8, "floor": 1.0},
    }, pairs)


# CriticalKV

CRITICAL_NOTE = (
    "With k entries beside the window for a head, max(1, floor(k first_stage)) best by s stay (0 "
    "for first_stage 0), the others are the best by (s + epsilon window) mean over the group of |v "
    "W_O^h|_1 (l2_norm: _2), s the sum over the window's rows. criticalkv: k = budget - window, s "
    "as SnapKV; criticaladakv: k and s as AdaKV; what a guarantee keeps counts in the first stage "
    "and stays where that is smaller. "
)


def two_stages(draw, prompt, layer, head, scores, count, options):
    share = options.get("first_stage", 0.5)
    first = max(1, math.floor(count * share + 1e-9)) if share > 0 else 0
    if options.get("floor_rule", "interpolate") == "guarantee":
        floor = (options["budget"] - prompt.window) * options.get("floor", 0.2)
        first = max(first, 1, math.floor(floor + 1e-9))
    chosen = draw.best(scores, min(first, count))
    heads = range(head * prompt.group, (head + 1) * prompt.group)
    p = 2 if options.get("l2_norm", False) else 1
    second = [
        (s + options.get("epsilon", 1e-4) * prompt.window)
        * mean([norm(projected(prompt, layer, h, value), p) for h in heads])
        for s, value in zip(scores, prompt.values[layer][head])
    ]
    others = [i for i in range(prompt.prefix) if i not in chosen]
    return chosen | draw.best(second, count - len(chosen), others)


def criticalkv(draw, policy, note, prompt, runs, scores_of, counts_of):
    case = Case(policy, note + CRITICAL_NOTE)
    prompt.write(case, values=True)
    case.runs(runs)
    for run, options in runs.items():
        scores = scores_of(prompt, options)
        counts = counts_of(prompt, scores, options)
        chosen = [
            [
                two_stages(draw, prompt, l, h, scores[l][h], counts[l][h], options)
                for h in range(prompt.kv_heads)
            ]
            for l in range(prompt.layers)
        ]
        prompt.write_run(case, run, scores, chosen)
    return case


@case
def criticalkv_1_runs(draw):
    def scores_of(prompt, options):
        return [
            prompt.vote(l, "average", options.get("pool_kernel_size", 5))
            for l in range(prompt.layers)
        ]

    def counts_of(prompt, scores, options):
        return [[options["budget"] - prompt.window] * prompt.kv_heads] * prompt.layers

    prompt = Prompt(draw, 2, 4, 2, 5, 42, 4, hidden=7)
    return criticalkv(draw, "criticalkv", VOTE_NOTE, prompt, {
        "defaults": {"budget": 15},
        "third": {"budget": 14, "first_stage": 0.3, "pool_kernel_size": 3, "epsilon": 0.05},
        "product": {"budget": 12, "first_stage": 0.0, "l2_norm": True},
        "base": {"budget": 12, "first_stage": 1.0},
    }, scores_of, counts_of)


@case
def criticaladakv_1_runs(draw):
    prompt = Prompt(draw, 2, 4, 2, 5, 42, 4, hidden=6)
    for layer in prompt.keys:
        layer[0] = [[x / 4 for x in key] for key in layer[0]]
    return criticalkv(draw, "criticaladakv", ADA_NOTE, prompt, {
        "defaults": {"budget": 15, "pool_kernel_size": 3},
        "guarantee": {"budget": 16, "floor": 0.6, "floor_rule": "guarantee", "first_stage": 0.4,
                      "pool_kernel_size": 1},
        "floorless": {"budget": 13, "floor": 0.0, "l2_norm": True, "pool_kernel_size": 1},
    }, ada_scores, lambda prompt, scores, options: ada_budgets(draw, prompt, scores, options))


# ChunkKV

CHUNK_NOTE = (
    "The paper's form. Scores of a layer: last `window` rows, softmax over all keys with the "
    "causal corner, sum over rows, group mean, average pooling of pool_kernel_size (1), sum over "
    "KV heads: Ll.X.scores [n - window]. Chunks of chunk_len from slot 0 up to the window, the "
    "last may be short; sum (chunk_score mean: mean) over the chunk. The best stay in turn until "
    "the next does not fit into budget - window; fill_rest: the best single tokens take the rest, "
    "and so they do where no chunk fits. The same slots for all heads; with index_reuse r layers r "
    "l .. r l + r - 1 keep what layer r l does. "
)


@case
def chunkkv_2_runs(draw):
    case = Case("chunkkv", CHUNK_NOTE)
    prompt = Prompt(draw, 4, 4, 2, 5, 53, 4)
    prompt.write(case)
    runs = {
        "sum": {"budget": 25, "chunk_len": 5},
        "mean": {"budget": 30, "chunk_len": 10, "chunk_score": "mean", "pool_kernel_size": 5},
        "filled": {"budget": 25, "chunk_len": 8, "fill_rest": True, "index_reuse": 2},
        "too_small": {"budget": 11, "chunk_len": 9, "index_reuse": 3},
        "single": {"budget": 20, "chunk_len": 1},
    }
    case.runs(runs)
    for run, options in runs.items():
        scores, chosen = [], []
        for l in range(prompt.layers):
            votes = prompt.vote(l, "average", options.get("pool_kernel_size", 1))
            scores.append([math.fsum(column) for column in zip(*votes)])
        for l in range(prompt.layers):
            s = scores[l - l % options.get("index_reuse", 1)]
            case.tensor("L%d.%s.scores" % (l, run), "f64", s)
            size = options["chunk_len"]
            chunks = [
                range(c, min(c + size, prompt.prefix)) for c in range(0, prompt.prefix, size)
            ]
            worth = [
                math.fsum(s[i] for i in c)
                / (len(c) if options.get("chunk_score", "sum") == "mean" else 1)
                for c in chunks
            ]
            left, stays, taken = options["budget"] - prompt.window, set(), 0
            order = sorted(range(len(chunks)), key=lambda c: -worth[c])
            for a, b in zip(order, order[1:]):
                draw.far(worth[a], worth[b], max(worth))
            for c in order:
                if len(chunks[c]) > left:
                    break
                stays |= set(chunks[c])
                left -= len(chunks[c])
                taken += 1
            if taken == 0 or options.get("fill_rest", False):
                others = [i for i in range(prompt.prefix) if i not in stays]
                stays |= draw.best(s, left, others)
            chosen.append([stays] * prompt.kv_heads)
        case.tensor("keep." + run, "u8", prompt.mask(chosen))
    return case


# EntropyGatedChunkKV

ENTROPY_NOTE = (
    "Scores as in the chunkkv cases, average pooling of 5: Ll.X.scores [n - window]. Chunks of "
    "chunk_len from slot 0 up to the window, the last may be short; those of the highest mean "
    "first, of equal ones the earlier. A chunk stays whole, as far as budget - window goes; one "
    "whose mean is at least the median of all means and whose entropy is below the median of all "
    "entropies gives its best low_entropy_len; a chunk that does not fit gives its best, and what "
    "is left goes to the best single tokens. Entropy: - sum p ln(p + 1e-8) / ln c of the c scores, "
    "p = s / (sum + 1e-8), in [0, 1], 0 for c = 1; medians are the lower ones. One set per layer, "
    "the window stays."
)


def entropy_of(scores):
    if len(scores) < 2:
        return 0.0
    total = math.fsum(scores) + 1e-8
    entropy = -math.fsum(s / total * math.log(s / total + 1e-8) for s in scores)
    return min(max(entropy / math.log(len(scores)), 0.0), 1.0)


def entropy_gated_chunkkv(draw, prompt, runs):
    case = Case("entropy_gated_chunkkv", ENTROPY_NOTE)
    prompt.write(case)
    case.runs(runs)
    for run, options in runs.items():
        scores, chosen = [], []
        for l in range(prompt.layers):
            votes = prompt.vote(l, "average", options.get("pool_kernel_size", 5))
            s = [math.fsum(column) for column in zip(*votes)]
            size = options["chunk_len"]
            chunks = [
                range(c, min(c + size, prompt.prefix)) for c in range(0, prompt.prefix, size)
            ]
            means = [mean([s[i] for i in c]) for c in chunks]
            entropies = [entropy_of([s[i] for i in c]) for c in chunks]
            middle = (len(chunks) - 1) // 2
            median, threshold = sorted(means)[middle], sorted(entropies)[middle]
            for entropy in set(entropies) - {threshold}:
                draw.far(entropy, threshold, 1.0)
            order = sorted(range(len(chunks)), key=lambda c: -means[c])
            for a, b in zip(order, order[1:]):
                draw.far(means[a], means[b], max(means))
            left, stays = options["budget"] - prompt.window, set()
            for c in order:
                few = means[c] >= median and entropies[c] < threshold
                count = min(left, options["low_entropy_len"] if few else len(chunks[c]))
                stays |= draw.best(s, count, chunks[c])
                left -= min(count, len(chunks[c]))
            others = [i for i in range(prompt.prefix) if i not in stays]
            stays |= draw.best(s, left, others)
            scores.append(s)
            chosen.append([stays] * prompt.kv_heads)
        prompt.write_run(case, run, scores, chosen)
    return case


@case
def entropy_gated_chunkkv_1_gqa2(draw):
    return entropy_gated_chunkkv(draw, Prompt(draw, 2, 4, 2, 4, 40, 3), {
        "defaults": {"budget": 20, "chunk_len": 10, "low_entropy_len": 4},
        "small": {"budget": 29, "chunk_len": 4, "low_entropy_len": 2, "pool_kernel_size": 1},
        "none_of_low": {"budget": 18, "chunk_len": 6, "low_entropy_len": 0,
                        "pool_kernel_size": 1},
        "most": {"budget": 36, "chunk_len": 7, "low_entropy_len": 3, "pool_kernel_size": 3},
        "window_alone": {"budget": 3, "chunk_len": 5, "low_entropy_len": 2},
    })


@case
def entropy_gated_chunkkv_2_ties(draw):
    # Tokens of equal keys, and two chunks that are the same.
    prompt = Prompt(draw, 1, 2, 2, 4, 35, 3)
    with_equal_keys(prompt.keys, [(1, 3), (1, 9), (6, 7), (13, 22), (13, 14)])
    with_equal_keys(prompt.keys, [(16 + i, 24 + i) for i in range(8)])
    return entropy_gated_chunkkv(draw, prompt, {
        "plain": {"budget": 17, "chunk_len": 8, "low_entropy_len": 3, "pool_kernel_size": 1},
        "small": {"budget": 14, "chunk_len": 4, "low_entropy_len": 1, "pool_kernel_size": 1},
    })


# DefensiveKV

DEFENSIVE_NOTE = (
    "Each row of the window, cut to the prefix, is pooled and scaled back to the mass it had; m = "
    "maximum over rows and group. Ll.X.scores = max(m, mean m) times |v W_O^h|_1 (l2_norm: _2), "
    "mean over the group, divided by its mean over the KV heads for the same token. First stage, "
    "per head: with p = the mean over rows and group of the attention on the prefix, made to sum "
    "to 1, and w = the mean over rows and all heads of the layer of the attention on the window "
    "(official_window_mass: on the `window` last slots of the prefix), the k = #{r: p_(1) + .. + "
    "p_(r) < first_stage_mass - w} best by p, at most budget - window. Then the best by score of "
    "all heads of the layer (competition layer) or of the model fill num_kv_heads (budget - "
    "window) per layer, or that of all layers. The window stays."
)


def defensivekv(draw, prompt, runs):
    case = Case("defensivekv", DEFENSIVE_NOTE)
    prompt.write(case, values=True)
    case.runs(runs)
    end = prompt.prefix
    for run, options in runs.items():
        scores, first, share = [], [], options["budget"] - prompt.window
        for l in range(prompt.layers):
            rows = prompt.attention(l)
            worst, means, norms = [], [], []
            for kv in range(prompt.kv_heads):
                group = [row[:end] for head in prompt.of_group(rows, kv) for row in head]
                pooled = []
                for row in group:
                    smooth = pool(row, options.get("pooling", "average"),
                                  options.get("pool_kernel_size", 5),
                                  options.get("pool_edge", "zero_counted"))
                    scale = math.fsum(row) / math.fsum(smooth)
                    pooled.append([x * scale for x in smooth])
                worst.append([max(column) for column in zip(*pooled)])
                means.append(mean_rows(group))
                heads = range(kv * prompt.group, (kv + 1) * prompt.group)
                p = 2 if options.get("l2_norm", False) else 1
                norms.append([
                    mean([norm(projected(prompt, l, h, value), p) for h in heads])
                    for value in prompt.values[l][kv][:end]
                ])
            layer_norm = mean_rows(norms)
            scores.append([
                [max(x, mean(m)) * v / layer for x, v, layer in zip(m, of_head, layer_norm)]
                for m, of_head in zip(worst, norms)
            ])
            if options.get("official_window_mass", False):
                window = mean([math.fsum(m[end - prompt.window :]) for m in means])
            else:
                window = mean([math.fsum(row[end:]) for head in rows for row in head])
            first.append([])
            for m in means:
                order = sorted(range(end), key=lambda i: -m[i])
                held, count = 0.0, 0
                for i in order:
                    held += m[i] / math.fsum(m)
                    limit = options.get("first_stage_mass", 0.9) - window
                    draw.far(held, limit, 1.0)
                    if not held < limit:
                        break
                    count += 1
                first[l].append(draw.best(m, min(count, share)))
        chosen = [[set(head) for head in layer] for layer in first]
        whole = options.get("competition", "layer") == "model"
        pools = [prompt.lanes()] if whole else [
            [(l, h) for h in range(prompt.kv_heads)] for l in range(prompt.layers)
        ]
        for lanes in pools:
            entries = [(l, h, i) for l, h in lanes for i in range(end) if i not in first[l][h]]
            left = share * len(lanes) - sum(len(first[l][h]) for l, h in lanes)
            for e in draw.best([scores[l][h][i] for l, h, i in entries], left):
                l, h, i = entries[e]
                chosen[l][h].add(i)
        prompt.write_run(case, run, scores, chosen)
    return case


def projected(prompt, layer, q_head, value):
    """value W_O^h."""
    weight = prompt.weight[layer][q_head * prompt.dim : (q_head + 1) * prompt.dim]
    return [dot(value, column) for column in zip(*weight)]


@case
def defensivekv_1_gqa2(draw):
    return defensivekv(draw, Prompt(draw, 2, 4, 2, 6, 48, 5, hidden=10), {
        "layer": {"budget": 18},
        "model": {"budget": 18, "competition": "model", "first_stage_mass": 0.3},
        "half": {"budget": 20, "first_stage_mass": 0.5, "pooling": "max", "pool_kernel_size": 3},
        "official": {"budget": 26, "official_window_mass": True, "pool_edge": "shrink"},
    })


@case
def defensivekv_2_gqa3_l2(draw):
    return defensivekv(draw, Prompt(draw, 1, 6, 2, 6, 40, 4, hidden=8), {
        "l2": {"budget": 14, "l2_norm": True, "first_stage_mass": 0.6},
        "no_first_stage": {"budget": 14, "first_stage_mass": 0.0, "pool_kernel_size": 1},
        "fits": {"budget": 40},
    })


@case
def defensivekv_3_mha(draw):
    return defensivekv(draw, Prompt(draw, 2, 3, 3, 4, 37, 3, hidden=6), {
        "layer": {"budget": 11, "pool_kernel_size": 7},
        "model": {"budget": 11, "competition": "model", "first_stage_mass": 0.4},
    })


# DropKV

DROPKV_NOTE = (
    "Per query head and row t of the window, p = softmax over all keys with the causal corner, o = "
    "sum p v: s_j = sum over rows of (p_j / (1 - p_j))^2 |v_j - o|^2, mean over the group, average "
    "pooling with zeros counted over the prefix. The best budget - window of the prefix stay and "
    "the window. Runs with floor: AdaKV over these scores, rule guarantee: each head keeps its "
    "best max(1, floor(budget floor)), the window among them (floor_of_whole 0: max(1, "
    "floor((budget - window) floor)) beside the window), none for floor 0; the rest of the layer's "
    "num_kv_heads budget goes to the best of all heads. Ll.X.scores [num_kv_heads, n - window]."
)


def guaranteed(draw, scores, share, safe):
    """Heads that compete for `share` each on average: their `safe` best, then the best of all."""
    chosen = [draw.best(head, safe) for head in scores]
    entries = [
        (h, i) for h, head in enumerate(scores) for i in range(len(head)) if i not in chosen[h]
    ]
    left = share * len(scores) - safe * len(scores)
    for e in draw.best([scores[h][i] for h, i in entries], left):
        chosen[entries[e][0]].add(entries[e][1])
    return chosen


def dropkv(draw, prompt, runs):
    case = Case("dropkv", DROPKV_NOTE)
    prompt.write(case, values=True)
    case.runs(runs)
    for run, options in runs.items():
        scores = []
        for l in range(prompt.layers):
            heads = []
            for h, rows in enumerate(prompt.attention(l)):
                values = prompt.values[l][h // prompt.group]
                moved = [0.0] * prompt.prefix
                for row in rows:
                    out = [dot(row, column) for column in zip(*values)]
                    for j in range(prompt.prefix):
                        apart = norm([v - o for v, o in zip(values[j], out)])
                        moved[j] += (row[j] / (1.0 - row[j]) * apart) ** 2
                heads.append(moved)
            scores.append([
                pool(reduce_group(prompt.of_group(heads, kv), "mean"),
                     options.get("pooling", "average"), options.get("pool_kernel_size", 7),
                     options.get("pool_edge", "zero_counted"))
                for kv in range(prompt.kv_heads)
            ])
        share = options["budget"] - prompt.window
        if options["budget"] >= prompt.n:
            chosen = [[set(range(prompt.prefix))] * prompt.kv_heads] * prompt.layers
        elif "floor" in options:
            whole = options.get("floor_of_whole", True)
            least = (options["budget"] if whole else share) * options["floor"]
            safe = max(1, math.floor(least + 1e-9)) if least > 0 else 0
            safe = max(0, safe - prompt.window) if whole else safe
            chosen = [guaranteed(draw, layer, share, safe) for layer in scores]
        else:
            chosen = [[draw.best(head, share) for head in layer] for layer in scores]
        prompt.write_run(case, run, scores, chosen)
    return case


@case
def dropkv_1_gqa2(draw):
    return dropkv(draw, Prompt(draw, 2, 4, 2, 6, 48, 5), {
        "plain": {"budget": 18},
        "no_pool": {"budget": 11, "pool_kernel_size": 1},
        "shrink": {"budget": 30, "pool_edge": "shrink", "pool_kernel_size": 9},
        "fits": {"budget": 48},
    })


@case
def dropkv_2_heads_compete(draw):
    prompt = Prompt(draw, 1, 6, 2, 5, 41, 3)
    prompt.values[0][0] = [[x / 4 for x in value] for value in prompt.values[0][0]]
    return dropkv(draw, prompt, {
        "ada": {"budget": 15, "floor": 0.6},
        "beside": {"budget": 15, "floor": 0.4, "floor_of_whole": False},
        "global": {"budget": 15, "floor": 0.0},
        "alone": {"budget": 15},
    })


# ---- Caches that are cut at every step --------------------------------------------------------


class Steps:
    """Attention as logits for every position; a row is the softmax over what is still cached."""

    def __init__(self, draw, q_heads, kv_heads, prompt, steps, size=2.0, sinks=0):
        self.q_heads, self.kv_heads, self.group = q_heads, kv_heads, q_heads // kv_heads
        self.prompt, self.steps, self.positions = prompt, steps, prompt + steps
        self.prefill = draw.numbers(q_heads, prompt, prompt, size=size)
        self.logits = draw.numbers(steps, q_heads, self.positions, size=size)
        for h in range(q_heads):
            for t in range(prompt):
                self.prefill[h][t] = [
                    x + (3.0 if i < sinks else 0.0) if i <= t else 0.0
                    for i, x in enumerate(self.prefill[h][t])
                ]
        for t in range(steps):
            for h in range(q_heads):
                self.logits[t][h] = [
                    x if i <= prompt + t else 0.0 for i, x in enumerate(self.logits[t][h])
                ]

    def write(self, case, **others):
        case.int("num_prompt", self.prompt)
        case.int("steps", self.steps)
        case.int("num_q_heads", self.q_heads)
        case.int("num_kv_heads", self.kv_heads)
        for name, value in others.items():
            case.int(name, value)
        case.tensor("prefill_logits", "f32", self.prefill)
        case.tensor("logits", "f32", self.logits)

    def row(self, time, q_head, kept, tau=1.0, noise=lambda position: 0.0):
        """Of the token at position `time`, over the positions `kept`: {position: attention}."""
        logits = (
            self.prefill[q_head][time]
            if time < self.prompt
            else self.logits[time - self.prompt][q_head]
        )
        return dict(zip(kept, softmax([(logits[p] + noise(p)) / tau for p in kept])))


HEAVY_NOTE = (
    "Step t (0-based) appends position P + t; the row of query head h at step t is the softmax of "
    "logits[t, h, :] over the positions still cached (the new one included). Prefill row t of head "
    "h is the softmax of prefill_logits[h, t, 0..t]. Cut to heavy + recent after the prefill and "
    "after every step: the newest `recent` (current token included, R14) stay, of the others the "
    "best `heavy`, of which the first num_sink_tokens of the text are in any case; a new token "
    "starts with its own column mass. Percentages are of the prompt, rounded down. evicted -1: "
    "none. lifetime_mean: divided by the rows that could see the token. Run shared, or scope "
    "model: one set for all heads, the mean over all query heads. "
)


def heavy_and_recent(draw, case, steps, runs, num_sinks, factor, tau,
                     noise=lambda options, head, time, position: 0.0):
    """H2O with `num_sinks` unless a run has others, `factor(options, kv_head, position)` on the
    scores and rows of temperature `tau(options, step)`, 0 in the prompt, and `noise`."""
    case.runs(runs)
    for run, options in runs.items():
        shared = options.get("scope", "model" if run == "shared" else "head") == "model"
        heavy = floor_share(options["heavy"], steps.prompt)
        recent = floor_share(options["recent"], steps.prompt)
        lanes = [range(steps.q_heads)] if shared else [
            range(kv * steps.group, (kv + 1) * steps.group) for kv in range(steps.kv_heads)
        ]
        kept = [list(range(steps.prompt)) for _ in lanes]
        sums = [[dict.fromkeys(range(steps.prompt), 0.0) for _ in heads] for heads in lanes]

        def observe(time, step):
            for lane, heads in enumerate(lanes):
                seen = [p for p in kept[lane] if p <= time]
                for k, head in enumerate(heads):
                    row = steps.row(time, head, seen, tau(options, step),
                                    functools.partial(noise, options, head, time))
                    for p, a in row.items():
                        sums[lane][k][p] = sums[lane][k].get(p, 0.0) + a

        def scores(lane, length):
            result = []
            for p in kept[lane]:
                rows = length - p if options.get("lifetime_mean", False) else 1
                result.append(mean([
                    sums[lane][k][p] / rows * factor(options, head // steps.group, p)
                    for k, head in enumerate(lanes[lane])
                ]))
            return result

        def cut(length):
            gone = []
            for lane in range(len(lanes)):
                if len(kept[lane]) <= heavy + recent:
                    gone.append([])
                    continue
                score = scores(lane, length)
                stays = {s for s, p in enumerate(kept[lane]) if p >= length - recent}
                sinks = options.get("num_sink_tokens", num_sinks)
                stays |= {s for s, p in enumerate(kept[lane]) if p < sinks}
                others = [s for s in range(len(score)) if s not in stays]
                stays |= draw.best(score, heavy + recent - len(stays), others)
                gone.append([p for s, p in enumerate(kept[lane]) if s not in stays])
                kept[lane] = [p for s, p in enumerate(kept[lane]) if s in stays]
            return gone

        for time in range(steps.prompt):
            observe(time, 0)
        case.tensor(run + ".prefill_scores", "f64",
                    [scores(lane, steps.prompt) for lane in range(len(lanes))])
        cut(steps.prompt)
        case.tensor(run + ".prefill_kept", "i32", [list(k) for k in kept])
        evicted = []
        for step in range(steps.steps):
            time = steps.prompt + step
            for lane in kept:
                lane.append(time)
            observe(time, step + 1)
            gone = cut(time + 1)
            assert all(len(g) <= 1 for g in gone)
            evicted.append([g[0] if g else -1 for g in gone])
        case.tensor(run + ".evicted", "i32", evicted)
        case.tensor(run + ".kept", "i32", [list(k) for k in kept])
        case.tensor(run + ".scores", "f64",
                    [scores(lane, steps.positions) for lane in range(len(lanes))])
    return case


# VATP

VATP_NOTE = HEAVY_NOTE + (
    "Score = |v|_1 (l2_norm: |v|_2) times the sum of all rows seen, group mean. values "
    "[num_kv_heads, positions, head_dim]."
)


def vatp(draw, steps, dim, runs):
    case = Case("vatp", VATP_NOTE)
    steps.write(case, head_dim=dim)
    values = draw.numbers(steps.kv_heads, steps.positions, dim)
    for head in values:  # sinks have tiny values
        head[:4] = [[x / 8 for x in value] for value in head[:4]]
    case.tensor("values", "f32", values)
    return heavy_and_recent(
        draw, case, steps, runs, 4,
        lambda options, kv, p: norm(values[kv][p], 2 if options.get("l2_norm", False) else 1),
        lambda options, step: 1.0)


@case
def vatp_1_gqa2(draw):
    return vatp(draw, Steps(draw, 4, 2, 24, 16, sinks=4), 5, {
        "per_head": {"heavy": 7, "recent": 5},
        "shared": {"heavy": 6, "recent": 4, "num_sink_tokens": 2},
        "no_sinks": {"heavy": 6, "recent": 4, "num_sink_tokens": 0, "l2_norm": True},
        "lifetime": {"heavy": 6, "recent": 5, "num_sink_tokens": 1, "lifetime_mean": True},
    })


@case
def vatp_2_gqa3_shares(draw):
    return vatp(draw, Steps(draw, 6, 2, 20, 12), 3, {
        "per_head": {"heavy": "30%", "recent": "24%"},
        "fits": {"heavy": 20, "recent": 12},
        "grows": {"heavy": 18, "recent": 7, "l2_norm": True},
    })


# Keyformer

KEYFORMER_NOTE = HEAVY_NOTE + (
    "Score = sum of all rows seen, group mean, each row softmax(logits / tau) over the cached "
    "positions; tau = tau_init in the prompt and tau_init + min(k, T) (tau_end - tau_init) / T at "
    "decode step k = t + 1, T = generation_len. No noise (gumbel_noise 0)."
)


KEYFORMER_NOISE_NOTE = (
    " gumbel_noise 1: softmax((logits + g) / tau) with g = -ln(-ln u), u = ((b >> 11) + 1/2) / "
    "2^53, b = mix(mix(mix(seed + mix(head) + c sequence_id) + position of the query) + position "
    "of the key), mix and c as in the random_eviction cases."
)


def keyformer(draw, steps, runs, note=""):
    case = Case("keyformer", KEYFORMER_NOTE + note)
    steps.write(case)
    runs = {
        run: dict(options, gumbel_noise=options.get("gumbel_noise", False))
        for run, options in runs.items()
    }

    def tau(options, step):
        first = options.get("tau_init", 1.0)
        length = options.get("generation_len", 64)
        return first + min(step, length) * (options.get("tau_end", 2.0) - first) / length

    def noise(options, head, time, position):
        if not options["gumbel_noise"]:
            return 0.0
        query = mixed((counter_of(options, head) + time) % WORD)
        return gumbel(mixed((query + position) % WORD), 53)

    return heavy_and_recent(draw, case, steps, runs, 0, lambda options, kv, p: 1.0, tau, noise)


@case
def keyformer_1_gqa2(draw):
    return keyformer(draw, Steps(draw, 4, 2, 20, 16), {
        "per_head": {"heavy": 7, "recent": 4, "generation_len": 10},
        "shared": {"heavy": "42%", "recent": "18%"},
        "hot": {"heavy": 6, "recent": 3, "tau_init": 1.5, "tau_end": 4.0, "generation_len": 16},
        "lifetime": {"heavy": 6, "recent": 4, "lifetime_mean": True, "num_sink_tokens": 1},
    })


@case
def keyformer_2_mha(draw):
    return keyformer(draw, Steps(draw, 3, 3, 16, 10), {
        "per_head": {"heavy": 5, "recent": 4, "tau_end": 1.0},
        "fits": {"heavy": 16, "recent": 10},
        "cooling": {"heavy": 6, "recent": 2, "tau_init": 2.0, "tau_end": 0.5,
                    "generation_len": 5},
    })


@case
def keyformer_3_noise(draw):
    return keyformer(draw, Steps(draw, 4, 2, 14, 12), {
        "per_head": {"heavy": 6, "recent": 3, "gumbel_noise": True},
        "shared": {"heavy": 5, "recent": 4, "gumbel_noise": True, "seed": 7, "sequence_id": 3,
                   "num_sink_tokens": 1, "generation_len": 9},
    }, KEYFORMER_NOISE_NOTE)


# FastGen

FASTGEN_NOTE = (
    "Rows as in the h2o cases, group means. labels u8 [positions]: 1 special, 2 punctuation. "
    "X.profile [num_kv_heads]: the first of 0 special, 1 + punctuation, 2 + heavy, 3 + recent that "
    "holds `recovery` of the attention, mean over the prompt's rows of what falls on its tokens, "
    "else 4 (everything). Heavy: the `heavy` best tokens without a label by column sums at the end "
    "of the prompt; recent: each row's newest `recent`. Percentages are of the prompt. After the "
    "prompt and each step a head keeps its labelled tokens; one of profile 2 or 3 has room for "
    "`heavy` (and `recent`) more: the newest `recent`, then the best by sums of all rows so far. "
    "keep.X.prefill [num_kv_heads, num_prompt], keep.X [num_kv_heads, positions], X.evicted "
    "[steps, num_kv_heads]."
)


def fastgen(draw, steps, labels, runs):
    case = Case("fastgen", FASTGEN_NOTE)
    steps.write(case)
    case.tensor("labels", "u8", labels)
    case.runs(runs)
    length = steps.prompt
    heads = range(steps.kv_heads)
    for run, options in runs.items():
        num_heavy = floor_share(options.get("heavy", "30%"), length)
        num_recent = floor_share(options.get("recent", "30%"), length)
        kept = [list(range(length)) for _ in heads]
        sums = [dict.fromkeys(range(length), 0.0) for _ in heads]

        def group_row(time, kv):
            seen = [p for p in kept[kv] if p <= time]
            rows = [
                steps.row(time, kv * steps.group + k, seen) for k in range(steps.group)
            ]
            return {p: mean([row[p] for row in rows]) for p in seen}

        def rank(kv, position, now):
            value = sums[kv][position]
            return value / (now - position) if options.get("lifetime_mean", False) else value

        profile = []
        for kv in heads:
            rows = [group_row(t, kv) for t in range(length)]
            for row in rows:
                for p, a in row.items():
                    sums[kv][p] += a
            plain = [p for p in range(length) if labels[p] == 0]
            heavy = draw.best([rank(kv, p, length) for p in range(length)], num_heavy, plain)
            special = {p for p in range(length) if labels[p] == 1}
            marked = {p for p in range(length) if labels[p] != 0}
            recovered = []
            for level in range(4):
                fixed = [special, marked, marked | heavy, marked | heavy][level]
                recovered.append(mean([
                    math.fsum(
                        a for p, a in row.items()
                        if p in fixed or (level == 3 and p > t - num_recent)
                    )
                    for t, row in enumerate(rows)
                ]))
                draw.far(recovered[level], options["recovery"], 1.0)
            profile.append(
                next((i for i in range(4) if recovered[i] >= options["recovery"]), 4))

        def cut(now):
            gone = []
            for kv in heads:
                level = profile[kv]
                wanted = {1} if level == 0 else {1, 2}
                marked = {p for p in kept[kv] if labels[p] in wanted}
                room = len(marked)
                room += num_heavy if level in (2, 3) else 0
                room += num_recent if level == 3 else 0
                stays = set(kept[kv])
                if level < 4 and len(kept[kv]) > room:
                    stays = set(marked)
                    if level == 3:
                        stays |= set(kept[kv][-num_recent:])
                    others = [s for s, p in enumerate(kept[kv]) if p not in stays]
                    scores = [rank(kv, p, now) for p in kept[kv]]
                    stays |= {kept[kv][s] for s in draw.best(scores, room - len(stays), others)}
                gone.append([p for p in kept[kv] if p not in stays])
                kept[kv] = [p for p in kept[kv] if p in stays]
            return gone

        case.tensor(run + ".profile", "i32", profile)
        cut(length)
        case.tensor("keep.%s.prefill" % run, "u8",
                    [[int(p in kept[kv]) for p in range(length)] for kv in heads])
        evicted = []
        for step in range(steps.steps):
            time = length + step
            for kv in heads:
                kept[kv].append(time)
                sums[kv][time] = 0.0
                for p, a in group_row(time, kv).items():
                    sums[kv][p] += a
            gone = cut(time + 1)
            assert all(len(g) <= 1 for g in gone)
            evicted.append([g[0] if g else -1 for g in gone])
        case.tensor(run + ".evicted", "i32", evicted)
        case.tensor("keep." + run, "u8",
                    [[int(p in kept[kv]) for p in range(steps.positions)] for kv in heads])
    return case


def bent(steps, labels, gains):
    """Lifts, per KV head, the logits of (special, punctuation, newest three) tokens."""
    def lift(row, head, time):
        special, punctuation, newest = gains[head // steps.group]
        return [
            x + (special if labels[i] == 1 else punctuation if labels[i] == 2 else 0.0)
            + (newest if i > time - 3 else 0.0) if i <= time else 0.0
            for i, x in enumerate(row)
        ]

    for h in range(steps.q_heads):
        steps.prefill[h] = [lift(row, h, t) for t, row in enumerate(steps.prefill[h])]
        for t in range(steps.steps):
            steps.logits[t][h] = lift(steps.logits[t][h], h, steps.prompt + t)
    return steps


@case
def fastgen_1_mha(draw):
    labels = [1, 1] + [2 if p in (7, 13, 20, 27) else 0 for p in range(2, 34)]
    labels[16] = labels[29] = 1
    steps = bent(Steps(draw, 5, 5, 24, 10, size=1.5), labels,
                 [(6.0, 0.0, 0.0), (2.0, 5.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.0, 3.0),
                  (0.0, 0.0, 0.0)])
    return fastgen(draw, steps, labels, {
        "defaults": {"recovery": 0.9},
        "less": {"recovery": 0.7, "heavy": 5, "recent": 3},
        "lifetime": {"recovery": 0.8, "heavy": 4, "recent": 6, "lifetime_mean": True},
    })


@case
def fastgen_2_gqa2(draw):
    labels = [1] + [2 if p % 6 == 5 else 0 for p in range(1, 26)]
    steps = bent(Steps(draw, 6, 3, 18, 8), labels,
                 [(4.0, 2.0, 0.0), (2.0, 0.0, 2.0), (0.0, 0.0, 1.0)])
    return fastgen(draw, steps, labels, {
        "most": {"recovery": 0.85, "heavy": "25%", "recent": "20%"},
        "some": {"recovery": 0.6, "heavy": 2, "recent": 2},
        "all": {"recovery": 1.0},
    })


# Block eviction and KVCrush

BLOCK_NOTE = (
    "One layer, one set for all heads. x = the mean row over all query heads; s starts with "
    "fmax(sum of x over the last observation_window rows of the prompt), each decoded token adds "
    "fmax(x); fmax(x)[i] = max x[i .. i + pool_width - 1], over what is cached, in slots. Score s, "
    "lifetime_mean: s / rows that counted for the token. A cut is due at the end of the prompt or "
    "of a step when n >= budget + block_size tokens are cached and leaves budget + n mod "
    "block_size: the first num_sink_tokens, the newest recent_window + n mod block_size, of the "
    "blocks between, counted from slot 0, those of the largest sums, the earlier of equal ones. "
    "event.I.step -1: the prompt's. With num_representatives R (KVCrush) that many blocks less are "
    "chosen so; a token's bit is 1 if it is in the better half, rounded down, of all tokens "
    "between; of the blocks left, ordered by Hamming distance to the anchor (equal ones the "
    "earlier first), those with index 0, k, 2 k, .. stay, k = floor(blocks left / R); anchor mean: "
    "1 where more than half of all blocks between have a 1. Events of run X: X.event.I.step, "
    ".positions and .scores before the cut, .kept after it."
)


def block_eviction(draw, steps, runs, note=""):
    case = Case("block_eviction", BLOCK_NOTE + note)
    steps.write(case)
    case.runs(runs)
    for run, options in runs.items():
        size, budget = options["block_size"], options["budget"]
        width = options.get("pool_width", 7)
        kept = list(range(steps.prompt))
        sums = dict.fromkeys(kept, 0.0)
        rows = dict.fromkeys(kept, 0)
        events = []

        def mean_row(time):
            seen = [p for p in kept if p <= time]
            of_heads = [steps.row(time, h, seen) for h in range(steps.q_heads)]
            return {p: mean([row[p] for row in of_heads]) for p in seen}

        def take(parts):
            """Adds the sum of mean rows after its forward maximum."""
            total = [math.fsum(part.get(p, 0.0) for part in parts) for p in kept]
            for s, p in enumerate(kept):
                sums[p] = sums.get(p, 0.0) + max(total[s : s + width])
                rows[p] = rows.get(p, 0) + sum(p in part for part in parts)

        def cut(step):
            if len(kept) < budget + size:
                return
            scores = [
                sums[p] / max(rows[p], 1) if options.get("lifetime_mean", True) else sums[p]
                for p in kept
            ]
            first = options["num_sink_tokens"]
            last = len(kept) - options["recent_window"] - len(kept) % size
            blocks = [range(b, b + size) for b in range(first, last, size)]
            places = (budget - first - options["recent_window"]) // size
            crush = options.get("num_representatives", 0)
            worth = [math.fsum(scores[s] for s in block) for block in blocks]
            chosen = draw.best(worth, places - crush)
            if crush:
                between = range(first, last)
                better = draw.best(scores, len(between) // 2, between)
                words = [[int(s in better) for s in block] for block in blocks]
                anchor = {
                    "zeros": [0] * size,
                    "ones": [1] * size,
                    "alternating": [i % 2 for i in range(size)],
                    "mean": [int(2 * sum(bits) > len(words)) for bits in zip(*words)],
                    "random": [
                        mixed((mixed(options.get("anchor_seed", 0)) + i) % WORD) >> 63
                        for i in range(size)
                    ],
                }[options["anchor"]]
                victims = sorted(
                    (b for b in range(len(blocks)) if b not in chosen),
                    key=lambda b: (sum(x != y for x, y in zip(words[b], anchor)), b))
                chosen |= set(victims[:: len(victims) // crush][:crush])
            stays = set(range(first)) | set(range(last, len(kept)))
            stays |= {s for b in chosen for s in blocks[b]}
            name = "%s.event.%d." % (run, len(events))
            events.append(step)
            case.int(name + "step", step)
            case.tensor(name + "positions", "i32", list(kept))
            case.tensor(name + "scores", "f64", scores)
            kept[:] = [p for s, p in enumerate(kept) if s in stays]
            case.tensor(name + "kept", "i32", list(kept))

        window = min(options.get("observation_window", 8), steps.prompt)
        take([mean_row(t) for t in range(steps.prompt - window, steps.prompt)])
        cut(-1)
        for step in range(steps.steps):
            kept.append(steps.prompt + step)
            take([mean_row(steps.prompt + step)])
            cut(step)
        case.int(run + ".num_events", len(events))
    return case


@case
def block_eviction_1_gqa2(draw):
    sizes = {"budget": 20, "num_sink_tokens": 4, "recent_window": 4, "block_size": 4}
    return block_eviction(draw, Steps(draw, 4, 2, 30, 14), {
        "norm_sum": dict(sizes),
        "sum": dict(sizes, lifetime_mean=False, observation_window=5, pool_width=3),
        "no_pool": dict(sizes, budget=16, pool_width=1, observation_window=40),
        "no_sinks": dict(sizes, num_sink_tokens=0, recent_window=8),
    })


@case
def block_eviction_2_kvcrush(draw):
    sizes = {"budget": 21, "num_sink_tokens": 3, "recent_window": 3, "block_size": 3}
    return block_eviction(draw, Steps(draw, 3, 1, 34, 10), {
        "zeros": dict(sizes, num_representatives=2, anchor="zeros"),
        "ones": dict(sizes, num_representatives=1, anchor="ones", lifetime_mean=False),
        "mean": dict(sizes, num_representatives=3, anchor="mean", pool_width=2),
        "alternating": dict(sizes, num_representatives=2, anchor="alternating", pool_width=1),
    })


@case
def block_eviction_3_short_prompt(draw):
    # Nothing goes before a whole block more than the budget is there.
    sizes = {"budget": 12, "num_sink_tokens": 2, "recent_window": 2, "block_size": 2}
    return block_eviction(draw, Steps(draw, 2, 2, 5, 14), {
        "norm_sum": dict(sizes),
        "sum": dict(sizes, lifetime_mean=False),
    })


@case
def block_eviction_4_random_anchor(draw):
    sizes = {"budget": 20, "num_sink_tokens": 4, "recent_window": 0, "block_size": 4,
             "num_representatives": 2, "anchor": "random", "pool_width": 2}
    return block_eviction(draw, Steps(draw, 1, 1, 32, 8), {
        "seed_0": dict(sizes),
        "seed_3": dict(sizes, anchor_seed=3),
    }, " anchor random: bit i is the highest of mix(mix(anchor_seed) + i), mix as in the "
       "random_eviction cases.")


# ThinKV

THINKV_NOTE = (
    "Step t appends position P + t; a row is the softmax of logits[t, layer, head, :] over the "
    "positions that its KV head still caches. keys [num_layers, num_kv_heads, positions, "
    "head_dim]. Decoded tokens form segments of segment_len. Sparsity of a segment: mean over its "
    "rows, layers (`layers`, all if absent) and query heads of the share of visible tokens with "
    "less than 1 % of the row's largest entry; below execution_below it is an execution, from "
    "transition_from on a transition, else reasoning. When a transition is complete, all segments "
    "before it go one level down the schedule (at most to its end); while the prompt, the open "
    "segment and what the levels allow exceed the budget, the oldest of the least important "
    "complete segments (transition, execution, reasoning) goes one level down, those at the end of "
    "the schedule only when all are: then they lose what is left. A segment keeps the tokens "
    "nearest to k-means centroids of its keys, per KV head: start at tokens floor((2 i + 1) n / (2 "
    "k)), Lloyd rounds until nothing changes, at most max_rounds, then each centroid in turn takes "
    "its nearest free token. X.event.I.step, .kept [num_layers, num_kv_heads, count]."
)


def representatives(draw, keys, count, max_rounds):
    n = len(keys)
    centres = [list(keys[(2 * i + 1) * n // (2 * count)]) for i in range(count)]

    def distance(key, centre):
        return math.fsum((x - y) ** 2 for x, y in zip(key, centre))

    def nearest(candidates, length):
        order = sorted(range(len(candidates)), key=lambda i: candidates[i])
        if len(order) > 1:
            draw.far(candidates[order[0]], candidates[order[1]], length)
        return order[0]

    owner = [None] * n
    for _ in range(max_rounds):
        now = [
            nearest([distance(key, centre) for centre in centres], dot(key, key)) for key in keys
        ]
        if now == owner:
            break
        owner = now
        for i in range(count):
            members = [key for key, o in zip(keys, owner) if o == i]
            if members:
                centres[i] = mean_rows(members)
    taken = []
    for centre in centres:
        free = [i for i in range(n) if i not in taken]
        pick = nearest([distance(keys[i], centre) for i in free], dot(centre, centre))
        taken.append(free[pick])
    return taken


def thinkv(draw, shape, prompt, logits, keys, runs):
    layers, q_heads, kv_heads, dim = shape
    case = Case("thinkv", THINKV_NOTE)
    case.shape(q_heads, kv_heads, dim, num_layers=layers, num_prompt=prompt, steps=len(logits))
    case.tensor("logits", "f32", logits)
    case.tensor("keys", "f32", keys)
    case.runs(runs)
    lanes = [(l, h) for l in range(layers) for h in range(kv_heads)]
    for run, options in runs.items():
        size, schedule = options["segment_len"], [int(x) for x in options["schedule"]]
        caps = [size] + schedule + [0]
        telling = [int(x) for x in options.get("layers", [])] or range(layers)
        kept = {lane: list(range(prompt)) for lane in lanes}
        segments = []  # {"start", "level", "shares", "thought"}, thought None while it is written
        events = 0

        def held(segment):
            start = segment["start"]
            return sum(start <= p < start + size for p in kept[(0, 0)])

        for step, row in enumerate(logits):
            time = prompt + step
            if step % size == 0:
                segments.append({"start": time, "level": 0, "shares": [], "thought": None})
            for lane in lanes:
                kept[lane].append(time)
            for l in telling:
                for h in range(q_heads):
                    seen = softmax([row[l][h][p] for p in kept[(l, h * kv_heads // q_heads)]])
                    for a in seen:
                        draw.far(a, 0.01 * max(seen), 1e-3 * max(seen))
                    sparse = sum(a < 0.01 * max(seen) for a in seen)
                    segments[-1]["shares"].append(sparse / len(seen))
            if step % size == size - 1:
                sparsity = mean(segments[-1]["shares"])
                for limit in (options["execution_below"], options["transition_from"]):
                    draw.far(sparsity, limit, 1.0)
                thought = 1 if sparsity < options["execution_below"] else 2
                thought = 0 if sparsity >= options["transition_from"] else thought
                segments[-1]["thought"] = thought
                if thought == 0:
                    for before in segments[:-1]:
                        level = before["level"]
                        before["level"] = max(level, min(level + 1, len(schedule)))
            counts = {}
            for i, segment in enumerate(segments):
                cap = caps[segment["level"]] if segment["thought"] is not None else size
                counts[i] = min(held(segment), cap)
            while prompt + sum(counts.values()) > options["budget"]:
                able = [i for i in counts if segments[i]["thought"] is not None and counts[i] > 0]
                if not able:
                    break
                victim = min(able, key=lambda i: (
                    segments[i]["level"] >= len(schedule), segments[i]["thought"], i))
                level = segments[victim]["level"] = segments[victim]["level"] + 1
                counts[victim] = min(counts[victim], caps[level])
            excess = max(0, prompt + sum(counts.values()) - options["budget"])
            for i in counts:  # only the open segment is left to pay
                pays = min(excess, counts[i])
                counts[i] -= pays
                excess -= pays
            if prompt + sum(counts.values()) == len(kept[(0, 0)]):
                continue
            for lane in lanes:
                stays = [p for p in kept[lane] if p < prompt]
                for i, segment in enumerate(segments):
                    start = segment["start"]
                    own = [p for p in kept[lane] if start <= p < start + size]
                    if counts[i] == len(own):
                        stays += own
                    elif segment["thought"] is None:
                        stays += own[len(own) - counts[i] :]
                    elif counts[i] > 0:
                        own_keys = [keys[lane[0]][lane[1]][p] for p in own]
                        picks = representatives(draw, own_keys, counts[i],
                                                options.get("max_rounds", 10))
                        stays += [own[k] for k in picks]
                kept[lane] = sorted(stays)
            name = "%s.event.%d." % (run, events)
            events += 1
            case.int(name + "step", step)
            case.tensor(name + "kept", "i32",
                        [[list(kept[(l, h)]) for h in range(kv_heads)] for l in range(layers)])
        case.int(run + ".num_events", events)
    return case


def thought_logits(draw, layers, q_heads, prompt, sizes, segment_len):
    """[steps, layers, q_heads, positions]; rows of segment i are of deviation sizes[i]."""
    positions = prompt + len(sizes) * segment_len
    return [
        [
            [
                [draw.number(sizes[t // segment_len]) if p <= prompt + t else 0.0
                 for p in range(positions)]
                for _ in range(q_heads)
            ]
            for _ in range(layers)
        ]
        for t in range(len(sizes) * segment_len)
    ]


@case
def thinkv_1_gqa2(draw):
    sizes = [1.6, 0.5, 3.5, 1.6, 0.5, 1.6, 3.5, 1.6]
    logits = thought_logits(draw, 1, 4, 5, sizes, 8)
    keys = draw.numbers(1, 2, 5 + 64, 4)
    levels = {"segment_len": 8, "schedule": [5.0, 3.0, 1.0], "execution_below": 0.1,
              "transition_from": 0.45}
    return thinkv(draw, (1, 4, 2, 4), 5, logits, keys, {
        "roomy": dict(levels, budget=60),
        "tight": dict(levels, budget=26),
        "tiny": dict(levels, budget=11, max_rounds=2),
    })


@case
def thinkv_2_layers(draw):
    sizes = [0.5, 1.6, 1.6, 3.5, 1.6]
    logits = thought_logits(draw, 2, 2, 3, sizes, 6)
    keys = draw.numbers(2, 2, 3 + 30, 3)
    levels = {"segment_len": 6, "schedule": [4.0, 2.0], "execution_below": 0.1,
              "transition_from": 0.45, "budget": 18}
    return thinkv(draw, (2, 2, 2, 3), 3, logits, keys, {
        "all": dict(levels),
        "one": dict(levels, layers=[1.0]),
        "prompt_over_budget": dict(levels, budget=2),
    })


# ---- Choices by keys and values ---------------------------------------------------------------

# VaSE

VASE_NOTE = (
    "Candidates: all but the newest recent_window. Scores: the last `window` queries, softmax over "
    "the candidates only (none behind the query's own token), mean over the queries, average "
    "pooling with zeros counted per query head, group mean. Per KV head stay: the newest, the "
    "first num_sink_tokens, with them `reserve` of the budget (a quarter), sinks included, by the "
    "largest max_c v_c - min_c v_c, and the best by score up to the budget. Nothing goes where n "
    "is less than `interval` above the budget. sample 0: no draw. Ll.X.scores [num_kv_heads, n - "
    "recent_window]."
)


def vase(draw, prompt, runs, note=""):
    case = Case("vase", VASE_NOTE + note)
    prompt.write(case, values=True)
    runs = {
        run: dict(options, sample=options.get("sample", False)) for run, options in runs.items()
    }
    case.runs(runs)
    n = prompt.n
    for run, options in runs.items():
        recent, budget = options["recent_window"], options["budget"]
        sinks = options.get("num_sink_tokens", 4)
        end = n - recent
        reserve = floor_share(options.get("reserve", "25%"), budget)
        scores, chosen = [], []
        for l in range(prompt.layers):
            of_heads = []
            for h, queries in enumerate(prompt.queries[l]):
                keys = prompt.keys[l][h // prompt.group]
                rows = []
                for t, query in enumerate(queries):
                    seen = min(end, n - prompt.window + t + 1)
                    logits = [dot(query, key) / math.sqrt(prompt.dim) for key in keys[:seen]]
                    rows.append(softmax(logits) + [0.0] * (end - seen))
                of_heads.append(pool(mean_rows(rows), options.get("pooling", "average"),
                                     options.get("pool_kernel_size", 5)))
            scores.append([
                reduce_group(prompt.of_group(of_heads, kv), "mean") for kv in range(prompt.kv_heads)
            ])
            for kv, of_head in enumerate(scores[l] if options["sample"] else []):
                for p, weight in enumerate(of_head):
                    bits = random_bits(options, l * prompt.kv_heads + kv, p)
                    of_head[p] = math.log(max(weight, 2.0**-126)) + gumbel(bits, 52)
            chosen.append([])
            for kv in range(prompt.kv_heads):
                if n - budget < options.get("interval", 64):
                    chosen[l].append(set(range(n)))
                    continue
                ranges = [max(v) - min(v) for v in prompt.values[l][kv]]
                stays = set(range(sinks))
                others = [i for i in range(end) if i not in stays]
                stays |= draw.best(ranges, reserve - sinks, others)
                others = [i for i in range(end) if i not in stays]
                stays |= draw.best(scores[l][kv], budget - recent - len(stays), others)
                chosen[l].append(stays | set(range(end, n)))
            case.tensor("L%d.%s.scores" % (l, run), "f64", scores[l])
        case.tensor("keep." + run, "u8",
                    [[[int(i in head) for i in range(n)] for head in layer] for layer in chosen])
    return case


@case
def vase_1_gqa2(draw):
    return vase(draw, Prompt(draw, 2, 4, 2, 6, 56, 8), {
        "plain": {"budget": 28, "recent_window": 8, "interval": 4},
        "short_recent": {"budget": 24, "recent_window": 3, "num_sink_tokens": 2, "interval": 32},
        "no_reserve": {"budget": 20, "recent_window": 8, "reserve": 0, "num_sink_tokens": 0,
                       "interval": 1},
        "not_due": {"budget": 24, "recent_window": 8, "interval": 33},
        "fits": {"budget": 56, "recent_window": 8, "interval": 1},
    })


@case
def vase_2_gqa3(draw):
    return vase(draw, Prompt(draw, 1, 6, 2, 5, 45, 4), {
        "half": {"budget": 20, "recent_window": 6, "reserve": "50%", "pool_kernel_size": 7,
                 "interval": 8},
        "max": {"budget": 15, "recent_window": 4, "num_sink_tokens": 1, "pooling": "max",
                "pool_kernel_size": 3, "reserve": 5, "interval": 8},
    })


@case
def vase_3_drawn(draw):
    return vase(draw, Prompt(draw, 2, 4, 2, 4, 36, 4), {
        "plain": {"budget": 18, "recent_window": 4, "interval": 4, "sample": True},
        "seed": {"budget": 12, "recent_window": 2, "reserve": 0, "num_sink_tokens": 0,
                 "interval": 1, "sample": True, "seed": 5, "sequence_id": 2},
    }, " sample 1: score = ln(max(score, 2^-126)) - ln(-ln u), u = ((b >> 12) + 1/2) / 2^52, b the "
       "bits of the token as in the random_eviction cases, firing 0.")


# NestedKV

NESTED_NOTE = (
    "Unit keys u (0 for a zero key). Three scales, a_s = -u . mean(all u), a_e = -u . mean(u of "
    "the own block), blocks of clip(n / 32, 128, 256) counted from slot 0, a_c = -u . mean(u of "
    "the trailing_window slots up to the own), each scaled by its range per head to [0, 1]. "
    "Weights softmax(ln(.4, .4, .2) + gap_gain gap), gap = mean of the highest tenth (floor(n / "
    "10), at least 1) - mean of the lowest; d = deviation of a token's three, scaled by its range, "
    "alpha = sigmoid(gate_gain (d - mean d - gate_centre)); score = (1 - alpha) sum w a + alpha "
    "max a. Heads of a layer compete: each keeps its best max(1, floor(budget floor)) (none for "
    "floor 0, but one at least), the rest of num_kv_heads budget goes to the best of all heads. "
    "Ll.X.scores [num_kv_heads, n]."
)


def unit(key):
    length = norm(key)
    return [x / length if length > 0 else 0.0 for x in key]


def to_unit_range(values):
    low, high = min(values), max(values)
    return [(x - low) / (high - low) if high > low else 0.0 for x in values]


def nested_scores(keys, options):
    units = [unit(key) for key in keys]
    n = len(units)
    block = min(max(n // 32, 128), 256)
    means = {b: mean_rows(units[b : b + block]) for b in range(0, n, block)}
    whole = mean_rows(units)
    trailing = options.get("trailing_window", 64)
    scales = [to_unit_range(a) for a in (
        [-dot(u, whole) for u in units],
        [-dot(u, means[i // block * block]) for i, u in enumerate(units)],
        [-dot(u, mean_rows(units[max(0, i + 1 - trailing) : i + 1])) for i, u in enumerate(units)],
    )]
    tenth = max(1, n // 10)
    gaps = [mean(sorted(a)[-tenth:]) - mean(sorted(a)[:tenth]) for a in scales]
    weights = softmax([
        math.log(p) + options.get("gap_gain", 3.0) * g for p, g in zip((0.4, 0.4, 0.2), gaps)
    ])
    spread = [math.sqrt(mean([(x - mean(a)) ** 2 for x in a])) for a in zip(*scales)]
    spread = to_unit_range(spread)
    middle = mean(spread)
    result = []
    for a, d in zip(zip(*scales), spread):
        gate = options.get("gate_gain", 10.0) * (d - middle - options.get("gate_centre", 0.6))
        alpha = 1.0 / (1.0 + math.exp(-gate))
        result.append((1.0 - alpha) * dot(weights, a) + alpha * max(a))
    return result


def nestedkv(draw, prompt, runs):
    case = Case("nestedkv", NESTED_NOTE)
    prompt.write(case)
    case.runs(runs)
    for run, options in runs.items():
        scores = [[nested_scores(keys, options) for keys in layer] for layer in prompt.keys]
        floor = options.get("floor", 0.2)
        safe = max(1, math.floor(options["budget"] * floor + 1e-9))
        chosen = [guaranteed(draw, layer, options["budget"], safe) for layer in scores]
        prompt.write_run(case, run, scores, chosen)
    return case


@case
def nestedkv_1(draw):
    prompt = Prompt(draw, 1, 4, 2, 4, 300, 0)
    # A head of few unlike keys wins little beside its floor.
    prompt.keys[0][1] = [
        key if i % 37 == 5 else [2.0 + x / 8 for x in key]
        for i, key in enumerate(prompt.keys[0][1])
    ]
    return nestedkv(draw, prompt, {
        "defaults": {"budget": 60},
        "no_floor": {"budget": 24, "floor": 0.0, "trailing_window": 10},
        "gates": {"budget": 100, "gap_gain": 0.5, "gate_gain": 4.0, "gate_centre": 0.1,
                  "floor": 0.9},
    })


@case
def nestedkv_2_layers(draw):
    return nestedkv(draw, Prompt(draw, 2, 2, 2, 3, 40, 0), {
        "defaults": {"budget": 12},
        "one": {"budget": 1},
    })


@case
def nestedkv_3_long_blocks(draw):
    return nestedkv(draw, Prompt(draw, 1, 1, 1, 2, 4200, 0), {"defaults": {"budget": 60}})


# TwinKV

TWIN_NOTE = (
    "Base knorm: -|k|, the best `budget` per KV head, sinks and recent ones among them; base "
    "snapkv: the best budget - window of the prefix by its scores (average pooling 5) and the "
    "window. b(x) = largest cosine of x's key with a kept one more than twin_distance slots away "
    "(-1: none). Orphans: gone with b < twin_similarity, the least b first (equal: lower slot); "
    "donors: kept, not protected by the base and not among the first twin_num_sinks or the newest "
    "twin_recent, b >= twin_similarity, the largest b first (equal: higher slot). The next orphan "
    "takes the place of the next donor whose b, of what is kept by then, is still >= "
    "twin_similarity."
)


def twin_repair(draw, keys, kept, fixed, options):
    tau, apart = options.get("twin_similarity", 0.85), options.get("twin_distance", 32)

    units = [unit(key) for key in keys]

    def closest(slot):
        near = [dot(units[slot], units[k]) for k in kept if abs(k - slot) > apart]
        best = max(near, default=-1.0)
        draw.far(best, tau, 1.0)
        return best

    n = len(keys)
    kept = set(kept)
    own = fixed | set(range(options.get("twin_num_sinks", 4)))
    own |= set(range(n - options.get("twin_recent", 64), n))
    orphans = sorted((closest(i), i) for i in range(n) if i not in kept)
    orphans = [(b, i) for b, i in orphans if b < tau]
    donors = sorted(((-closest(i), -i) for i in kept if i not in own))
    donors = [(-b, -i) for b, i in donors if -b >= tau]
    for order in (orphans, donors):
        for (a, i), (b, j) in zip(order, order[1:]):
            draw.far(a, b, 1.0)
    swaps = 0
    for _, donor in donors:
        if swaps == len(orphans):
            break
        if closest(donor) < tau:
            continue
        kept.remove(donor)
        kept.add(orphans[swaps][1])
        swaps += 1
    return kept


def twinkv(draw, prompt, base, runs):
    case = Case("twinkv", TWIN_NOTE)
    case.text("base", base)
    prompt.write(case)
    case.runs(runs)
    n = prompt.n
    for run, options in runs.items():
        scores, chosen = [], []
        for l in range(prompt.layers):
            if base == "snapkv":
                scores.append(prompt.vote(l, "average", 5))
                fixed = set(range(prompt.prefix, n))
            else:
                scores.append([[-norm(key) for key in keys] for keys in prompt.keys[l]])
                recent = options.get("recent_window", 0)
                fixed = set(range(options.get("num_sink_tokens", 0))) | set(range(n - recent, n))
            chosen.append([])
            for h in range(prompt.kv_heads):
                free = [i for i in range(len(scores[l][h])) if i not in fixed]
                kept = fixed | draw.best(scores[l][h], options["budget"] - len(fixed), free)
                if len(kept) < n:
                    kept = twin_repair(draw, prompt.keys[l][h], kept, fixed, options)
                chosen[l].append(kept)
        prompt.write_run(case, run, scores, chosen)
    return case


def with_twins(draw, prompt):
    """Gives half of the keys a likeness elsewhere."""
    for layer in prompt.keys:
        for keys in layer:
            for i in range(1, prompt.n, 2):
                twin = keys[(i * 7 + 3) % prompt.n]
                keys[i] = [x * 0.75 + draw.number(0.35) for x in twin]
    return prompt


@case
def twinkv_1_knorm(draw):
    prompt = with_twins(draw, Prompt(draw, 2, 2, 2, 5, 44, 0))
    return twinkv(draw, prompt, "knorm", {
        "near": {"budget": 20, "twin_distance": 0, "twin_num_sinks": 0, "twin_recent": 0},
        "apart": {"budget": 16, "twin_distance": 4, "twin_num_sinks": 12, "twin_recent": 6,
                  "num_sink_tokens": 2, "recent_window": 3, "twin_similarity": 0.8},
        "defaults": {"budget": 16},
        "fits": {"budget": 44},
    })


@case
def twinkv_2_snapkv(draw):
    prompt = with_twins(draw, Prompt(draw, 1, 4, 2, 6, 48, 4))
    return twinkv(draw, prompt, "snapkv", {
        "near": {"budget": 18, "twin_distance": 2, "twin_num_sinks": 1, "twin_recent": 8},
        "strict": {"budget": 24, "twin_distance": 0, "twin_similarity": 0.95, "twin_recent": 4},
    })


# LagKV

LAGKV_NOTE = (
    "The recursive form. Behind num_sink_tokens, partitions of lag_len tokens by position; one is "
    "cut once the next is complete, at the end of the prompt or of a step, and never again: "
    "per_partition of it stay (a share is rounded down) by s(k) + value_weight s(v), s = softmax "
    "over the partition of the deviation over channels (d - 1) of (x - low) / (high - low), the "
    "range per channel of the next partition, a channel without range 0. Step t appends position P "
    "+ t, step -1 is the end of the prompt. keys, values [num_kv_heads, positions, head_dim]; "
    "X.event.I.step, .kept [num_kv_heads, count]."
)


def lag_side(rows, reference):
    ranges = [(min(column), max(column)) for column in zip(*reference)]
    deviations = []
    for row in rows:
        scaled = [
            (x - low) / (high - low) if high > low else 0.0 for x, (low, high) in zip(row, ranges)
        ]
        squares = math.fsum((x - mean(scaled)) ** 2 for x in scaled)
        deviations.append(math.sqrt(squares / (len(row) - 1)))
    return softmax(deviations)


def lagkv(draw, keys, values, prompt, runs):
    case = Case("lagkv", LAGKV_NOTE)
    heads, positions = len(keys), len(keys[0])
    case.shape(heads, heads, len(keys[0][0]), num_prompt=prompt, steps=positions - prompt)
    case.tensor("keys", "f32", keys)
    case.tensor("values", "f32", values)
    case.runs(runs)
    for run, options in runs.items():
        lag, first = options["lag_len"], options["num_sink_tokens"]
        count = floor_share(options.get("per_partition", "50%"), lag)
        kept = [list(range(prompt)) for _ in range(heads)]
        events, done = 0, 0
        for step in range(-1, positions - prompt):
            length = prompt + step + 1
            if step >= 0:
                for head in kept:
                    head.append(length - 1)
            before = done
            while first + (done + 2) * lag <= length:
                start = first + done * lag
                for h, head in enumerate(kept):
                    sides = [
                        lag_side(x[h][start : start + lag], x[h][start + lag : start + 2 * lag])
                        for x in (keys, values)
                    ]
                    weight = options.get("value_weight", 1.0)
                    scores = [k + weight * v for k, v in zip(*sides)]
                    best = draw.best(scores, count)
                    head[:] = [p for p in head if not start <= p < start + lag or p - start in best]
                done += 1
            if done > before and count < lag:
                name = "%s.event.%d." % (run, events)
                events += 1
                case.int(name + "step", step)
                case.tensor(name + "kept", "i32", [list(head) for head in kept])
        case.int(run + ".num_events", events)
    return case


@case
def lagkv_1_recursive(draw):
    keys, values = draw.numbers(2, 60, 5), draw.numbers(2, 60, 5)
    for row in values[1][20:36]:
        row[2] = 0.5  # a channel without range
    return lagkv(draw, keys, values, 34, {
        "half": {"num_sink_tokens": 4, "lag_len": 8},
        "few": {"num_sink_tokens": 2, "lag_len": 7, "per_partition": "30%", "value_weight": 0.5},
        "keys": {"num_sink_tokens": 0, "lag_len": 10, "per_partition": 3, "value_weight": 0.0},
        "all": {"num_sink_tokens": 3, "lag_len": 6, "per_partition": 6},
    })


# RaaS

RAAS_NOTE = (
    "Step t (0-based) appends position P + t; the row of query head h at step t is the softmax of "
    "logits[t, h, :] over the positions still cached (the new one included). Decode pages of "
    "`page` tokens; the prompt is never evicted. Each step: page mass = sum over the page's tokens "
    "of the mean over all heads of the row; stamp above_threshold: mass > alpha, top_half: the "
    "better half of the pages, rounded up, gives the stamp of this step, and the page that is "
    "written has it in any case. When the cached decode tokens exceed budget, the page with the "
    "oldest stamp goes, whole, the later one of equal ones (R3). evicted: page or -1; kept: "
    "positions."
)


def raas(draw, q_heads, kv_heads, prompt, steps, page, budget, stamp, alpha):
    case = Case("raas", RAAS_NOTE)
    case.shape(q_heads, kv_heads, 1, num_prompt=prompt, steps=steps, page=page, budget=budget)
    case.text("stamp", stamp)
    case.real("alpha", alpha)
    logits = Steps(draw, q_heads, kv_heads, prompt, steps, size=2.5).logits
    case.tensor("logits", "f32", logits)
    kept, stamps, evicted = list(range(prompt)), {}, []
    for step in range(steps):
        kept.append(prompt + step)
        rows = [softmax([logits[step][h][p] for p in kept]) for h in range(q_heads)]
        written = step // page
        mass = {}
        for p, a in zip(kept, mean_rows(rows)):
            if p >= prompt:
                mass[(p - prompt) // page] = mass.get((p - prompt) // page, 0.0) + a
        pages = sorted(mass)
        if stamp == "above_threshold":
            for x in mass.values():
                draw.far(x, alpha, 1.0)
            attended = {j for j in pages if mass[j] > alpha}
        else:
            half = draw.best([mass[j] for j in pages], (len(pages) + 1) // 2)
            attended = {pages[i] for i in half}
        for j in attended | {written}:
            stamps[j] = step
        evicted.append(-1)
        if len(kept) - prompt > budget:
            victim = min((j for j in pages if j != written), key=lambda j: (stamps[j], -j))
            evicted[-1] = victim
            kept = [p for p in kept if p < prompt or (p - prompt) // page != victim]
            del stamps[victim]
    case.tensor("evicted", "i32", evicted)
    case.tensor("kept", "i32", kept)
    case.tensor("pages", "i32", sorted(stamps))
    case.tensor("stamps", "i32", [stamps[j] for j in sorted(stamps)])
    return case


@case
def raas_1_gqa2(draw):
    return raas(draw, 4, 2, 5, 40, 3, 13, "above_threshold", 0.15)


@case
def raas_2_top_half(draw):
    return raas(draw, 3, 1, 4, 36, 4, 16, "top_half", 0.0)


# Chunks over scores of keys


@case
def chunkkv_1_keydiff_partial(draw):
    case = Case("chunkkv", (
        "chunk score = mean over the chunk of the sum over KV heads of -cos(k, mean of unit keys), "
        "the partial last chunk by its own length; max(1, int(chunks (1-ratio))) chunks kept, the "
        "same slots for all heads"))
    heads, n, size = 3, 45, 7
    keys = draw.numbers(heads, n, 4)
    case.shape(6, heads, 4, n=n, chunk_length=size)
    case.text("base", "keydiff")
    case.tensor("keys", "f32", keys)
    scores = [key_scores("keydiff", head) for head in keys]
    case.tensor("scores", "f64", scores)
    case.tensor("protected", "u8", [0] * n)
    total = [math.fsum(column) for column in zip(*scores)]
    chunks = [range(c, min(c + size, n)) for c in range(0, n, size)]
    worth = [mean([total[i] for i in chunk]) for chunk in chunks]
    for name, ratio in (("a", 0.4), ("b", 0.75), ("c", 0.95)):
        best = draw.best(worth, max(1, int(len(chunks) * (1 - ratio))))
        slots = {i for c in best for i in chunks[c]}
        case.real("ratio." + name, ratio)
        case.int("n_kept." + name, len(slots))
        case.int("n_chunks_kept." + name, len(best))
        case.tensor("keep." + name, "u8", [[int(i in slots) for i in range(n)]] * heads)
    return case


# EpiKV's ablations

EPIKV_NOTE = (
    "Step t (0-based) appends position P + t; the row of a query head at step t is the softmax of "
    "logits[t, layer, head, :] over the positions still cached (the new one included). hidden "
    "[num_layers, steps, dim], last_prompt [num_layers, dim], keys [num_layers, num_kv_heads, "
    "positions, head_dim]. g_t = |h_t - h_(t-1)|, z_t = (g_t - mean) / deviation over the last "
    "`window` of them, t included (population; 0 for one value or no spread), frozen. Over "
    "`budget` cached tokens, the prompt and the newest recent_window decoded tokens stay. X.method "
    "attention: the best of the others by minmax(attention received from decoded tokens, mean over "
    "layers and query heads) + hidden_weight minmax(z of `layers`), ranges over the decoded tokens "
    "in the cache, 0 where there is none. segment_hs, seg: the others form segments of "
    "segment_len, the last is short; importance is - the entropy, inside the segment, of the "
    "newest row, mean over the query heads of the last four layers (segment_hs), or the mean over "
    "its tokens, layers and KV heads of the variance (d - 1) of the key's channels (seg); that of "
    "rank r of m (equal: older first) is in third floor(3 r / m) and keeps at most cap_high, "
    "cap_middle or cap_low of its best by z of layers_a - z of layers_b; oldest first until the "
    "budget is used up. X.event.I.step, .kept: positions after a cut."
)


def rolling_z(rows, before, window):
    steps = [
        norm([x - y for x, y in zip(row, last)]) for last, row in zip([before] + rows[:-1], rows)
    ]
    result = []
    for t in range(len(steps)):
        seen = steps[max(0, t + 1 - window) : t + 1]
        deviation = math.sqrt(mean([(x - mean(seen)) ** 2 for x in seen]))
        result.append((steps[t] - mean(seen)) / deviation if deviation > 0 else 0.0)
    return result


@case
def epikv_ablations_1(draw):
    layers, q_heads, kv_heads, dim, prompt, steps = 5, 2, 1, 3, 5, 24
    positions = prompt + steps
    case = Case("epikv_ablations", EPIKV_NOTE)
    case.shape(q_heads, kv_heads, dim, num_layers=layers, num_prompt=prompt, steps=steps)
    logits = [
        [
            [[draw.number(2.0) if p <= prompt + t else 0.0 for p in range(positions)]
             for _ in range(q_heads)]
            for _ in range(layers)
        ]
        for t in range(steps)
    ]
    hidden, last = draw.numbers(layers, steps, 4), draw.numbers(layers, 4)
    keys = draw.numbers(layers, kv_heads, positions, dim)
    for name, values in (("logits", logits), ("hidden", hidden), ("last_prompt", last),
                         ("keys", keys)):
        case.tensor(name, "f32", values)
    segments = {"segment_len": 4, "cap_high": 3, "cap_middle": 2, "cap_low": 1, "window": 6,
                "layers_a": [1.0], "layers_b": [3.0], "recent_window": 3}
    runs = {
        "attention": {"method": "attention", "budget": 14, "recent_window": 3, "layers": [1.0],
                      "window": 3},
        "weighted": {"method": "attention", "budget": 11, "recent_window": 0, "layers": [2.0],
                     "hidden_weight": 2.5, "window": 5},
        "entropy": dict(segments, method="segment_hs", budget=18),
        "variance": dict(segments, method="seg", budget=18),
        "short": dict(segments, method="seg", budget=13, segment_len=3),
    }
    case.runs(runs)

    def minmax(values):
        low, high = min(values), max(values)
        return [(x - low) / (high - low) if high > low else 0.0 for x in values]

    for run, options in runs.items():
        kept, received, events = list(range(prompt)), {}, 0
        by_attention = options["method"] == "attention"
        z = [rolling_z(hidden[l], last[l], options["window"]) for l in range(layers)]
        for step in range(steps):
            kept.append(prompt + step)
            rows = [
                [softmax([row[p] for p in kept]) for row in logits[step][l]] for l in range(layers)
            ]
            for p, a in zip(kept, mean_rows([row for layer in rows for row in layer])):
                received[p] = received.get(p, 0.0) + a
            newest = dict(zip(kept, mean_rows([row for layer in rows[-4:] for row in layer])))
            if len(kept) <= options["budget"]:
                continue
            decoded = [p for p in kept if p >= prompt]
            recent = options["recent_window"]
            stays = set(kept[:prompt]) | set(decoded[len(decoded) - recent :])
            others = [p for p in decoded if p not in stays]
            room = options["budget"] - len(stays)
            if by_attention:
                layer = int(options["layers"][0])
                sides = zip(minmax([received[p] for p in decoded]),
                            minmax([z[layer][p - prompt] for p in decoded]))
                score = dict(zip(decoded, [
                    a + options.get("hidden_weight", 1.0) * b for a, b in sides
                ]))
                best = draw.best([score[p] for p in others], room)
                stays |= {others[i] for i in best}
            else:
                size = options["segment_len"]
                parts = [others[i : i + size] for i in range(0, len(others), size)]
                worth = []
                for part in parts:
                    if options["method"] == "seg":
                        worth.append(mean([
                            math.fsum((x - mean(key)) ** 2 for x in key) / (dim - 1)
                            for p in part for l in range(layers)
                            for key in [keys[l][h][p] for h in range(kv_heads)]
                        ]))
                    else:
                        total = math.fsum(newest[p] for p in part)
                        worth.append(math.fsum(
                            newest[p] / total * math.log(newest[p] / total) for p in part))
                order = sorted(range(len(parts)), key=lambda i: -worth[i])
                for i, j in zip(order, order[1:]):
                    draw.far(worth[i], worth[j], max(abs(x) for x in worth))
                caps = [options["cap_high"], options["cap_middle"], options["cap_low"]]
                a, b = (int(options[name][0]) for name in ("layers_a", "layers_b"))
                for i, part in enumerate(parts):
                    cap = min(caps[3 * order.index(i) // len(parts)], room, len(part))
                    scores = [z[a][p - prompt] - z[b][p - prompt] for p in part]
                    stays |= {part[k] for k in draw.best(scores, cap)}
                    room -= cap
            kept = [p for p in kept if p in stays]
            name = "%s.event.%d." % (run, events)
            events += 1
            case.int(name + "step", step)
            case.tensor(name + "kept", "i32", list(kept))
        case.int(run + ".num_events", events)
    return case


# Adaptive R-KV

ADAPTIVE_NOTE = (
    "One layer, one set for all heads; areas, cuts and rows as in the block_eviction cases. Score "
    "of a token: fmax of the mean over the newest observation_window rows (those that there were, "
    "as they were given, divided by observation_window) and all query heads. Of the blocks between "
    "sinks and recent tokens the ones of the largest sums stay until they hold attention_mass of "
    "all sums, at most the budget's; the rest of the budget goes to the blocks of the largest "
    "diversity: - sum over its tokens i of the mean over the tokens j not chosen so far and over "
    "KV heads of c(i, j), the cosine of the keys, 0 for i = j, set to 0 where it is below the mean "
    "of its row over all tokens between. keys [num_kv_heads, positions, head_dim]. X.event.I.step, "
    ".positions, .kept."
)


def adaptive_rkv(draw, steps, dim, runs):
    case = Case("adaptive_rkv", ADAPTIVE_NOTE)
    steps.write(case, head_dim=dim)
    keys = draw.numbers(steps.kv_heads, steps.positions, dim)
    case.tensor("keys", "f32", keys)
    case.runs(runs)
    units = [[unit(key) for key in head] for head in keys]
    for run, options in runs.items():
        size, budget = options["block_size"], options["budget"]
        window, width = options["observation_window"], options.get("pool_width", 7)
        kept, rows, events = list(range(steps.prompt)), [], 0
        for time in range(max(0, steps.prompt - window) - 1, steps.positions):
            if time < 0:
                continue
            if time >= steps.prompt:
                kept.append(time)
            seen = [p for p in kept if p <= time]
            heads = [steps.row(time, h, seen) for h in range(steps.q_heads)]
            rows.append({p: mean([row[p] for row in heads]) for p in seen})
            if time < steps.prompt - 1 or len(kept) < budget + size:
                continue
            means = [math.fsum(row.get(p, 0.0) for row in rows[-window:]) / window for p in kept]
            scores = [max(means[s : s + width]) for s in range(len(means))]
            first = options["num_sink_tokens"]
            last = len(kept) - options["recent_window"] - len(kept) % size
            blocks = [range(b, b + size) for b in range(first, last, size)]
            places = (budget - first - options["recent_window"]) // size
            worth = [math.fsum(scores[s] for s in block) for block in blocks]
            order = sorted(range(len(blocks)), key=lambda b: -worth[b])
            held, count = 0.0, 0
            while count < places:
                share = held / math.fsum(worth)
                draw.far(share, options["attention_mass"], 1.0)
                if share >= options["attention_mass"]:
                    break
                held += worth[order[count]]
                count += 1
            chosen = draw.best(worth, count)
            between = range(first, last)
            left = [s for b in range(len(blocks)) if b not in chosen for s in blocks[b]]
            diversity = {}
            for i in left:
                of_heads = []
                for head in units:
                    cosines = {
                        j: dot(head[kept[i]], head[kept[j]]) if j != i else 0.0 for j in between
                    }
                    middle = mean(list(cosines.values()))
                    for c in cosines.values():
                        draw.far(c, middle, 0.1)
                    of_heads.append(math.fsum(cosines[j] for j in left if cosines[j] >= middle))
                diversity[i] = -mean(of_heads) / len(left)
            others = [b for b in range(len(blocks)) if b not in chosen]
            sums = [math.fsum(diversity.get(s, 0.0) for s in block) for block in blocks]
            chosen |= draw.best(sums, places - count, others)
            stays = set(range(first)) | set(range(last, len(kept)))
            stays |= {s for b in chosen for s in blocks[b]}
            name = "%s.event.%d." % (run, events)
            events += 1
            case.int(name + "step", time - steps.prompt)
            case.tensor(name + "positions", "i32", list(kept))
            kept = [p for s, p in enumerate(kept) if s in stays]
            case.tensor(name + "kept", "i32", list(kept))
        case.int(run + ".num_events", events)
    return case


@case
def adaptive_rkv_1_gqa2(draw):
    sizes = {"budget": 20, "num_sink_tokens": 4, "recent_window": 4, "block_size": 4,
             "observation_window": 4}
    return adaptive_rkv(draw, Steps(draw, 4, 2, 30, 12), 4, {
        "half": dict(sizes, attention_mass=0.4),
        "diverse": dict(sizes, attention_mass=0.0, pool_width=3),
        "mass": dict(sizes, attention_mass=1.0),
        "few_rows": dict(sizes, attention_mass=0.5, pool_width=1, observation_window=50),
    })


# Scores over steps

AGGREGATED_NOTE = (
    "TOVA's score s, the newest row, mean over all query heads (scope head: over the group), made "
    "into m by a rule over the steps since the token came; the prompt is one step, sampled by its "
    "last row. m_1 = s_1, then single s_t, frozen s_1, ema decay m + (1 - decay) s, cumulative the "
    "sum, lifetime_mean the mean, decayed_sum decay m + s, max. Cut to budget after the prompt and "
    "every step. Rows as in the h2o cases. X.prefill_kept, X.evicted [steps, lanes], X.kept, "
    "X.scores: m of what is kept."
)


def aggregated_tova(draw, steps, runs):
    case = Case("aggregated_tova", AGGREGATED_NOTE)
    steps.write(case)
    case.runs(runs)
    for run, options in runs.items():
        rule, decay = options["temporal_rule"], options.get("decay", 0.8)
        shared = options.get("scope", "layer") == "layer"
        lanes = [range(steps.q_heads)] if shared else [
            range(kv * steps.group, (kv + 1) * steps.group) for kv in range(steps.kv_heads)
        ]
        kept = [list(range(steps.prompt)) for _ in lanes]
        merit = [{} for _ in lanes]
        age = [{} for _ in lanes]

        def step_of(time):
            gone = []
            for lane, heads in enumerate(lanes):
                rows = [steps.row(time, h, kept[lane]) for h in heads]
                for p in kept[lane]:
                    s = mean([row[p] for row in rows])
                    age[lane][p] = n = age[lane].get(p, 0) + 1
                    before = merit[lane].get(p)
                    if before is None:
                        merit[lane][p] = s
                    else:
                        merit[lane][p] = {
                            "single": s,
                            "frozen": before,
                            "ema": decay * before + (1 - decay) * s,
                            "cumulative": before + s,
                            "lifetime_mean": before + (s - before) / n,
                            "decayed_sum": decay * before + s,
                            "max": max(before, s),
                        }[rule]
                best = draw.best([merit[lane][p] for p in kept[lane]], options["budget"])
                if len(kept[lane]) > options["budget"]:
                    gone.append([p for i, p in enumerate(kept[lane]) if i not in best])
                    kept[lane] = [p for i, p in enumerate(kept[lane]) if i in best]
                else:
                    gone.append([])
            return gone

        step_of(steps.prompt - 1)
        case.tensor(run + ".prefill_kept", "i32", [list(k) for k in kept])
        evicted = []
        for step in range(steps.steps):
            for lane in kept:
                lane.append(steps.prompt + step)
            evicted.append([g[0] if g else -1 for g in step_of(steps.prompt + step)])
        case.tensor(run + ".evicted", "i32", evicted)
        case.tensor(run + ".kept", "i32", [list(k) for k in kept])
        case.tensor(run + ".scores", "f64", [[merit[l][p] for p in k] for l, k in enumerate(kept)])
    return case


@case
def aggregated_tova_1_gqa2(draw):
    return aggregated_tova(draw, Steps(draw, 4, 2, 18, 16), {
        "ema": {"budget": 12, "temporal_rule": "ema", "decay": 0.6},
        "mean": {"budget": 10, "temporal_rule": "lifetime_mean", "scope": "head"},
        "sum": {"budget": 12, "temporal_rule": "cumulative"},
        "decayed": {"budget": 9, "temporal_rule": "decayed_sum", "decay": 0.5, "scope": "head"},
        "max": {"budget": 11, "temporal_rule": "max"},
        "frozen": {"budget": 12, "temporal_rule": "frozen", "scope": "head"},
        "single": {"budget": 8, "temporal_rule": "single"},
    })


# Seen-fraction budgets

DECODING_NOTE = (
    "Every compression_interval decoded tokens the cache is cut to floor(T (1 - r)) tokens, at "
    "least 1, of T seen so far, evicted ones included; the product is exact (rule R6), where "
    "binary arithmetic gives one less of T = 10, 20, .. at r = .9. Scores -|k|. step.E counts "
    "tokens seen."
)


@case
def decoding_1_exact_share(draw):
    keys = draw.numbers(2, 60, 4)
    case = Case("decoding", DECODING_NOTE)
    case.shape(2, 2, 4, n=60, n_prefill=20, compression_interval=10)
    case.text("base", "knorm")
    case.real("target_compression_ratio", 0.9)
    case.tensor("keys", "f32", keys)
    kept = [list(range(20)) for _ in keys]
    events = 0
    for seen in range(20, 61):
        if seen > 20:
            for head in kept:
                head.append(seen - 1)
        if seen % 10:
            continue
        if seen > 20:
            for h, head in enumerate(kept):
                scores = [-norm(keys[h][p]) for p in head]
                kept[h] = sorted(head[s] for s in draw.best(scores, seen // 10))
        case.int("step.%d" % events, seen)
        case.int("size.%d" % events, len(kept[0]))
        case.tensor("kept.%d" % events, "i32", [list(head) for head in kept])
        events += 1
    case.int("num_events", events)
    return case


# ---- Caches that are cut while a text grows ---------------------------------------------------

TEXT_NOTE = (
    "prompts [.., 2]: spans of positions, each of which comes whole; what is between and behind "
    "them is decoded one token at a time, and a cut may come after each prompt and each token. "
    "X.gone [num_layers, num_kv_heads, n]: how many tokens the text had at the cut that a token "
    "went in, 0: it stays. X.scores: of what stays, set after set. "
)
SCHEDULE_NOTE = (
    "Over `budget` tokens, protected ones included, the best stay, the lower position of equal "
    "ones; protected: the first num_sink_tokens, the newest recent_window. slack: a cut comes over "
    "budget + slack, down to budget; decode_interval: after every such token behind a prompt, and "
    "after a prompt; cuts_prompts 0: not before something is decoded; only_at_prefill_end: after "
    "prompts alone, of what there is by then. "
)


class Text:
    """A text of prompts and decoded tokens, and who of it is cached by which KV heads."""

    def __init__(self, layers, q_heads, kv_heads, dim, n, prompts):
        self.layers, self.q_heads, self.kv_heads = layers, q_heads, kv_heads
        self.dim, self.n, self.prompts = dim, n, prompts
        self.group = q_heads // kv_heads

    def write(self, case, **tensors):
        case.shape(self.q_heads, self.kv_heads, self.dim, num_layers=self.layers, n=self.n)
        case.tensor("prompts", "i32", [list(span) for span in self.prompts])
        for name, values in tensors.items():
            case.tensor(name, "f32", values)

    def numbers(self, draw, *shape, **others):
        return draw.numbers(self.layers, self.kv_heads, *shape, **others)

    def sets(self, scope):
        """The (layer, KV head) that share their tokens, set by set."""
        layers, heads = range(self.layers), range(self.kv_heads)
        if scope == "model":
            return [[(l, h) for l in layers for h in heads]]
        if scope == "layer":
            return [[(l, h) for h in heads] for l in layers]
        return [[(l, h)] for l in layers for h in heads]

    def in_prompt(self, position):
        return any(first <= position < last for first, last in self.prompts)

    def steps(self):
        """(tokens before, tokens after, tokens decoded behind the newest prompt) of each step."""
        length = end = 0
        while length < self.n:
            first, length = length, length + 1
            if first in dict(self.prompts):
                length = end = dict(self.prompts)[first]
            yield first, length, length - end

    def grow(self, case, run, scope, step):
        """`step(first, length, decoded, kept)` says who stays of each set, None: no cut comes."""
        sets = self.sets(scope)
        kept = [[] for _ in sets]
        gone = [[[0] * self.n for _ in range(self.kv_heads)] for _ in range(self.layers)]
        for first, length, decoded in self.steps():
            for tokens in kept:
                tokens += range(first, length)
            stays = step(first, length, decoded, kept)
            if stays is None:
                continue
            for heads, tokens, staying in zip(sets, kept, stays):
                for p in set(tokens) - staying:
                    for l, h in heads:
                        gone[l][h][p] = length
                tokens[:] = sorted(staying)
        case.tensor(run + ".gone", "i32", gone)
        return kept


def is_turn(options, decoded):
    """Whether a schedule lets a cut come."""
    if options.get("only_at_prefill_end", False) or decoded == 0:
        return decoded == 0 and options.get("cuts_prompts", True)
    return decoded % options.get("decode_interval", 1) == 0


def newest(tokens, options):
    return tokens[max(0, len(tokens) - options.get("recent_window", 0)) :]


def windows(tokens, options):
    return set(tokens[: options.get("num_sink_tokens", 0)]) | set(newest(tokens, options))


def best_of_cache(draw, text, case, run, options, scope, scores_of, exact=False):
    """Keeps the best `budget` of each set by `scores_of(set, tokens)`, {position: score}."""
    budget, slack = options["budget"], options.get("slack", 0)

    def step(first, length, decoded, kept):
        if not is_turn(options, decoded) or max(map(len, kept)) <= budget + slack:
            return None
        stays = []
        for i, tokens in enumerate(kept):
            fixed = windows(tokens, options)
            others = [p for p in tokens if p not in fixed]
            stays.append(
                fixed | draw.best(scores_of(i, tokens), budget - len(fixed), others, exact))
        return stays

    kept = text.grow(case, run, scope, step)
    case.tensor(run + ".scores", "f64",
                [scores_of(i, tokens)[p] for i, tokens in enumerate(kept) for p in tokens])


# Mean-centred norm

MEAN_CENTRED_NOTE = TEXT_NOTE + SCHEDULE_NOTE + (
    "One set per layer; score = mean over its KV heads h of |k_h - mean over the heads of k|. keys "
    "[num_layers, num_kv_heads, n, head_dim]."
)


def mean_centred_norm(draw, text, pairs, runs):
    case = Case("mean_centred_norm", MEAN_CENTRED_NOTE)
    keys = with_equal_keys(text.numbers(draw, text.n, text.dim), pairs)
    text.write(case, keys=keys)
    case.runs(runs)

    def scores_of(layer, tokens):
        result = {}
        for p in tokens:
            of_heads = [head[p] for head in keys[layer]]
            centre = mean_rows(of_heads)
            result[p] = mean([norm([x - m for x, m in zip(key, centre)]) for key in of_heads])
        return result

    for run, options in runs.items():
        best_of_cache(draw, text, case, run, options, "layer", scores_of)
    return case


@case
def mean_centred_norm_1_gqa2(draw):
    text = Text(2, 6, 3, 4, 44, [(0, 18), (28, 36)])
    return mean_centred_norm(draw, text, [], {
        "plain": {"budget": 12},
        "windows": {"budget": 13, "num_sink_tokens": 3, "recent_window": 4},
        "seldom": {"budget": 10, "decode_interval": 4, "recent_window": 1},
        "slack": {"budget": 9, "slack": 3, "num_sink_tokens": 1},
        "no_prompt": {"budget": 14, "cuts_prompts": False},
        "prompts_alone": {"budget": 11, "only_at_prefill_end": True, "recent_window": 2},
    })


@case
def mean_centred_norm_2_ties(draw):
    text = Text(1, 2, 2, 3, 30, [(0, 14)])
    return mean_centred_norm(draw, text, [(1, 2), (1, 5), (3, 8), (1, 11), (5, 16), (3, 17)], {
        "pairs": {"budget": 7},
        "windows": {"budget": 8, "num_sink_tokens": 2, "recent_window": 2},
    })


@case
def mean_centred_norm_3_one_head(draw):
    # Nothing tells tokens apart: the first ones stay.
    return mean_centred_norm(draw, Text(1, 2, 1, 3, 16, [(0, 8)]), [], {
        "equal": {"budget": 5},
        "recent": {"budget": 6, "recent_window": 3},
    })


# KeyDiff over steps

AGGREGATED_KEYDIFF_NOTE = TEXT_NOTE + SCHEDULE_NOTE + (
    "One set per KV head. s_i = -cos(k_i, mean of the unit keys that are cached), sampled once a "
    "step, at the end of a prompt and for each decoded token before the cut, and made into the "
    "score by temporal_rule over the samples since the token came, s_1 its first: single s_t, "
    "frozen s_1, ema decay m + (1 - decay) s from m = s_1 on, cumulative the sum, lifetime_mean "
    "the mean, decayed_sum decay m + s, max, count how many were above temporal_threshold, "
    "last_time -(samples since the last one above it, or since it came); temporal_window W: of "
    "the last W samples. refresh_interval r: behind a prompt tokens 1, 1 + r, .. are sampled "
    "(score_free: 1); a token that comes in between has the mean score of its set until it has a "
    "sample. keys [num_layers, num_kv_heads, n, head_dim]."
)


def of_samples(draw, rule, samples, options):
    """What a rule makes of the samples of a token."""
    decay, limit = options.get("decay", 0.8), options.get("temporal_threshold", 0.0)
    if rule in ("count", "last_time"):
        for s in samples:
            draw.far(s, limit, 1.0)
    recent = samples[-options.get("temporal_window", 0) :]
    if rule == "single":
        return samples[-1]
    if rule == "frozen":
        return samples[0]
    if rule in ("cumulative", "lifetime_mean"):
        return math.fsum(recent) / (len(recent) if rule == "lifetime_mean" else 1)
    if rule == "max":
        return max(recent)
    if rule == "count":
        return float(sum(s > limit for s in recent))
    if rule == "last_time":
        above = [t for t, s in enumerate(samples) if s > limit]
        return float(max(above, default=0) - (len(samples) - 1))
    m = samples[0]
    for s in samples[1:]:
        m = decay * m + (s if rule == "decayed_sum" else (1 - decay) * s)
    return m


def aggregated_keydiff(draw, text, pairs, runs):
    case = Case("aggregated_keydiff", AGGREGATED_KEYDIFF_NOTE)
    keys = with_equal_keys(text.numbers(draw, text.n, text.dim), pairs)
    text.write(case, keys=keys)
    case.runs(runs)
    units = [[unit(key) for key in head] for layer in keys for head in layer]
    for run, options in runs.items():
        samples = [{} for _ in units]
        entry = [{} for _ in units]  # of tokens without a sample

        def score(lane, p):
            if p not in samples[lane]:
                return entry[lane][p]
            return of_samples(draw, options["temporal_rule"], samples[lane][p], options)

        def step(first, length, decoded, kept):
            interval = options.get("refresh_interval", 1)
            sampled = decoded <= 1 or (
                not options.get("score_free", False) and (decoded - 1) % interval == 0)
            for lane, tokens in enumerate(kept):
                if sampled:
                    centre = mean_rows([units[lane][p] for p in tokens])
                    for p in tokens:
                        samples[lane].setdefault(p, []).append(
                            -dot(units[lane][p], centre) / norm(centre))
                else:
                    known = [score(lane, p) for p in tokens if p < first]
                    entry[lane][first] = mean(known)
            if not is_turn(options, decoded) or len(kept[0]) <= options["budget"]:
                return None
            stays = []
            for lane, tokens in enumerate(kept):
                fixed = windows(tokens, options)
                others = [p for p in tokens if p not in fixed]
                scores = {p: score(lane, p) for p in tokens}
                stays.append(fixed | draw.best(scores, options["budget"] - len(fixed), others))
            return stays

        kept = text.grow(case, run, "head", step)
        case.tensor(run + ".scores", "f64",
                    [score(lane, p) for lane, tokens in enumerate(kept) for p in tokens])
    return case


@case
def aggregated_keydiff_1_gqa2(draw):
    text = Text(2, 4, 2, 4, 38, [(0, 16), (26, 31)])
    return aggregated_keydiff(draw, text, [], {
        "ema": {"budget": 11, "temporal_rule": "ema"},
        "windows": {"budget": 12, "temporal_rule": "ema", "decay": 0.5, "num_sink_tokens": 2,
                    "recent_window": 3},
        "mean": {"budget": 9, "temporal_rule": "lifetime_mean"},
        "last_3": {"budget": 11, "temporal_rule": "cumulative", "temporal_window": 3},
        "decayed": {"budget": 10, "temporal_rule": "decayed_sum", "decay": 0.25,
                    "decode_interval": 3},
        "single": {"budget": 8, "temporal_rule": "single", "recent_window": 1},
        "frozen": {"budget": 10, "temporal_rule": "frozen"},
    })


@case
def aggregated_keydiff_2_lazy(draw):
    text = Text(1, 2, 2, 4, 40, [(0, 14), (27, 32)])
    return aggregated_keydiff(draw, text, [], {
        "every_4": {"budget": 10, "temporal_rule": "ema", "refresh_interval": 4},
        "score_free": {"budget": 9, "temporal_rule": "max", "score_free": True,
                       "num_sink_tokens": 1},
        "mean_of_2": {"budget": 11, "temporal_rule": "lifetime_mean", "temporal_window": 2,
                      "refresh_interval": 3, "recent_window": 2},
    })


@case
def aggregated_keydiff_3_ties(draw):
    # Counts are whole numbers, and tokens that came together with equal keys stay equal.
    text = Text(1, 2, 2, 3, 34, [(0, 14)])
    return aggregated_keydiff(draw, text, [(0, 3), (0, 9), (2, 7), (4, 12), (2, 18)], {
        "count": {"budget": 10, "temporal_rule": "count"},
        "count_of_4": {"budget": 9, "temporal_rule": "count", "temporal_window": 4,
                       "temporal_threshold": -0.25},
        "last_time": {"budget": 11, "temporal_rule": "last_time", "recent_window": 2},
        "max": {"budget": 8, "temporal_rule": "max", "num_sink_tokens": 1},
    })


# Pools of sets that share a budget, and thresholds

POOL_NOTE = (
    "What is not protected and scores below `threshold`, or NaN, goes, but for the best that make "
    "up min_keep (1) tokens of a KV head, protected ones counted; KV heads that compete (lane: "
    "each by itself, layer, model) have `budget` tokens each together, protected ones included, of "
    "which each has its best up to min_keep first. "
)


def pooled(draw, kept, fixed, scores, options, pools):
    """Who stays of each set, of scores that floats hold exactly."""
    least = options.get("min_keep", 1)
    threshold = options.get("threshold", -math.inf)
    stays = [set(f) for f in fixed]
    for pool in pools:
        running = {}
        for i in pool:
            others = [p for p in kept[i] if p not in fixed[i]]
            above = [p for p in others if scores[i][p] >= threshold]
            if threshold == -math.inf:
                above = others
            elif len(fixed[i]) + len(above) < least:
                above = sorted(draw.best(scores[i], least - len(fixed[i]), others, exact=True))
            running[i] = above
        room = math.inf
        if "budget" in options:
            room = max(options["budget"] * len(pool) - sum(len(fixed[i]) for i in pool), 0)
        if sum(map(len, running.values())) <= room:
            for i in pool:
                stays[i] |= set(running[i])
            continue
        for i in pool if len(pool) > 1 else []:
            own = draw.best(scores[i], least - len(fixed[i]), running[i], exact=True)
            stays[i] |= own
            running[i] = [p for p in running[i] if p not in own]
            room -= len(own)
        entries = [(i, p) for i in pool for p in running[i]]
        for e in draw.best([scores[i][p] for i, p in entries], room, exact=True):
            stays[entries[e][0]].add(entries[e][1])
    return stays


def pooled_runs(draw, case, text, runs, scores_of, **defaults):
    """`scores_of(options)` is [sets, n]; a cut comes where something goes."""
    case.runs(runs)
    heads, lanes = text.kv_heads, range(text.layers * text.kv_heads)
    for run, options in runs.items():
        options = dict(defaults, **options)
        scores = scores_of(options)
        pools = {
            "lane": [[i] for i in lanes],
            "layer": [list(lanes[l * heads : (l + 1) * heads]) for l in range(text.layers)],
            "model": [list(lanes)],
        }[options.get("competition", "lane")]

        def step(first, length, decoded, kept):
            if not is_turn(options, decoded):
                return None
            fixed = [windows(tokens, options) for tokens in kept]
            return pooled(draw, kept, fixed, scores, options, pools)

        kept = text.grow(case, run, "head", step)
        case.tensor(run + ".scores", "f64",
                    [scores[i][p] for i, tokens in enumerate(kept) for p in tokens])


# DMS over Q-Filters

DMS_NOTE = TEXT_NOTE + POOL_NOTE + (
    "Score = -<f, k> with the filter f of the KV head. Protected: the first num_sink_tokens, the "
    "newest recent_window. Without a budget all that the threshold leaves stays. "
    "only_at_prefill_end, decode_interval, cuts_prompts: when a cut may come, as in the "
    "mean_centred_norm cases. q_filter [num_layers, num_kv_heads, head_dim], keys [num_layers, "
    "num_kv_heads, n, head_dim]; products are exact in floats."
)


def dms_qfilters(draw, text, pairs, runs):
    case = Case("dms_qfilters", DMS_NOTE)
    keys = with_equal_keys(text.numbers(draw, text.n, text.dim), pairs)
    filters = text.numbers(draw, text.dim, size=0.75)
    text.write(case, q_filter=filters, keys=keys)
    scores = [
        [-dot(filters[l][h], key) for key in keys[l][h]]
        for l in range(text.layers) for h in range(text.kv_heads)
    ]
    # Thresholds that some score equals.
    runs = {
        run: {k: sorted(scores[0])[int(v)] if k == "threshold" else v for k, v in options.items()}
        for run, options in runs.items()
    }
    pooled_runs(draw, case, text, runs, lambda options: scores)
    return case


@case
def dms_qfilters_1_gqa2(draw):
    text = Text(2, 4, 2, 4, 44, [(0, 18), (29, 36)])
    return dms_qfilters(draw, text, [], {
        "plain": {"threshold": 15, "recent_window": 6},
        "no_window": {"threshold": 40, "recent_window": 0},
        "windows": {"threshold": 20, "recent_window": 4, "num_sink_tokens": 3},
        "budget": {"threshold": 8, "recent_window": 5, "budget": 14},
        "seldom": {"threshold": 18, "recent_window": 3, "decode_interval": 4},
        "prompts_alone": {"threshold": 22, "recent_window": 2, "only_at_prefill_end": True},
    })


@case
def dms_qfilters_2_ties(draw):
    text = Text(1, 2, 2, 3, 34, [(0, 16)])
    pairs = [(0, 4), (0, 9), (1, 6), (3, 12), (3, 13), (1, 20), (0, 24)]
    return dms_qfilters(draw, text, pairs, {
        "threshold": {"threshold": 12, "recent_window": 4},
        "all_below": {"threshold": 33, "recent_window": 0},
        "budget": {"threshold": 3, "recent_window": 0, "budget": 9, "num_sink_tokens": 1},
    })


# Scores from outside

EXTERNAL_NOTE = TEXT_NOTE + POOL_NOTE + (
    "Score = token_scores [num_layers, num_kv_heads, n] of the tokens that has_score [n] marks, "
    "`unscored` (0) of the others. Protected: the first num_sink_tokens, the newest recent_window. "
    "Policy kvzap: a threshold, a window, no budget. only_at_prefill_end: only after prompts."
)


def external_scores(draw, policy, text, runs, special=(), **defaults):
    case = Case(policy, EXTERNAL_NOTE)
    given = text.numbers(draw, text.n, size=4.0)
    for l, h, p, value in special:
        given[l][h][p] = value
    marks = [int(p % 5 != 3) for p in range(text.n)]
    text.write(case, token_scores=given)
    case.tensor("has_score", "u8", marks)
    pooled_runs(draw, case, text, runs, lambda options: [
        [x if marked else options.get("unscored", 0.0) for x, marked in zip(head, marks)]
        for layer in given for head in layer
    ], **defaults)
    return case


@case
def kvzap_1_gqa2(draw):
    return external_scores(draw, "kvzap", Text(1, 4, 2, 1, 150, [(0, 24), (38, 48)]), {
        "defaults": {},
        "window": {"recent_window": 8},
        "strict": {"threshold": 2.5, "recent_window": 5},
        "no_window": {"threshold": 0.0, "recent_window": 0},
        "all_below": {"threshold": 50.0, "recent_window": 0},
    }, threshold=-4.0, recent_window=128)


@case
def external_scores_1_gqa2(draw):
    return external_scores(draw, "external_scores", Text(2, 4, 2, 1, 48, [(0, 20), (31, 38)]), {
        "plain": {"budget": 13},
        "windows": {"budget": 14, "num_sink_tokens": 3, "recent_window": 4, "unscored": 1.5},
        "layer": {"budget": 10, "competition": "layer", "min_keep": 6, "recent_window": 2},
        "model": {"budget": 9, "competition": "model", "recent_window": 1},
        "threshold": {"budget": 12, "competition": "model", "threshold": 0.5, "min_keep": 3,
                      "unscored": -1.0},
        "prompts_alone": {"budget": 11, "competition": "layer", "only_at_prefill_end": True},
    })


@case
def external_scores_2_ties(draw):
    # Few values, infinities and NaN among them.
    text = Text(2, 2, 2, 1, 32, [(0, 16)])
    special = [
        (l, h, p, [2.0, -1.0, 0.5, 2.0, math.nan, -math.inf, 0.5, math.inf][(p * (3 + h) + l) % 8])
        for l in range(2) for h in range(2) for p in range(text.n)
    ]
    return external_scores(draw, "external_scores", text, {
        "lane": {"budget": 9},
        "model": {"budget": 8, "competition": "model", "min_keep": 2, "num_sink_tokens": 1},
        "threshold": {"budget": 20, "threshold": 0.5, "unscored": 0.5},
        "equal_windows": {"budget": 10, "competition": "layer", "recent_window": 3},
    }, special)


# Random draws

RANDOM_NOTE = TEXT_NOTE + (
    "Random numbers come from counters, modulo 2^64, mix(x) being what SplitMix64 gives from state "
    "x, c = 0xD1342543DE82EF95: mix(mix(seed + mix(set) + c sequence_id) + position + c firing), "
    "of which the highest 24 bits are the score; set counts the sets of tokens by (layer, KV head)"
)
EVICTION_NOTE = RANDOM_NOTE + (
    ", one for all of them where `shared`; firing 0. After each prompt and token the best `budget` "
    "stay. Protected: prompts (protect_prompt), then, as far as the budget has room, the newest "
    "recent_window, then the first num_sink_tokens. only_at_prefill_end: after prompts alone, of "
    "what there is by then. X.draws: the scores of what stays."
)
ATTENTION_NOTE = RANDOM_NOTE + (
    ", layer or all of them (scope); firing counts the cuts before. Where the text was decoded "
    "from and budget + interval tokens are cached, the newest R = recent_window stay, of the "
    "prompts (protect prompt; plan_prefix: and plan_tokens tokens behind each) the first budget - "
    "R - 1 that are not among those, and the best of the others up to `budget`."
)


def draws_of(options, lane, tokens, firing=0):
    return {p: random_bits(options, lane, p, firing) >> 40 for p in tokens}


def random_eviction(draw, text, runs):
    case = Case("random_eviction", EVICTION_NOTE)
    text.write(case)
    case.runs(runs)
    for run, options in runs.items():
        budget, at_ends = options["budget"], options.get("only_at_prefill_end", False)

        def step(first, length, decoded, kept):
            if at_ends and decoded > 0:
                return None
            stays = []
            for lane, tokens in enumerate(kept):
                fixed = {p for p in tokens if options.get("protect_prompt") and text.in_prompt(p)}
                recent = newest(tokens, options)
                for p in recent[::-1] + tokens[: options.get("num_sink_tokens", 0)]:
                    if len(fixed) < budget:
                        fixed.add(p)
                others = [p for p in tokens if p not in fixed]
                draws = draws_of(options, lane, tokens)
                stays.append(fixed | draw.best(draws, budget - len(fixed), others, exact=True))
            return stays

        kept = text.grow(case, run, "model" if options.get("shared", False) else "head", step)
        case.tensor(run + ".draws", "i32", [
            x for lane, tokens in enumerate(kept) for x in draws_of(options, lane, tokens).values()
        ])
    return case


@case
def random_eviction_1_gqa2(draw):
    return random_eviction(draw, Text(2, 4, 2, 1, 64, [(0, 24), (40, 52)]), {
        "plain": {"budget": 14},
        "windows": {"budget": 16, "seed": 7, "num_sink_tokens": 3, "recent_window": 4},
        "shared": {"budget": 12, "seed": "18446744073709551615", "sequence_id": 5,
                   "shared": True},
        "prompt": {"budget": 42, "seed": 3, "protect_prompt": True, "recent_window": 2},
        "little_room": {"budget": 38, "seed": 6, "protect_prompt": True, "recent_window": 4,
                        "num_sink_tokens": 1},
        "prompt_beyond": {"budget": 30, "seed": 4, "protect_prompt": True, "recent_window": 3},
        "prompts_alone": {"budget": 15, "sequence_id": 1, "only_at_prefill_end": True,
                          "recent_window": 3},
        "tie": {"budget": 14, "seed": 11358},  # two tokens draw the same number
    })


def random_attention(draw, text, runs):
    case = Case("random_attention", ATTENTION_NOTE)
    text.write(case)
    case.runs(runs)
    for run, options in runs.items():
        budget, scope = options["budget"], options.get("scope", "head")
        firings = 0

        def step(first, length, decoded, kept):
            nonlocal firings
            if decoded == 0 or len(kept[0]) < budget + options["interval"]:
                return None
            protect = options.get("protect", "prompt")
            behind = options["plan_tokens"] if protect == "plan_prefix" else 0
            stays = []
            for lane, tokens in enumerate(kept):
                fixed = set(newest(tokens, options))
                spans = [] if protect == "none" else text.prompts
                for a, b in spans:
                    for p in tokens:
                        if a <= p < b + behind and p not in fixed and len(fixed) < budget - 1:
                            fixed.add(p)
                others = [p for p in tokens if p not in fixed]
                draws = draws_of(options, lane, tokens, firings)
                stays.append(fixed | draw.best(draws, budget - len(fixed), others, exact=True))
            firings += 1
            return stays

        text.grow(case, run, scope, step)
        case.int(run + ".num_firings", firings)
    return case


@case
def random_attention_1_gqa2(draw):
    return random_attention(draw, Text(2, 4, 2, 1, 84, [(0, 20), (48, 58)]), {
        "prompt": {"budget": 40, "interval": 4, "recent_window": 5, "seed": 3},
        "prompt_gives_way": {"budget": 18, "interval": 3, "recent_window": 4, "seed": 4,
                             "sequence_id": 9},
        "none": {"budget": 16, "interval": 6, "recent_window": 3, "protect": "none"},
        "plan": {"budget": 36, "interval": 5, "recent_window": 4, "protect": "plan_prefix",
                 "plan_tokens": 6},
        "layer": {"budget": 32, "interval": 7, "recent_window": 0, "scope": "layer", "seed": 11},
        "model": {"budget": 24, "interval": 1, "recent_window": 6, "scope": "model",
                  "sequence_id": 2, "protect": "none"},
        "tie": {"budget": 16, "interval": 6, "recent_window": 3, "protect": "none",
                "seed": 65830},  # the same
    })


# RaaS by Quest's bounds

BOUNDS_NOTE = TEXT_NOTE + (
    "Pages of page_size tokens, counted by position from the beginning of each prompt and from the "
    "end of it; one set per layer. A decoded token's query q of head h gives a page the logit sum "
    "over channels c of max(q_c low_c, q_c high_c), the range of the page's cached keys in the KV "
    "head, times 1 / sqrt(head_dim), put through cap tanh(x / cap) where soft_cap is not 0; "
    "softmax over all pages, those of prompts and its own included, mean over query heads. Decoded "
    "pages above `threshold` (stamp top_half: the better half of them, rounded up, the earlier of "
    "equal ones) and the page that it is written to get its position for a stamp. Over `budget` "
    "tokens, prompts included, the decoded page with the oldest stamp goes, the later of equal "
    "ones, until the budget is met; of the page that is written only the oldest tokens, and only "
    "when it is the last. queries [num_layers, num_q_heads, n, head_dim], keys [num_layers, "
    "num_kv_heads, n, head_dim]; X.stamps [num_layers, n]: of the page of each decoded token that "
    "stays, 0 elsewhere."
)


def raas_bounds(draw, text, pairs, soft_cap, runs):
    case = Case("raas_bounds", BOUNDS_NOTE)
    keys = with_equal_keys(text.numbers(draw, text.n, text.dim), pairs)
    queries = draw.numbers(text.layers, text.q_heads, text.n, text.dim, size=2.0)
    text.write(case, queries=queries, keys=keys)
    case.real("soft_cap", soft_cap)
    case.runs(runs)
    origins = sorted(x for span in text.prompts for x in span)
    for run, options in runs.items():
        size = options["page_size"]
        stamps = [{} for _ in range(text.layers)]

        def page_of(p):
            origin = max(o for o in origins if o <= p)
            return origin, (p - origin) // size

        def weights(layer, tokens, time):
            pages = {}
            for p in tokens:
                pages.setdefault(page_of(p), []).append(p)
            rows = []
            for h in range(text.q_heads):
                q, cached = queries[layer][h][time], keys[layer][h // text.group]
                logits = []
                for members in pages.values():
                    columns = list(zip(*[cached[p] for p in members]))
                    bound = math.fsum(max(x * min(c), x * max(c)) for x, c in zip(q, columns))
                    bound /= math.sqrt(text.dim)
                    logits.append(soft_cap * math.tanh(bound / soft_cap) if soft_cap else bound)
                rows.append(softmax(logits))
            return dict(zip(pages, mean_rows(rows)))

        def step(first, length, decoded, kept):
            if decoded == 0:
                return None
            time, stays = length - 1, []
            for layer, tokens in enumerate(kept):
                weight = weights(layer, tokens, time)
                pages = [page for page in weight if not text.in_prompt(page[0])]
                if options.get("stamp", "above_threshold") == "top_half":
                    half = draw.best([weight[page] for page in pages], (len(pages) + 1) // 2)
                    attended = {pages[i] for i in half}
                else:
                    for page in pages if options["threshold"] > 0 else []:
                        draw.far(weight[page], options["threshold"], 1.0)
                    attended = {page for page in pages if weight[page] > options["threshold"]}
                for page in attended | {page_of(time)}:
                    stamps[layer][page] = time
                stay = list(tokens)
                while len(stay) > options["budget"]:
                    free = [p for p in stay if not text.in_prompt(p)]
                    pages = {page_of(p) for p in free} - {page_of(time)}
                    if pages:
                        stamp, origin, number = min(
                            (stamps[layer][(o, k)], -o, -k) for o, k in pages)
                        stay = [p for p in stay if page_of(p) != (-origin, -number)]
                    elif free:
                        stay.remove(free[0])
                    else:
                        break
                stays.append(set(stay))
            return stays

        kept = text.grow(case, run, "layer", step)
        case.tensor(run + ".stamps", "i32", [
            [stamps[l][page_of(p)] if p in tokens and not text.in_prompt(p) else 0
             for p in range(text.n)]
            for l, tokens in enumerate(kept)
        ])
    return case


@case
def raas_bounds_1_gqa2(draw):
    text = Text(2, 4, 2, 3, 46, [(0, 7), (27, 33)])
    return raas_bounds(draw, text, [], 0.0, {
        "plain": {"budget": 25, "page_size": 3, "threshold": 0.08},
        "half": {"budget": 26, "page_size": 4, "stamp": "top_half"},
        "one_token": {"budget": 22, "page_size": 1, "threshold": 0.05},
        "page_alone": {"budget": 15, "page_size": 5, "threshold": 0.3},
        "fits": {"budget": 46, "page_size": 4, "threshold": 0.1},
    })


@case
def raas_bounds_2_soft_cap(draw):
    text = Text(1, 3, 1, 4, 40, [(0, 6)])
    return raas_bounds(draw, text, [], 2.5, {
        "plain": {"budget": 20, "page_size": 3, "threshold": 0.09},
        "below_a_page": {"budget": 9, "page_size": 6, "threshold": 0.2},
        "below_the_prompt": {"budget": 5, "page_size": 4, "threshold": 0.2},
    })


@case
def raas_bounds_3_ties(draw):
    # Pages with the same keys weigh the same, and what nobody attends to has its first stamps.
    text = Text(1, 2, 2, 3, 34, [(0, 4)])
    pairs = [(4 + i, 8 + i) for i in range(4)] + [(4 + i, 16 + i) for i in range(4)]
    return raas_bounds(draw, text, pairs, 0.0, {
        "half": {"budget": 20, "page_size": 4, "stamp": "top_half"},
        "nobody": {"budget": 18, "page_size": 4, "threshold": 1.0},
        "all": {"budget": 18, "page_size": 4, "threshold": 0.0},
    })


# TriAttention with statistics of the text itself

CENTRES_NOTE = TEXT_NOTE + (
    "keys and queries are as attention used them: band f of a token's is channels (f, f + F) of "
    "the 2 F = rotary_dim that turn, turned by position times inv_freq_f and multiplied by s = "
    "attention_scaling. Over the queries before turning of all tokens so far, per query head: m_f "
    "the mean, a_f the mean length (Ll.q_mean_real, .q_mean_imag, .q_abs_mean [num_q_heads, F]: at "
    "the end). With t tokens in the text a key k of position p before turning has S = mean "
    "over o = 1, 2, 4, .. largest_offset of s^2 sum_f |m_f| |k_f| cos(inv_freq_f (t - p + o) + arg "
    "m_f - arg k_f) + s^2 sum_f (a_f - |m_f|) |k_f|; below min_queries queries S is its place. z = "
    "(S - mean) / max(deviation, 1e-6) over what may go, then the maximum over the query heads of "
    "a KV head; mode per_layer_head: one set for each, per_head: one over all layers, the mean of "
    "theirs, union: one set, the maximum over layers and heads, from first_layer on. A cut comes "
    "at budget + interval tokens, inside no prompt, and leaves budget: the newest recent_window, "
    "of the prompts (protect_prompt) the first that leave one place beside those, the first "
    "num_sink_tokens, the best."
)


def turned_back(row, position, inv_freq, scaling):
    """Its bands before turning, as complex numbers."""
    bands = len(inv_freq)
    return [
        complex(row[f], row[f + bands]) * cmath.exp(-1j * inv_freq[f] * position) / scaling
        for f in range(bands)
    ]


def triattention_online(draw, text, inv_freq, scaling, runs):
    case = Case("triattention_online", CENTRES_NOTE)
    keys = text.numbers(draw, text.n, text.dim)
    # Queries gather around a centre.
    centres = draw.numbers(text.layers, text.q_heads, text.dim, size=1.5)
    queries = draw.numbers(text.layers, text.q_heads, text.n, text.dim, size=1.0)
    for centre_of, layer in zip(centres, queries):
        for centre, head in zip(centre_of, layer):
            for p, query in enumerate(head):
                for f, w in enumerate(inv_freq):
                    d = f + len(inv_freq)
                    band = complex(centre[f], centre[d]) * cmath.exp(1j * w * p)
                    query[f] = round((query[f] + band.real) * 16) / 16
                    query[d] = round((query[d] + band.imag) * 16) / 16
    text.write(case, queries=queries, keys=keys)
    case.tensor("inv_freq", "f64", inv_freq)
    case.real("attention_scaling", scaling)
    case.runs(runs)

    def back(rows):
        return [turned_back(row, p, inv_freq, scaling) for p, row in enumerate(rows)]

    bands = range(len(inv_freq))
    keys = [[back(head) for head in layer] for layer in keys]
    queries = [[back(head) for head in layer] for layer in queries]

    def statistics(layer, head, count):
        seen = list(zip(*queries[layer][head][:count]))
        return [sum(band) / count for band in seen], [mean(list(map(abs, b))) for b in seen]

    def score(layer, head, p, place, length, options, m, a):
        if length < options.get("min_queries", 64):
            return float(place)
        k = keys[layer][head // text.group][p]
        offsets, total = [], 0.0
        while not offsets or 2 * offsets[-1] <= options["largest_offset"]:
            offsets.append(2 * offsets[-1] if offsets else 1)
        for f in bands:
            phase = cmath.phase(m[f]) - cmath.phase(k[f])
            total += abs(m[f]) * abs(k[f]) * mean([
                math.cos(inv_freq[f] * (length - p + o) + phase) for o in offsets
            ]) + (a[f] - abs(m[f])) * abs(k[f])
        return scaling * scaling * total

    def of_kv_head(layer, kv, candidates, tokens, length, options):
        """z of each candidate, the largest of the group."""
        of_heads = []
        for h in range(kv * text.group, (kv + 1) * text.group):
            m, a = statistics(layer, h, length)
            s = [score(layer, h, p, tokens.index(p), length, options, m, a) for p in candidates]
            deviation = math.sqrt(mean([(x - mean(s)) ** 2 for x in s]))
            of_heads.append([(x - mean(s)) / max(deviation, 1e-6) for x in s])
        return reduce_group(of_heads, "max")

    for run, options in runs.items():
        budget, mode = options["budget"], options.get("mode", "per_layer_head")
        first_layer = {"per_layer_head": 0, "per_head": 0, "union": text.layers // 2}[mode]
        first_layer = options.get("first_layer", first_layer)

        def step(first, length, decoded, kept):
            if len(kept[0]) < budget + options["interval"]:
                return None
            own, fixed = [], []
            for tokens in kept:
                stay = set(newest(tokens, options))
                for p in tokens if options.get("protect_prompt", True) else []:
                    if text.in_prompt(p) and p not in stay and len(stay) < budget - 1:
                        stay.add(p)
                for p in tokens[: options["num_sink_tokens"]]:
                    if len(stay) < budget:
                        stay.add(p)
                fixed.append(stay)
            sets = text.sets("model" if mode == "union" else "head")
            for heads, tokens, stay in zip(sets, kept, fixed):
                others = [p for p in tokens if p not in stay]
                own.append({
                    lane: of_kv_head(*lane, others, tokens, length, options)
                    for lane in heads if lane[0] >= first_layer
                })
            stays = []
            for i, (tokens, stay) in enumerate(zip(kept, fixed)):
                others = [p for p in tokens if p not in stay]
                if mode == "per_head":
                    kv = sets[i][0][1]
                    z = mean_rows([of[lane] for of in own for lane in of if lane[1] == kv])
                else:
                    z = reduce_group(list(own[i].values()), "max")
                best = draw.best(z, budget - len(stay))
                stays.append(stay | {others[j] for j in best})
            return stays

        text.grow(case, run, "model" if mode == "union" else "head", step)
    for l in range(text.layers):
        whole = [statistics(l, h, text.n) for h in range(text.q_heads)]
        case.tensor("L%d.q_mean_real" % l, "f64", [[x.real for x in m] for m, a in whole])
        case.tensor("L%d.q_mean_imag" % l, "f64", [[x.imag for x in m] for m, a in whole])
        case.tensor("L%d.q_abs_mean" % l, "f64", [a for m, a in whole])
    return case


@case
def triattention_online_1_gqa2(draw):
    text = Text(2, 4, 2, 5, 34, [(0, 10), (22, 26)])
    sizes = {"recent_window": 3, "num_sink_tokens": 1, "largest_offset": 64, "min_queries": 10}
    return triattention_online(draw, text, [1.0, 0.1], 1.25, {
        "per_layer_head": dict(sizes, budget=20, interval=4),
        "unprotected": dict(sizes, budget=12, interval=3, protect_prompt=False),
        "gives_way": dict(sizes, budget=10, interval=2),
        "no_windows": dict(sizes, budget=12, interval=5, protect_prompt=False, recent_window=0,
                           num_sink_tokens=0),
        "per_head": dict(sizes, budget=16, interval=3, mode="per_head", protect_prompt=False),
        "union": dict(sizes, budget=14, interval=4, mode="union", protect_prompt=False),
        "union_of_all": dict(sizes, budget=15, interval=3, mode="union", first_layer=0,
                             protect_prompt=False, largest_offset=1),
        "few_queries": dict(sizes, budget=9, interval=2, protect_prompt=False, min_queries=30),
    })


# ---- Program ----------------------------------------------------------------------------------


def read(path):
    """Records of a file: the words of each line, by line."""
    with open(path, encoding="utf-8") as file:
        return [line.split() for line in file.read().splitlines()]


def same(expected, found):
    if expected == found:
        return True
    try:
        a, b = float(expected), float(found)
    except ValueError:
        return False
    return "." in expected + found and abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-3)


def difference(expected, found):
    """What differs first, or None."""
    for number, (a, b) in enumerate(zip(expected, found)):
        if a[:2] == ["real", "min_gap"]:
            continue
        if len(a) != len(b) or not all(map(same, a, b)):
            return "line %d" % (number + 1)
    return None if len(expected) == len(found) else "number of lines"


def check(folder):
    failures = []
    for name in CASES:
        path = os.path.join(folder, name + ".txt")
        if not os.path.exists(path):
            failures.append("%s is missing" % path)
            continue
        where = difference([line.split() for line in made(name).lines()], read(path))
        if where:
            failures.append("%s: %s is not what is computed now" % (path, where))
    for name in sorted(os.listdir(folder)):
        if name[: -len(".txt")] not in CASES:
            failures.append("%s is made by no function here" % os.path.join(folder, name))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--check":
        return check(arguments[1])
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    os.makedirs(arguments[0], exist_ok=True)
    for name in CASES:
        with open(os.path.join(arguments[0], name + ".txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(made(name).lines()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
