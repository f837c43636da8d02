#!/usr/bin/env python3
"""Train the small recall model and write it as an F16 GGUF file.

The model looks facts up: it reads names with their values, scattered in filler, and then says the
value of each name that it is asked for. It answers perfectly only if its cache still holds the
facts, so it shows within seconds what an eviction policy keeps.

    python3 examples/models/train_recall.py --out examples/models/recall.gguf
    python3 examples/models/train_recall.py --out examples/models/recall.gguf --eval-only

Needs PyTorch (CPU) and nothing else. The seed is fixed: a second run with the same PyTorch on the
same kind of processor gives the same file; elsewhere rounding differs, the recall hardly does.

Prompt
------
Every word is written with one space before it, the first one too, and is then exactly one token:

    prompt := body ask* query*
    body   := (filler | fact)*      fact  := " name" " value"     each name at most once
    ask    := " ?" " name"          a question that stays open: the text goes on without its value
    query  := " ?" " name" " value" the value is what the model has to say after the name

For example " the was Ben lamp of at Cleo coin to ? Cleo ? Ben ? Ben" is followed by " lamp". The
model says the value after every " ? name", in an ask as in a query. Asks therefore make its last
tokens attend to the facts that are wanted later, before any of them is answered: a policy that
cuts the cache after the prompt should see asks for the names in its observation window, and the
queries come after the cut. (The value right after the prompt's last token is of no use in a test:
it was computed before the cut.)

The words are in the metadata as string arrays, without their space: `kvevict.recall.names` (128),
`kvevict.recall.values` (64), `kvevict.recall.filler` (128), and `kvevict.recall.query` is "?".
There is no begin token. Other text becomes several pieces per word and counts as filler. Prompts
of up to 1,152 tokens with their queries are what it was trained on.

Tokeniser
---------
Byte-level BPE in GPT-2's alphabet. Each merge extends a piece that starts with a space by one
letter, so every word is built from the left, pieces of two words cannot disturb each other, and
the order of the merges is irrelevant.

Training
--------
A loss on the values only, and a curriculum: few names in short texts first. The attention pattern
(find the token after the same name) is learnt there within a minute and carries over to all names
and to long texts, while training that starts with those stays on a plateau far longer.
"""

import argparse
import math
import struct
import sys
import time
from collections import namedtuple

import torch
import torch.nn.functional as F

NAMES = """
Abe Ada Adam Aida Alan Alex Alice Alma Amos Amy Andy Anna Anton Ava Axel Bea Beth Ben Bert Bill
Bob Brad Bruno Cal Cara Carl Carol Cate Clara Clay Cleo Clem Cora Cyril Dale Dan Dana Dave Dean
Della Diana Dora Dirk Drew Earl Edna Ella Ellen Elmo Elsa Emil Emma Eric Erin Esme Eva Evan Ezra
Faye Felix Finn Flora Frank Fred Gail Gary Gene Gina Glen Grace Greg Greta Gus Hal Hank Hans Helen
Henry Hugo Ian Ida Igor Ines Ira Iris Ivan Ivy Jack Jake Jane Jean Jill Joan John June Karl Kate
Ken Kim Kurt Lars Lena Leo Lily Lisa Lola Luca Lucy Mae Marc Maria Mary Max Mia Milo Nina Noah Nora
Olga Omar Oscar Otto Owen Paul Pete Ralph Rita Rosa
""".split()

VALUES = """
apple arrow ball barn bean bell belt boat bone book boot bowl brick bus cake card chair clock coat
coin cup desk dish door drum egg fan flag flute fork gate glove goat hat horn jar kite knife lamp
leaf lemon lock mask moon nail nest pear pen piano plum pot ring rope rose sail shoe spoon star
stone table tent tower wheel wand
""".split()

FILLER = """
a about after again all also am an and any are as at away back be been both but by came can come
did do done down each else even ever few for from gave get give go had has have he her here him his
how i if in into is it its just last less like long lot made make many may me more most much must my
near next no nor not now of off old on once one only or our out over own per said same saw say
see she so some soon still such take than that the their them then there these they this to too two
up us very was way we well went were what when who why will
""".split()

QUERY = "?"
END_OF_TEXT = "<|endoftext|>"

