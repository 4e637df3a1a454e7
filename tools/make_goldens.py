#!/usr/bin/env python3
"""Writes tests/golden: what the oracle, Hugging Face transformers in f32, says about the demo model.

    HF_HUB_OFFLINE=1 python tools/make_goldens.py MODEL.gguf tests/golden [--only logits,kld,greedy] [--study]

Made with torch 2.13.0, transformers 5.19.0, gguf 0.19.0, numpy 2.3.5 (others work; values move in the last digits).
The licence texts come from Debian's /usr/share/common-licenses; the golden files hold token ids, so no test needs them.
Before anything is written the script checks that the weights transformers computes with are, bit for bit, the f32 values
of the GGUF file (rows of q and k permuted, as the two RoPE conventions ask).

Files: one line of JSON (the header), a newline, then little-endian arrays one after the other.
  header: {"what", "model_sha256", "versions", "arrays": [{"name", "type": "u16|i32|f32", "shape", "offset"}], ...}
  offset counts from the byte after the newline.
logits.bin  per text T: T.tokens i32 [n], T.positions i32 [p], T.ids u16 [p, 20], T.values f32 [p, 20] (best first),
            T.logsumexp f32 [p]
kld.bin     the same, but T.ids u16 [p, 48]: the 24 best, best first, then 24 tokens drawn (with replacement, fixed seed) from
            the oracle's distribution over all others: with them a test estimates the KL divergence over the whole
            vocabulary without bias, as sum of p (r - 1 - log r), r = q / p, every term of which is at least zero
greedy.json prompts, 256 greedy tokens each, and for each step the gap between the best and the second logit
--study prints what 8-bit activations cost by themselves: over the full vocabulary, and as the test estimates it.
"""
import argparse
import hashlib
import json
import os
import random
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

LICENCES = "/usr/share/common-licenses/"
TOP_LOGITS, TOP_KLD, DRAWN = 20, 24, 24

PROMPTS = [
    ("chat", "What is a KV cache? Answer in three sentences."),
    ("chat", "Write a short story about a lighthouse keeper and a whale."),
    ("chat", "List ten animals that live in the desert, one per line."),
    ("chat", "Explain the difference between TCP and UDP."),
    ("text", "Once upon a time, in a village at the foot of a mountain,"),
    ("text", "def quicksort(items):\n    \"\"\"Return a sorted copy of items.\"\"\"\n"),
    ("text", "The three laws of thermodynamics are as follows. First,"),
    ("text", "1, 1, 2, 3, 5, 8, 13, 21,"),
]


def licence(*names):
    return "\n".join(open(LICENCES + n, encoding="utf-8").read() for n in names)


def code_like(rng):
    """Text that looks like a program: names, numbers, nesting, operators."""
    names = ["count", "index", "buffer", "next_block", "HashMap", "i", "j", "tokens", "x0", "kMaxSize"]
    lines = []
    for f in range(60):
        lines.append("int %s_%d(int %s, const char* %s) {" % (rng.choice(names), f, rng.choice(names), rng.choice(names)))
        for _ in range(rng.randrange(2, 7)):
            a, b = rng.choice(names), rng.choice(names)
            lines.append(rng.choice(["  %s[%s] = %d;" % (a, b, rng.randrange(1000)),
                                     "  for (int i = 0; i < %d; ++i) %s += %s;" % (rng.randrange(99), a, b),
                                     "  if (%s != 0x%x) return -1;  // %s" % (a, rng.randrange(1 << 20), b),
                                     "\t%s->%s(\"%s\\n\", %.3f);" % (a, b, a, rng.random())]))
        lines.append("  return %s;\n}\n" % rng.choice(names))
    return "\n".join(lines)


def many_scripts(rng):
    """Characters of many scripts, emoji with joiners, runs of spaces: byte-level tokens and rare ids."""
    ranges = [(0x4E00, 0x9FA0), (0x3041, 0x3097), (0xAC00, 0xD7A0), (0x0627, 0x064B), (0x0410, 0x0450), (0x0905, 0x0930),
              (0x1F600, 0x1F640), (0x61, 0x7B)]
    words = []
    for _ in range(260):
        low, high = rng.choice(ranges)
        words.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 5))))
    return " ".join(words) + "   \n\n\t" + "\U0001F468\u200D\U0001F469\u200D\U0001F467"


