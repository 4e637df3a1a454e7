// kvasir serve MODEL
#include <spdlog/spdlog.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <optional>
#include <thread>

#include "apps/api_keys.h"
#include "apps/command.h"
#include "apps/flag_values.h"
#include "apps/loaded_model.h"
#include "apps/log.h"
#include "apps/model_path.h"
#include "apps/stop_signals.h"
#include "server/metrics.h"
#include "server/server.h"

namespace kvasir {
namespace {

// CLI::Range lets nan through.
CLI::Validator Seconds(double most) {
  const std::string range = "0 to " + std::to_string(static_cast<int64_t>(most)) + " seconds";
  return CLI::Validator(
      [most, range](const std::string& text) {
        double value = -1;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= 0 && value <= most ? std::string() : "must be " + range;
      },
      range, "seconds");
}

struct ServeFlags {
  ModelFlags model;
  ServerOptions server;
  std::string api_key_file;
  uint64_t seed = 0;
  bool has_seed = false;
  double drain_timeout_s = 10;
  std::string log_level = "info", log_format = "text";
};

void AddNetworkFlags(CLI::App* app, ServeFlags* flags) {
  ServerOptions* server = &flags->server;
  app->add_option("--host", server->host, "address to listen on")->capture_default_str();
  app->add_option("--port", server->port, "port to listen on; 0 picks a free one and prints it")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option("--served-model-name", flags->model.served_name,
                  "name in /v1/models (default: the file's stem)")
      ->check(NotEmpty());
  app->add_option("--api-key", server->api_keys,
                  "bearer token that opens the API; may be repeated");
  app->add_option("--api-key-file", flags->api_key_file, "file with one bearer token a line")
      ->check(NotEmpty());
  app->add_flag("--api-key-tenants", server->api_key_tenants,
                "each API key has a cache of its own, as with a cache_salt; the first key is the "
                "operator's");
  app->add_flag("--allow-unauthenticated", server->allow_unauthenticated,
                "serve other addresses than loopback without a token");
  app->add_option("--cors-allow-origin", server->cors_allow_origin,
                  "origin whose pages may read answers");
  app->add_option("--drain-timeout", flags->drain_timeout_s,
                  "seconds that running requests get at SIGTERM or SIGINT")
      ->check(Seconds(86'400))
      ->capture_default_str();
}

void AddEngineFlags(CLI::App* app, ServeFlags* flags) {
  EngineOptions* engine = &flags->model.engine;
  app->add_option("--max-num-seqs", engine->max_num_seqs, "sequences running at once")
      ->capture_default_str();
  app->add_option(
         "--max-num-batched-tokens", engine->max_num_batched_tokens,
         "token budget of a step; 0: 512, fewer if their scratch would take more than 1/16 of free "
         "memory, and at most 128 of prompts while somebody decodes")
      ->capture_default_str();
  app->add_option("--max-queue", engine->max_queue, "waiting requests; beyond: 429")
      ->capture_default_str();
  app->add_option("--queue-timeout", engine->queue_timeout_s,
                  "longest wait for admission in seconds; beyond: 503")
      ->capture_default_str();
  AddSharingFlags(app, &flags->model.cache, engine);
}

void AddFlags(CLI::App* app, ServeFlags* flags) {
  AddModelFlags(app, &flags->model);
  AddNetworkFlags(app, flags);
  AddEngineFlags(app, flags);
  app->add_option("--seed", flags->seed,
                  "sampling seed for requests that give none (default: random)")
      ->check(SeedRange());
  app->add_option("--log-level", flags->log_level, "trace, debug, info, warn, error, off")
      ->capture_default_str();
  app->add_option("--log-format", flags->log_format, "text or json")->capture_default_str();
  AddConfigFlag(app);
}

// What the flags leave open or say twice.
Status Complete(ServeFlags* flags) {
  KVASIR_RETURN_IF_ERROR(SetUpLog(flags->log_level, flags->log_format));
  KVASIR_RETURN_IF_ERROR(flags->model.Complete());
  ServerOptions* server = &flags->server;
  KVASIR_ASSIGN_OR_RETURN(server->api_keys, CollectApiKeys(server->api_keys, flags->api_key_file));
  if (flags->has_seed) server->default_seed = flags->seed;
  server->version = KVASIR_VERSION;
  server->max_queue = flags->model.engine.max_queue;
  server->queue_timeout_s = flags->model.engine.queue_timeout_s;
  server->pin_budget = flags->model.engine.pin_budget;
  server->tenant_quota = flags->model.engine.tenant_quota;
  server->access_log_json = flags->log_format == "json";
  return server->Validate();
}

// Stops admitting, gives running requests their time, closes. Returns within about the drain
// timeout.
void DrainAndStop(Server* server, LoadedModel* model, double timeout_s) {
  const auto start = std::chrono::steady_clock::now();
  server->BeginDrain();
  model->engine().Drain(static_cast<int64_t>(timeout_s * 1e9));
  const double used_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  server->Stop(std::max(0.2, std::min(2.0, timeout_s - used_s)));
}

int Serve(ServeFlags* flags) {
  if (const Status status = Complete(flags); !status.ok()) return Fail(status);
  StopSignals signals;
  const Result<std::string> path = ResolveModelPath(flags->model.model);
  if (!path.ok()) return Fail(path.status());
  if (flags->model.served_name.empty()) flags->model.served_name = ModelStem(*path);
  ServerMetrics metrics(flags->model.served_name, flags->model.engine.evict);
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(flags->model, &metrics);
  if (!model.ok()) return Fail(model.status());
  spdlog::info("{}", (*model)->Describe());
  Result<std::unique_ptr<Server>> server =
      Server::Start(flags->server, (*model)->served(), &metrics);
  if (!server.ok()) return Fail(server.status());
  signals.Ready();
  std::cout << "kvasir: serving " << flags->model.served_name << " at " << (*server)->url()
            << std::endl;
  spdlog::info("listening on {}, {}", (*server)->url(),
               flags->server.api_keys.empty() ? "no API key" : "API key needed");

  const int signal = signals.Wait();
  spdlog::info("{}: draining for at most {} s; a second signal ends at once",
               signal == SIGTERM ? "SIGTERM" : "SIGINT", flags->drain_timeout_s);
  DrainAndStop(server->get(), model->get(), flags->drain_timeout_s);
  spdlog::info("stopped");
  return kExitOk;
}

}  // namespace

int ServeCommand(int argc, const char* const* argv) {
  CLI::App app("OpenAI-compatible server with continuous batching over a paged KV cache.",
               "kvasir serve");
  app.footer(
      "Examples:\n  kvasir serve demo\n  kvasir serve model.gguf --port 8000 --kv-mem 4GiB "
      "--max-model-len 8192\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d "
      "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'");
  ServeFlags flags;
  AddFlags(&app, &flags);
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  flags.has_seed = app.count("--seed") > 0;
  return Serve(&flags);
}

}  // namespace kvasir
