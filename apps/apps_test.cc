// The parts of the program that need no model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/api_keys.h"
#include "apps/cache_flags.h"
#include "apps/command.h"
#include "apps/kv_flags.h"
#include "apps/line_reader.h"
#include "apps/model_path.h"
#include "apps/thread_flags.h"
#include "base/hash.h"

namespace kvasir {
namespace {

// A pipe whose reading end is given away.
class Pipe {
 public:
  Pipe() { KVASIR_CHECK(pipe(fds_) == 0); }
  ~Pipe() {
    CloseWriter();
    close(fds_[0]);
  }
  int reader() const { return fds_[0]; }
  void Write(const std::string& text) {
    KVASIR_CHECK(write(fds_[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void CloseWriter() {
    if (fds_[1] >= 0) close(fds_[1]);
    fds_[1] = -1;
  }

 private:
  int fds_[2] = {-1, -1};
};

TEST(LineReader, LinesContinuationsAndTheLastOne) {
  Pipe pipe;
  std::atomic<bool> interrupted{false};
  pipe.Write("one\r\n\ntwo\\\nmore\\\nend\nlast\\");
  pipe.CloseWriter();
  LineReader reader(pipe.reader(), &interrupted);
  for (const char* expected : {"one", "", "two\nmore\nend", "last\\"}) {
    const LineReader::Line line = reader.Next();
    EXPECT_EQ(line.kind, LineReader::Kind::kLine);
    EXPECT_EQ(line.text, expected);
  }
  EXPECT_EQ(reader.Next().kind, LineReader::Kind::kEnd);
  EXPECT_EQ(reader.Next().kind, LineReader::Kind::kEnd);
}

TEST(ThreadFlags, ThreadsAndWhereTheyRun) {
  const std::vector<int> allowed = {0, 1, 2, 3};
  const std::vector<int> spread = {0, 2, 1, 3};  // two cores of two threads
  const auto plan = [&](int32_t threads, const std::string& pin, int usable = 4) {
    ThreadFlags flags;
    flags.threads = threads;
    flags.pin = pin;
    return flags.Plan(allowed, spread, usable, std::min(usable, 2));
  };
  EXPECT_EQ(plan(0, "off")->threads, 2);
  EXPECT_TRUE(plan(0, "off")->cpus.empty());
  EXPECT_EQ(plan(0, "cores")->cpus, std::vector<int>({0, 2}));
  EXPECT_EQ(plan(3, "cores")->cpus, std::vector<int>({0, 2, 1}));
  EXPECT_EQ(plan(0, "1-3")->cpus, std::vector<int>({1, 2, 3}));
  EXPECT_EQ(plan(0, "1-3")->threads, 3);
  EXPECT_EQ(plan(2, "3,1,0")->cpus, std::vector<int>({3, 1}));
  EXPECT_EQ(plan(4, "off")->warning, "");
  EXPECT_EQ(plan(5, "off")->warning,
            "5 compute threads on 4 CPUs (affinity and cgroup quota): they wait for each other; "
            "--threads 2 is faster");
  EXPECT_NE(plan(2, "off", 1)->warning, "");
  EXPECT_NE(plan(0, "0-3", 2)->warning, "");
  for (const auto& [threads, pin] : std::vector<std::pair<int32_t, std::string>>{
           {5, "cores"}, {3, "0,1"}, {0, "4"}, {0, ""}, {0, "on"}, {0, "0,,1"}}) {
    const auto refused = plan(threads, pin);
    ASSERT_FALSE(refused.ok()) << pin;
    EXPECT_EQ(refused.status().field(), "pin-threads");
    EXPECT_NE(refused.status().message().find("--pin-threads"), std::string::npos);
  }
}

TEST(LineReader, AnInterruptDropsWhatWasTyped) {
  Pipe pipe;
  std::atomic<bool> interrupted{true};
  pipe.Write("half");
  LineReader reader(pipe.reader(), &interrupted);
  EXPECT_EQ(reader.Next().kind, LineReader::Kind::kInterrupted);
  interrupted = false;
  pipe.Write("half\nwhole\n");
  EXPECT_EQ(reader.Next().text,
            "halfhalf");  // the first was still in the pipe, as a terminal would have dropped it
  EXPECT_EQ(reader.Next().text, "whole");
}

TEST(LineReader, ALongMessageIsBounded) {
  std::FILE* file = std::tmpfile();
  const std::string chunk(1 << 20, 'x');
  for (int i = 0; i < 12; ++i) std::fwrite(chunk.data(), 1, chunk.size(), file);
  std::fputs("\nnext\n", file);
  std::fflush(file);
  lseek(fileno(file), 0, SEEK_SET);
  std::atomic<bool> interrupted{false};
  LineReader reader(fileno(file), &interrupted);
  EXPECT_LE(reader.Next().text.size(), LineReader::kMessageBytesMax);
  std::fclose(file);
}

TEST(ModelPath, Stem) {
  EXPECT_EQ(ModelStem("/a/b/SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M-Instruct.Q4_1");
  EXPECT_EQ(ModelStem("big-00001-of-00003.gguf"), "big");
  EXPECT_EQ(ModelStem("x-1-of-3.gguf"), "x-1-of-3");
  EXPECT_EQ(ModelStem(""), "model");
}

TEST(ModelPath, DemoAndFolders) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("kvasir_apps_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "kvasir/models");
  const char* before = std::getenv("XDG_DATA_HOME");
  const std::string saved = before != nullptr ? before : "";
  setenv("XDG_DATA_HOME", folder.c_str(), 1);
  const Result<std::string> missing = ResolveModelPath("demo");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("kvasir-quickstart"), std::string::npos);
  std::ofstream(DemoModelPath()) << "x";
  EXPECT_EQ(ResolveModelPath("demo").value(), DemoModelPath());
  EXPECT_EQ(ResolveModelPath(folder.string()).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ResolveModelPath("no/such.gguf").value(), "no/such.gguf");
  if (before != nullptr) {
    setenv("XDG_DATA_HOME", saved.c_str(), 1);
  } else {
    unsetenv("XDG_DATA_HOME");
  }
  std::filesystem::remove_all(folder);
}

TEST(KvFlags, RefusesByNameAndListsWhatIsServed) {
  const auto message = [](auto change) {
    KvFlags flags;
    change(&flags);
    return flags.Validate().message();
  };
  EXPECT_EQ(message([](KvFlags*) {}), "");
  EXPECT_EQ(message([](KvFlags* f) { f->kv_type = "f32"; }), "");
  for (const char* type : {"i8", "q8_0", "i4", "i4,layers=0-1:i8,-2--1:i8"}) {
    EXPECT_EQ(message([&](KvFlags* f) { f->kv_type = type; }), "") << type;
  }
  EXPECT_EQ(message([](KvFlags* f) { f->kv_type = "i8", f->kv_type_v = "i4"; }), "");
  for (const auto& pair : {std::pair{"i8", "f16"}, {"f16", "i8"}, {"i4", "i8"}}) {
    const std::string text =
        message([&](KvFlags* f) { f->kv_type_k = pair.first, f->kv_type_v = pair.second; });
    EXPECT_NE(text.find("not served; served are i8/i8, i8/i4, i4/i4"), std::string::npos) << text;
    EXPECT_NE(text.find(std::string("--kv-type-k ") + pair.first), std::string::npos) << text;
  }
  EXPECT_NE(message([](KvFlags* f) { f->kv_type_k = "i4,layers=zero:i8"; }).find("--kv-type-k"),
            std::string::npos);
  EXPECT_EQ(message([](KvFlags* f) { f->kv_type = "auto"; }), "");
  EXPECT_EQ(message([](KvFlags* f) { f->kv_type = "auto", f->kv_type_v = "bf16"; }), "");
  EXPECT_EQ(message([](KvFlags* f) { f->kv_type = "auto", f->kv_type_v = "i4"; }), "");
  EXPECT_NE(message([](KvFlags* f) { f->kv_type_k = "auto"; }).find("--kv-type-k auto"),
            std::string::npos);
  KvFlags alias;
  alias.kv_type = "q8_0";
  EXPECT_EQ(alias.Notices().size(), 1u);
  EXPECT_TRUE(KvFlags().Notices().empty());
  EXPECT_NE(message([](KvFlags* f) { f->kv_type = "x9"; }), "");
  for (const int size : {0, 4, 7, 24, 512, -16}) {
    EXPECT_NE(message([&](KvFlags* f) { f->block_size = size; }).find("--block-size"),
              std::string::npos);
  }
  EXPECT_NE(message([](KvFlags* f) { f->kv_mem = "4Gigs"; }), "");
  EXPECT_NE(message([](KvFlags* f) { f->kv_mem = "0"; }), "");
  EXPECT_NE(message([](KvFlags* f) { f->kv_mem = "1G", f->kv_blocks = 5; }), "");
}

TEST(KvFlags, KAndVApart) {
  const auto types = [](const char* both, const char* k, const char* v) {
    KvFlags flags;
    flags.kv_type = both;
    flags.kv_type_k = k;
    flags.kv_type_v = v;
    EXPECT_TRUE(flags.Validate().ok()) << flags.Validate().message();
    return flags.type_k() + " " + flags.type_v() + " " + std::to_string(flags.Notices().size());
  };
  EXPECT_EQ(types("auto", "", ""), "auto auto 0");
  EXPECT_EQ(types("auto", "i8", ""), "i8 i8 1");
  EXPECT_EQ(types("auto", "", "f16"), "f16 f16 1");
  EXPECT_EQ(types("auto", "i8", "i4"), "i8 i4 0");
  EXPECT_EQ(types("i8/i4", "", ""), "i8 i4 0");
  EXPECT_EQ(types("k8v4", "", ""), "i8 i4 0");
  EXPECT_EQ(types("i8/i4", "i4", ""), "i4 i4 0");
  EXPECT_EQ(types("i8,layers=0:i4/q4_0", "", ""), "i8,layers=0:i4 i4 1");
  EXPECT_EQ(types("f32", "", "f16"), "f32 f16 0");
}

TEST(KvFlags, ErrorsNameTheFlagThatWasTyped) {
  KvFlags flags;
  const auto message = [&](const char* both) {
    flags.kv_type = both;
    return flags.Validate().message();
  };
  EXPECT_TRUE(message("x9").ends_with("and auto"));
  EXPECT_EQ(message("i8,layers=0:x9").find("auto"), std::string::npos);
  EXPECT_NE(message("auto,layers=0:i8").find("exceptions"), std::string::npos);
  EXPECT_NE(message("auto/i8").find("auto chooses"), std::string::npos);
  EXPECT_TRUE(message("f16/i8").starts_with("--kv-type f16/i8: not served")) << message("f16/i8");
  const auto named = [&](const char* both, const char* k, const char* v) {
    flags.kv_type = both;
    flags.kv_type_k = k;
    flags.kv_type_v = v;
    const Status status = flags.NameFlag(InvalidArgument("V: no such layer", "V"));
    EXPECT_TRUE(status.message().ends_with(": V: no such layer"));
    return status.message().substr(0, status.message().find(": V"));
  };
  EXPECT_EQ(named("i8,layers=9:i4", "", ""), "--kv-type i8,layers=9:i4");
  EXPECT_EQ(named("i8,layers=9:i4", "i8", ""), "--kv-type i8,layers=9:i4");
  EXPECT_EQ(named("i8", "i8", "i4"), "--kv-type-v i4");
  EXPECT_EQ(named("auto", "i4,layers=9:i8", ""), "--kv-type-k i4,layers=9:i8");
  EXPECT_EQ(flags.NameFlag(Internal("x")).message(), "x");
}

struct CacheLine {
  int exit_code = 0;
  std::string error;
  EngineOptions engine;
  CacheFlags flags;
};

CacheLine ParseCacheLine(std::vector<const char*> args) {
  CacheLine out;
  CLI::App app("test", "test");
  AddCacheFlags(&app, &out.flags, &out.engine);
  AddSharingFlags(&app, &out.flags, &out.engine);
  AddConfigFlag(&app);
  args.insert(args.begin(), "test");
  testing::internal::CaptureStderr();
  if (!ParseFlags(&app, static_cast<int>(args.size()), args.data(), &out.exit_code)) {
    out.error = testing::internal::GetCapturedStderr();
    return out;
  }
  if (const Status status = out.flags.Apply(&out.engine); !status.ok())
    out.exit_code = Fail(status);
  out.error = testing::internal::GetCapturedStderr();
  return out;
}

TEST(CacheFlags, DefaultsAndValuesReachTheEngine) {
  const CacheLine plain = ParseCacheLine({});
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_TRUE(plain.engine.prefix_caching);
  EXPECT_EQ(plain.engine.evict, "cost");
  EXPECT_EQ(plain.engine.preempt, "auto");
  EXPECT_EQ(plain.engine.scheduling_policy, "fcfs");
  EXPECT_EQ(plain.engine.swap_bytes, 0u);
  const CacheLine all = ParseCacheLine({"--no-prefix-caching", "--evict", "slru", "--preempt",
                                        "swap", "--scheduling-policy", "prefix", "--itl-target",
                                        "40", "--reserve-blocks", "0.1", "--swap-space", "3MiB",
                                        "--pin-budget", "0.25", "--tenant-quota", "1"});
  EXPECT_EQ(all.exit_code, 0) << all.error;
  EXPECT_FALSE(all.engine.prefix_caching);
  EXPECT_EQ(all.engine.evict, "slru");
  EXPECT_EQ(all.engine.preempt, "swap");
  EXPECT_EQ(all.engine.scheduling_policy, "prefix");
  EXPECT_EQ(all.engine.itl_target_ms, 40);
  EXPECT_EQ(all.engine.reserve_blocks, 0.1);
  EXPECT_EQ(all.engine.swap_bytes, 3u << 20);
  EXPECT_EQ(all.engine.pin_budget, 0.25);
  EXPECT_EQ(all.engine.tenant_quota, 1);
  EXPECT_TRUE(all.engine.Validate().ok());
}

TEST(CacheFlags, AWrongValueNamesFlagValueAndChoice) {
  for (const auto& [flag, value, choice] : std::vector<std::array<const char*, 3>>{
           {"--evict", "oldest", "cost, lru, slru, s3fifo or fifo"},
           {"--evict", "LRU", "cost, lru"},
           {"--preempt", "never", "auto, swap or recompute"},
           {"--scheduling-policy", "sjf", "fcfs, priority or prefix"},
           {"--itl-target", "-1", "0 to 60000"},
           {"--itl-target", "nan", "0 to 60000"},
           {"--itl-target", "fast", "0 to 60000"},
           {"--reserve-blocks", "2", "0 to 0.9"},
           {"--pin-budget", "1.5", "0 to 1"},
           {"--tenant-quota", "nan", "0 to 1"},
           {"--swap-space", "banana", "512MiB"},
           {"--swap-space", "0", "--preempt recompute"}}) {
    const CacheLine line = ParseCacheLine({flag, value});
    EXPECT_EQ(line.exit_code, kExitUsage) << flag << " " << value;
    for (const char* word : {flag + 2, value, choice})
      EXPECT_NE(line.error.find(word), std::string::npos) << word << " not in " << line.error;
  }
}

TEST(CacheFlags, FromAConfigFile) {
  const std::string path = testing::TempDir() + "kvasir_cache_config_" + std::to_string(getpid());
  std::ofstream(path) << "evict = \"lru\"\nno-prefix-caching = true\nswap-space = \"1GiB\"\n"
                         "pin-budget = 0.1\n";
  const CacheLine line = ParseCacheLine({"--config", path.c_str(), "--evict", "fifo"});
  EXPECT_EQ(line.exit_code, 0) << line.error;
  EXPECT_EQ(line.engine.evict, "fifo");
  EXPECT_FALSE(line.engine.prefix_caching);
  EXPECT_EQ(line.engine.swap_bytes, 1u << 30);
  EXPECT_EQ(line.engine.pin_budget, 0.1);
  std::ofstream(path) << "evict = \"oldest\"\n";
  EXPECT_EQ(ParseCacheLine({"--config", path.c_str()}).exit_code, kExitUsage);
  std::remove(path.c_str());
}

TEST(ApiKeys, FromFlagsAndFile) {
  const std::string path = testing::TempDir() + "kvasir_keys_" + std::to_string(getpid());
  std::ofstream(path) << "first\r\n\nsecond\n";
  EXPECT_EQ(CollectApiKeys({"a"}, path).value(),
            (std::vector<std::string>{"a", "first", "second"}));
  std::ofstream(path) << "\n\n";
  EXPECT_FALSE(CollectApiKeys({}, path).ok());
  EXPECT_FALSE(CollectApiKeys({}, path + ".missing").ok());
  for (const char* bad : {"", "a b", "a\n", "\xc3\xa9"})
    EXPECT_FALSE(CollectApiKeys({bad}, "").ok()) << bad;
  std::remove(path.c_str());
}

TEST(Command, ExitCodesAreTheContract) {
  EXPECT_EQ(ExitCodeOf(Status::Ok()), 0);
  EXPECT_EQ(ExitCodeOf(Internal("x")), 1);
  EXPECT_EQ(ExitCodeOf(Unavailable("x")), 1);
  EXPECT_EQ(ExitCodeOf(InvalidArgument("x")), 2);
  EXPECT_EQ(ExitCodeOf(NotFound("x")), 3);
  EXPECT_EQ(ExitCodeOf(DataLoss("x")), 3);
  EXPECT_EQ(ExitCodeOf(Unimplemented("x")), 3);
  EXPECT_EQ(ExitCodeOf(OutOfMemory("x")), 4);
}

TEST(Command, TheCommandLineWinsOverTheConfigFile) {
  const std::string path = testing::TempDir() + "kvasir_config_" + std::to_string(getpid());
  std::ofstream(path) << "# comment\nport = 1234\nname = \"from file\"\n";
  const auto parse = [&](std::vector<const char*> args, int* port, std::string* name) {
    CLI::App app("test", "test");
    app.add_option("--port", *port);
    app.add_option("--name", *name);
    AddConfigFlag(&app);
    args.insert(args.begin(), "test");
    int exit_code = 0;
    return ParseFlags(&app, static_cast<int>(args.size()), args.data(), &exit_code) ? 0 : exit_code;
  };
  int port = 0;
  std::string name;
  EXPECT_EQ(parse({"--config", path.c_str(), "--port", "5"}, &port, &name), 0);
  EXPECT_EQ(port, 5);
  EXPECT_EQ(name, "from file");
  EXPECT_EQ(parse({"--config", "/nonexistent/file"}, &port, &name), kExitUsage);
  EXPECT_EQ(parse({"--port", "abc"}, &port, &name), kExitUsage);
  EXPECT_EQ(parse({"--unknown"}, &port, &name), kExitUsage);
  std::ofstream(path) << "prot = 1\n";
  EXPECT_EQ(parse({"--config", path.c_str()}, &port, &name), kExitUsage);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace kvasir