CONTEXT_LENGTH = 1152
WIDTH = 128
NUM_LAYERS = 4
NUM_Q_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = WIDTH // NUM_Q_HEADS
FFN_WIDTH = 256
NORM_EPSILON = 1e-5
ROPE_BASE = 10000.0


# --- Tokeniser -----------------------------------------------------------------------------------


def byte_alphabet():
    """GPT-2's character of each byte: itself if printable, else the next free code from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(hidden)}


ALPHABET = byte_alphabet()


def to_alphabet(text):
    return "".join(ALPHABET[b] for b in text.encode("utf-8"))


def build_vocabulary(words):
    """Tokens and merges that build every " word" from the left, one letter at a time."""
    tokens = {character: i for i, character in enumerate(ALPHABET.values())}
    merges = []
    for word in words:
        spelled = to_alphabet(" " + word)
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in tokens:
                tokens[spelled[:end]] = len(tokens)
                merges.append(spelled[: end - 1] + " " + spelled[end - 1])
    tokens[END_OF_TEXT] = len(tokens)
    return tokens, merges


def encode_word(word, tokens, ranks):
    """The plain BPE loop for one pre-tokenised word: apply the merge of the lowest rank, repeat."""
    pieces = list(to_alphabet(word))
    while len(pieces) > 1:
        pairs = enumerate(zip(pieces, pieces[1:]))
        rank, i = min((ranks.get(f"{a} {b}", math.inf), i) for i, (a, b) in pairs)
        if rank == math.inf:
            break
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return [tokens[piece] for piece in pieces]


class Vocabulary:
    def __init__(self):
        words = [*NAMES, *VALUES, *FILLER, QUERY]
        self.tokens, self.merges = build_vocabulary(words)
        ranks = {merge: rank for rank, merge in enumerate(self.merges)}
        assert len(set(words)) == len(words), "the word lists overlap"
        for word in words:
            ids = encode_word(" " + word, self.tokens, ranks)
            assert ids == [self.tokens[to_alphabet(" " + word)]], f"'{word}' is {len(ids)} tokens"

        def ids_of(some):
            return torch.tensor([self.tokens[to_alphabet(" " + word)] for word in some])

        self.names, self.values, self.filler = ids_of(NAMES), ids_of(VALUES), ids_of(FILLER)
        self.query = self.tokens[to_alphabet(" " + QUERY)]
        taken = {*self.names.tolist(), *self.values.tolist(), self.query, self.tokens[END_OF_TEXT]}
        self.neutral = torch.tensor([i for i in self.tokens.values() if i not in taken])


# --- Text ----------------------------------------------------------------------------------------


def make_prompts(vocabulary, generator, *, count, body, facts, names, asks, queries):
    """Random prompts: ids [count, body + 2 * asks + 3 * queries], and for each ask and query the
    position of its name [asks + queries] and the value to be said there [count, asks + queries].

    The queries are about different random facts; so are the asks, which in half of the prompts
    are about the facts that the queries start with.
    """

    def integers(high, *size):
        return torch.randint(high, size, generator=generator)

    def subset(pool, size):
        return torch.rand(count, pool, generator=generator).argsort(1)[:, :size]

    ids = vocabulary.filler[integers(len(vocabulary.filler), count, body)]
    stray = vocabulary.neutral[integers(len(vocabulary.neutral), count, body)]
    ids = torch.where(torch.rand(count, body, generator=generator) < 0.02, stray, ids)

    name = vocabulary.names[subset(names, facts)]
    value = vocabulary.values[integers(len(vocabulary.values), count, facts)]
    # A fact is two tokens: choose places among `body - facts` units, then make room for the values.
    place = subset(body - facts, facts).sort(1).values + torch.arange(facts)
    ids.scatter_(1, place, name)
    ids.scatter_(1, place + 1, value)

    # The facts in a random order: the first ones are queried, the first or the last ones asked for.
    order = subset(facts, facts)
    asked = torch.where(integers(2, count, 1) == 1, order[:, :asks], order[:, facts - asks :])
    which = torch.cat([asked, order[:, :queries]], 1)
    mark = torch.full((count, 1), vocabulary.query)
    parts = [ids]
    for i in range(asks + queries):
        parts += [mark, name.gather(1, which[:, i : i + 1])]
        if i >= asks:
            parts.append(value.gather(1, which[:, i : i + 1]))
    position = torch.cat(
        [body + 1 + 2 * torch.arange(asks), body + 2 * asks + 1 + 3 * torch.arange(queries)]
    )
    return torch.cat(parts, 1), position, value.gather(1, which)


# --- Model ---------------------------------------------------------------------------------------


def tensor_shapes(vocabulary_size):
    """GGUF name -> PyTorch shape, rows first (a GGUF file lists the dimensions in reverse)."""
    kv_width = NUM_KV_HEADS * HEAD_DIM
    shapes = {"token_embd.weight": (vocabulary_size, WIDTH)}
    for layer in range(NUM_LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (kv_width, WIDTH),
            "attn_v": (kv_width, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (FFN_WIDTH, WIDTH),
            "ffn_up": (FFN_WIDTH, WIDTH),
            "ffn_down": (WIDTH, FFN_WIDTH),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return shapes | {"output_norm.weight": (WIDTH,), "output.weight": (vocabulary_size, WIDTH)}


def initial_weights(vocabulary_size, generator):
    weights = {}
    for name, shape in tensor_shapes(vocabulary_size).items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            # Wide embeddings: with the usual 0.02 the lookup is learnt far later.
            scale = 1.0 if name == "token_embd.weight" else shape[1] ** -0.5
            weights[name] = torch.randn(shape, generator=generator) * scale
    return weights


def rms_norm(x, weight):
    return F.rms_norm(x, (WIDTH,), weight, NORM_EPSILON)


def rotate(x, cosine, sine):
    """RoPE on adjacent pairs, the order that a GGUF file of the architecture "llama" implies."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


