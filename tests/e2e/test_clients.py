"""Real clients: the openai package, plain and async; curl."""
import asyncio
import json
import shutil
import subprocess

from harness import HANG, Skip, test


def client(s, **more):
    import openai
    return openai.OpenAI(base_url=s.url + "/v1", api_key=more.pop("key", "none"), timeout=HANG, max_retries=0, **more)


@test("openai package: chat, completions, streaming, models")
def openai_sync(t):
    import openai
    s = t.server("copy_32")
    c, name = client(s), s.served_name()
    t.equal([m.id for m in c.models.list()], [name], "models.list")
    t.equal(c.models.retrieve(name).id, name, "models.retrieve")
    messages = [{"role": "user", "content": "0123456789abcdefghijklmnopqrs"}]
    chat = c.chat.completions.create(model=name, messages=messages, max_tokens=40, temperature=0)
    t.equal(chat.choices[0].message.content, "abcdefghijklmnopqrs", "chat text")
    t.equal((chat.choices[0].finish_reason, chat.choices[0].message.role, chat.object), ("stop", "assistant", "chat.completion"), "chat")
    t.equal(chat.usage.total_tokens, chat.usage.prompt_tokens + chat.usage.completion_tokens, "usage")
    t.equal(chat.usage.prompt_tokens_details.cached_tokens, 0, "cached_tokens")
    newer = c.chat.completions.create(model=name, messages=messages, max_completion_tokens=5, temperature=0)
    t.equal(newer.choices[0].message.content, "abcde", "max_completion_tokens")
    parts, usage, roles = [], None, []
    with c.chat.completions.create(model=name, messages=messages, max_tokens=40, temperature=0, stream=True,
                                   stream_options={"include_usage": True}) as stream:
        for event in stream:
            t.equal((event.object, event.id[:4]), ("chat.completion.chunk", "chat"), "chunk")
            usage = event.usage or usage
            for choice in event.choices:
                roles += [choice.delta.role] if choice.delta.role else []
                parts.append(choice.delta.content or "")
    t.equal(("".join(parts), roles), ("abcdefghijklmnopqrs", ["assistant"]), "streamed chat")
    t.equal(usage.completion_tokens, chat.usage.completion_tokens, "streamed usage")
    script = list(range(97, 97 + 26)) + [33] * 5 + [303]
    text = c.completions.create(model=name, prompt=script, max_tokens=40, temperature=0, logprobs=2)
    t.equal((text.choices[0].text, text.object), ("abcdefghijklmnopqrstuvwxyz!!!!!", "text_completion"), "completion")
    t.check(len(text.choices[0].logprobs.tokens) in (31, 32), "logprobs")
    streamed = "".join(e.choices[0].text for e in c.completions.create(model=name, prompt=script, max_tokens=40, temperature=0, stream=True) if e.choices)
    t.equal(streamed, text.choices[0].text, "streamed completion")
    left = c.chat.completions.create(model=name, messages=messages, max_tokens=19, stream=True)
    next(iter(left))
    left.close()
    for error, call in ((openai.BadRequestError, lambda: c.chat.completions.create(model=name, messages=[], max_tokens=4)),
                        (openai.BadRequestError, lambda: c.completions.create(model=name, prompt="x", temperature=-1)),
                        (openai.NotFoundError, lambda: c.completions.create(model="no-such-model", prompt="x")),
                        (openai.NotFoundError, lambda: c.models.retrieve("no-such-model")),
                        (openai.NotFoundError, lambda: c.embeddings.create(model=name, input="x"))):
        try:
            call()
            t.check(False, "no %s" % error.__name__)
        except error as e:
            t.check(e.body and e.body.get("message"), "%s without a message: %r" % (error.__name__, e.body))


