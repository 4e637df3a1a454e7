// Public traces of block ids, and their replay through the real KvCache without a model.
//
// A trace (kvcache-ai/Mooncake, Apache-2.0) names the 512-token blocks of each prompt; equal id,
// equal block and equal whole prefix. Here a block of the trace is one block of 16 tokens that are
// a pure function of its id. Requests come in file order, one at a time: match, begin, compute,
// publish, release. A hit is a block of the leading run that is cached; blocks, not tokens, are
// counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "kvcache/kv_cache.h"

namespace kvasir {

// The lines of a gzip file; empty if it cannot be read. Runs gzip, which every Debian has.
inline std::vector<std::string> GzipLines(const std::string& path) {
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  std::vector<std::string> lines;
  FILE* pipe = popen(("gzip -dc -- " + quoted + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return lines;
  char* line = nullptr;
  size_t room = 0;
  for (ssize_t n = getline(&line, &room, pipe); n >= 0; n = getline(&line, &room, pipe)) {
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) --n;
    lines.emplace_back(line, static_cast<size_t>(n));
  }
  std::free(line);
  pclose(pipe);
  return lines;
}

struct BlockTrace {
  std::vector<std::vector<int32_t>> requests;
  int64_t references = 0;
  int32_t ids = 0;
  // Per block of each request: is it wanted by a later one? Blocks that are not form the end of a
  // prompt, since a later one that wants a block wants all before it; this is where it begins.
  std::vector<size_t> wanted_blocks;
  std::vector<bool> last_turn;  // no later request wants a block that this one brought
};

inline BlockTrace LoadBlockTrace(const std::string& path) {
  BlockTrace trace;
  for (const std::string& line : GzipLines(path)) {
    const size_t at = line.find("\"hash_ids\":");
    if (at == std::string::npos) continue;
    std::vector<int32_t> ids;
    const char* p = line.c_str() + line.find('[', at) + 1;
    for (;;) {
      char* end = nullptr;
      const long id = std::strtol(p, &end, 10);
      if (end == p) break;
      ids.push_back(static_cast<int32_t>(id));
      trace.ids = std::max(trace.ids, ids.back() + 1);
      p = *end == ',' ? end + 1 : end;
    }
    trace.references += static_cast<int64_t>(ids.size());
    trace.requests.push_back(std::move(ids));
  }
  std::vector<size_t> last(static_cast<size_t>(trace.ids), 0), first(last.size(), SIZE_MAX);
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    for (const int32_t id : trace.requests[r]) {
      last[static_cast<size_t>(id)] = r;
      first[static_cast<size_t>(id)] = std::min(first[static_cast<size_t>(id)], r);
    }
  }
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    size_t wanted = 0;
    bool mine_wanted = false;
    for (const int32_t id : trace.requests[r]) {
      if (last[static_cast<size_t>(id)] == r) break;
      mine_wanted = mine_wanted || first[static_cast<size_t>(id)] == r;
      ++wanted;
    }
    trace.wanted_blocks.push_back(wanted);
    trace.last_turn.push_back(!mine_wanted);
  }
  return trace;
}

enum class ReplayHint {
  kNone,
  kLastTurn,  // kv_hint.last_use on requests none of whose own blocks comes back
  kPerfect,   // one true bit on every block: will it be wanted again
};

struct ReplayResult {
  int64_t references = 0, hits = 0;  // blocks
  CacheCounts counts;
  double ratio() const { return static_cast<double>(hits) / static_cast<double>(references); }
};

inline constexpr int32_t kReplayBlockTokens = 16;

inline std::vector<TokenId> TokensOfIds(const std::vector<int32_t>& ids) {
  std::vector<TokenId> tokens;
  tokens.reserve(ids.size() * kReplayBlockTokens);
  for (const int32_t id : ids) {
    tokens.push_back(id);  // differs at once: no block is found in part
    for (uint64_t i = 1; i < kReplayBlockTokens; ++i)
      tokens.push_back(
          static_cast<TokenId>(CounterRandom(17, static_cast<uint64_t>(id), i) & 0xFFFF));
  }
  return tokens;
}

inline ReplayResult ReplayTrace(const BlockTrace& trace, const std::string& policy, int32_t blocks,
                                ReplayHint hint = ReplayHint::kNone) {
  KvCacheOptions options;
  options.block_tokens = kReplayBlockTokens;
  options.blocks = {blocks};
  options.evict = policy;
  const std::unique_ptr<KvCache> cache = std::move(KvCache::Make(options).value());
  const int32_t space = cache->OpenSpace("", "");
  std::vector<BlockMove> moves;
  ReplayResult result;
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    const std::vector<TokenId> tokens = TokensOfIds(trace.requests[r]);
    const int32_t size = static_cast<int32_t>(tokens.size());
    SequenceKv kv;
    BeginResult begun;
    const CacheMatch match = cache->Match(space, tokens, size);
    KVASIR_CHECK(cache->Begin(kv, match, {tokens, size, size, size, true}, moves, &begun));
    if (begun.computed < size) {
      KVASIR_CHECK(cache->Grow(kv, begun.computed, size, moves));
      cache->Announce(kv, tokens, size);
      cache->Publish(kv, tokens, begun.computed, size);
    }
    CacheHint say;
    say.last_use =
        hint == ReplayHint::kPerfect || (hint == ReplayHint::kLastTurn && trace.last_turn[r]);
    // A second holder of what will be wanted keeps the hint from it.
    SequenceKv keep;
    const int32_t wanted = static_cast<int32_t>(trace.wanted_blocks[r]) * kReplayBlockTokens;
    if (hint == ReplayHint::kPerfect && wanted > 0) {
      BeginResult held;
      const CacheMatch part = cache->Match(space, tokens, wanted);
      KVASIR_CHECK(cache->Begin(keep, part, {{}, wanted, wanted, 0, false}, moves, &held));
    }
    cache->Release(kv, tokens, size, say);
    cache->Release(keep, tokens, wanted, CacheHint{});
    result.references += size / kReplayBlockTokens;
    result.hits += begun.hit / kReplayBlockTokens;
    moves.clear();
  }
  cache->CheckIntegrity();
  cache->CloseSpace(space);
  result.counts = cache->counts();
  return result;
}

// LRU over names of blocks, no tree: the plainest way to the same numbers. A path enters the order
// root first (as in the published column, which so evicts a root before what hangs on it), or
// deepest first (as in KvCache).
inline int64_t PlainLruHits(const BlockTrace& trace, size_t blocks, bool root_first) {
  std::list<int32_t> order;
  std::vector<std::list<int32_t>::iterator> at(static_cast<size_t>(trace.ids), order.end());
  int64_t hits = 0;
  const auto touch = [&](int32_t id) {
    auto& place = at[static_cast<size_t>(id)];
    if (place != order.end()) order.erase(place);
    if (order.size() >= blocks) {
      at[static_cast<size_t>(order.front())] = order.end();
      order.pop_front();
    }
    place = order.insert(order.end(), id);
  };
  for (const std::vector<int32_t>& ids : trace.requests) {
    size_t run = 0;
    while (run < ids.size() && at[static_cast<size_t>(ids[run])] != order.end()) ++run;
    hits += static_cast<int64_t>(run);
    if (!root_first) {
      for (size_t i = 0; i < run; ++i) touch(ids[i]);  // held: the others make room
    }
    for (const int32_t id : ids) touch(id);
    if (!root_first) {
      for (size_t i = ids.size(); i-- > 0;) touch(ids[i]);
    }
  }
  return hits;
}

}  // namespace kvasir
