#include "apps/bench_flags.h"

#include <chrono>

#include "apps/api_keys.h"
#include "apps/files.h"
#include "apps/flag_values.h"
#include "loadgen/svg_chart.h"

namespace kvasir {
namespace {

void AddTargetFlags(CLI::App* app, BenchFlags* flags) {
  BenchOptions* bench = &flags->bench;
  app->add_option("--url", bench->url, "server to load, http only")->capture_default_str();
  app->add_option("--model", bench->model,
                  "model name to ask for (default: the first of /v1/models)");
  app->add_option("--only", bench->only, "workloads, a list out of w1,w2,w3,w4,w5,w6")
      ->delimiter(',');
  app->add_flag("--text", bench->text,
                "prompts as common words, for servers that take no token ids");
  app->add_option("--vocab", bench->shape.vocab, "token ids are drawn from 300 up to this")
      ->capture_default_str();
  app->add_option("--seed", bench->shape.seed,
                  "of prompts and arrivals (default: from the clock, printed)")
      ->check(SeedRange());
  app->add_flag("!--no-warm-up", bench->warm_up, "no small request before the first counted one");
  app->add_option("--timeout", bench->timeout_s, "seconds for one request")->capture_default_str();
  app->add_option("--api-key", flags->api_keys, "bearer token")->expected(1);
  app->add_option("--api-key-file", flags->api_key_file,
                  "file whose first line is the bearer token")
      ->check(NotEmpty());
  app->add_option("--json", flags->json_path,
                  "report as JSON into this file; without a name or with -, to standard output")
      ->expected(0, 1);
}

void AddLoopFlags(CLI::App* app, BenchFlags* flags) {
  LoopOptions* loop = &flags->bench.loop;
  app->add_option("--concurrency", loop->concurrency,
                  "closed loop: users that ask one after the other");
  loop->requests = 100;
  app->add_option("--requests", loop->requests,
                  "closed loop: requests in all (100); sweep: requests of each load, instead of "
                  "--duration");
  app->add_option("--rate", loop->rate, "open loop: arrivals a second (Poisson)");
  loop->duration_s = 60;
  app->add_option("--duration", loop->duration_s,
                  "open loop: seconds of arrivals (60); sweep: of each load (20)");
  app->add_option("--in-flight", loop->in_flight_max,
                  "open loop and sweep: arrivals beyond this many open requests are not sent, and "
                  "counted (256; sweep: 1000)");
}

void AddTrafficFlags(CLI::App* app, BenchFlags* flags) {
  TrafficOptions* traffic = &flags->traffic;
  app->add_option("--input-len", flags->input_len, "prompt tokens, N or LOW:HIGH (drawn evenly)")
      ->capture_default_str();
  app->add_option("--output-len", flags->output_len, "output tokens, N or LOW:HIGH")
      ->capture_default_str();
  app->add_option("--shared-len", traffic->shared_tokens,
                  "tokens of --input-len that all requests share, at its start")
      ->capture_default_str();
  app->add_option("--shared-prefix", traffic->prefix_tokens,
                  "tokens in front of --input-len that the requests share")
      ->capture_default_str();
  app->add_option("--hot-share", traffic->hot_share,
                  "share of requests with the common --shared-prefix, 0 to 1; the others have one "
                  "of their own")
      ->capture_default_str();
  app->add_option("--trace", flags->trace_path,
                  "CSV with the columns ContextTokens and GeneratedTokens: lengths are drawn from "
                  "its rows")
      ->check(NotEmpty());
  app->add_option("--trace-scale", flags->trace_scale, "factor on the lengths of --trace")
      ->capture_default_str();
  app->add_option("--turns", traffic->turns,
                  "requests of a session; each begins with all that was asked and answered before")
      ->capture_default_str();
  app->add_option("--think", traffic->think_s, "seconds between an answer and the next turn")
      ->capture_default_str();
  app->add_option("--first-request", traffic->first_request,
                  "number of the first request: goes on where a run with the same seed ended")
      ->capture_default_str();
}

void AddSweepFlags(CLI::App* app, BenchFlags* flags) {
  SweepOptions* sweep = &flags->sweep;
  app->add_flag("--sweep", flags->sweep_asked,
                "measure the capacity, then open-loop load at multiples of it");
  app->add_option("--loads", sweep->loads, "sweep: multiples of the capacity")
      ->delimiter(',')
      ->default_str("0.25,0.5,0.75,1,2,4,10");
  app->add_option("--capacity", sweep->capacity,
                  "sweep: requests a second that count as 1 (default: measured)");
  app->add_option("--capacity-users", sweep->capacity_users,
                  "sweep: users of the closed loop that measures the capacity")
      ->capture_default_str();
  app->add_option("--capacity-time", sweep->capacity_s, "sweep: seconds of that loop")
      ->capture_default_str();
  app->add_option("--ramp", sweep->ramp, "sweep: share of each load's time before it is measured")
      ->capture_default_str();
  app->add_option("--drain", sweep->drain_s,
                  "sweep: seconds that open requests get when a load's time is over")
      ->capture_default_str();
  app->add_option("--settle", sweep->settle_s,
                  "sweep: seconds between two loads, besides waiting until the server is idle")
      ->capture_default_str();
  app->add_option("--slo-ttft", flags->slo_ttft_ms,
                  "sweep: milliseconds to the first token for goodput")
      ->capture_default_str();
  app->add_option("--slo-itl", flags->slo_itl_ms,
                  "sweep: mean milliseconds between a request's tokens for goodput")
      ->capture_default_str();
  app->add_option("--svg", flags->svg_path, "sweep, plot: the curves as a picture")
      ->check(NotEmpty());
  app->add_option("--plot", flags->plot,
                  "draw these reports of sweeps into --svg; no server needed");
  app->add_option("--label", flags->label,
                  "name of the run in reports and pictures; with --plot, one for each report")
      ->expected(1)
      ->take_all();
  app->add_option("--title", flags->title, "of the picture");
}

Status ReadTrace(const BenchFlags& flags, std::vector<TraceLengths>* trace) {
  if (!(flags.trace_scale > 0) || flags.trace_scale > 1000) {
    return InvalidArgument("--trace-scale: must be more than 0, 1000 at most", "trace-scale");
  }
  KVASIR_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(flags.trace_path, "--trace"));
  KVASIR_ASSIGN_OR_RETURN(*trace, ParseLengthTrace(text, flags.trace_scale));
  return Status::Ok();
}

Status FillTraffic(const CLI::App& app, BenchFlags* flags) {
  KVASIR_ASSIGN_OR_RETURN(flags->traffic.input, ParseLengthRange(flags->input_len, "input-len"));
  KVASIR_ASSIGN_OR_RETURN(flags->traffic.output, ParseLengthRange(flags->output_len, "output-len"));
  if (!flags->trace_path.empty()) {
    if (app.count("--input-len") + app.count("--output-len") > 0) {
      return InvalidArgument("--trace excludes --input-len and --output-len", "trace");
    }
    KVASIR_RETURN_IF_ERROR(ReadTrace(*flags, &flags->traffic.trace));
  } else if (app.count("--trace-scale") > 0) {
    return InvalidArgument("--trace-scale needs --trace", "trace-scale");
  }
  flags->bench.loop.traffic = flags->traffic;
  flags->sweep.traffic = flags->traffic;
  return Status::Ok();
}

Status FillSweep(const CLI::App& app, BenchFlags* flags) {
  if (app.count("--rate") + app.count("--concurrency") + app.count("--only") > 0) {
    return InvalidArgument("--sweep excludes --rate, --concurrency and --only", "sweep");
  }
  SweepOptions* sweep = &flags->sweep;
  if (app.count("--requests") > 0) {
    sweep->level_requests = flags->bench.loop.requests;
    if (sweep->level_requests < 1) {
      return InvalidArgument("--requests: must be 1 or more", "requests");
    }
  }
  if (app.count("--duration") > 0) sweep->level_s = flags->bench.loop.duration_s;
  if (app.count("--in-flight") > 0) sweep->connections_max = flags->bench.loop.in_flight_max;
  if (app.count("--capacity") > 0 && !(sweep->capacity > 0)) {
    return InvalidArgument("--capacity: must be 0.001 to 100000", "capacity");
  }
  if (flags->label.size() > 1) return InvalidArgument("--label: one for a sweep", "label");
  if (!flags->label.empty()) sweep->label = flags->label.front();
  sweep->slo_ttft_s = flags->slo_ttft_ms * 1e-3;
  sweep->slo_itl_s = flags->slo_itl_ms * 1e-3;
  return sweep->Validate();
}

Status CheckPlot(const BenchFlags& flags) {
  if (flags.sweep_asked) return InvalidArgument("--plot and --sweep exclude each other", "plot");
  if (flags.svg_path.empty()) return InvalidArgument("--plot needs --svg FILE", "svg");
  if (flags.plot.size() > kChartColours) {
    return InvalidArgument("--plot: at most " + std::to_string(kChartColours) + " reports", "plot");
  }
  if (!flags.label.empty() && flags.label.size() != flags.plot.size()) {
    return InvalidArgument("--label: " + std::to_string(flags.label.size()) + " for " +
                               std::to_string(flags.plot.size()) + " reports",
                           "label");
  }
  return Status::Ok();
}

// A run of an hour must not end with a report that nobody can have.
Status CheckOutputs(const BenchFlags& flags) {
  if (!flags.json_path.empty() && flags.json_path != "-")
    KVASIR_RETURN_IF_ERROR(CheckWritable(flags.json_path, "--json"));
  if (!flags.svg_path.empty() && flags.svg_path != "-")
    KVASIR_RETURN_IF_ERROR(CheckWritable(flags.svg_path, "--svg"));
  return Status::Ok();
}

}  // namespace

