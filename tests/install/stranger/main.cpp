// Two ranks as threads send each token to one expert and bring it home unchanged.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <sluice/sluice.h>

namespace {

constexpr std::int64_t tokens = 32, hidden = 64;

bool round_trip(const sluice::Group& group) {
  sluice::CommunicatorOptions options;
  options.engine = "cpu";
  options.max_tokens = tokens;
  options.experts = 4;
  options.hidden = hidden;
  options.topk = 1;
  options.dtype = sluice::DataType::fp32;
  sluice::Communicator comm(group, options);

  std::vector<float> rows(tokens * hidden);
  std::vector<std::int32_t> ids(tokens);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) + static_cast<float>(group.rank()) / 2;
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t % 4);

  sluice::DispatchArgs dispatch;
  dispatch.rows = {rows.data(), sluice::DataType::fp32, tokens, hidden};
  dispatch.expert_ids = {ids.data(), sluice::DataType::int32, tokens, 1};
  auto sent = comm.dispatch(dispatch);
  sent.ready.wait();

  sluice::CombineArgs combine;
  combine.rows = sent.rows;
  combine.route = sent.route;
  auto home = comm.combine(combine);
  home.ready.wait();
  return sent.host.rows == tokens && std::memcmp(home.rows.data, rows.data(), rows.size() * sizeof(float)) == 0;
}

// An error thrown in the library is caught by its type here.
bool catches_errors() {
  try {
    sluice::Group::threads(0);
  } catch (const sluice::ArgumentError& error) {
    return std::string(error.kind()) == "ArgumentError";
  }
  return false;
}

}  // namespace

int main() {
  auto groups = sluice::Group::threads(2);
  bool right[2] = {false, false};
  std::thread other([&] { right[1] = round_trip(groups[1]); });
  right[0] = round_trip(groups[0]);
  other.join();
  const bool caught = catches_errors();
  std::printf("sluice %s: rank 0 %s, rank 1 %s, errors %s\n", sluice::version(), right[0] ? "right" : "wrong",
              right[1] ? "right" : "wrong", caught ? "caught" : "not caught");
  return right[0] && right[1] && caught ? 0 : 1;
}
