#include "loadgen/completion.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "loadgen/http_response.h"

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

std::string CompletionBody(const Target& target, const CompletionJob& job) {
  Json body = {{"model", target.model},
               {"max_tokens", job.output_tokens},
               {"temperature", 0},
               {"stream", true},
               {"ignore_eos", true},
               {"cache_prompt", true},
               {"stream_options", {{"include_usage", true}}}};
  if (target.text) {
    std::string text;
    for (const int32_t unit : job.prompt) {
      if (!text.empty()) text.push_back(' ');
      text += BenchWords()[static_cast<size_t>(unit) % BenchWords().size()];
    }
    body["prompt"] = text;
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
    outcome_->prompt_tokens = IntegerOr(*usage, "prompt_tokens", outcome_->prompt_tokens);
    outcome_->output_tokens = IntegerOr(*usage, "completion_tokens", outcome_->output_tokens);
    const auto details = usage->find("prompt_tokens_details");
    if (details != usage->end() && details->is_object()) {
      outcome_->cached_tokens = IntegerOr(*details, "cached_tokens", 0);
    }
  }
  const auto choices = event.find("choices");
  if (choices != event.end() && choices->is_array() && !choices->empty() &&
      CarriesOutput(choices->front())) {
    outcome_->token_ns.push_back(now_ns);
  }
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

Outcome RunCompletion(const Target& target, const CompletionJob& job) {
  Outcome outcome;
  outcome.prompt_tokens = static_cast<int64_t>(job.prompt.size());
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = CompletionBody(target, job);
  request.api_key = target.api_key;
  request.timeout_s = target.timeout_s;

  CompletionReader reader(&outcome);
  SseParser sse;
  std::string error_body;
  int http_status = 0;
  const auto on_body = [&](int status, std::string_view bytes, int64_t now_ns) {
    http_status = status;
    if (status != 200) {
      error_body += bytes.substr(0, 65536 - std::min<size_t>(error_body.size(), 65536));
      return true;
    }
    std::vector<std::string> events;
    if (const Status pushed = sse.Push(bytes, &events); !pushed.ok()) {
      outcome.error = "broken stream";
      outcome.detail = pushed.message();
      return false;
    }
    for (const std::string& event : events) {
      if (!reader.OnEvent(event, now_ns)) return false;
    }
    return true;
  };
  outcome.start_ns = SteadyNowNs();
  const Result<HttpReply> reply = HttpExchange(target.url, request, on_body);
  outcome.end_ns = SteadyNowNs();
  if (reply.ok()) http_status = reply->status;
  if (http_status != 0 && http_status != 200) {
    outcome.error = "http " + std::to_string(http_status);
    outcome.detail = ErrorMessage(error_body);
  } else if (!reply.ok()) {
    outcome.error = ErrorKind(reply.status());
    outcome.detail = reply.status().message();
  } else {
    reader.Finish();
  }
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