def forward(weights, ids, position):
    """Logits [count, positions, vocabulary] at the given positions of ids [count, seq_len]."""
    count, seq_len = ids.shape
    frequency = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = torch.arange(seq_len)[:, None] * frequency
    cosine, sine = angle.cos(), angle.sin()
    x = F.embedding(ids, weights["token_embd.weight"])
    for layer in range(NUM_LAYERS):

        def linear(name, y):
            return F.linear(y, weights[f"blk.{layer}.{name}.weight"])

        def heads(name, y):
            return linear(name, y).view(count, seq_len, -1, HEAD_DIM).transpose(1, 2)

        y = rms_norm(x, weights[f"blk.{layer}.attn_norm.weight"])
        q = rotate(heads("attn_q", y), cosine, sine)
        k = rotate(heads("attn_k", y), cosine, sine)
        v = heads("attn_v", y)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + linear("attn_output", y.transpose(1, 2).flatten(2))
        y = rms_norm(x, weights[f"blk.{layer}.ffn_norm.weight"])
        x = x + linear("ffn_down", F.silu(linear("ffn_gate", y)) * linear("ffn_up", y))
    x = rms_norm(x[:, position], weights["output_norm.weight"])
    return F.linear(x, weights["output.weight"])


# --- Training ------------------------------------------------------------------------------------

# A stage ends after `steps`, or as soon as the mean accuracy of its last 20 steps reaches `enough`.
Stage = namedtuple("Stage", "names facts length count steps enough")
CURRICULUM = [
    Stage(names=8, facts=3, length=24, count=128, steps=2000, enough=0.97),
    Stage(names=32, facts=6, length=64, count=64, steps=1500, enough=0.97),
    Stage(names=128, facts=12, length=128, count=32, steps=1500, enough=0.97),
    Stage(names=128, facts=24, length=256, count=16, steps=800, enough=0.97),
    Stage(names=128, facts=32, length=512, count=8, steps=400, enough=0.98),
    Stage(names=128, facts=32, length=CONTEXT_LENGTH, count=4, steps=600, enough=2.0),
]
LEARNING_RATE = 1e-3
WARMUP_STEPS = 100


