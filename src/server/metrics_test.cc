#include "server/metrics.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "server/access_log.h"
#include "server/chat_turn.h"
#include "server/test_http.h"

namespace kvasir {
namespace {

double Value(const std::string& text, const std::string& start) {
  const size_t at = text.find("\n" + start);
  EXPECT_NE(at, std::string::npos) << start;
  return at == std::string::npos ? -1 : std::stod(text.substr(text.find(' ', at + start.size())));
}

TEST(MetricsTest, EveryNameIsThereFromTheStart) {
  const ServerMetrics metrics("m");
  const FakeWorker worker;
  const std::string text = "\n" + metrics.Serialize(&worker);
  for (const char* line : {"vllm:num_requests_running{model_name=\"m\"} 0",
                           "vllm:num_requests_waiting{model_name=\"m\"} 0",
                           "vllm:kv_cache_usage_perc{model_name=\"m\"} 0",
                           "vllm:cache_config_info{",
                           "vllm:prefix_cache_queries_total{",
                           "vllm:prefix_cache_hits_total{",
                           "vllm:num_preemptions_total{",
                           "vllm:prompt_tokens_total{",
                           "vllm:generation_tokens_total{",
                           "vllm:prompt_tokens_by_source_total{",
                           "vllm:request_success_total{",
                           "vllm:time_to_first_token_seconds_bucket{",
                           "vllm:inter_token_latency_seconds_sum{",
                           "vllm:e2e_request_latency_seconds_count{",
                           "vllm:request_queue_time_seconds_count{",
                           "vllm:request_prompt_tokens_sum{",
                           "vllm:request_generation_tokens_sum{",
                           "vllm:iteration_tokens_total_bucket{",
                           "kvasir_kv_blocks_total{",
                           "kvasir_kv_bytes_per_token{",
                           "kvasir_kv_waste_ratio{",
                           "kvasir_preemptions_total{",
                           "kvasir_step_seconds_count{"})
    EXPECT_NE(text.find("\n" + std::string(line)), std::string::npos) << line << text;
  double sum = 0;
  for (const char* state : {"free", "reserved", "filling", "pinned", "evictable", "inflight"})
    sum += Value(text, std::string("kvasir_kv_blocks{model_name=\"m\",state=\"") + state + "\"}");
  EXPECT_EQ(sum, Value(text, "kvasir_kv_blocks_total{"));
  EXPECT_EQ(text.find("NaN"), std::string::npos);
  EXPECT_EQ(text.find("nan"), std::string::npos);
}

// Zeros are there too, or a first increment is lost on who computes rates.
TEST(MetricsTest, EveryReasonHasItsSeries) {
  const ServerMetrics metrics("m", "slru");
  const FakeWorker worker;
  const std::string text = "\n" + metrics.Serialize(&worker);
  EXPECT_EQ(Value(text, "kvasir_cache_tokens_total{model_name=\"m\",result=\"hit\",tier=\"hot\"}"),
            0);
  for (const char* reason : {"cold", "evicted", "salt", "format", "partial_block", "reset",
                             "expired", "tier_error", "tier_slower"})
    EXPECT_EQ(Value(text, "kvasir_cache_tokens_total{model_name=\"m\",result=\"miss\",reason=\"" +
                              std::string(reason) + "\"}"),
              0);
  for (const char* reason : {"capacity", "quota", "expired", "reset", "merged", "window"})
    EXPECT_EQ(Value(text, "kvasir_evictions_total{model_name=\"m\",policy=\"slru\",reason=\"" +
                              std::string(reason) + "\"}"),
              0);
  for (const char* mode : {"swap", "recompute"})
    EXPECT_EQ(Value(text, "kvasir_preemptions_total{model_name=\"m\",mode=\"" + std::string(mode) +
                              "\"}"),
              0);
  for (const char* name :
       {"kvasir_evicted_then_wanted_total", "kvasir_prefill_tokens_saved_total",
        "kvasir_prefill_seconds_saved_total", "kvasir_merged_blocks_total",
        "kvasir_copied_blocks_total", "kvasir_cached_blocks", "kvasir_pinned_blocks"})
    EXPECT_EQ(Value(text, std::string(name) + "{"), 0);
}

TEST(MetricsTest, TheEnginesCountsArriveWhereTheyBelong) {
  FakeWorkerOptions options;
  CacheCounts& cache = options.stats.cache;
  cache.queries = 100;
  cache.hits = 60;
  for (size_t i = 0; i < cache.misses.size(); ++i) cache.misses[i] = i;
  cache.misses[0] = 40 - 36;
  for (size_t i = 0; i < cache.evictions.size(); ++i) cache.evictions[i] = 10 + i;
  cache.evicted_then_wanted = 5;
  cache.merged = 6;
  cache.copied = 7;
  cache.swapped_out = 8;
  cache.swapped_in = 9;
  cache.cached_blocks = 11;
  cache.pinned_by_name = 12;
  options.stats.preemptions = 30;
  options.stats.preemptions_swap = 10;
  options.stats.prefill_tokens_saved = 66;
  options.stats.prefill_seconds_saved = 0.25;
  const ServerMetrics metrics("m");
  const FakeWorker worker(options);
  const std::string text = "\n" + metrics.Serialize(&worker);
  const auto reason = [&](const char* name) {
    return Value(text, "kvasir_cache_tokens_total{model_name=\"m\",result=\"miss\",reason=\"" +
                           std::string(name) + "\"}");
  };
  EXPECT_EQ(Value(text, "vllm:prefix_cache_queries_total{"), 100);
  EXPECT_EQ(Value(text, "vllm:prefix_cache_hits_total{"), 60);
  double sum = Value(text, "kvasir_cache_tokens_total{model_name=\"m\",result=\"hit\"");
  EXPECT_EQ(sum, 60);
  for (int i = 0; i < kMissReasons; ++i) sum += reason(MissReasonName(static_cast<MissReason>(i)));
  EXPECT_EQ(sum, 100);
  EXPECT_EQ(reason("salt"), 2);
  EXPECT_EQ(reason("expired"), 6);
  EXPECT_EQ(
      Value(text, "kvasir_evictions_total{model_name=\"m\",policy=\"cost\",reason=\"quota\"}"), 11);
  EXPECT_EQ(Value(text, "kvasir_evicted_then_wanted_total{"), 5);
  EXPECT_EQ(Value(text, "kvasir_merged_blocks_total{"), 6);
  EXPECT_EQ(Value(text, "kvasir_copied_blocks_total{"), 7);
  EXPECT_EQ(Value(text, "kvasir_swapped_blocks_total{model_name=\"m\",direction=\"out\"}"), 8);
  EXPECT_EQ(Value(text, "kvasir_swapped_blocks_total{model_name=\"m\",direction=\"in\"}"), 9);
  EXPECT_EQ(Value(text, "kvasir_cached_blocks{"), 11);
  EXPECT_EQ(Value(text, "kvasir_pinned_blocks{"), 12);
  EXPECT_EQ(Value(text, "vllm:num_preemptions_total{"), 30);
  EXPECT_EQ(Value(text, "kvasir_preemptions_total{model_name=\"m\",mode=\"swap\"}"), 10);
  EXPECT_EQ(Value(text, "kvasir_preemptions_total{model_name=\"m\",mode=\"recompute\"}"), 20);
  EXPECT_EQ(Value(text, "kvasir_prefill_tokens_saved_total{"), 66);
  EXPECT_EQ(Value(text, "kvasir_prefill_seconds_saved_total{"), 0.25);
}

// Every line: a comment, or name, labels and a number.
TEST(MetricsTest, TheTextParses) {
  ServerMetrics metrics("a \"quoted\\ \n name");
  metrics.OnStep({5, 4, 1, 10, 20, 30, 40, 50}, {});
  metrics.CountHttp(200);
  std::istringstream in(metrics.Serialize(nullptr));
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    size_t used = 0;
    std::stod(line.substr(space + 1), &used);
    EXPECT_EQ(used, line.size() - space - 1) << line;
    EXPECT_TRUE(line[space - 1] == '}') << line;
  }
}

TEST(MetricsTest, SumsOfRequestsAgreeWithTheCounters) {
  const TestServer server;
  const std::string end = std::string("\"}");
  for (const char* body :
       {R"({"prompt":"abcd","max_tokens":1})", R"({"prompt":"abcdef","max_tokens":5,"n":2})",
        R"({"prompt":["ab","c"],"max_tokens":7,"stop":"b"})", R"({"prompt":"abc","max_tokens":0})",
        R"({"prompt":"abc","max_tokens":-1})"})
    server.Post("/v1/completions", body);
  const std::string text = "\n" + server.metrics.Serialize(&server.worker);
  EXPECT_EQ(Value(text, "vllm:prompt_tokens_total{"),
            Value(text, "vllm:request_prompt_tokens_sum{"));
  EXPECT_EQ(Value(text, "vllm:generation_tokens_total{"),
            Value(text, "vllm:request_generation_tokens_sum{"));
  EXPECT_EQ(Value(text, "vllm:prompt_tokens_total{"), 4 + 6 + 2 + 1);
  double ended = 0;
  for (const char* reason : {"stop", "length", "abort", "error"})
    ended +=
        Value(text, std::string("vllm:request_success_total{finished_reason=\"") + reason + "\"");
  EXPECT_EQ(ended, 5);
  EXPECT_EQ(Value(text, "vllm:e2e_request_latency_seconds_count{"), 5);
  EXPECT_LT(Value(text, "vllm:e2e_request_latency_seconds_sum{"), 600);
  EXPECT_LT(Value(text, "vllm:time_to_first_token_seconds_sum{"), 600);
  EXPECT_LT(Value(text, "vllm:request_queue_time_seconds_sum{"), 600);
}

TEST(ChatTurnTest, AnswersAndStops) {
  TestServer server;
  ServedModel model;
  model.name = "m";
  model.worker = &server.worker;
  model.tokenizer = server.tokenizer.get();
  model.chat_template = server.chat_template.get();
  ChatTurn turn;
  turn.messages_json = R"([{"role":"user","content":"0123456789abcdefghijklmnopqrs"}])";
  turn.sampling.max_tokens = 0;
  std::string shown;
  const auto add = [&](std::string_view text) {
    shown += text;
    return true;
  };
  const Result<ChatTurnResult> answer = RunChat(model, turn, add);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->text, "abcdefghijklmnopqrs");
  EXPECT_EQ(shown, answer->text);
  EXPECT_EQ(answer->finish, FinishReason::kStop);
  EXPECT_EQ(answer->usage.completion_tokens, 20);

  turn.sampling.ignore_eos = true;
  const Result<ChatTurnResult> stopped =
      RunChat(model, turn, [](std::string_view) { return false; });
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->finish, FinishReason::kCancelled);
  const std::atomic<bool> cancel{true};
  const Result<ChatTurnResult> cancelled = RunChat(model, turn, add, &cancel);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->finish, FinishReason::kCancelled);

  turn.messages_json = R"([{"role":"poet","content":"x"}])";
  EXPECT_FALSE(RunChat(model, turn, add).ok());
  turn.messages_json = "nonsense";
  EXPECT_FALSE(RunChat(model, turn, add).ok());
}

TEST(AccessLogTest, LinesCannotBeForged) {
  AccessRecord record;
  record.path = "/a\nb\x1B[31m";
  record.method = "GET";
  record.status = 499;
  EXPECT_EQ(AccessLog(true, false).Format(record).find('\n'), std::string::npos);
  const Json line = ParseJson(AccessLog(true, true).Format(record)).value();
  EXPECT_EQ(line["status"], 499);
  EXPECT_EQ(line["path"], record.path);
}

}  // namespace
}  // namespace kvasir
