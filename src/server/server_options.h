// What a Server may do: address, keys, limits. Everything from outside has a limit here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address, or localhost
  int32_t port = 8080;             // 0: any free one, see Server::port
  std::string version = "0.1.0";

  // Bearer tokens; any of them opens /v1/*, /tokenize and /detokenize. Without one only a loopback
  // host is served, unless allow_unauthenticated.
  std::vector<std::string> api_keys;
  bool allow_unauthenticated = false;
  // Each key is a tenant of its own in the cache; the first is the operator's.
  bool api_key_tenants = false;
  std::string cors_allow_origin;  // sent as Access-Control-Allow-Origin; empty: no page of another
                                  // origin may read answers

  int32_t connections_max = 1024;  // further ones wait in the listen backlog
  size_t header_bytes_max = 16u << 10;
  size_t body_bytes_max = 16u << 20;         // of one request: 413 beyond
  size_t body_bytes_total_max = 256u << 20;  // of all being read or prepared at once: 503 beyond
  size_t json_values_max = 2'000'000;        // values in one body
  size_t output_bytes_max =
      1u << 20;  // unsent bytes of a streamed answer; a reader slower than that is cut off
  int32_t choices_max = 256;     // prompts times n in one call
  double header_timeout_s = 15;  // from first byte to whole header
  double body_timeout_s = 60;
  double idle_timeout_s = 75;   // between two requests of a connection
  double write_timeout_s = 30;  // without any progress

  int32_t io_threads = 1;
  int32_t prepare_threads = 2;  // JSON, templates and tokenising run here
  int32_t prepare_queue_max = 1024;

  int32_t max_queue =
      0;  // as the engine's; /health says 503 when that many requests wait. 0: unknown
  double queue_timeout_s = 60;           // longest wait for admission: 503 beyond
  double pin_budget = 0.5;               // as the engine's, shown in /v1/kvcache
  double tenant_quota = 0.5;             // the same
  std::optional<uint64_t> default_seed;  // for requests that give none

  bool access_log = true;
  bool access_log_json = false;

  // Names the flag and the limit.
  Status Validate() const;
};

}  // namespace kvasir
