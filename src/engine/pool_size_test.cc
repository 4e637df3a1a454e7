#include "engine/pool_size.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

PoolRequest Base() {
  PoolRequest request;
  request.free_bytes = 1 << 20;
  request.block_bytes = 1000;
  request.most_tokens = 1'000'000;
  return request;
}

TEST(PoolSize, WhatWasAskedForToWithinABlock) {
  PoolRequest request = Base();
  request.kv_bytes = 100'500;
  EXPECT_EQ(*PoolBlocks(request), 100);
  request.kv_blocks = 7;
  EXPECT_EQ(*PoolBlocks(request), 7);
}

TEST(PoolSize, AutomaticIsHalfOfFreeMemoryButNoMoreThanTheSeatsCanUse) {
  PoolRequest request = Base();
  EXPECT_EQ(*PoolBlocks(request), 524);
  request.most_tokens = 161;
  EXPECT_EQ(*PoolBlocks(request), 11);
}

TEST(PoolSize, RefusalsSayWhatWouldFit) {
  PoolRequest request = Base();
  request.kv_blocks = 1049;
  auto blocks = PoolBlocks(request);
  EXPECT_EQ(blocks.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(blocks.status().message().find("at most 1048 blocks"), std::string::npos)
      << blocks.status().message();
  request.kv_blocks = 0;
  request.kv_bytes = 999;
  EXPECT_EQ(PoolBlocks(request).status().code(), StatusCode::kOutOfMemory);
  request.kv_bytes = UINT64_MAX;
  EXPECT_EQ(PoolBlocks(request).status().code(), StatusCode::kOutOfMemory);
  request = Base();
  request.free_bytes = 1500;
  EXPECT_EQ(PoolBlocks(request).status().code(), StatusCode::kOutOfMemory);
  request.kv_blocks = -1;
  EXPECT_EQ(PoolBlocks(request).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
