#include "calibrate/sidecar.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "model/testing/temp_folder.h"

namespace kvasir {
namespace {

using testing::TempFolder;

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The cache folder lies in a folder of the test's own.
class SidecarTest : public ::testing::Test {
 protected:
  SidecarTest() : model_((folder_ / "m.gguf")) {
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
  }
  ~SidecarTest() override { unsetenv("XDG_CACHE_HOME"); }
  TempFolder folder_;
  std::string model_;
};

TEST_F(SidecarTest, KeepsSectionsAcrossOpens) {
  {
    Sidecar sidecar(model_, 7);
    EXPECT_EQ(sidecar.path(), "");
    EXPECT_EQ(sidecar.complaint(), "");
    EXPECT_EQ(sidecar.Find("a", 1), nullptr);
    ASSERT_TRUE(sidecar.Store("a", 1, {1, 2, 3}).ok());
    ASSERT_TRUE(sidecar.Store("b", 2, "text").ok());
    ASSERT_NE(sidecar.Find("a", 1), nullptr);
  }
  EXPECT_EQ(Sidecar::Beside(model_), (folder_ / "m.kvasir.json"));
  const Sidecar again(model_, 7);
  EXPECT_EQ(again.path(), (folder_ / "m.kvasir.json"));
  ASSERT_NE(again.Find("a", 1), nullptr);
  EXPECT_EQ(*again.Find("a", 1), nlohmann::json({1, 2, 3}));
  EXPECT_EQ(*again.Find("b", 2), "text");
  EXPECT_EQ(again.Find("b", 1), nullptr) << "another version of a section is not there";
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "")) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << "a draft was left behind";
  }
}

TEST_F(SidecarTest, TwoWritersKeepEachOthersSections) {
  Sidecar first(model_, 7), second(model_, 7);
  ASSERT_TRUE(first.Store("a", 1, 1).ok());
  ASSERT_TRUE(second.Store("b", 1, 2).ok());
  const Sidecar both(model_, 7);
  EXPECT_NE(both.Find("a", 1), nullptr);
  EXPECT_NE(both.Find("b", 1), nullptr);
}

TEST_F(SidecarTest, ForeignAndBrokenFilesCountAsEmpty) {
  { ASSERT_TRUE(Sidecar(model_, 7).Store("a", 1, 1).ok()); }
  const std::string path = Sidecar::Beside(model_);
  const std::string good = ReadAll(path);
  const Sidecar foreign(model_, 8);
  EXPECT_EQ(foreign.Find("a", 1), nullptr);
  EXPECT_NE(foreign.complaint().find("another model"), std::string::npos) << foreign.complaint();

  nlohmann::json newer = nlohmann::json::parse(good);
  newer["version"] = 2;
  nlohmann::json headless = nlohmann::json::parse(good);
  headless.erase("sections");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1]"), std::string("null"), newer.dump(),
        headless.dump(), std::string(100000, '['),
        good.substr(0, good.find("1", good.find("data"))) + std::string(200000, '[') +
            std::string(200000, ']') + "}}}",
        good.substr(0, good.size() / 2)}) {
    Write(path, text);
    Sidecar broken(model_, 7);
    EXPECT_EQ(broken.Find("a", 1), nullptr);
    EXPECT_NE(broken.complaint().find(path), std::string::npos) << text.substr(0, 40);
    ASSERT_TRUE(broken.Store("b", 1, 2).ok());
    EXPECT_NE(Sidecar(model_, 7).Find("b", 1), nullptr) << "a broken file is replaced";
  }
  // A section that is no section is as good as absent.
  nlohmann::json odd = nlohmann::json::parse(good);
  odd["sections"]["a"] = 5;
  Write(path, odd.dump());
  EXPECT_EQ(Sidecar(model_, 7).Find("a", 1), nullptr);
}

