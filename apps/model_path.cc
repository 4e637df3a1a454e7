#include "apps/model_path.h"

#include <cstdlib>
#include <filesystem>
#include <regex>

namespace kvasir {
namespace {

constexpr const char* kDemoFile = "SmolLM2-135M-Instruct.Q4_1.gguf";

}  // namespace

std::string DemoModelPath() {
  const char* data = std::getenv("XDG_DATA_HOME");
  std::string folder = data != nullptr && data[0] != '\0' ? data : "";
  if (folder.empty()) {
    const char* home = std::getenv("HOME");
    folder = std::string(home != nullptr ? home : "") + "/.local/share";
  }
  return folder + "/kvasir/models/" + kDemoFile;
}

Result<std::string> ResolveModelPath(const std::string& model) {
  std::error_code error;
  if (model == "demo") {
    const std::string path = DemoModelPath();
    if (std::filesystem::exists(path, error)) return path;
    return NotFound(path +
                    ": the demo model is not there yet; ./kvasir-quickstart in the checkout "
                    "fetches it (98 MB)");
  }
  if (std::filesystem::is_directory(model, error)) {
    return Unimplemented(model +
                         ": folders with safetensors are not served yet; give a .gguf file");
  }
  return model;
}

std::string ModelStem(const std::string& path) {
  static const std::regex shard("-[0-9]{5}-of-[0-9]{5}$");
  std::string name = std::filesystem::path(path).filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  name = std::regex_replace(name, shard, "");
  return name.empty() ? "model" : name;
}

}  // namespace kvasir