def texts_for_logits(tok):
    rng = random.Random(20261129)
    enc = lambda s: tok(s, add_special_tokens=False)["input_ids"]
    chat = tok.apply_chat_template([{"role": "user", "content": PROMPTS[3][1]}], add_generation_prompt=True,
                                   tokenize=False)
    return {  # name: (token ids, number of positions)
        "one": (enc("Hello")[:1], 1),
        "sentence": (enc("The quick brown fox jumps over the lazy dog, then sleeps."), 99),
        "chat": (enc(chat), 99),
        "scripts": (enc(many_scripts(rng))[:700], 48),
        "random": ([rng.randrange(0, 49152) for _ in range(300)], 48),
        "code": (enc(code_like(rng))[:1500], 64),
        "licence": (enc(licence("GPL-3", "Apache-2.0"))[:8192], 64),
    }


def spread(n, count):
    """`count` positions of n: borders of blocks and spans, the last, and even steps between."""
    if count >= n:
        return list(range(n))
    fixed = {p for p in (0, 1, 15, 16, 17, 31, 255, 256, 257, 511, 512, 1023, 1024, 4095, 4096, n - 1) if p < n}
    step = (n - 1) / max(1, count - len(fixed))
    return sorted(fixed | {round(i * step) for i in range(count - len(fixed))})


class BlockFile:
    def __init__(self, what, base):
        self.header, self.parts, self.at = dict(base, what=what, arrays=[]), [], 0

    def add(self, name, kind, data):
        raw = np.ascontiguousarray(data, dtype={"u16": "<u2", "i32": "<i4", "f32": "<f4"}[kind])
        self.header["arrays"].append({"name": name, "type": kind, "shape": list(raw.shape), "offset": self.at})
        self.parts.append(raw.tobytes())
        self.at += raw.nbytes

    def write(self, path):
        with open(path, "wb") as f:
            f.write(json.dumps(self.header).encode() + b"\n" + b"".join(self.parts))
        print("wrote", path, os.path.getsize(path), "bytes", flush=True)


@torch.no_grad()
def logits_at(model, tokens, positions):
    """[p, vocab] f32: the layers run over the whole text, the head only at `positions`."""
    hidden = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    return model.lm_head(hidden[torch.tensor(positions)])


def best_and_drawn(logits, top, drawn):
    """Indexes [p, top + drawn]: the best, then a sample of the others in proportion to their probability."""
    ids = torch.topk(logits, top, dim=-1).indices
    if drawn:
        others = torch.softmax(logits.double(), -1).scatter(-1, ids, 0.0)
        ids = torch.cat([ids, torch.multinomial(others, drawn, replacement=True, generator=torch.Generator().manual_seed(3))], -1)
    return ids


def add_chosen(out, name, tokens, positions, logits, ids):
    out.add(name + ".tokens", "i32", tokens)
    out.add(name + ".positions", "i32", positions)
    out.add(name + ".ids", "u16", ids.numpy())
    out.add(name + ".values", "f32", logits.gather(-1, ids).numpy())
    out.add(name + ".logsumexp", "f32", torch.logsumexp(logits.double(), -1).numpy())


