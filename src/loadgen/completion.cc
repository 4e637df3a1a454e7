#include "loadgen/completion.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace kvasir {
namespace {

using Json = nlohmann::json;

constexpr const char* kWords =
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand "
    "part place case week company system program question work government number night point home "
    "water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head "
    "house service friend "
    "father power hour game line end member law car city name team minute idea body back parent "
    "face level office door "
    "health person art war history party result change morning reason research girl guy moment air "
    "teacher force";

std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, 300)) line.push_back(c == '\n' || c == '\r' ? ' ' : c);
  return line;
}

// The message of an OpenAI error object, else the text itself.
std::string ErrorMessage(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_string()) return OneLine(error.get<std::string>());
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return OneLine(error["message"].get<std::string>());
    }
  }
  return OneLine(body);
}

std::string ErrorKind(const Status& status) {
  if (status.code() == StatusCode::kUnavailable) return "connect";
  if (status.code() == StatusCode::kDeadlineExceeded) return "timeout";
  if (status.code() == StatusCode::kCancelled) return "cut";
  return "broken stream";
}

int64_t IntegerOr(const Json& object, const char* key, int64_t fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : fallback;
}

// Does this chunk carry output? A last chunk that only says why it ended does not.
bool CarriesOutput(const Json& choice) {
  if (!choice.is_object()) return false;
  const auto text = choice.find("text");
  if (text != choice.end() && text->is_string() && !text->get_ref<const std::string&>().empty()) {
    return true;
  }
  const auto finish = choice.find("finish_reason");
  return finish == choice.end() || finish->is_null();
}

// Most events of a stream only carry text. They are told apart without parsing, since the generator
// shares its cores with the server. The patterns cannot stand inside a JSON string, where a quote
// is escaped.
bool OnlyCarriesText(std::string_view data) {
  constexpr std::string_view kText = "\"text\":\"";
  if (!data.starts_with('{') || !data.ends_with('}')) return false;
  const size_t at = data.find(kText);
  if (at == std::string_view::npos || data[at + kText.size()] == '"') return false;
  return data.find("\"usage\":{") == std::string_view::npos &&
         data.find("\"usage\": {") == std::string_view::npos &&
         data.find("\"error\"") == std::string_view::npos;
}

void ReadUsage(const Json& usage, Outcome* outcome) {
  outcome->prompt_tokens = IntegerOr(usage, "prompt_tokens", outcome->prompt_tokens);
  outcome->output_tokens = IntegerOr(usage, "completion_tokens", outcome->output_tokens);
  const auto details = usage.find("prompt_tokens_details");
  if (details != usage.end() && details->is_object()) {
    outcome->cached_tokens = IntegerOr(*details, "cached_tokens", 0);
  }
  const auto ours = usage.find("kvasir");
  if (ours == usage.end() || !ours->is_object()) return;
  const auto queue = ours->find("queue_ms");
  if (queue != ours->end() && queue->is_number()) outcome->queue_ms = queue->get<double>();
}

void KeepAnswer(const Json& choice, Outcome* outcome) {
  const auto text = choice.find("text");
  if (text != choice.end() && text->is_string()) outcome->answer_text += text->get<std::string>();
  const auto ids = choice.find("token_ids");
  if (ids == choice.end() || !ids->is_array()) return;
  for (const Json& id : *ids) {
    if (id.is_number_integer()) outcome->answer.push_back(id.get<int32_t>());
  }
}

}  // namespace

const std::vector<std::string>& BenchWords() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> list;
    std::istringstream stream(kWords);
    for (std::string word; stream >> word;) list.push_back(word);
    return list;
  }();
  return words;
}

std::string CompletionText(const CompletionJob& job) {
  std::string text = job.history;
  for (const int32_t unit : job.prompt) {
    if (!text.empty()) text.push_back(' ');
    text += BenchWords()[static_cast<size_t>(unit) % BenchWords().size()];
  }
  return text;
}

std::string CompletionBody(const Target& target, const CompletionJob& job) {
  Json body = {{"model", target.model},
               {"max_tokens", job.output_tokens},
               {"temperature", 0},
               {"stream", true},
               {"ignore_eos", true},
               {"cache_prompt", true},
               {"stream_options", {{"include_usage", true}}}};
  if (job.keep_answer && !target.text) body["return_token_ids"] = true;
  if (target.text) {
    body["prompt"] = CompletionText(job);
  } else {
    body["prompt"] = job.prompt;
  }
  return body.dump();
}

