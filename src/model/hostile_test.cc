// Cases G01 and G02: the broken files of make_fixtures.py --hostile.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "env/machine.h"
#include "model/model.h"
#include "model/testing/fixtures.h"

namespace kvasir {
namespace {

// Peak resident memory of this process so far.
uint64_t PeakBytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(HostileFiles, AreRefusedInOneLineThatNamesTheFieldAndTheControlLoads) {
  const std::string folder = testing::HostileFolder();
  if (folder.empty()) GTEST_SKIP() << testing::kNoFixtures;
  std::ifstream manifest(folder + "/manifest.json");
  const nlohmann::json rows = nlohmann::json::parse(manifest);
  ASSERT_GE(rows.size(), 54u);
  SerialExecutor serial;
  for (const auto& row : rows) {
    const std::string path = folder + "/" + row["file"].get<std::string>();
    const uint64_t before = PeakBytes();
    const Status status = Model::Load(path, serial).status();
    // Far below the 64 MiB of the case, ASan's shadow included: nothing is reserved by a declared
    // count.
    EXPECT_LT(PeakBytes() - before, uint64_t{48} << 20) << path;
    if (row["expect"] == "loads") {
      EXPECT_TRUE(status.ok()) << status.ToString();
      continue;
    }
    ASSERT_FALSE(status.ok()) << path << " loaded: " << row["wrong"];
    const std::string& message = status.message();
    EXPECT_TRUE(status.code() == StatusCode::kDataLoss ||
                status.code() == StatusCode::kUnimplemented)
        << message;
    EXPECT_EQ(message.rfind(path + ": offset ", 0), 0u) << message;
    EXPECT_NE(message.find("field '"), std::string::npos) << message;
    EXPECT_NE(message.find(row["error_names"].get<std::string>()), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    if (row["file"].get<std::string>().rfind("G01_cut", 0) == 0) {
      EXPECT_NE(message.find("expected size"), std::string::npos) << message;
      EXPECT_NE(message.find("actual size " + std::to_string(row["size"].get<uint64_t>())),
                std::string::npos)
          << message;
    }
  }
}

TEST(HostileFiles, ALegalFileWithALargeVocabularyLoads) {
  const std::string path = testing::Fixture("G02/vocab_250k.gguf");
  if (path.empty()) GTEST_SKIP() << testing::kNoFixtures << " (--big)";
  SerialExecutor serial;
  const auto model = Model::Load(path, serial);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ((*model)->config().vocab, 250000);
  const auto tokens = (*model)->file().Array("tokenizer.ggml.tokens", GgufType::kString);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ((*tokens)->Strings().size(), 250000u);
  EXPECT_EQ((*tokens)->Strings().back(), "w249694");
}

}  // namespace
}  // namespace kvasir
