// Which memory combine lets its peers read: seen in the script, before any peer reads it.
#include <gtest/gtest.h>
#include <sluice/group.h>

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "faults/engine_around.h"

namespace sluice::faults {
namespace {

constexpr std::int64_t tokens = 8, hidden = 64, row_bytes = hidden * 4;

// Notes where the last operation published its rows.
class NotingLane final : public engine::Lane {
 public:
  explicit NotingLane(engine::Lane& inside) : inside_(inside) {}
  void submit(std::unique_ptr<core::Script> script) override {
    for (const core::Step& step : script->steps) {
      const auto* const run = std::get_if<core::Run>(&step);
      const auto* const publish = run ? std::get_if<core::PublishArgs>(&run->kernel) : nullptr;
      if (publish) published_ = publish->record.rows;
    }
    inside_.submit(std::move(script));
  }
  core::Status failure() const override { return inside_.failure(); }
  const core::Place& published() const { return published_; }

 private:
  engine::Lane& inside_;
  core::Place published_;
};

class NotingEngine final : public EngineAround {
 public:
  explicit NotingEngine(std::unique_ptr<engine::Engine> inside)
      : EngineAround(std::move(inside)), lane_(EngineAround::lane(0)) {}
  engine::Lane& lane(int) override { return lane_; }
  const std::byte* published() const { return window().base + lane_.published().offset; }

 private:
  NotingLane lane_;
};

// One rank, every token to itself.
class CombineInputs : public ::testing::Test {
 protected:
  CombineInputs() : ids_(tokens, 0), sent_rows_(tokens * hidden, 1.0f) {
    CommunicatorOptions options;
    options.max_tokens = tokens;
    options.experts = 1;
    options.hidden = hidden;
    options.topk = 1;
    options.dtype = DataType::fp32;
    options.arena_bytes = 1 << 20;
    comm_ = make_communicator(Group::threads(1).front(), options, [&](std::unique_ptr<engine::Engine> cpu) {
      auto engine = std::make_unique<NotingEngine>(std::move(cpu));
      engine_ = engine.get();
      return engine;
    });
  }

  TensorView block_of_rows(std::int64_t rows, float first) {
    const TensorView block = comm_->allocate(rows, row_bytes, DataType::fp32);
    for (std::int64_t i = 0; i < rows * hidden; ++i)
      block.as<float>()[i] = first + static_cast<float>(i / hidden);
    return block;
  }

  // Combines the rows of `view`, row t being full of `first` + t * `step`, and says whether peers read them
  // where they lie.
  bool reads_in_place(const ConstTensorView& view, float first, float step) {
    DispatchArgs args;
    args.rows = {sent_rows_.data(), DataType::fp32, tokens, hidden};
    args.expert_ids = {ids_.data(), DataType::int32, tokens, 1};
    const DispatchResult sent = comm_->dispatch(args);
    sent.ready.wait();
    CombineArgs back;
    back.rows = view;
    back.route = sent.route;
    const CombineResult home = comm_->combine(back);
    const std::byte* const published = engine_->published();
    home.ready.wait();
    for (std::int64_t i = 0; i < tokens * hidden; ++i) {
      EXPECT_EQ(home.rows.as<float>()[i], first + step * static_cast<float>(i / hidden)) << "element " << i;
    }
    return published == static_cast<const std::byte*>(view.data);
  }

  std::vector<std::int32_t> ids_;
  std::vector<float> sent_rows_;
  NotingEngine* engine_ = nullptr;
  std::unique_ptr<core::CommunicatorState> comm_;
};

TEST_F(CombineInputs, in_one_block_of_the_arena_are_read_where_they_lie) {
  const TensorView block = block_of_rows(2 * tokens - 1, 1);
  TensorView view(block.data, DataType::fp32, tokens, hidden);
  EXPECT_TRUE(reads_in_place(view, 1, 1));
  view.strides[0] = 2 * hidden;  // the last row ends with the block
  EXPECT_TRUE(reads_in_place(view, 1, 2));
}

TEST_F(CombineInputs, that_leave_their_block_are_copied_before_peers_read_them) {
  const TensorView block = block_of_rows(tokens, 1);
  const TensorView next = block_of_rows(2 * tokens, 1 + tokens);
  ASSERT_EQ(next.as<std::byte>(), block.as<std::byte>() + tokens * row_bytes);
  TensorView view(block.as<float>() + hidden, DataType::fp32, tokens, hidden);
  EXPECT_FALSE(reads_in_place(view, 2, 1)) << "the last row lies in the next block";
  view.data = block.data;
  EXPECT_TRUE(reads_in_place(view, 1, 1));
  view.strides[0] = 2 * hidden;
  EXPECT_FALSE(reads_in_place(view, 1, 2)) << "every second row of both blocks";
}

TEST_F(CombineInputs, outside_the_arena_are_copied_before_peers_read_them) {
  const std::vector<float> rows(tokens * hidden, 3.0f);
  EXPECT_FALSE(reads_in_place({rows.data(), DataType::fp32, tokens, hidden}, 3, 0));
}

}  // namespace
}  // namespace sluice::faults
