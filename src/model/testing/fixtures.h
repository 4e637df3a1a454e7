// For tests: where the fixture models are. KVASIR_FIXTURES names a folder written by
// ../shared/cases/make_fixtures.py, the broken files lie in its subfolder `hostile` or beside it in
// KVASIR_FIXTURES-hostile.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvasir::testing {

inline constexpr const char* kNoFixtures =
    "SKIPPED: set KVASIR_FIXTURES to a folder made by ../shared/cases/make_fixtures.py (broken "
    "files: --hostile into its "
    "subfolder 'hostile')";

// "" if absent.
inline std::string Fixture(const std::string& name) {
  const char* folder = std::getenv("KVASIR_FIXTURES");
  if (folder == nullptr || *folder == '\0') return "";
  const std::string path = std::string(folder) + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

inline std::string HostileFolder() {
  const char* folder = std::getenv("KVASIR_FIXTURES");
  if (folder == nullptr || *folder == '\0') return "";
  for (const std::string& path :
       {std::string(folder) + "/hostile", std::string(folder) + "-hostile"}) {
    if (std::filesystem::exists(path + "/manifest.json")) return path;
  }
  return "";
}

// Files of the shared folder, seen from the repository's root where tests run.
inline std::string Shared(const std::string& name) {
  const std::string path = "../shared/" + name;
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace kvasir::testing