def train(vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = initial_weights(len(vocabulary.tokens), generator)
    for weight in weights.values():
        weight.requires_grad_()
    optimiser = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    start, step, num_tokens = time.time(), 0, 0
    for stage in CURRICULUM:
        recent = []
        for stage_step in range(stage.steps):
            last = stage is CURRICULUM[-1]
            decay = 0.5 * (1 + math.cos(math.pi * stage_step / stage.steps)) if last else 1.0
            for group in optimiser.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * decay
            asks = int(torch.randint(min(stage.facts, 8) + 1, (1,), generator=generator))
            queries = stage.facts
            ids, position, value = make_prompts(
                vocabulary,
                generator,
                count=stage.count,
                body=max(stage.length - 2 * asks - 3 * queries, 3 * stage.facts),
                facts=stage.facts,
                names=stage.names,
                asks=asks,
                queries=queries,
            )
            logits = forward(weights, ids, position)
            loss = F.cross_entropy(logits.flatten(0, 1), value.flatten())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimiser.step()
            step += 1
            num_tokens += ids.numel()
            recent = [*recent[-19:], (logits.argmax(-1) == value).float().mean().item()]
            accuracy = sum(recent) / len(recent)
            done = len(recent) == 20 and accuracy >= stage.enough
            if done or step % 50 == 0 or stage_step + 1 == stage.steps:
                print(
                    f"{time.time() - start:4.0f} s  step {step:4d}  {num_tokens / 1e6:.2f} M tokens"
                    f"  {stage.names:3d} names {stage.facts:2d} facts {stage.length:4d} long  "
                    f"loss {loss.item():6.3f}  recall {100 * accuracy:5.1f} %",
                    flush=True,
                )
            if done:
                break
    return {name: weight.detach() for name, weight in weights.items()}


# --- GGUF ----------------------------------------------------------------------------------------

GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY = 4, 5, 6, 7, 8, 9
TENSOR_F32, TENSOR_F16 = 0, 1
ALIGNMENT = 32


def metadata(vocabulary):
    tokens = list(vocabulary.tokens)
    end = vocabulary.tokens[END_OF_TEXT]
    return [
        ("general.architecture", GGUF_STRING, "llama"),
        ("general.name", GGUF_STRING, "kvevict recall"),
        ("general.file_type", GGUF_U32, 1),  # mostly F16
        ("general.alignment", GGUF_U32, ALIGNMENT),
        ("llama.context_length", GGUF_U32, CONTEXT_LENGTH),
        ("llama.embedding_length", GGUF_U32, WIDTH),
        ("llama.block_count", GGUF_U32, NUM_LAYERS),
        ("llama.feed_forward_length", GGUF_U32, FFN_WIDTH),
        ("llama.attention.head_count", GGUF_U32, NUM_Q_HEADS),
        ("llama.attention.head_count_kv", GGUF_U32, NUM_KV_HEADS),
        ("llama.attention.layer_norm_rms_epsilon", GGUF_F32, NORM_EPSILON),
        ("llama.rope.dimension_count", GGUF_U32, HEAD_DIM),
        ("llama.rope.freq_base", GGUF_F32, ROPE_BASE),
        ("llama.vocab_size", GGUF_U32, len(tokens)),
        ("tokenizer.ggml.model", GGUF_STRING, "gpt2"),
        ("tokenizer.ggml.pre", GGUF_STRING, "smollm"),
        ("tokenizer.ggml.tokens", GGUF_STRING, tokens),
        ("tokenizer.ggml.token_type", GGUF_I32, [3 if t == END_OF_TEXT else 1 for t in tokens]),
        ("tokenizer.ggml.merges", GGUF_STRING, vocabulary.merges),
        ("tokenizer.ggml.bos_token_id", GGUF_U32, end),
        ("tokenizer.ggml.eos_token_id", GGUF_U32, end),
        ("tokenizer.ggml.add_bos_token", GGUF_BOOL, False),
        ("kvevict.recall.names", GGUF_STRING, NAMES),
        ("kvevict.recall.values", GGUF_STRING, VALUES),
        ("kvevict.recall.filler", GGUF_STRING, FILLER),
        ("kvevict.recall.query", GGUF_STRING, QUERY),
    ]


SCALAR_FORMAT = {GGUF_U32: "<I", GGUF_I32: "<i", GGUF_F32: "<f", GGUF_BOOL: "<?"}


def pack_string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    return pack_string(value) if kind == GGUF_STRING else struct.pack(SCALAR_FORMAT[kind], value)


def pad(size):
    return -size % ALIGNMENT


def write_gguf(path, vocabulary, weights):
    pairs = metadata(vocabulary)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(pairs))
    for key, kind, value in pairs:
        head += pack_string(key)
        if isinstance(value, list):
            head += struct.pack("<IIQ", GGUF_ARRAY, kind, len(value))
            head += b"".join(pack_value(kind, item) for item in value)
        else:
            head += struct.pack("<I", kind) + pack_value(kind, value)
    body = b""
    for name, weight in weights.items():
        kind, weight = (TENSOR_F32, weight) if weight.dim() == 1 else (TENSOR_F16, weight.half())
        shape = weight.shape[::-1]
        head += pack_string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape, kind, len(body))
        data = bytes(weight.contiguous().view(torch.uint8).flatten().tolist())
        body += data + bytes(pad(len(data)))
    with open(path, "wb") as file:
        file.write(head + bytes(pad(len(head))) + body)
    return len(head) + pad(len(head)) + len(body)