def check_weights(model, path):
    """The oracle's parameters are the file's, bit for bit."""
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    state, seen = model.state_dict(), 0
    for t in gguf.GGUFReader(path).tensors:
        want = gguf.quants.dequantize(t.data, t.tensor_type)
        part = t.name.split(".")
        if part[0] == "blk":
            if part[2] in heads:  # interleaved pairs in the file, halves in transformers
                h = heads[part[2]]
                want = want.reshape(h, want.shape[0] // h // 2, 2, -1).swapaxes(1, 2).reshape(want.shape)
            key = "model.layers.%s.%s.weight" % (part[1], names[part[2]])
        else:
            key = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[part[0]] + ".weight"
        got = state[key].numpy()
        if got.dtype != np.float32 or not np.array_equal(got, want.reshape(got.shape)):
            sys.exit("weights differ: " + t.name)
        seen += 1
    print("weights: %d tensors equal the file's f32 values bit for bit" % seen, flush=True)


@torch.no_grad()
def greedy(model, tokens, count):
    out, gaps, cache, feed = [], [], None, tokens
    for _ in range(count):
        r = model(torch.tensor([feed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = r.past_key_values
        best = torch.topk(r.logits[0, -1], 2)
        out.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        feed = [out[-1]]
    return out, gaps


def int8_terms(x, terms):
    """x rounded to one or two signed 8-bit terms per 32 values."""
    rest, total = x, torch.zeros_like(x)
    for _ in range(terms):
        g = rest.reshape(*x.shape[:-1], -1, 32)
        scale = g.abs().amax(-1, keepdim=True) / 127
        q = torch.where(scale > 0, torch.round(g / torch.where(scale > 0, scale, 1)), 0) * scale
        total = total + q.reshape(x.shape)
        rest = x - total
    return total


def kld(p_logits, q_logits, ids=None):
    p, q = torch.log_softmax(p_logits.double(), -1), torch.log_softmax(q_logits.double(), -1)
    if ids is None:
        return (p.exp() * (p - q)).sum(-1)
    p, q = p.gather(-1, ids), q.gather(-1, ids)
    terms = (q - p).exp() - 1 - (q - p)
    rest = 1 - p[:, :TOP_KLD].exp().sum(-1)
    return (p.exp() * terms)[:, :TOP_KLD].sum(-1) + rest * terms[:, TOP_KLD:].mean(-1)


def study(model, tokens, positions, exact, ids):
    for name, terms, head_terms in (("fast", 1, 1), ("default", 1, 2), ("exact", 2, 2)):
        hooks = [m.register_forward_pre_hook(lambda m, a, n=(head_terms if k == "lm_head" else terms): (int8_terms(a[0], n),))
                 for k, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        got = logits_at(model, tokens, positions)
        for h in hooks:
            h.remove()
        full, part = kld(exact, got), kld(exact, got, ids)
        print("study %s: mean KLD whole %.8f, as the test estimates it %.8f, top-1 %.2f %%, worst logit difference %.4f" % (
            name, full.mean(), part.mean(), 100.0 * (exact.argmax(-1) == got.argmax(-1)).double().mean(),
            (exact - got).abs().max()), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--only", default="logits,kld,greedy")
    ap.add_argument("--study", action="store_true")
    ap.add_argument("--f64", action="store_true", help="print how far f32 itself is from f64")
    a = ap.parse_args()
    only = a.only.split(",")
    folder, name = os.path.split(os.path.abspath(a.model))
    tok = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    check_weights(model, a.model)
    base = {"model": name, "model_sha256": hashlib.sha256(open(a.model, "rb").read()).hexdigest(),
            "versions": {m.__name__: m.__version__ for m in (torch, transformers, np)} | {"gguf": "0.19.0"}}
    os.makedirs(a.out, exist_ok=True)

    if "greedy" in only:
        rows = []
        for kind, text in PROMPTS:
            if kind == "chat":
                shown = tok.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
            else:
                shown = text
            ids = tok(shown, add_special_tokens=False)["input_ids"]
            out, gaps = greedy(model, ids, 256)
            rows.append({"kind": kind, "text": text, "prompt": ids, "tokens": out, "gaps": gaps})
            print("greedy %-50.50r smallest gap %.4f" % (text, min(gaps)), flush=True)
        with open(os.path.join(a.out, "greedy.json"), "w", encoding="ascii") as f:
            lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
            f.write('{"header":%s,\n"rows":[\n%s\n]}\n' % (json.dumps(base), lines))

    if "kld" in only or a.study:
        out = BlockFile("oracle: best logits at scored positions, for the KL divergence", base)
        ids = tok(licence("GPL-3"), add_special_tokens=False)["input_ids"]
        positions = list(range(1024, 2048))
        for i in range(2):  # two chunks of 2,048 tokens, second halves scored
            tokens = ids[2048 * i:2048 * (i + 1)]
            logits = logits_at(model, tokens, positions)
            chosen = best_and_drawn(logits, TOP_KLD, DRAWN)
            add_chosen(out, "gpl%d" % i, tokens, positions, logits, chosen)
            if a.study:
                study(model, tokens, positions, logits, chosen)
        if "kld" in only:
            out.write(os.path.join(a.out, "kld.bin"))

    if "logits" in only:
        out = BlockFile("oracle: the best logits at many positions", base)
        texts = texts_for_logits(tok)
        for text, (tokens, count) in texts.items():
            positions = spread(len(tokens), count)
            logits = logits_at(model, tokens, positions)
            add_chosen(out, text, tokens, positions, logits, best_and_drawn(logits, TOP_LOGITS, 0))
            print("logits", text, len(tokens), "tokens", len(positions), "positions", flush=True)
        out.write(os.path.join(a.out, "logits.bin"))
        if a.f64:
            small = {n: logits_at(model, t, spread(len(t), c)) for n, (t, c) in texts.items() if len(t) <= 1500}
            model.double()
            for n, was in small.items():
                now = logits_at(model, texts[n][0], spread(len(texts[n][0]), texts[n][1]))
                print("f32 against f64, %s: largest difference %.6f" % (n, (was.double() - now).abs().max()), flush=True)


if __name__ == "__main__":
    main()