void AddBenchFlags(CLI::App* app, BenchFlags* flags) {
  flags->bench.shape.seed =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  AddTargetFlags(app, flags);
  AddLoopFlags(app, flags);
  AddTrafficFlags(app, flags);
  AddSweepFlags(app, flags);
}

Status CompleteBenchFlags(const CLI::App& app, BenchFlags* flags) {
  if (app.count("--json") > 0 && flags->json_path.empty()) flags->json_path = "-";
  if (!flags->plot.empty()) {
    flags->mode = BenchMode::kPlot;
    KVASIR_RETURN_IF_ERROR(CheckPlot(*flags));
    return CheckOutputs(*flags);
  }
  // 0 would mean "no such loop" further on, and run the workloads instead.
  if (app.count("--rate") > 0 && !(flags->bench.loop.rate > 0)) {
    return InvalidArgument("--rate: must be 0.001 to 10000 arrivals a second", "rate");
  }
  if (app.count("--concurrency") > 0 && flags->bench.loop.concurrency < 1) {
    return InvalidArgument("--concurrency: must be 1 to 4096", "concurrency");
  }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                          CollectApiKeys(flags->api_keys, flags->api_key_file));
  if (!keys.empty()) flags->bench.api_key = keys.front();
  KVASIR_RETURN_IF_ERROR(FillTraffic(app, flags));
  if (flags->sweep_asked) {
    flags->mode = BenchMode::kSweep;
    KVASIR_RETURN_IF_ERROR(FillSweep(app, flags));
    // What belongs to the loops only must not be in the way.
    flags->bench.loop = LoopOptions();
  } else if (!flags->svg_path.empty()) {
    return InvalidArgument("--svg needs --sweep or --plot", "svg");
  }
  KVASIR_RETURN_IF_ERROR(CheckOutputs(*flags));
  return flags->bench.Validate();
}

}  // namespace kvasir
