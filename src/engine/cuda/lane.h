// One channel's lane on a GPU. In the stream form, submit() queues a whole script on a stream, and awaits are
// stream memory operations; in the host form a thread queues each step when the flags before it are set, so
// that nothing ever waits in a hardware queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "core/script.h"
#include "engine/cuda/events.h"
#include "engine/cuda/host_channel.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/streams.h"
#include "engine/engine.h"

namespace sluice::cuda {

enum class AwaitForm { stream, host };

// Operations of a lane that have not ended: a call beyond them waits for the oldest. A stream holds about a thousand
// launches, and a launch beyond them waits inside the driver.
inline constexpr std::size_t most_under_way = 64;

class CudaLane final : public engine::Lane {
 public:
  struct Parts {
    int device = 0;
    int num_sms = 1;      // when a step does not say
    int most_sms = 1;
    AwaitForm form = AwaitForm::stream;
    core::Topology topology;
    std::unique_ptr<HostChannel> host;
    SharedChannel* flags = nullptr;               // own
    DeviceChannel* channel = nullptr;             // device memory
    SharedChannel* const* shared = nullptr;       // [R], device memory
    Scratch scratch;
    std::shared_ptr<EventPool> events;
    std::shared_ptr<const void> keep;  // what holds `channel` and `flags`: events outlive the lane
  };

  explicit CudaLane(Parts parts);
  ~CudaLane() override;

  void submit(std::unique_ptr<core::Script> script) override;
  core::Status failure() const override { return parts_.host->failure(); }
  // Everything submitted has run.
  void drain();
  HostChannel& host() { return *parts_.host; }

 private:
  // A script on its way through the stream; goes when `last` has happened.
  struct InFlight {
    std::unique_ptr<core::Script> script;
    std::shared_ptr<CudaEvent> last;
  };

  template <class Wait>
  void beside_others(Wait&& wait);
  void serve();
  void submit_in_order_of_stream(std::unique_ptr<core::Script> script);
  void capture(std::unique_ptr<core::Script> script);
  std::shared_ptr<CudaEvent> run_steps(core::Script& script);
  void run(std::unique_ptr<core::Script> script);
  void run(const core::Run& step, const core::Script& script, int index);
  void begin_point(const core::Script& script, int index);
  bool goes_later(const core::Run& step, const core::Step* next);
  Launch launch_of(const core::Run& step) const;
  void await(const core::Await& step);
  void await_in_stream(core::Stage stage);
  void await_on_host(core::Stage stage);
  void depend(const core::Depend& step, const core::Script& script, int index);
  StepContext context_of(const core::Run& step, const core::Script& script, int index);
  void note(cudaError_t error);
  void forget_finished();
  void wait_for_room();

  Parts parts_;
  PooledStream own_stream_;
  std::unique_lock<std::mutex> turn_;  // to queue on this GPU
  // Of the script that runs; and where the script before ended.
  cudaStream_t stream_ = nullptr;
  unsigned long long capture_ = 0;
  cudaError_t capture_error_ = cudaSuccess;
  cudaStream_t last_stream_ = nullptr;
  std::shared_ptr<CudaEvent> last_;
  // Of the step that comes next.
  bool awaited_ = false;
  core::Stage awaited_stage_ = core::Stage::open;
  // Of the script that runs.
  std::int64_t operation_ = 0;
  std::uint64_t points_ = 0;
  core::OperationKind kind_ = core::OperationKind::none;
  bool signalled_close_ = false;
  bool follows_ = false;     // what comes next, a kernel of ours
  std::uint64_t point_ = 0;  // that the host is told of when all that is queued has run; 0: it is not told
  Opening opening_;  // what waits for the step that it goes with
  const core::AgreeArgs* agree_ = nullptr;  // the same
  cudaError_t error_ = cudaSuccess;
  std::deque<InFlight> in_flight_;

  // Host form.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<core::Script>> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace sluice::cuda