// Where a file stands beside the model and cannot be written any more, what is learnt later goes to
// the cache folder, and whoever comes next finds both.
TEST_F(SidecarTest, WhatStandsInTwoFilesIsOne) {
  { ASSERT_TRUE(Sidecar(model_, 7).Store("a", 1, 1).ok()); }
  const std::string beside = Sidecar::Beside(model_);
  // A folder of the draft's name refuses the superuser too.
  const std::string draft = beside + "." + std::to_string(getpid()) + ".tmp";
  std::filesystem::create_directory(draft);
  Sidecar sidecar(model_, 7);
  ASSERT_TRUE(sidecar.Store("b", 1, 2).ok());
  EXPECT_EQ(sidecar.path(), Sidecar::InCache(7));
  // Neither can be written: kept in memory, and not forgotten at the next try.
  const std::string cached = Sidecar::InCache(7);
  const std::string cached_draft = cached + "." + std::to_string(getpid()) + ".tmp";
  std::filesystem::create_directory(cached_draft);
  EXPECT_EQ(sidecar.Store("c", 1, 3).code(), StatusCode::kUnavailable);
  std::filesystem::remove(cached_draft);
  ASSERT_TRUE(sidecar.Store("d", 1, 4).ok());
  EXPECT_NE(sidecar.Find("c", 1), nullptr);
  const Sidecar next(model_, 7);
  for (const char* section : {"a", "b", "c", "d"}) {
    EXPECT_NE(next.Find(section, 1), nullptr) << section;
  }
  EXPECT_EQ(next.complaint(), "");
  // Of a section that is in both, the one written last.
  std::filesystem::remove(draft);
  ASSERT_TRUE(Sidecar(model_, 7).Store("b", 1, 20).ok());
  const auto now = std::filesystem::last_write_time(cached);
  std::filesystem::last_write_time(beside, now + std::chrono::seconds(5));
  EXPECT_EQ(*Sidecar(model_, 7).Find("b", 1), 20);
  std::filesystem::last_write_time(beside, now - std::chrono::seconds(5));
  EXPECT_EQ(*Sidecar(model_, 7).Find("b", 1), 2);
}

TEST_F(SidecarTest, WhatAnotherVersionOrModelLeftIsKept) {
  const std::string path = Sidecar::Beside(model_);
  // Three models in turn under one name: each finds its own again, and what it adds.
  for (uint64_t round = 1; round <= 3; ++round) {
    for (const uint64_t model : {7, 8, 9}) {
      Sidecar sidecar(model_, model);
      for (uint64_t before = 1; before < round; ++before) {
        const nlohmann::json* found = sidecar.Find("round " + std::to_string(before), 1);
        ASSERT_NE(found, nullptr) << "model " << model << " round " << round;
        EXPECT_EQ(*found, 100 * model + before);
      }
      ASSERT_TRUE(sidecar.Store("round " + std::to_string(round), 1, 100 * model + round).ok());
      EXPECT_EQ(sidecar.path(), path);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".old"));
  // Without a place for it in the cache folder, and of another version: .old.
  const std::string ours = ReadAll(path);
  const std::string blocked = Sidecar::InCache(9);
  std::filesystem::remove(blocked);
  std::filesystem::create_directory(blocked);
  ASSERT_TRUE(Sidecar(model_, 8).Store("b", 1, 2).ok());
  EXPECT_EQ(ReadAll(path + ".old"), ours);
  ASSERT_TRUE(Sidecar(model_, 8).Store("c", 1, 2).ok());
  EXPECT_EQ(ReadAll(path + ".old"), ours) << "one's own is written over";
  nlohmann::json newer = nlohmann::json::parse(ReadAll(path));
  newer["version"] = 99;
  Write(path, newer.dump());
  ASSERT_TRUE(Sidecar(model_, 8).Store("a", 1, 2).ok());
  EXPECT_EQ(ReadAll(path + ".old"), newer.dump());
}

TEST_F(SidecarTest, RefreshSeesWhatOthersStored) {
  Sidecar first(model_, 7), second(model_, 7);
  ASSERT_TRUE(first.Store("a", 1, 1).ok());
  EXPECT_EQ(second.Find("a", 1), nullptr);
  second.Refresh();
  ASSERT_NE(second.Find("a", 1), nullptr);
}

TEST_F(SidecarTest, AFolderThatCannotBeWrittenMeansTheCacheFolder) {
  // The model's folder does not exist, which refuses the superuser too.
  const std::string model = (folder_ / "nowhere/m.gguf");
  {
    Sidecar sidecar(model, 0xABC);
    ASSERT_TRUE(sidecar.Store("a", 1, 5).ok());
    EXPECT_EQ(sidecar.path(), (folder_ / "cache/kvasir/0000000000000abc.kvasir.json"));
  }
  ASSERT_NE(Sidecar(model, 0xABC).Find("a", 1), nullptr);
  EXPECT_EQ(Sidecar(model, 0xABD).Find("a", 1), nullptr);

  Write((folder_ / "file"), "x");
  setenv("XDG_CACHE_HOME", (folder_ / "file").c_str(), 1);
  Sidecar nowhere(model, 1);
  const Status status = nowhere.Store("a", 1, 5);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("nowhere"), std::string::npos) << status.message();
  EXPECT_NE(nowhere.Find("a", 1), nullptr) << "it is still known to this process";
}

}  // namespace
}  // namespace kvasir