@test("openai package: async, 32 at once")
def openai_async(t):
    import openai
    s = t.server("copy_32")
    name = s.served_name()

    async def one(c, i):
        words = "".join(chr(97 + (i + k) % 26) for k in range(19))
        if i % 2:
            r = await c.chat.completions.create(model=name, messages=[{"role": "user", "content": "0" * 10 + words}], max_tokens=40, temperature=0)
            return r.choices[0].message.content == words
        parts = []
        async for event in await c.chat.completions.create(model=name, messages=[{"role": "user", "content": "0" * 10 + words}],
                                                           max_tokens=40, temperature=0, stream=True):
            parts += [x.delta.content or "" for x in event.choices]
        return "".join(parts) == words

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", timeout=HANG, max_retries=0) as c:
            return await asyncio.gather(*[one(c, i) for i in range(32)])
    t.equal(asyncio.run(all_of_them()), [True] * 32, "answers")


@test("openai package: API keys")
def openai_keys(t):
    import openai
    path = t.tmp + "/keys"
    with open(path, "w", encoding="ascii") as f:
        f.write("file-key-1\nfile-key-2\n")
    for flags, good, bad in ((("--api-key", "secret"), ("secret",), ("none", "secre", "secrets")),
                             (("--api-key-file", path), ("file-key-1", "file-key-2"), ("file-key", "none"))):
        s = t.fresh("copy_32", *flags)
        try:
            for key in good:
                s.key = key
                name = s.served_name()
                r = client(s, key=key).completions.create(model=name, prompt=[97] * 40, max_tokens=2, temperature=0)
                t.equal(r.choices[0].text, "aa", "with key " + key)
            for key in bad:
                try:
                    client(s, key=key).completions.create(model=name, prompt=[97] * 40, max_tokens=2)
                    t.check(False, "key %s was taken" % key)
                except openai.AuthenticationError as e:
                    t.check(e.body.get("message"), "401 without a message")
            s.key = None
            t.equal(s.get("/health").status, 200, "health without a key")
            t.equal(s.get("/v1/models").status, 401, "models without a key")
            s.key = good[0]
        finally:
            s.stop()


@test("curl: plain, streamed, chunked upload, HEAD and keep-alive")
def curl(t):
    if not shutil.which("curl"):
        raise Skip("curl is not installed")
    s = t.server("copy_32")
    body = json.dumps({"model": s.served_name(), "messages": [{"role": "user", "content": "0123456789abcdefghijklmnopqrs"}],
                       "max_tokens": 40, "temperature": 0})

    def run(*arguments, text=None):
        r = subprocess.run(["curl", "-sS", "--max-time", str(HANG), *arguments], input=text, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=False)
        t.equal(r.returncode, 0, "curl %s: %s" % (" ".join(arguments)[:60], r.stderr))
        return r.stdout
    url, kind = s.url + "/v1/chat/completions", ("-H", "Content-Type: application/json")
    t.equal(json.loads(run(url, *kind, "-d", body))["choices"][0]["message"]["content"], "abcdefghijklmnopqrs", "plain")
    out = run("-N", url, *kind, "-d", json.dumps(dict(json.loads(body), stream=True)))
    t.check(out.startswith("data: {") and out.rstrip().endswith("data: [DONE]"), "streamed: %r" % out[:200])
    chunked = run(url, *kind, "-H", "Transfer-Encoding: chunked", "--data-binary", "@-", text=body)
    t.equal(json.loads(chunked)["choices"][0]["message"]["content"], "abcdefghijklmnopqrs", "chunked upload")
    big = json.dumps(dict(json.loads(body), padding="x" * 20000))  # curl asks "Expect: 100-continue" for large bodies
    t.equal(json.loads(run(url, *kind, "-H", "Expect: 100-continue", "-d", "@-", text=big))["choices"][0]["finish_reason"], "stop", "Expect: 100-continue")
    codes = run("-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n", s.url + "/health", "-o", "/dev/null", s.url + "/version")
    t.equal(codes.split(), ["200", "1", "200", "0"], "two requests, one connection")
    t.check("200" in run("-I", s.url + "/health").split("\n")[0], "HEAD /health")
    http10 = run("-0", "-N", url, *kind, "-d", json.dumps(dict(json.loads(body), stream=True)))
    t.check("data: [DONE]" in http10, "HTTP/1.0 stream: %r" % http10[:200])
    t.check("kvasir" in run(s.url + "/version").lower() or "version" in run(s.url + "/version"), "/version")
    t.check("<html" in run(s.url + "/").lower() or "kvasir" in run(s.url + "/").lower(), "the page at /")