def read_gguf_weights(path):
    """The float32 weights of a file of write_gguf, read back as an engine reads them."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return values[0] if len(values) == 1 else values

    def take_string():
        nonlocal at
        size = take("<Q")
        at += size
        return data[at - size : at].decode("utf-8")

    def take_value(kind):
        if kind == GGUF_ARRAY:
            item, count = take("<IQ")
            return [take_value(item) for _ in range(count)]
        return take_string() if kind == GGUF_STRING else take(SCALAR_FORMAT[kind])

    magic, version, num_tensors, num_pairs = take("<4sIQQ")
    assert (magic, version) == (b"GGUF", 3), f"{path} is not a GGUF file of version 3"
    for _ in range(num_pairs):
        take_string()
        take_value(take("<I"))
    infos = []
    for _ in range(num_tensors):
        name = take_string()
        shape = [take("<Q") for _ in range(take("<I"))]
        infos.append((name, shape[::-1], *take("<IQ")))
    at += pad(at)
    weights = {}
    for name, shape, kind, offset in infos:
        dtype = torch.float16 if kind == TENSOR_F16 else torch.float32
        flat = torch.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=at + offset)
        weights[name] = flat.reshape(shape).float()
    return weights


# --- Evaluation ----------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(vocabulary, weights, seed):
    """Prints the recall with the full cache on fresh prompts; returns the one at 1,024 tokens."""
    generator = torch.Generator().manual_seed(seed)

    def recall(length, facts, asks, queries, trials=400, count=8):
        right = total = 0
        while total < trials:
            ids, position, value = make_prompts(
                vocabulary,
                generator,
                count=count,
                body=length - 2 * asks - 3 * queries,
                facts=facts,
                names=len(NAMES),
                asks=asks,
                queries=queries,
            )
            hit = forward(weights, ids, position).argmax(-1)[:, asks:] == value[:, asks:]
            right += hit.sum().item()
            total += hit.numel()
        return right, total

    print("\nRecall with the full cache, weights of the file, fresh prompts")
    print(" length  facts  asks  queries     right")
    for length, facts, asks, queries in [
        *[(length, 32, 0, queries) for length in (256, 512, 1024) for queries in (1, 2, 4, 32)],
        *[(length, facts, 8, 8) for length, facts in ((256, 8), (512, 16), (1024, 32), (1152, 32))],
        (1024, 64, 8, 8),
    ]:
        right, total = recall(length, facts, asks, queries)
        row = f"{length:7d} {facts:6d} {asks:5d} {queries:8d} {right:5d} of {total:4d}"
        print(f"{row}  {100 * right / total:5.1f} %", flush=True)
        if (length, facts, queries) == (1024, 32, 32):
            result = right / total
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the GGUF file")
    parser.add_argument("--seed", type=int, default=1, help="of weights and text (default 1)")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (default 2)")
    parser.add_argument("--eval-only", action="store_true", help="evaluate FILE, do not train")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    vocabulary = Vocabulary()
    print(f"{len(vocabulary.tokens)} tokens, every word is exactly one")
    if not options.eval_only:
        weights = train(vocabulary, options.seed)
        print(f"{options.out}: {write_gguf(options.out, vocabulary, weights)} bytes")
    recall = evaluate(vocabulary, read_gguf_weights(options.out), options.seed + 1)
    return 0 if recall >= 0.95 else f"only {100 * recall:.1f} % right at 1,024 tokens"


if __name__ == "__main__":
    sys.exit(main())
