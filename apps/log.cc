#include "apps/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

// %* : the message as a JSON member; a message that is a JSON object itself (access lines) stands
// as it is.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text(message.payload.data(), message.payload.size());
    const bool object = text.starts_with('{') && nlohmann::json::accept(text);
    const std::string member =
        object ? "\"event\":" + text
               : "\"message\":" + nlohmann::json(text).dump(
                                      -1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(member.data(), member.data() + member.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

}  // namespace

Status SetUpLog(const std::string& level, const std::string& format) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument(
        "--log-level " + level + ": must be trace, debug, info, warn, error or off", "log-level");
  }
  auto logger =
      std::make_shared<spdlog::logger>("kvasir", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (format == "json") {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonMessage>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%*})");
    logger->set_formatter(std::move(formatter));
  } else if (format == "text") {
    logger->set_pattern("%H:%M:%S.%e %L %v");
  } else {
    return InvalidArgument("--log-format " + format + ": must be text or json", "log-format");
  }
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  return Status::Ok();
}

}  // namespace kvasir
