#include "apps/api_keys.h"

#include <sstream>

#include "apps/files.h"

namespace kvasir {

Result<std::vector<std::string>> CollectApiKeys(std::vector<std::string> keys,
                                                const std::string& file) {
  if (!file.empty()) {
    KVASIR_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(file, "--api-key-file"));
    std::istringstream stream(text);
    const size_t before = keys.size();
    for (std::string line; std::getline(stream, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty()) keys.push_back(line);
    }
    if (keys.size() == before) {
      return InvalidArgument("--api-key-file " + file + ": holds no key", "api-key-file");
    }
  }
  for (const std::string& key : keys) {
    if (key.empty()) return InvalidArgument("--api-key: must not be empty", "api-key");
    for (const char c : key) {
      if (c <= ' ' || c == 0x7f) {
        return InvalidArgument("--api-key: must be printable ASCII without spaces", "api-key");
      }
    }
  }
  return keys;
}

}  // namespace kvasir
