#!/usr/bin/env python3
"""Token ids of the reference tokenizer for strings of many kinds: src/text/testdata/*.json.

    make_text_goldens.py MODEL.gguf FIXTURE.gguf STORIES.gguf OUTDIR

The reference is Hugging Face's `tokenizers` (Python wheel, its own regex engine), fed with the vocabulary and merges of the
model file and with the pre-tokenizer that the kind's public tokenizer.json states. transformers' own GGUF import is not
used: it forgets the pre-tokenizer (SmolLM2 cuts digits first, which shows in "a  1"). llama.cpp agrees (docs/text.md).

smollm2_ids.json  {"texts": [...], "ids": [[...], ...]}: the model's own kind, "smollm"
pre_ids.json      the same vocabulary cut as other kinds do: {"texts": [...], "kinds": {"llama-bpe": [[...], ...], ...}}
fixture_vocab.json   the vocabulary of FIXTURE.gguf (any good model of ../shared/cases), for unit tests
spm_ids.json         the vocabulary of STORIES.gguf (../shared/models/stories260K.gguf) and ids by the `sentencepiece` package

Needs Python 3.9 and the packages tokenizers, sentencepiece, protobuf, gguf, numpy.
"""
import json
import os
import random
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

WORDS = ("the quick brown fox jumps over lazy dog It's we'll I'd they've HELLO Don'T CAN'T naïve café Straße Łódź İstanbul ǅ "
         "résumé snake_case camelCase HTTPServer x86_64 v1.2.3 foo() a[0] #include <vector> std::string -> => != <= && || ++i "
         "https://example.org/a?b=c&d=%20e user@example.com C:\\path\\file $12.50 €100 50% 1st 2nd 3.14159 1,000,000 0xFF 1e-9 "
         "日本語 こんにちは カタカナ 中文字符 한국어 안녕하세요 русский Привет ελληνικά עברית العربية مَرْحَبًا हिन्दी ไทย தமிழ் ქართული ᏣᎳᎩ "
         "😀 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ☕️ 👍🏽 ½ ² ٣٤ ９ Ⅷ ① ％ 「」 、。 ！ ？ … — – “quotes” ‘q’ «g» ¿qué? ¡ay! ﬁ Å e\u0301 \u1100\u1161").split(" ")
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\t ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085",
          "\u200b", "\ufeff", "        ", "\n\n\n\n", "\x0b", "\x0c", "\x1c"]
LONG = ["a", "ab", "0", "12", " ", "\n", "!", "=", "世", "😀", "a ", " a", "\t", "é", "'s", "-", "\r\n"]
CODE = """def f(x, *args, **kw):
    if x is None:\n        return {"a": [1, 2.5, -3], 'b': f"{x!r:>10}"}\n\t# tab\n    for i in range(10):   \n        print(i, end='')
int main(void) { printf("%d\\n", 42); return 0; }  // done\n\n\nSELECT * FROM t WHERE a >= 'b''c' AND x IN (1,2,3);
<div class="x">&nbsp;&lt;</div>\n{"k": "v", "n": null}\n#!/bin/sh\nset -euo pipefail; a=$((b+1)) && echo "${a[@]}" | sed 's/x/y/g' """


def scalar(rng):
    while True:
        c = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def texts(count, seed):
    rng = random.Random(seed)
    out = ["", *WORDS, *SPACES, *[unit * n for unit in LONG for n in (2, 3, 4, 7, 33)], *CODE.split("\n"), CODE]
    out += ["a%sb" % s for s in SPACES] + [s + "a" for s in SPACES] + ["1%s2" % s for s in SPACES] + [chr(c) for c in range(256)]
    while len(out) < count:
        kind = rng.randrange(6)
        if kind == 0:
            out.append("".join(scalar(rng) for _ in range(rng.randrange(1, 24))))
        elif kind == 1:
            at = rng.randrange(len(CODE))
            out.append(CODE[at:at + rng.randrange(1, 80)])
        elif kind == 2:
            out.append("".join(rng.choice("0123456789,. -a\n") for _ in range(rng.randrange(1, 30))))
        elif kind == 3:
            out.append("".join(rng.choice(LONG) * rng.randrange(1, 9) for _ in range(rng.randrange(1, 6))))
        else:
            out.append("".join(rng.choice(WORDS) + rng.choice(SPACES if rng.random() < 0.3 else [" ", ""])
                               for _ in range(rng.randrange(1, 14))))
    return out


CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CUT = r"[^\r\n\p{L}\p{N}]?"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
         "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
         "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
         "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
         "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
         "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
         "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
         "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
         "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
         "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
GPT2 = ("bytes",)
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
KINDS = {
    "gpt-2": [GPT2],
    "smollm": [("digits",), GPT2],
    "llama-bpe": [CL100K],
    "qwen2": [CL100K.replace(r"\p{N}{1,3}", r"\p{N}")],
    "tekken": ["%s%s*%s+|%s%s+%s*|\\p{N}|%s" % (CUT, UPPER, LOWER, CUT, UPPER, LOWER, SIGNS)],
    "gpt-4o": ["%s%s*%s+%s|%s%s+%s*%s|\\p{N}{1,3}|%s" % (CUT, UPPER, LOWER, ENDING, CUT, UPPER, LOWER, ENDING, SIGNS)],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"],  # llama.cpp's
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2_SPLIT, "[0-9][0-9][0-9]"],
    "deepseek-llm": [r"[\r\n]", r"\s?[" + CASED + "]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", ("digits",)],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", ("digits",)],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
}


def reference(vocab, merges, control, kind):
    def stage(what):
        if what == GPT2:
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if what == ("digits",):
            return pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Split(Regex(what), behavior="isolated")
    t = Tokenizer(models.BPE(vocab, merges, ignore_merges=kind in ("llama-bpe", "tekken")))
    stages = [stage(what) for what in KINDS[kind]]
    if GPT2 not in KINDS[kind]:
        stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    t.pre_tokenizer = pre_tokenizers.Sequence(stages)
    if kind == "qwen2":
        t.normalizer = normalizers.NFC()
    t.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    t.encode_special_tokens = True  # as plain text: what users type
    return t


def vocabulary(model):
    fields = GGUFReader(model).fields
    names = ("tokens", "merges", "token_type", "scores", "bos_token_id", "eos_token_id")
    return {k: fields["tokenizer.ggml." + k].contents() for k in names if "tokenizer.ggml." + k in fields}


def sentencepiece_ids(vocab, strings):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto()
    m.trainer_spec.model_type = pb.TrainerSpec.BPE
    m.trainer_spec.byte_fallback = True
    m.trainer_spec.vocab_size = len(vocab["tokens"])
    m.normalizer_spec.name = "identity"
    m.normalizer_spec.add_dummy_prefix = True
    m.normalizer_spec.remove_extra_whitespaces = False
    for text, score, kind in zip(vocab["tokens"], vocab["scores"], vocab["token_type"]):
        m.pieces.add(piece=text, score=score, type=kind)
    sp = sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())
    return [sp.encode(x) for x in strings]


def write(path, rows):
    with open(path, "w", encoding="ascii") as f:
        json.dump(rows, f, separators=(",", ":"))
        f.write("\n")
    print(path, os.path.getsize(path), "bytes")


def main():
    model, fixture, stories, outdir = sys.argv[1:5]
    fields = GGUFReader(model).fields
    tokens, merges, kinds = (fields["tokenizer.ggml." + k].contents() for k in ("tokens", "merges", "token_type"))
    vocab = {text: i for i, text in enumerate(tokens)}
    pairs = [tuple(m.split(" ", 1)) for m in merges]
    control = [text for text, kind in zip(tokens, kinds) if kind == 3]
    own = texts(2600, 20260101) + ["<|im_start|>user\nhi<|im_end|>\n", "x<|endoftext|>y", "<|im_end|", "|im_end|>"]
    t = reference(vocab, pairs, control, "smollm")
    write(os.path.join(outdir, "smollm2_ids.json"), {"texts": own, "ids": [t.encode(x).ids for x in own]})
    some = texts(900, 7)
    rows = {}
    for kind in KINDS:
        t = reference(vocab, pairs, control, kind)
        rows[kind] = [t.encode(x).ids for x in some]
    write(os.path.join(outdir, "pre_ids.json"), {"texts": some, "kinds": rows})
    write(os.path.join(outdir, "fixture_vocab.json"), vocabulary(fixture))
    spm = vocabulary(stories)
    # A zero byte ends a text in SentencePiece's own normaliser, so such strings have no reference.
    plain = [x for x in texts(1200, 3) if "\0" not in x]
    write(os.path.join(outdir, "spm_ids.json"), {**spm, "texts": plain, "ids": sentencepiece_ids(spm, plain)})


if __name__ == "__main__":
    main()
