// One streamed completion against an OpenAI-compatible server, timed from the outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "loadgen/http_client.h"
#include "loadgen/http_response.h"

namespace kvasir {

// Who is asked and how.
struct Target {
  HttpUrl url;
  std::string model;
  std::string api_key;
  bool text = false;  // prompts as common words instead of token ids
  double timeout_s = 600;
};

// A prompt is a list of units: token ids, or in text mode indices of common words (about one token
// each).
using PromptUnits = std::vector<int32_t>;

struct CompletionJob {
  PromptUnits prompt;
  int32_t output_tokens = 16;
  std::string history = {};  // text mode: what was said before, put in front as it is
  bool keep_answer = false;  // ask for the answer's token ids and keep the answer
  bool hot = false;          // starts with the prefix that many requests share
};

struct Outcome {
  // "" if all went well, else what to count it under: "http 429", "connect", "timeout", "broken
  // stream"; "cut" if we closed it ourselves.
  std::string error;
  std::string detail;        // the server's or the system's own words, one line
  int http_status = 0;       // 0: no answer was seen
  bool retry_after = false;  // the answer had a Retry-After
  bool hot = false;          // as the job
  int64_t due_ns = 0;        // when it should have been sent; 0 where nothing was planned
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  std::vector<int64_t> token_ns;  // arrival of each chunk that carried output
  int64_t prompt_tokens = 0;      // from usage, else what was sent
  int64_t output_tokens = 0;      // from usage, else the number of chunks
  int64_t cached_tokens = 0;      // from usage.prompt_tokens_details
  double queue_ms = -1;           // from usage.kvasir; -1: not told
  std::vector<int32_t> answer;    // if the job keeps it and the server told the ids
  std::string answer_text;        // the same as text
  bool ok() const { return error.empty(); }
};

// Common English words for text mode; a unit is an index below its size.
const std::vector<std::string>& BenchWords();

// The prompt in text mode.
std::string CompletionText(const CompletionJob& job);

// The JSON body of POST /v1/completions: greedy, ignore_eos, streamed, with usage.
std::string CompletionBody(const Target& target, const CompletionJob& job);

// The whole HTTP request for it.
HttpRequest CompletionRequest(const Target& target, const CompletionJob& job);

// Runs one job. Never fails: what went wrong stands in the outcome. Any thread.
Outcome RunCompletion(const Target& target, const CompletionJob& job);

// First model of GET /v1/models.
Result<std::string> FirstModel(const Target& target);

// Takes SSE events one after the other and fills an outcome. Public for tests.
class CompletionReader {
 public:
  explicit CompletionReader(Outcome* outcome, bool keep_answer = false)
      : outcome_(outcome), keep_answer_(keep_answer) {}
  // Returns false at [DONE] or at a fault (which then stands in the outcome).
  bool OnEvent(std::string_view data, int64_t now_ns);
  bool done() const { return done_; }
  void Finish();  // the stream ended: fills what usage did not say

 private:
  Outcome* outcome_;
  bool keep_answer_;
  bool done_ = false;
  bool has_usage_ = false;
};

// Body bytes and their HTTP status in, an outcome out: what a blocking and an event-driven client
// share.
class CompletionReceiver {
 public:
  // The outcome must outlive it; start_ns and prompt_tokens are the caller's.
  CompletionReceiver(Outcome* outcome, bool keep_answer)
      : outcome_(outcome), reader_(outcome, keep_answer) {}
  // False: enough was read.
  bool OnBody(int status, std::string_view bytes, int64_t now_ns);
  // The exchange is over, with this HTTP status (0: none) and this end of the connection.
  void Finish(int status, const Status& end, int64_t now_ns);

 private:
  Outcome* outcome_;
  CompletionReader reader_;
  SseParser sse_;
  std::string error_body_;
};

}  // namespace kvasir