bool CompletionReader::OnEvent(std::string_view data, int64_t now_ns) {
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  if (!keep_answer_ && OnlyCarriesText(data)) {
    outcome_->token_ns.push_back(now_ns);
    return true;
  }
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) {
    outcome_->error = "broken stream";
    outcome_->detail = "event is no JSON object: " + OneLine(data);
    return false;
  }
  if (event.contains("error")) {
    outcome_->error = "error in stream";
    outcome_->detail = ErrorMessage(std::string(data));
    return false;
  }
  const auto usage = event.find("usage");
  if (usage != event.end() && usage->is_object()) {
    has_usage_ = true;
    ReadUsage(*usage, outcome_);
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return true;
  if (CarriesOutput(choices->front())) outcome_->token_ns.push_back(now_ns);
  if (keep_answer_ && choices->front().is_object()) KeepAnswer(choices->front(), outcome_);
  return true;
}

void CompletionReader::Finish() {
  if (!outcome_->ok()) return;
  if (!done_) {
    outcome_->error = "broken stream";
    outcome_->detail = "ended without [DONE]";
  } else if (outcome_->token_ns.empty()) {
    outcome_->error = "no output";
    outcome_->detail = "the stream carried no token";
  } else if (!has_usage_) {
    outcome_->output_tokens = static_cast<int64_t>(outcome_->token_ns.size());
  }
}

bool CompletionReceiver::OnBody(int status, std::string_view bytes, int64_t now_ns) {
  constexpr size_t kErrorBytesMax = 65536;
  if (status != 200) {
    error_body_ += bytes.substr(0, kErrorBytesMax - std::min(error_body_.size(), kErrorBytesMax));
    return true;
  }
  std::vector<std::string> events;
  if (const Status pushed = sse_.Push(bytes, &events); !pushed.ok()) {
    outcome_->error = "broken stream";
    outcome_->detail = pushed.message();
    return false;
  }
  for (const std::string& event : events) {
    if (!reader_.OnEvent(event, now_ns)) return false;
  }
  return true;
}

void CompletionReceiver::Finish(int status, const Status& end, int64_t now_ns) {
  outcome_->end_ns = now_ns;
  outcome_->http_status = status;
  if (status != 0 && status != 200) {
    outcome_->error = "http " + std::to_string(status);
    outcome_->detail = ErrorMessage(error_body_);
  } else if (!end.ok()) {
    outcome_->error = ErrorKind(end);
    outcome_->detail = end.message();
  } else {
    reader_.Finish();
  }
}

HttpRequest CompletionRequest(const Target& target, const CompletionJob& job) {
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = CompletionBody(target, job);
  request.api_key = target.api_key;
  request.timeout_s = target.timeout_s;
  return request;
}

Outcome RunCompletion(const Target& target, const CompletionJob& job) {
  Outcome outcome;
  outcome.prompt_tokens = static_cast<int64_t>(job.prompt.size());
  outcome.hot = job.hot;
  CompletionReceiver receiver(&outcome, job.keep_answer);
  const HttpRequest request = CompletionRequest(target, job);
  int http_status = 0;
  const auto on_body = [&](int status, std::string_view bytes, int64_t now_ns) {
    http_status = status;
    return receiver.OnBody(status, bytes, now_ns);
  };
  outcome.start_ns = SteadyNowNs();
  const Result<HttpReply> reply = HttpExchange(target.url, request, on_body);
  if (reply.ok()) http_status = reply->status;
  receiver.Finish(http_status, reply.ok() ? Status::Ok() : reply.status(), SteadyNowNs());
  return outcome;
}

Result<std::string> FirstModel(const Target& target) {
  HttpRequest request;
  request.path = "/v1/models";
  request.api_key = target.api_key;
  request.timeout_s = 30;
  KVASIR_ASSIGN_OR_RETURN(const HttpReply reply, HttpExchange(target.url, request));
  if (reply.status != 200) {
    return Unavailable("GET /v1/models answered " + std::to_string(reply.status) + ": " +
                       ErrorMessage(reply.body));
  }
  const Json json = Json::parse(reply.body, nullptr, false);
  if (json.is_object() && json.contains("data") && json["data"].is_array() &&
      !json["data"].empty() && json["data"][0].is_object() && json["data"][0].contains("id") &&
      json["data"][0]["id"].is_string()) {
    return json["data"][0]["id"].get<std::string>();
  }
  return DataLoss("GET /v1/models: no data[0].id in the answer; give --model");
}

}  // namespace kvasir
