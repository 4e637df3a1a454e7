#include "server/chat_messages.h"

#include <string>
#include <string_view>
#include <utility>

#include "server/field_reader.h"

namespace kvasir {
namespace {

Status Bad(const std::string& field, const std::string& message) {
  return InvalidArgument(field + ": " + message, field);
}

// "" for a role nobody knows.
std::string_view KnownRole(std::string_view role) {
  if (role == "system" || role == "developer") return "system";
  if (role == "user") return "user";
  if (role == "assistant") return "assistant";
  if (role == "tool" || role == "function") return "tool";
  return "";
}

Result<std::string> JoinParts(const Json& parts, const std::string& field) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string at = field + "[" + std::to_string(i) + "]";
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      return Bad(at, "must be an object with a type");
    const auto& type = part["type"].get_ref<const std::string&>();
    const char* member = type == "refusal" ? "refusal" : "text";
    if (type != "text" && type != "refusal" && type != "input_text" && type != "output_text") {
      constexpr size_t kTypeMax = 40;
      return Bad(at, "parts of type " + type.substr(0, kTypeMax) +
                         " are not supported; this model reads text");
    }
    if (!part.contains(member) || !part[member].is_string())
      return Bad(at, std::string("must have the string ") + member);
    text += part[member].get_ref<const std::string&>();
  }
  return text;
}

Result<Json> NormaliseToolCalls(const Json& calls, const std::string& field) {
  if (!calls.is_array()) return Bad(field, "must be an array, not " + Describe(calls));
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = field + "[" + std::to_string(i) + "]";
    const Json& call = calls[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      return Bad(at, "must be an object with a function");
    Json copy = call;
    Json& function = copy["function"];
    if (!function.contains("name") || !function["name"].is_string())
      return Bad(at + ".function.name", "must be a string");
    if (function.contains("arguments") && function["arguments"].is_string()) {
      Result<Json> parsed = ParseJson(function["arguments"].get_ref<const std::string&>());
      if (parsed.ok() && parsed->is_object()) function["arguments"] = std::move(*parsed);
    }
    if (!copy.contains("type")) copy["type"] = "function";
    out.push_back(std::move(copy));
  }
  return out;
}

Status CopyString(const Json& from, const char* name, const std::string& field, Json* to) {
  const auto found = from.find(name);
  if (found == from.end() || found->is_null()) return Status::Ok();
  if (!found->is_string())
    return Bad(field + "." + name, "must be a string, not " + Describe(*found));
  (*to)[name] = *found;
  return Status::Ok();
}

Result<Json> NormaliseMessage(const Json& message, const std::string& field) {
  if (!message.is_object()) return Bad(field, "must be an object, not " + Describe(message));
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return Bad(field + ".role", "must be a string");
  const std::string_view known = KnownRole(role->get_ref<const std::string&>());
  if (known.empty())
    return Bad(field + ".role", "must be system, developer, user, assistant, tool or function");
  Json out = Json::object();
  out["role"] = known;

  const std::string content_field = field + ".content";
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (known != "assistant") return Bad(content_field, "is missing");
    out["content"] = "";
  } else if (content->is_string()) {
    out["content"] = *content;
  } else if (content->is_array()) {
    KVASIR_ASSIGN_OR_RETURN(std::string text, JoinParts(*content, content_field));
    out["content"] = std::move(text);
  } else {
    return Bad(content_field,
               "must be a string or an array of text parts, not " + Describe(*content));
  }

  KVASIR_RETURN_IF_ERROR(CopyString(message, "name", field, &out));
  KVASIR_RETURN_IF_ERROR(CopyString(message, "reasoning_content", field, &out));
  KVASIR_RETURN_IF_ERROR(CopyString(message, "tool_call_id", field, &out));
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && !calls->is_null()) {
    KVASIR_ASSIGN_OR_RETURN(Json tool_calls, NormaliseToolCalls(*calls, field + ".tool_calls"));
    if (!tool_calls.empty()) out["tool_calls"] = std::move(tool_calls);
  }
  return out;
}

}  // namespace

Result<Json> NormaliseMessages(const Json& messages) {
  if (!messages.is_array()) return Bad("messages", "must be an array, not " + Describe(messages));
  if (messages.empty()) return Bad("messages", "must have at least one message");
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    KVASIR_ASSIGN_OR_RETURN(Json message,
                            NormaliseMessage(messages[i], "messages[" + std::to_string(i) + "]"));
    out.push_back(std::move(message));
  }
  return out;
}

}  // namespace kvasir
