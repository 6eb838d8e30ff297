// How memory is named in a call: a pointer, an element type, a shape and strides. Nothing is owned
// unless `owner` says so.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice {

enum class DataType : std::uint8_t {
  bf16, fp16, fp32,
  e4m3, e5m2,   // float8, one byte each
  int8,
  fp4x2,        // two 4-bit elements in one byte; shapes count bytes
  uint8, int32, int64,
};

// Bytes of one element.
constexpr std::int64_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::bf16: case DataType::fp16: return 2;
    case DataType::fp32: case DataType::int32: return 4;
    case DataType::int64: return 8;
    default: return 1;
  }
}

// "bf16", "fp16", ...
constexpr const char* name_of(DataType type) noexcept {
  constexpr const char* names[] = {"bf16", "fp16", "fp32", "e4m3", "e5m2", "int8", "fp4x2", "uint8", "int32", "int64"};
  return static_cast<int>(type) < 10 ? names[static_cast<int>(type)] : "unknown";
}

// A view of up to three dimensions; strides count elements. A view without dimensions means "not given"
// for optional arguments; a view with a zero in its shape may have a null pointer.
template <class Void>
struct BasicTensorView {
  Void* data = nullptr;
  DataType dtype = DataType::uint8;
  int dims = 0;                                  // 0: not given
  std::array<std::int64_t, 3> shape{0, 0, 0};
  std::array<std::int64_t, 3> strides{0, 0, 0};
  // Keeps the memory alive as long as a view or an operation that uses it lives. Results of dispatch,
  // combine and allocate carry the arena block here: when the last view goes, the block is returned.
  // For arguments it is optional; without it the caller keeps the memory valid until `ready`. What it points to does
  // not matter, null included: it is held, and let go in a thread of the library or in a caller's.
  // What it does then may wait for later operations.
  std::shared_ptr<const void> owner;

  BasicTensorView() = default;
  BasicTensorView(Void* data_, DataType dtype_, std::int64_t n0)
      : data(data_), dtype(dtype_), dims(1), shape{n0, 0, 0}, strides{1, 0, 0} {}
  // Row-major [n0, n1].
  BasicTensorView(Void* data_, DataType dtype_, std::int64_t n0, std::int64_t n1)
      : data(data_), dtype(dtype_), dims(2), shape{n0, n1, 0}, strides{n1, 1, 0} {}
  // Row-major [n0, n1, n2].
  BasicTensorView(Void* data_, DataType dtype_, std::int64_t n0, std::int64_t n1, std::int64_t n2)
      : data(data_), dtype(dtype_), dims(3), shape{n0, n1, n2}, strides{n1 * n2, n2, 1} {}

  bool given() const noexcept { return dims > 0; }
  std::int64_t elements() const noexcept {
    std::int64_t n = dims > 0 ? 1 : 0;
    for (int d = 0; d < dims; ++d) n *= shape[static_cast<std::size_t>(d)];
    return n;
  }
  template <class T>
  auto as() const noexcept {
    return static_cast<std::conditional_t<std::is_const_v<Void>, const T*, T*>>(given() ? data : nullptr);
  }
};

using TensorView = BasicTensorView<void>;

// For arguments that are only read. A TensorView converts to it.
struct ConstTensorView : BasicTensorView<const void> {
  using BasicTensorView<const void>::BasicTensorView;
  ConstTensorView() = default;
  ConstTensorView(const TensorView& view) {  // NOLINT: implicit on purpose
    data = view.data;
    dtype = view.dtype;
    dims = view.dims;
    shape = view.shape;
    strides = view.strides;
    owner = view.owner;
  }
};

}  // namespace sluice
