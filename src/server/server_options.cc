#include "server/server_options.h"

#include <algorithm>

namespace kvasir {
namespace {

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

Status Range(bool fits, const char* name, const char* range) {
  if (fits) return Status::Ok();
  return InvalidArgument(std::string(name) + " must be " + range, name);
}

}  // namespace

Status ServerOptions::Validate() const {
  KVASIR_RETURN_IF_ERROR(Range(!host.empty(), "host", "an address or localhost"));
  KVASIR_RETURN_IF_ERROR(Range(port >= 0 && port <= 65535, "port", "from 0 to 65535"));
  const bool keys_fit = std::none_of(api_keys.begin(), api_keys.end(),
                                     [](const std::string& key) { return key.empty(); });
  KVASIR_RETURN_IF_ERROR(Range(keys_fit, "api-key", "not empty"));
  if (api_keys.empty() && !allow_unauthenticated && !IsLoopback(host))
    return InvalidArgument(
        "host " + host +
            " can be reached from elsewhere: give --api-key or --api-key-file, or "
            "--allow-unauthenticated",
        "host");
  const bool origin_fits = std::all_of(cors_allow_origin.begin(), cors_allow_origin.end(),
                                       [](char c) { return c > 0x20 && c < 0x7F; });
  KVASIR_RETURN_IF_ERROR(Range(origin_fits, "cors_allow_origin", "one origin, or *"));
  KVASIR_RETURN_IF_ERROR(Range(connections_max >= 1, "connections_max", "at least 1"));
  KVASIR_RETURN_IF_ERROR(Range(header_bytes_max >= 1024 && header_bytes_max <= (1u << 20),
                               "header_bytes_max", "from 1 KiB to 1 MiB"));
  KVASIR_RETURN_IF_ERROR(Range(body_bytes_max >= 1024 && body_bytes_max <= (1u << 30),
                               "body_bytes_max", "from 1 KiB to 1 GiB"));
  KVASIR_RETURN_IF_ERROR(Range(body_bytes_total_max >= body_bytes_max, "body_bytes_total_max",
                               "at least body_bytes_max"));
  KVASIR_RETURN_IF_ERROR(Range(json_values_max >= 1000, "json_values_max", "at least 1000"));
  KVASIR_RETURN_IF_ERROR(
      Range(output_bytes_max >= (16u << 10), "output_bytes_max", "at least 16 KiB"));
  KVASIR_RETURN_IF_ERROR(
      Range(choices_max >= 1 && choices_max <= 65536, "choices_max", "from 1 to 65536"));
  KVASIR_RETURN_IF_ERROR(
      Range(header_timeout_s > 0 && body_timeout_s > 0 && idle_timeout_s > 0 && write_timeout_s > 0,
            "timeouts", "above 0"));
  KVASIR_RETURN_IF_ERROR(Range(io_threads >= 1 && io_threads <= 64, "io_threads", "from 1 to 64"));
  KVASIR_RETURN_IF_ERROR(
      Range(prepare_threads >= 1 && prepare_threads <= 64, "prepare_threads", "from 1 to 64"));
  KVASIR_RETURN_IF_ERROR(Range(prepare_queue_max >= 1, "prepare_queue_max", "at least 1"));
  if (api_key_tenants && api_keys.empty())
    return InvalidArgument(
        "api-key-tenants: makes each API key a tenant of its own, so give --api-key or "
        "--api-key-file",
        "api-key-tenants");
  return Range(queue_timeout_s >= 0, "queue-timeout", "0 (no limit) or more");
}

}  // namespace kvasir
