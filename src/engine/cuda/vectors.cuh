// core/numbers.h for vectors of 16 bytes: the hardware's conversions, which give the same bits but for a NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/numbers.h"

namespace sluice::cuda {

// `width` elements as they lie in memory, in words of 4 bytes.
template <DataType type, int width>
struct Vector {
  static constexpr int words = width * static_cast<int>(sizeof(typename numbers::Number<type>::Bits)) / 4;
  std::uint32_t word[words];

  // From memory that is a multiple of the vector's size.
  __device__ void read(const void* at) {
    if constexpr (words == 2) {
      *reinterpret_cast<uint2*>(word) = *static_cast<const uint2*>(at);
    } else {
      for (int i = 0; i < words; i += 4) *reinterpret_cast<uint4*>(word + i) = static_cast<const uint4*>(at)[i / 4];
    }
  }

  __device__ void unpack(float (&x)[width]) const {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (type == DataType::bf16) {
        x[2 * w] = __uint_as_float(word[w] << 16);
        x[2 * w + 1] = __uint_as_float(word[w] & 0xffff0000u);
      } else if constexpr (type == DataType::fp16) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(word + w));
        x[2 * w] = pair.x;
        x[2 * w + 1] = pair.y;
      } else {
        x[w] = __uint_as_float(word[w]);
      }
    }
  }

  __device__ void round(const float (&x)[width]) {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (type == DataType::bf16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * w], x[2 * w + 1]);
        word[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
      } else if constexpr (type == DataType::fp16) {
        const __half2 pair = __floats2half2_rn(x[2 * w], x[2 * w + 1]);
        word[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
      } else {
        word[w] = numbers::bits_of(numbers::canonical(x[w]));
      }
    }
  }

  __device__ bool operator==(const Vector& other) const {
    std::uint32_t different = 0;
#pragma unroll
    for (int w = 0; w < words; ++w) different |= word[w] ^ other.word[w];
    return different == 0;
  }

  // -0 becomes +0, and a NaN some NaN.
  __device__ void add_zero() {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (type == DataType::bf16) add_zero<__nv_bfloat162>(word[w]);
      else if constexpr (type == DataType::fp16) add_zero<__half2>(word[w]);
      else word[w] = numbers::bits_of(numbers::canonical(numbers::sum(0.0f, __uint_as_float(word[w]))));
    }
  }

  // Stays zero unless a NaN or an infinity is among them: zero times those is a NaN, which stays in a sum.
  __device__ std::uint32_t odd(std::uint32_t before) const {
    if constexpr (type == DataType::bf16) return sum_of_zeros<__nv_bfloat162>(before);
    else if constexpr (type == DataType::fp16) return sum_of_zeros<__half2>(before);
    else return before;
  }

  // The NaN of core/numbers.h in the place of the hardware's.
  __device__ void mend_nans() {
    constexpr std::uint32_t infinity = type == DataType::bf16 ? 0x7f80u : 0x7c00u;
    constexpr std::uint32_t nan = type == DataType::bf16 ? numbers::bf16_nan : numbers::fp16_nan;
#pragma unroll
    for (int w = 0; type != DataType::fp32 && w < words; ++w) {
      std::uint32_t low = word[w] & 0xffffu, high = word[w] >> 16;
      if ((low & 0x7fffu) > infinity) low = nan;
      if ((high & 0x7fffu) > infinity) high = nan;
      word[w] = high << 16 | low;
    }
  }

  __device__ void write(void* at) const {
    static_assert(words == 4);
    *static_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(word);
  }

 private:
  template <class Pair>
  __device__ static void add_zero(std::uint32_t& bits) {
    const Pair sum = __hadd2(*reinterpret_cast<const Pair*>(&bits), Pair{0, 0});
    bits = *reinterpret_cast<const std::uint32_t*>(&sum);
  }
  template <class Pair>
  __device__ std::uint32_t sum_of_zeros(std::uint32_t before) const {
    Pair sum = *reinterpret_cast<const Pair*>(&before);
#pragma unroll
    for (int w = 0; w < words; ++w) sum = __hfma2(*reinterpret_cast<const Pair*>(word + w), Pair{0, 0}, sum);
    return *reinterpret_cast<const std::uint32_t*>(&sum);
  }
};

}  // namespace sluice::cuda
