// Where log lines go: standard error, as text or as one JSON object a line.
#pragma once

#include <string>

#include "base/status.h"

namespace kvasir {

// level: trace debug info warn error off. format: text json. Names the flag if it is neither.
Status SetUpLog(const std::string& level, const std::string& format);

}  // namespace kvasir
