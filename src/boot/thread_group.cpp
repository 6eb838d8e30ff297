#include "boot/thread_group.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include <fmt/core.h>
#include <sluice/errors.h>

#include "boot/contribution.h"
#include "boot/deadline.h"
#include "boot/watchers.h"

namespace sluice::boot {
namespace {

// Where the threads meet. A rank contributes to exchange n + 1 only after it has everybody's part in
// n, so nobody is more than one ahead and two places for each rank are enough.
class Table {
 public:
  Table(int size, int timeout_ms) : timeout_ms_(timeout_ms), places_(static_cast<std::size_t>(size)) {}

  Contributions exchange(int rank, FrameKind call, Contribution mine) {
    if (is_forked_copy()) refuse_forked_copy(call, rank, size());
    const Deadline deadline = Deadline::in_ms(timeout_ms_);
    std::unique_lock lock(mutex_);
    Place& own = places_[static_cast<std::size_t>(rank)];
    if (own.busy)
      throw ArgumentError(fmt::format("{}: another thread is inside a collective call of this rank; make them one after another",
                                      where(call, rank, size())), rank);
    std::string problem = own.failure;
    Contributions all;
    if (problem.empty()) {
      all.reserve(places_.size());
      const std::uint64_t n = own.contributed;
      own.parts[n % 2] = std::make_shared<Contribution>(std::move(mine));
      ++own.contributed;  // from here on it counts
      changed_.notify_all();
      const Inside inside(own.busy);
      problem = wait_for_all(lock, n, deadline);
      if (problem.empty())
        for (const Place& place : places_) all.push_back(place.parts[n % 2]);
      own.failure = problem;
      if (!problem.empty()) changed_.notify_all();
    }
    lock.unlock();
    if (!problem.empty())
      throw PeerError(fmt::format("{}: {}; make a new group", where(call, rank, size()), problem), rank);
    check_contributions(all, rank, call);
    return all;
  }

  void give_up(int rank, const char* why) noexcept {
    if (is_forked_copy()) return;
    const std::lock_guard lock(mutex_);
    std::string& failure = places_[static_cast<std::size_t>(rank)].failure;
    try {
      if (failure.empty()) failure = why;
    } catch (const std::bad_alloc&) {
      failure = "no memory";  // so short a text needs none
    }
    changed_.notify_all();
  }

  void leave(int rank) {
    if (is_forked_copy()) return;
    {
      const std::lock_guard lock(mutex_);
      places_[static_cast<std::size_t>(rank)].gone = true;
    }
    changed_.notify_all();
    for (std::size_t r = 0; r < places_.size(); ++r)
      if (static_cast<int>(r) != rank) places_[r].watchers->gone(rank);
  }

  std::shared_ptr<void> watch(int rank, std::function<void(int)> on_gone) {
    return places_[static_cast<std::size_t>(rank)].watchers->add(std::move(on_gone));
  }

  int size() const { return static_cast<int>(places_.size()); }

 private:
  struct Place {
    std::uint64_t contributed = 0;
    std::shared_ptr<Contribution> parts[2];
    bool busy = false;
    bool gone = false;
    std::string failure;
    std::shared_ptr<Watchers> watchers = std::make_shared<Watchers>();
  };

  // While a thread waits in the call of a rank. The lock is held when it begins and ends.
  class Inside {
   public:
    explicit Inside(bool& busy) : busy_(busy) { busy_ = true; }
    ~Inside() { busy_ = false; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    bool& busy_;
  };

  // Empty when everybody's part in exchange n is there.
  std::string wait_for_all(std::unique_lock<std::mutex>& lock, std::uint64_t n, const Deadline& deadline) {
    for (;;) {
      int missing = -1;
      for (int r = 0; r < size(); ++r) {
        const Place& place = places_[static_cast<std::size_t>(r)];
        if (place.contributed > n) continue;
        if (place.gone) return fmt::format("rank {} is gone", r);
        if (!place.failure.empty()) return fmt::format("rank {} gave up: {}", r, place.failure);
        if (missing < 0) missing = r;
      }
      if (missing < 0) return {};
      if (deadline.passed()) return fmt::format("rank {} did not come within {} ms", missing, deadline.timeout_ms());
      if (deadline.endless()) changed_.wait(lock);
      else changed_.wait_until(lock, deadline.end());
    }
  }

  // In a forked child no other thread is there: none holds the lock, and none comes.
  bool is_forked_copy() const { return getpid() != process_; }

  const pid_t process_ = getpid();
  const int timeout_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
};

class ThreadGroup : public GroupState {
 public:
  ThreadGroup(std::shared_ptr<Table> table, int rank)
      : table_(std::move(table)), rank_(rank), nodes_(static_cast<std::size_t>(table_->size()), 0) {}
  ~ThreadGroup() override { table_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return table_->size(); }
  bool in_one_process() const override { return true; }
  const std::vector<int>& nodes() const override { return nodes_; }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> message) override {
    const Contributions all = table_->exchange(rank_, FrameKind::all_gather, gather_contribution(message));
    std::vector<std::vector<std::byte>> messages;
    for (const auto& part : all) messages.push_back(part->bytes);
    return messages;
  }

  void barrier() override { table_->exchange(rank_, FrameKind::barrier, Contribution{}); }

  std::vector<UniqueFd> exchange_descriptors(int) override {
    throw ArgumentError(fmt::format("{}: the ranks are threads of one process and share its descriptors already; exchange "
                                    "their numbers with all_gather", where(FrameKind::descriptors, rank_, size())), rank_);
  }

  std::vector<std::shared_ptr<void>> exchange_objects(const std::shared_ptr<void>& object) override {
    Contribution mine;
    mine.kind = FrameKind::objects;
    mine.object = object;
    const Contributions all = table_->exchange(rank_, FrameKind::objects, std::move(mine));
    std::vector<std::shared_ptr<void>> objects;
    objects.reserve(all.size());
    for (std::size_t r = 0; r < all.size(); ++r) {
      objects.push_back(all[r]->object.lock());
      if (!objects.back())
        throw PeerError(fmt::format("{}: rank {} has dropped its object", where(FrameKind::objects, rank_, size()), r), rank_);
    }
    return objects;
  }

  void give_up(const char* why) noexcept override { table_->give_up(rank_, why); }

  std::shared_ptr<void> watch(std::function<void(int)> on_gone) override { return table_->watch(rank_, std::move(on_gone)); }

 private:
  std::shared_ptr<Table> table_;
  int rank_;
  std::vector<int> nodes_;
};

}  // namespace

std::vector<std::shared_ptr<GroupState>> make_thread_groups(int size, int timeout_ms) {
  auto table = std::make_shared<Table>(size, timeout_ms);
  std::vector<std::shared_ptr<GroupState>> groups;
  for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_shared<ThreadGroup>(table, rank));
  return groups;
}

}  // namespace sluice::boot
