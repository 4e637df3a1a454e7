// What the MODEL argument means.
#pragma once

#include <string>

#include "base/status.h"

namespace kvasir {

// $XDG_DATA_HOME/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf, XDG_DATA_HOME being
// $HOME/.local/share if unset.
std::string DemoModelPath();

// "demo" -> the demo model's path (kNotFound with how to fetch it if it is not there; nothing is
// downloaded). A folder is kUnimplemented. Any other text is a path and comes back as it is.
Result<std::string> ResolveModelPath(const std::string& model);

// File name without folder, ".gguf" and a shard's "-00001-of-00003".
std::string ModelStem(const std::string& path);

}  // namespace kvasir
