// The page at GET /: what runs here, where the API is, and live figures read from /metrics by the
// browser.
#pragma once

#include <string>

namespace kvasir {

// kv: one line about the cache's format.
std::string PageHtml(const std::string& model_name, const std::string& version,
                     const std::string& kv);

// Nothing from elsewhere, no frames: the page's own inline script and style, and requests to this
// server.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src "
    "'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

}  // namespace kvasir
