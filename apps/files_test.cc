// Files, seeds and empty values on the command line, and what a full standard output does.
#include "apps/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "apps/bench_flags.h"
#include "apps/command.h"
#include "apps/flag_values.h"

namespace kvasir {
namespace {

class Files : public testing::Test {
 protected:
  Files() : folder_(testing::TempDir() + "kvasir_files_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(Files, WholeFilesAndPipesUpToTheLimit) {
  const std::string text(3'000'000, 'x');
  std::ofstream(Path("book")) << text;
  EXPECT_EQ(ReadInputFile(Path("book"), "--text").value(), text);
  EXPECT_EQ(ReadInputFile(Path("book"), "--text", text.size()).value(), text);
  std::ofstream(Path("empty"));
  EXPECT_EQ(ReadInputFile(Path("empty"), "--text").value(), "");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(Path("pipe")) << text; });
  EXPECT_EQ(ReadInputFile(Path("pipe"), "--text").value(), text);
  writer.join();
}

TEST_F(Files, RefusedWithPathAndReason) {
  std::ofstream(Path("book")) << "12345";
  const auto refused = [&](const std::string& path, uint64_t most, const std::string& why) {
    const auto read = ReadInputFile(path, "--text", most);
    ASSERT_FALSE(read.ok()) << path;
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(read.status().message(), "--text " + path + ": " + why);
  };
  refused(folder_, 100, "is a folder, not a file");
  refused(Path("none"), 100, "cannot be read: No such file or directory");
  refused(Path("book"), 4, "more than 4 B, the most that is read");
  refused("/dev/zero", 5 << 20, "more than 5.00 MiB, the most that is read");
}

TEST_F(Files, WritableIsFoundOutWithoutATrace) {
  EXPECT_TRUE(CheckWritable(Path("new.svg"), "--svg").ok());
  EXPECT_FALSE(std::filesystem::exists(Path("new.svg")));
  std::ofstream(Path("old.svg")) << "kept";
  EXPECT_TRUE(CheckWritable(Path("old.svg"), "--svg").ok());
  EXPECT_EQ(std::filesystem::file_size(Path("old.svg")), 4u);
  for (const std::string& path : {folder_, Path("no/such.svg")}) {
    const Status status = CheckWritable(path, "--svg");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with("--svg " + path + ": cannot be written: ")) << path;
  }
}

int Bench(std::vector<const char*> args, std::string* error) {
  args.insert(args.begin(), "bench");
  testing::internal::CaptureStderr();
  const int code = BenchCommand(static_cast<int>(args.size()), args.data());
  *error = testing::internal::GetCapturedStderr();
  return code;
}

TEST_F(Files, BenchRefusesFoldersAndUnwritableReports) {
  std::string error;
  const std::string svg = Path("a.svg");
  EXPECT_EQ(Bench({"--plot", folder_.c_str(), "--svg", svg.c_str()}, &error), kExitUsage);
  EXPECT_NE(error.find("--plot " + folder_ + ": is a folder"), std::string::npos) << error;
  EXPECT_EQ(
      Bench({"--url", "http://127.0.0.1:1", "--trace", folder_.c_str(), "--rate", "1"}, &error),
      kExitUsage);
  EXPECT_NE(error.find("--trace " + folder_ + ": is a folder"), std::string::npos) << error;
  EXPECT_EQ(Bench({"--url", "http://127.0.0.1:1", "--api-key-file", folder_.c_str()}, &error),
            kExitUsage);
  EXPECT_NE(error.find("is a folder"), std::string::npos) << error;
  EXPECT_EQ(Bench({"--url", "http://127.0.0.1:1", "--json", folder_.c_str()}, &error), kExitUsage);
  EXPECT_NE(error.find("--json " + folder_), std::string::npos) << error;
}

TEST_F(Files, CertifyLooksAtFilesBeforeTheModel) {
  for (const char* flag : {"--text", "--svg"}) {
    const char* args[] = {"certify", "/nonexistent.gguf", flag, folder_.c_str()};
    testing::internal::CaptureStderr();
    EXPECT_EQ(CertifyCommand(4, args), kExitUsage);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_NE(error.find(flag + (" " + folder_)), std::string::npos) << error;
  }
}

TEST_F(Files, SeedsAndEmptyValues) {
  const auto check = [](const CLI::Validator& validator, std::string text) {
    return validator(text);
  };
  for (const char* seed : {"0", "1", "18446744073709551615"})
    EXPECT_EQ(check(SeedRange(), seed), "") << seed;
  for (const char* seed : {"-1", "99999999999999999999999", "18446744073709551616", "1.5", "x", ""})
    EXPECT_NE(check(SeedRange(), seed).find("18446744073709551615"), std::string::npos) << seed;
  EXPECT_EQ(check(NotEmpty(), "x"), "");
  EXPECT_NE(check(NotEmpty(), ""), "");
}

// The flags of the commands themselves.
TEST_F(Files, CommandsRefuseThem) {
  using Command = int (*)(int, const char* const*);
  const auto refuses = [&](Command command, const char* flag, const char* value) {
    const char* args[] = {"x", "/nonexistent.gguf", flag, value};
    testing::internal::CaptureStderr();
    const int code = command(4, args);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, kExitUsage) << flag << " " << value;
    EXPECT_NE(error.find(flag), std::string::npos) << error;
  };
  for (const char* seed : {"-1", "99999999999999999999999"}) {
    for (const Command command : {CertifyCommand, ChatCommand, ServeCommand})
      refuses(command, "--seed", seed);
    std::string error;
    EXPECT_EQ(Bench({"--seed", seed, "--url", "http://127.0.0.1:1"}, &error), kExitUsage);
    EXPECT_NE(error.find("--seed"), std::string::npos) << error;
  }
  for (const char* flag : {"--kv-mem", "--served-model-name", "--swap-space", "--kv-type-k"})
    refuses(ServeCommand, flag, "");
  refuses(ServeCommand, "--kv-mem", "4Gigs");
  refuses(ServeCommand, "--swap-space", "4Gigs");
}

TEST(Output, AFullStandardOutputIsAFailure) {
  std::fflush(stdout);
  const int saved = dup(STDOUT_FILENO);
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  dup2(fileno(full), STDOUT_FILENO);
  const char* args[] = {"version", "--json"};
  testing::internal::CaptureStderr();
  const int code = VersionCommand(2, args);
  const std::string error = testing::internal::GetCapturedStderr();
  dup2(saved, STDOUT_FILENO);
  close(saved);
  std::fclose(full);
  std::clearerr(stdout);
  std::cout.clear();
  EXPECT_EQ(code, kExitFailure);
  EXPECT_NE(error.find("standard output"), std::string::npos) << error;
  EXPECT_EQ(FinishOutput(kExitOk), kExitOk);
  EXPECT_EQ(FinishOutput(kExitModel), kExitModel);
}

}  // namespace
}  // namespace kvasir
