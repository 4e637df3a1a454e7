#include "env/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "env/machine.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kvasir_mapped_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const char* name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST_F(MappedFileTest, GivesTheBytes) {
  std::ofstream(Path("a")) << "hello";
  auto file = MappedFile::Open(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(file->bytes()[4]), 'o');
  EXPECT_EQ(file->path(), Path("a"));
  MappedFile moved = std::move(*file);
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'h');
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(MappedFile::Open(Path("absent")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open(folder_.string()).status().code(), StatusCode::kDataLoss);
  std::ofstream(Path("empty")).flush();
  const Status empty = MappedFile::Open(Path("empty")).status();
  EXPECT_EQ(empty.code(), StatusCode::kDataLoss);
  EXPECT_NE(empty.message().find("size"), std::string::npos);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(Path("fifo")).status().code(), StatusCode::kDataLoss);
}

TEST_F(MappedFileTest, DroppedPagesLeaveMemoryAndReadTheSameAgain) {
  const size_t size = size_t{32} << 20;
  {
    std::ofstream out(Path("big"), std::ios::binary);
    const std::string mega(1 << 20, 'x');
    for (int i = 0; i < 32; ++i) out << mega;
  }
  auto file = MappedFile::Open(Path("big"));
  ASSERT_TRUE(file.ok());
  const auto all_x = [&] {
    return std::all_of(file->bytes().begin(), file->bytes().end(),
                       [](std::byte b) { return b == std::byte{'x'}; });
  };
  ASSERT_TRUE(all_x());
  const uint64_t before = ResidentBytes();
  file->DropPages(0, size);
  EXPECT_LT(ResidentBytes(), before - (size_t{24} << 20));
  file->DropPages(size - 10, SIZE_MAX);  // clipped
  file->DropPages(SIZE_MAX, 1);          // nothing there
  file->DropPages(4097, 0);
  file->WillRead(0, size);  // advice changes nothing that is read
  file->WillRead(size - 10, SIZE_MAX);
  file->WillRead(SIZE_MAX, 1);
  EXPECT_TRUE(all_x());
}

}  // namespace
}  // namespace kvasir
