#include "server/json_reader.h"

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

// Builds the value from the parser's events, so that depth and count are limited before memory is
// taken.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return Fail("binary values are not JSON"); }
  bool start_object(std::size_t /*size*/) override { return Open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (stack_.size() == 1) field_ = name;
    stack_.back().key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    if (error.id == 406) {  // number overflow
      status_ = InvalidArgument(field_.empty() ? "a number is too large for any range"
                                               : field_ + ": the number is too large",
                                field_);
      return false;
    }
    std::string reason = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...":
    // keep the end.
    if (const size_t at = reason.find(": "); at != std::string::npos) reason.erase(0, at + 2);
    constexpr size_t kReasonMax = 200;
    if (reason.size() > kReasonMax) reason.resize(kReasonMax);
    for (char& c : reason)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7E) c = '?';
    status_ = InvalidArgument("the body is not valid JSON at byte " + std::to_string(position) +
                              ": " + reason);
    return false;
  }

  Result<Json> Take(bool parsed) {
    if (!status_.ok()) return status_;
    if (!parsed) return InvalidArgument("the body is not valid JSON");
    return std::move(root_);
  }

 private:
  struct Level {
    Json value;
    std::string key;
    std::unordered_map<std::string, size_t> index;  // of large objects: member by name
  };

  bool Fail(std::string message) {
    status_ = InvalidArgument(std::move(message), field_);
    return false;
  }

  bool Count() {
    if (++values_ <= limits_.values_max) return true;
    return Fail("the body has more than " + std::to_string(limits_.values_max) + " JSON values");
  }

  bool Open(Json empty) {
    if (!Count()) return false;
    if (stack_.size() >= static_cast<size_t>(limits_.depth_max))
      return Fail("the body nests deeper than " + std::to_string(limits_.depth_max) + " levels");
    stack_.push_back({std::move(empty), {}, {}});
    return true;
  }

  bool Close() {
    Json done = std::move(stack_.back().value);
    stack_.pop_back();
    Attach(std::move(done));
    return true;
  }

  template <typename T>
  bool Put(T value) {
    if (!Count()) return false;
    Attach(Json(std::move(value)));
    return true;
  }

  void Attach(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = stack_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
      return;
    }
    AttachMember(&level, std::move(value));
  }

  // The ordered object is a plain vector inside: a hostile body with a million members must not
  // search it each time.
  static void AttachMember(Level* level, Json value) {
    constexpr size_t kSmall = 16;
    auto& members = level->value.get_ref<Json::object_t&>();
    if (members.size() < kSmall) {
      level->value[level->key] = std::move(value);
      return;
    }
    if (level->index.empty())
      for (size_t i = 0; i < members.size(); ++i)
        level->index.emplace((members.begin() + static_cast<ptrdiff_t>(i))->first, i);
    const auto [found, fresh] = level->index.emplace(level->key, members.size());
    if (fresh)
      members.emplace_back(level->key, std::move(value));
    else
      (members.begin() + static_cast<ptrdiff_t>(found->second))->second = std::move(value);
  }

  JsonLimits limits_;
  std::vector<Level> stack_;
  Json root_;
  std::string field_;
  size_t values_ = 0;
  Status status_;
};

}  // namespace

Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take(parsed);
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvasir
