#!/usr/bin/env python3
"""Asks a running server one question: streams the answer, then prints its speed and the cache's figures.

usage: ask.py URL QUESTION
Standard library only, so that it runs on a bare machine.
"""
import json
import re
import sys
import time
import urllib.request


def events(response):
    for line in response:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


def metric(text, name):
    """Sum over the labels of one metric, None if absent."""
    values = re.findall(r"^%s(?:\{[^}]*\})? (\S+)$" % re.escape(name), text, re.M)
    return sum(map(float, values)) if values else None


def main():
    url, question = sys.argv[1].rstrip("/"), sys.argv[2]
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 160, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as r:
        body["model"] = json.load(r)["data"][0]["id"]
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    print("\n%s> %s\n" % (body["model"], question), flush=True)
    begun, first, last, usage, answer = time.perf_counter(), None, None, None, ""
    with urllib.request.urlopen(request, timeout=600) as r:
        for event in events(r):
            if "error" in event:
                sys.exit("error: %s" % event["error"].get("message"))
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content")
                if piece:
                    last = time.perf_counter()
                    first = first or last
                    answer += piece
                    print(piece, end="", flush=True)
    if not answer or not usage:
        sys.exit("error: the answer is empty or carries no usage")
    tokens, prompt = usage["completion_tokens"], usage["prompt_tokens"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    speed = "%.1f tokens/s" % ((tokens - 1) / (last - first)) if tokens > 1 and last > first else "one token"
    print("\n\n  speed   %d tokens at %s, first one after %.0f ms" % (tokens, speed, (first - begun) * 1e3))
    with urllib.request.urlopen(url + "/metrics", timeout=30) as r:
        metrics = r.read().decode("utf-8", "replace")
    per_token, blocks = metric(metrics, "kvasir_kv_bytes_per_token"), metric(metrics, "kvasir_kv_blocks_total")
    figures = "prompt %d tokens, %d of them cached" % (prompt, cached)
    if per_token:
        figures += "; %.1f KiB of KV a token%s" % (per_token / 1024, formats(metrics))
    if blocks:
        figures += "; pool of %d blocks, %d free" % (blocks, free(metrics))
    print("  cache   " + figures, flush=True)


def formats(metrics):
    """" in i8", " in i8/i4" (K/V), or nothing if the server does not say."""
    k, v = (re.search(r'^vllm:cache_config_info\{[^}]*cache_dtype_%s="([^"]*)"' % half, metrics, re.M) for half in "kv")
    if not k or not v:
        return ""
    return " in " + (k[1] if k[1] == v[1] else k[1] + "/" + v[1])


def free(metrics):
    """The free blocks, whatever other labels stand beside the state."""
    found = re.search(r'^kvasir_kv_blocks\{[^}]*state="free"[^}]*\} (\S+)$', metrics, re.M)
    return float(found.group(1)) if found else 0


if __name__ == "__main__":
    main()
