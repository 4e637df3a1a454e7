#include "calibrate/sidecar.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvasir {
namespace {

constexpr char kFormat[] = "kvasir-sidecar";
constexpr int kVersion = 1;
constexpr int kMaxDepth = 64;
constexpr size_t kMaxBytes = size_t{256} << 20;  // no honest file comes near

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

// "" or why it could not be written.
std::string WriteWhole(const std::string& path, const std::string& text) {
  const std::string draft = path + "." + std::to_string(getpid()) + ".tmp";
  std::FILE* file = std::fopen(draft.c_str(), "wb");
  if (file == nullptr) return draft + ": " + std::strerror(errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (written && closed && std::rename(draft.c_str(), path.c_str()) == 0) return "";
  std::string why = path + ": " + std::strerror(errno);
  std::remove(draft.c_str());
  return why;
}

bool IsSection(const nlohmann::json& section) {
  return section.is_object() && section.contains("version") &&
         section["version"].is_number_integer() && section.contains("data");
}

// The file as JSON; null, and why, if it cannot be used. Broken JSON is no reason by itself: what
// comes of it has no format.
nlohmann::json Parse(const std::string& path, std::string* why) {
  std::error_code error;
  nlohmann::json file;
  if (std::filesystem::file_size(path, error) > kMaxBytes || error) {
    *why = "larger than " + std::to_string(kMaxBytes >> 20) + " MiB";
  } else {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    bool deep = false;  // copies of what is nested without end would end the stack
    const auto keep = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      deep = deep || depth > kMaxDepth;
      return depth <= kMaxDepth;
    };
    file = nlohmann::json::parse(text, keep, false);
    if (deep) *why = "nested deeper than " + std::to_string(kMaxDepth);
  }
  return why->empty() ? file : nlohmann::json();
}

// The fingerprint that a file of this version names.
std::optional<uint64_t> ModelOf(const nlohmann::json& file) {
  const auto it = file.find("fingerprint");
  if (it == file.end() || !it->is_string()) return std::nullopt;
  const auto& text = it->get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || Hex(value) != text) return std::nullopt;
  return value;
}

}  // namespace

std::string Sidecar::Beside(const std::string& model_path) {
  constexpr std::string_view kEnding = ".gguf";
  std::string stem = model_path;
  if (stem.size() > kEnding.size() && stem.ends_with(kEnding)) {
    stem.resize(stem.size() - kEnding.size());
  }
  return stem + ".kvasir.json";
}

std::string Sidecar::InCache(uint64_t fingerprint) {
  std::string folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    folder = cache;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    folder = std::string(home) + "/.cache";
  } else {
    return "";
  }
  return folder + "/kvasir/" + Hex(fingerprint) + ".kvasir.json";
}

Sidecar::Sidecar(const std::string& model_path, uint64_t fingerprint)
    : model_path_(model_path), fingerprint_(fingerprint), own_(nlohmann::json::object()) {
  Refresh();
}

void Sidecar::Refresh() {
  const std::string beside = Beside(model_path_);
  const std::string cached = InCache(fingerprint_);
  path_.clear();
  complaint_.clear();
  Foreign ignored;
  const nlohmann::json of_beside = Read(beside, &beside_is_);
  const nlohmann::json of_cache = Read(cached, &ignored);
  std::error_code none;  // a file that is not there is the older one
  const bool cache_is_newer =
      !of_cache.empty() &&
      (of_beside.empty() || std::filesystem::last_write_time(cached, none) >
                                std::filesystem::last_write_time(beside, none));
  if (!of_cache.empty() || !of_beside.empty()) {
    path_ = cache_is_newer ? cached : beside;
    complaint_.clear();
  }
  sections_ = cache_is_newer ? of_beside : of_cache;
  sections_.update(cache_is_newer ? of_cache : of_beside);
  sections_.update(own_);
}

nlohmann::json Sidecar::Read(const std::string& path, Foreign* foreign) {
  *foreign = {};
  nlohmann::json none = nlohmann::json::object();
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return none;
  if (!std::filesystem::is_regular_file(path, error)) {
    complaint_ = path + ": not used: it is not a regular file";
    return none;
  }
  std::string why;
  const nlohmann::json file = Parse(path, &why);
  const auto has = [&](const char* key, const nlohmann::json& value) {
    const auto it = file.find(key);
    return it != file.end() && *it == value;
  };
  if (!why.empty()) {
    complaint_ = path + ": not used: " + why;
  } else if (file.is_discarded()) {
    complaint_ = path + ": not used: it cannot be read, or is cut off or no JSON";
  } else if (!file.is_object() || !has("format", kFormat)) {
    complaint_ = path + ": not used: no " + kFormat + " file";
  } else if (!has("version", kVersion)) {
    foreign->is = true;
    complaint_ = path + ": not used: another version of the file (known: 1)";
  } else if (!has("fingerprint", Hex(fingerprint_))) {
    *foreign = {true, ModelOf(file)};
    complaint_ = path + ": not used: it was made for another model";
  } else if (!file.contains("sections") || !file["sections"].is_object()) {
    complaint_ = path + ": not used: 'sections' is missing";
  } else {
    return file["sections"];
  }
  return none;
}

const nlohmann::json* Sidecar::Find(const std::string& section, int version) const {
  const auto it = sections_.find(section);
  if (it == sections_.end() || !IsSection(*it) || (*it)["version"] != version) return nullptr;
  return &(*it)["data"];
}

Status Sidecar::Store(const std::string& section, int version, nlohmann::json data) {
  own_[section] = {{"version", version}, {"data", std::move(data)}};
  Refresh();
  if (beside_is_.is) KeepForeign();
  const std::string beside = Beside(model_path_);
  const std::string why = WriteWhole(beside, Text());
  if (why.empty()) {
    path_ = beside;
    return Status::Ok();
  }
  const std::string why_cached = WriteCached();
  if (!why_cached.empty()) return Unavailable(why + "; " + why_cached);
  path_ = InCache(fingerprint_);
  return Status::Ok();
}

std::string Sidecar::Text() const {
  const nlohmann::json file = {{"format", kFormat},
                               {"version", kVersion},
                               {"fingerprint", Hex(fingerprint_)},
                               {"sections", sections_}};
  return file.dump(1) + "\n";
}

std::string Sidecar::WriteCached() const {
  const std::string cached = InCache(fingerprint_);
  if (cached.empty()) return "and there is no HOME or XDG_CACHE_HOME";
  std::error_code ignored;  // the write below says it better
  std::filesystem::create_directories(std::filesystem::path(cached).parent_path(), ignored);
  return WriteWhole(cached, Text());
}

// Reading as the other model joins what both its files have.
void Sidecar::KeepForeign() const {
  if (beside_is_.model && Sidecar(model_path_, *beside_is_.model).WriteCached().empty()) return;
  const std::string beside = Beside(model_path_);
  std::error_code ignored;
  std::filesystem::rename(beside, beside + ".old", ignored);
}

}  // namespace kvasir
