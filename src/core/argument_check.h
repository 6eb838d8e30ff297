// Small checks that turn an illegal argument into one sentence.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/limits.h>
#include <sluice/tensor.h>

namespace sluice::core {

// What dispatch moves.
inline constexpr std::initializer_list<DataType> types_of_rows = {DataType::bf16, DataType::fp16, DataType::fp32,
                                                                  DataType::e4m3, DataType::e5m2, DataType::int8,
                                                                  DataType::uint8, DataType::fp4x2};

class ArgumentCheck {
 public:
  // `where` must outlive it: a check takes no memory unless it refuses.
  ArgumentCheck(std::string_view where, int rank) : where_(where), rank_(rank) {}

  [[noreturn]] void refuse(const std::string& what) const { throw ArgumentError(fmt::format("{}: {}", where_, what), rank_); }
  void require(bool holds, const char* what) const {
    if (!holds) refuse(what);
  }
  // `limit` says what `high` is, where it is no limit of the documents.
  void between(const char* name, std::int64_t value, std::int64_t low, std::int64_t high, const char* limit = "") const {
    if (value < low || value > high) refuse(fmt::format("{} = {} is outside {} to {}{}", name, value, low, high, limit));
  }

  // An enum with values 0 to last.
  template <class Enum>
  void choice(const char* name, Enum value, Enum last) const {
    between(name, static_cast<std::int64_t>(value), 0, static_cast<std::int64_t>(last));
  }

  // Shape with names: dims -1 are free. `source` says where the others come from.
  template <class View>
  void shape(const char* name, const View& view, std::initializer_list<std::int64_t> dims, const char* source = "") const {
    bool fits = view.dims == static_cast<int>(dims.size());
    std::size_t d = 0;
    for (const std::int64_t n : dims) {
      fits = fits && view.shape[d] >= 0 && view.shape[d] <= limits::elements && (n < 0 || view.shape[d] == n);
      ++d;
    }
    if (!fits) {
      std::string want;
      for (const std::int64_t n : dims) want += (want.empty() ? "" : ", ") + (n < 0 ? "any" : std::to_string(n));
      refuse(fmt::format("{} has shape [{}], but [{}] is needed{}", name, shape_of(view), want, source));
    }
    if (view.elements() > 0 && !view.data) {
      refuse(fmt::format("{} has shape [{}] but a null pointer; null is legal only where the shape has a 0", name, shape_of(view)));
    }
  }

  template <class View>
  void type(const char* name, const View& view, std::initializer_list<DataType> types, const char* cure = "") const {
    type(name, view.dtype, types, cure);
  }
  void type(const char* name, DataType given, std::initializer_list<DataType> types, const char* cure = "") const {
    for (const DataType t : types) {
      if (given == t) return;
    }
    std::string want;
    for (const DataType t : types) want += fmt::format("{}{}", want.empty() ? "" : ", ", name_of(t));
    refuse(fmt::format("{} has element type {}; possible: {}{}", name, name_of(given), want, cure));
  }

  template <class View>
  void row_major(const char* name, const View& view) const {
    std::int64_t stride = 1;
    for (int d = view.dims - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      if (view.shape[at] > 1 && view.strides[at] != stride) refuse(fmt::format("{} must be row-major and contiguous", name));
      stride *= view.shape[at];
    }
  }

  // Elements of a row contiguous, rows at multiples of 16 bytes.
  template <class View>
  void rows(const char* name, const View& view) const {
    const auto last = static_cast<std::size_t>(view.dims - 1);
    if (view.elements() == 0) return;
    if (view.shape[last] > 1 && view.strides[last] != 1) refuse(fmt::format("{}: the elements of a row must be contiguous", name));
    constexpr std::int64_t multiple = limits::row_bytes_multiple;
    const auto past = reinterpret_cast<std::uintptr_t>(view.data) % multiple;
    if (past != 0) {
      refuse(fmt::format("{}: every row must begin at a multiple of {} bytes, but the pointer lies {} behind one", name, multiple, past));
    }
    for (std::size_t d = 0; d < last; ++d) {
      const std::int64_t stride = view.strides[d];
      if (view.shape[d] <= 1) continue;
      if (stride < 0 || stride > limits::elements) {
        refuse(fmt::format("{}: a stride of {} elements is outside 0 to {}", name, stride, limits::elements));
      }
      if (stride * size_of(view.dtype) % multiple == 0) continue;
      refuse(fmt::format("{}: every row must begin at a multiple of {} bytes, but a stride of {} elements has {} bytes", name,
                         multiple, stride, stride * size_of(view.dtype)));
    }
  }

 private:
  template <class View>
  static std::string shape_of(const View& view) {
    std::string text;
    for (int d = 0; d < view.dims && d < 3; ++d) text += (d ? ", " : "") + std::to_string(view.shape[static_cast<std::size_t>(d)]);
    return text;
  }

  std::string_view where_;
  int rank_;
};

}  // namespace sluice::core
